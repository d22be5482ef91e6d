"""localcluster as its users have it: a clone of that folder, an environment without fluxqueue."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.wheel import ROOT, clean_environ, run

pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(1800),
    pytest.mark.usefixtures("package_index"),
]

TESTS_S = 1500
FOUND = "import importlib.util as u; print(u.find_spec('fluxqueue'), u.find_spec('localcluster'))"


@pytest.mark.long("installs an environment from the package index and runs localcluster's tests")
def test_its_tests_pass_where_nothing_of_ours_is(tmp_path: Path) -> None:
    """They find recordings, plugin and command without anything that lies beside the folder."""
    left_out = shutil.ignore_patterns("__pycache__", ".*_cache", ".hypothesis")
    clone = shutil.copytree(ROOT / "localcluster", tmp_path / "clone", ignore=left_out)
    run(sys.executable, "-m", "venv", tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    pip = (python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check")
    run(*pip, f"{clone}[dev]", cwd=tmp_path)
    assert run(python, "-c", FOUND, cwd=tmp_path).startswith("None ModuleSpec")
    done = subprocess.run(
        [python, "-m", "pytest", "-q", "-n", "4", "--dist", "worksteal", "-m", "not long"],
        cwd=clone,
        env=clean_environ(),
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=TESTS_S,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert " passed" in done.stdout.splitlines()[-1]
