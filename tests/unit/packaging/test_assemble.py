"""images/assemble in a clean environment: the steps of the Dockerfile, without an engine.

Needs a package index, as `make` does, and is skipped where none answers.
"""

from __future__ import annotations

import json
import re
import signal
import subprocess
import sys
from datetime import UTC, datetime
from pathlib import Path

import pytest

from fluxqueue.process.certs.folder import ensure
from tests.support.wheel import BUILT_AT, ROOT, Installation, clean_environ, pins, run

pytestmark = [
    pytest.mark.long("installs the packages of both images, and compiles them"),
    pytest.mark.slow,
    pytest.mark.timeout(1200),
]

COMMANDS = ("fluxqueue", "kubectl-fluxqueue", "kubectl_complete-fluxqueue")
"""Of ours. None of them runs in the webhook's image."""
ONE_PROCESS = pytest.mark.xdist_group("webhook image")
"""For the tests that look at the same files: they are made once."""

ASSEMBLE_S = 900
STOP_S = 60
NOT_NEEDED = ("kopf", "kubernetes", "sqlalchemy", "psycopg", "procrastinate", "numpy", "typer")
OWN = "fluxqueue-k8s"


def assemble(lock: str, target: Path, wheel: Path, *left_out: str) -> Installation:
    """Run the script as the Dockerfile does, in the environment of these tests."""
    done = subprocess.run(
        ["images/assemble", lock, str(target), *left_out],
        cwd=ROOT,
        env=clean_environ(
            BUILD=sys.prefix, DIST=str(wheel.parent), SOURCE_DATE_EPOCH=str(BUILT_AT)
        ),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=ASSEMBLE_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    return Installation(target)


@pytest.fixture(scope="module")
def webhook_files(
    package_index: None, wheel: Path, tmp_path_factory: pytest.TempPathFactory
) -> Installation:
    """The files of the webhook's image."""
    target = tmp_path_factory.mktemp("webhook") / "env"
    lock = "requirements/webhook.lock"
    return assemble(lock, target, wheel, *COMMANDS)


@ONE_PROCESS
def test_the_webhook_serves_with_nothing_but_its_own_packages(
    webhook_files: Installation, tmp_path: Path
) -> None:
    """Imported whole, started and ended, where the scheduler's packages do not exist."""
    for name in NOT_NEEDED:
        said = run(
            *(webhook_files.python, "-c"),
            f"import importlib.util; print(importlib.util.find_spec({name!r}))",
            cwd=tmp_path,
        )
        assert said == "None\n", name
    run(
        *(webhook_files.python, "-c"),
        "import importlib, pkgutil, fluxqueue_webhook\n"
        "for m in pkgutil.iter_modules(fluxqueue_webhook.__path__):\n"
        "    importlib.import_module('fluxqueue_webhook.' + m.name)",
        cwd=tmp_path,
    )
    ensure(tmp_path / "certs", ["localhost"], now=datetime.now(tz=UTC))
    command = [webhook_files.python, "-m", "fluxqueue_webhook", "--cert-dir", tmp_path / "certs"]
    with subprocess.Popen(
        [*map(str, command), "--port", "0", "--host", "127.0.0.1"],
        cwd=tmp_path,
        env=clean_environ(),
        stdout=subprocess.PIPE,
        text=True,
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        assert any(line.startswith("ready https://127.0.0.1:") for line in lines)
        process.send_signal(signal.SIGTERM)
        assert process.wait(STOP_S) == 0


def normal(name: str) -> str:
    """A package's name as in lock files."""
    return re.sub(r"[-_.]+", "-", name).lower()


@ONE_PROCESS
def test_it_lists_its_parts(webhook_files: Installation) -> None:
    """The SBOM names what the lock file installs here, and us. It is dated like all else."""
    listed = json.loads((webhook_files.folder / "sbom.cdx.json").read_text(encoding="utf-8"))
    found = {normal(part["name"]): part["version"] for part in listed["components"]}
    locked = pins("requirements/webhook.lock")
    installed = {name: version for name, version in found.items() if name != OWN}
    assert {name: locked.get(name) for name in installed} == installed
    assert {"aiohttp", "cryptography", "orjson", "pyyaml"} <= installed.keys()
    assert listed["metadata"]["component"]["name"] == OWN
    made_at = datetime.fromisoformat(listed["metadata"]["timestamp"])
    assert made_at.timestamp() == BUILT_AT
    assert "serialNumber" not in listed, "it would be a random one"


@ONE_PROCESS
def test_no_file_tells_when_or_where_it_was_made(webhook_files: Installation) -> None:
    """All of one time, compiled without time stamps, no command of ours that could not run."""
    files = [path for path in webhook_files.folder.rglob("*") if not path.is_symlink()]
    assert {int(path.stat().st_mtime) for path in files} == {BUILT_AT}
    compiled = [path for path in files if path.suffix == ".pyc"]
    assert len(compiled) > 200
    for path in compiled:
        flags = int.from_bytes(path.read_bytes()[4:8], "little")
        assert flags == 0b01, f"{path}: neither a time stamp nor a check of the source"
    assert not re.search(
        "fluxqueue", " ".join(p.name for p in webhook_files.python.parent.iterdir())
    )


@pytest.mark.usefixtures("package_index")
def test_the_other_image_has_all_that_its_commands_import(wheel: Path, tmp_path: Path) -> None:
    """controller, worker, migrations, and nothing of the cluster that demos and tests run on.

    Some modules are left out. One runs only in Alembic. The adapters run only beside their program.
    """
    found = assemble("requirements/runtime.lock", tmp_path / "env", wheel)
    run(
        *(found.python, "-c"),
        "import importlib, pkgutil, fluxqueue\n"
        "for m in pkgutil.walk_packages(fluxqueue.__path__, 'fluxqueue.'):\n"
        "    if m.name in ('fluxqueue.migrations.env',"
        " 'fluxqueue.client.parsl_provider', 'fluxqueue.client.dask_cluster',"
        " 'fluxqueue.client.airflow_operator', 'fluxqueue.client.psij_executor'): continue\n"
        "    if not m.name.endswith('.__main__'):\n"
        "        importlib.import_module(m.name)",
        cwd=tmp_path,
    )
    there = "import importlib.util; print(importlib.util.find_spec('localcluster'))"
    assert run(found.python, "-c", there, cwd=tmp_path) == "None\n"
    assert "Usage" in run(found.fluxqueue, "--help", cwd=tmp_path)
    assert (found.folder / "sbom.cdx.json").is_file()
