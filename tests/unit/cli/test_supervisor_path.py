"""A part that ``up`` starts does not import what lies in the working directory."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from fluxqueue_devtools.supervisor import python

SHADOWS = ("secrets.py", "heapq.py", "numbers.py", "yaml.py", "kopf/__init__.py")


@pytest.mark.cases_long("the other modules")
@pytest.mark.parametrize("module", ["fluxqueue", "fluxqueue_webhook", "localcluster"])
def test_a_users_modules_are_not_imported(tmp_path: Path, module: str) -> None:
    """A script of the user's that has a library module's name lies where the command runs."""
    for name in SHADOWS:
        file = tmp_path / name
        file.parent.mkdir(exist_ok=True)
        file.write_text("raise SystemExit('a file of the working directory was executed')\n")
    ran = subprocess.run(
        python(module, "--help"), cwd=tmp_path, capture_output=True, text=True, check=False
    )
    assert ran.returncode == 0, ran.stderr
    assert "usage" in ran.stdout.lower()
