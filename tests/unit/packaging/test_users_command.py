"""What a user of a cluster installs: the wheel with its base dependencies, or the krew plugin."""

from __future__ import annotations

import hashlib
import json
import os
import runpy
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path
from typing import Any

import pytest

from fluxqueue import __version__
from tests.support.wheel import ROOT, Installation, clean_environ, pins, run

krew: dict[str, Any] = runpy.run_path(str(ROOT / ".ci" / "krew.py"))

KUBECONFIG = """
current-context: here
contexts: [{name: here, context: {cluster: here, user: me}}]
clusters: [{name: here, cluster: {server: "http://127.0.0.1:9"}}]
users: [{name: me, user: {token: none}}]
"""
SIZE_MAX_MB = 110
"""An environment with pip and compiled files. With the server's packages it had 390 MB."""


def make_plugin(wheel: Path, folder: Path) -> dict[str, Any]:
    """Run the script as ``make krew`` does. Returns the manifest."""
    folder.mkdir(exist_ok=True)
    shutil.copy(wheel, folder)
    assert krew["main"]([__version__, str(folder)]) == 0
    manifest: dict[str, Any] = json.loads((folder / "fluxqueue.yaml").read_text())
    return manifest


def test_the_manifest_fits_its_archive(wheel: Path, tmp_path: Path) -> None:
    """krew compares the sum, unpacks the files and links the command."""
    manifest = make_plugin(wheel, tmp_path)
    (platform,) = manifest["spec"]["platforms"]
    archive = tmp_path / platform["uri"].rpartition("/")[2]
    assert hashlib.sha256(archive.read_bytes()).hexdigest() == platform["sha256"]
    assert manifest["spec"]["version"] == f"v{__version__}"
    assert len(manifest["spec"]["shortDescription"]) <= 50, "krew's rule for its index"
    with tarfile.open(archive) as tar:
        entries = {one.name: one for one in tar.getmembers()}
    assert set(entries) == {*krew["FILES"], wheel.name}
    assert entries[platform["bin"]].mode & 0o111
    assert all(one.mtime == 0 and one.uid == 0 for one in entries.values())


def test_two_archives_are_the_same_bytes(wheel: Path, tmp_path: Path) -> None:
    """Whatever the clock says, as for the wheel itself."""
    first, second = (make_plugin(wheel, tmp_path / name) for name in "ab")
    assert first == second


def test_a_missing_wheel_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit):
        krew["main"]([__version__, str(tmp_path)])
    assert "Fix: make wheel" in capsys.readouterr().err


def test_the_launcher_names_the_python_that_it_needs(tmp_path: Path) -> None:
    """Where there is none, or only an older one."""
    shutil.copy(krew["FILES"]["kubectl-fluxqueue"], tmp_path)
    programs = tmp_path / "programs"
    programs.mkdir()
    for name in ("sh", "dirname", "readlink"):
        found = shutil.which(name)
        assert found is not None
        (programs / name).symlink_to(found)
    (programs / "python3").write_text("#!/bin/sh\nexit 1\n")
    (programs / "python3").chmod(0o755)
    done = subprocess.run(
        [tmp_path / "kubectl-fluxqueue", "jobs"],
        env={"PATH": str(programs)},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 1
    assert "Python 3.11 or newer" in done.stderr
    assert not (tmp_path / "env").exists()


@pytest.mark.long("installs the packages of the users' command line from the package index")
@pytest.mark.usefixtures("package_index")
def test_the_plugin_runs_where_nothing_of_ours_is(wheel: Path, tmp_path: Path) -> None:
    """Through krew's link, with only the packages of the lock file, from its second run at once."""
    make_plugin(wheel, tmp_path)
    store = tmp_path / "store"
    with tarfile.open(tmp_path / krew["archive_name"](__version__)) as tar:
        tar.extractall(store, filter="data")
    command = tmp_path / "bin" / "kubectl-fluxqueue"
    command.parent.mkdir()
    command.symlink_to(store / "kubectl-fluxqueue")
    environ = {"FLUXQUEUE_PYTHON": sys.executable}
    assert f"fluxqueue {__version__}" in run(command, "--version", cwd=tmp_path, **environ)
    assert run(command, "--version", cwd=tmp_path) == f"fluxqueue {__version__}\n"

    found = Installation(store / "env")
    listed = json.loads(run(found.python, "-m", "pip", "list", "--format", "json", cwd=tmp_path))
    names = {one["name"].lower().replace("_", "-") for one in listed}
    locked = pins("requirements/cli.lock").keys()
    assert {"fluxqueue-k8s"} <= names <= {*locked, "fluxqueue-k8s", "pip", "setuptools"}
    size_mb = sum(path.stat().st_size for path in found.folder.rglob("*") if path.is_file()) / 1e6
    assert size_mb < SIZE_MAX_MB

    (tmp_path / "kubeconfig").write_text(KUBECONFIG)
    refused = _run(command, "jobs", KUBECONFIG=str(tmp_path / "kubeconfig"))
    assert refused.returncode == 1
    assert "127.0.0.1:9" in refused.stderr
    assert "Usage" in run(found.fluxqueue, "db", "upgrade", "--help", cwd=tmp_path)
    asked = _run(found.fluxqueue, "db", "check", DATABASE_URL="postgresql://127.0.0.1:9/x")
    assert asked.returncode == 1
    assert asked.stderr == (
        "fluxqueue: this command needs the package alembic, which is not installed "
        "(pip install 'fluxqueue-k8s[server]')\n"
    )
    # kubectl asks this one for the words that may follow.
    words = run(found.python.parent / "kubectl_complete-fluxqueue", "__complete", "j", cwd=tmp_path)
    assert "jobs" in words


def _run(*command: str | Path, **environ: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [os.fspath(word) for word in command],
        env=clean_environ(**environ),
        capture_output=True,
        text=True,
        check=False,
    )
