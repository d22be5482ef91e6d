"""The wheel: all that runs needs, the same bytes each time, and it works away from its sources."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

from tests.support.wheel import ROOT, Installation, build_wheel, run

PACKAGES = ("fluxqueue", "webhook", "migrations")


def test_it_has_every_file_of_the_packages(wheel: Path) -> None:
    """Modules, SQL, templates and markers; what is in the tree and not in the wheel is named."""
    wanted = {
        str(path.relative_to(ROOT))
        for package in PACKAGES
        for path in (ROOT / package).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    wanted |= {f"fluxqueue/crds/{path.name}" for path in (ROOT / "chart" / "crds").glob("*.yaml")}
    wanted.add("fluxqueue/files/policies.yaml")
    with zipfile.ZipFile(wheel) as archive:
        there = {name for name in archive.namelist() if ".dist-info/" not in name}
    assert there == wanted
    assert {"fluxqueue/py.typed", "webhook/py.typed", "fluxqueue/crds/fluxjobs.yaml"} <= there
    assert any(name.startswith("migrations/sql/") for name in there)


def test_two_builds_are_the_same_bytes(tmp_path: Path) -> None:
    """With SOURCE_DATE_EPOCH, which `make images` sets to the time of the commit."""
    first, second = (
        hashlib.sha256(build_wheel(tmp_path / name).read_bytes()).hexdigest() for name in "ab"
    )
    assert first == second


def test_it_runs_from_anywhere_and_never_from_the_source_tree(
    installation: Installation, tmp_path: Path
) -> None:
    """Otherwise all other tests here would prove nothing."""
    places = run(
        *(installation.python, "-c"),
        "import fluxqueue, webhook, migrations\n"
        "for m in (fluxqueue, webhook, migrations): print(m.__file__)",
        cwd=tmp_path,
    ).split()
    assert len(places) == len(PACKAGES)
    assert all(Path(place).is_relative_to(installation.folder) for place in places)
    assert run(installation.fluxqueue, "--version", cwd=tmp_path).startswith("fluxqueue ")


def test_its_migrations_make_a_database(
    installation: Installation, empty_database_url: str, tmp_path: Path
) -> None:
    """`db upgrade` from nothing to what the installed code wants, and back."""
    environ = {"DATABASE_URL": empty_database_url}
    run(installation.fluxqueue, "db", "upgrade", cwd=tmp_path, **environ)
    said = run(installation.fluxqueue, "db", "check", cwd=tmp_path, **environ)
    assert said == "the database and the code agree\n"
    assert "none" in run(installation.fluxqueue, "db", "downgrade", "base", cwd=tmp_path, **environ)


def test_it_carries_our_definitions(installation: Installation, tmp_path: Path) -> None:
    """`fluxqueue install` and `up` read it from the package, not from chart/."""
    names = run(
        *(installation.python, "-c"),
        "from fluxqueue.kube.install import read_crds\n"
        "for one in read_crds(): print(one['metadata']['name'])",
        cwd=tmp_path,
    )
    group = "jobs.converged-computing.org"
    assert names.split() == [
        f"{one}.{group}" for one in ("fluxjobs", "fluxqueues", "placementreviews")
    ]
