"""The wheel: all that runs needs, the same bytes each time, and it works away from its sources."""

from __future__ import annotations

import hashlib
import zipfile
from pathlib import Path

import pytest

from tests.support.wheel import ROOT, Installation, build_wheel, run

PACKAGES = {
    "fluxqueue": "fluxqueue",
    "webhook/fluxqueue_webhook": "fluxqueue_webhook",
    "migrations": "fluxqueue/migrations",
    "chart/crds": "fluxqueue/crds",
    "psij-descriptors": "psij-descriptors",
}
"""Folder of the tree to its place in the wheel."""
TOP = {"fluxqueue", "fluxqueue_webhook", "psij-descriptors"}
"""All that an installation puts into site-packages. PSI/J asks all projects for the last name."""


def test_it_has_every_file_of_the_packages(wheel: Path) -> None:
    """Modules, SQL, templates and markers. What is in the tree and not in the wheel is named."""
    wanted = {
        f"{place}/{path.relative_to(ROOT / folder)}"
        for folder, place in PACKAGES.items()
        for path in (ROOT / folder).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }
    files = ("policies.yaml", "released-pods.yaml", "roles.yaml", "ungrouped-pods.yaml")
    wanted |= {f"fluxqueue/files/{name}" for name in files}
    with zipfile.ZipFile(wheel) as archive:
        names = archive.namelist()
    assert {name for name in names if ".dist-info/" not in name} == wanted
    assert {"fluxqueue/py.typed", "fluxqueue_webhook/py.typed"} <= wanted
    tops = {name.partition("/")[0] for name in names}
    assert {name for name in tops if not name.endswith(".dist-info")} == TOP
    assert wheel.name.startswith("fluxqueue_k8s-")


@pytest.mark.long("starts processes of its own, for seconds of processor time")
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
        "import fluxqueue, fluxqueue_webhook\n"
        "from fluxqueue.db.revisions import MIGRATIONS\n"
        "print(fluxqueue.__file__, fluxqueue_webhook.__file__, MIGRATIONS)",
        cwd=tmp_path,
    ).split()
    assert len(places) == 3
    assert all(Path(place).is_relative_to(installation.folder) for place in places)
    assert run(installation.fluxqueue, "--version", cwd=tmp_path).startswith("fluxqueue ")


@pytest.mark.long("starts processes of its own, for seconds of processor time")
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
        "from fluxqueue.kube.installation import read_crds\n"
        "for one in read_crds(): print(one['metadata']['name'])",
        cwd=tmp_path,
    )
    group = "jobs.converged-computing.org"
    assert names.split() == [
        f"{one}.{group}"
        for one in (
            "fluxjobs",
            "fluxnodepools",
            "fluxqueues",
            "fluxreservations",
            "placementreviews",
            "resourcesharingpolicies",
        )
    ]
