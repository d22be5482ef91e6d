"""Files of other projects' public repositories, for tests that must understand them as they are.

Nothing of them is stored here. ``FLUXQUEUE_UPSTREAM`` names a folder with a git repository (bare or
not) for each project, ``OWNER/NAME``. Tests that need one are skipped without it, and say so.
"""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import pytest

VARIABLE = "FLUXQUEUE_UPSTREAM"

SHARED = Path(os.environ.get("FLUXQUEUE_SHARED", Path(__file__).parents[3] / "shared"))
"""Recordings, cases and original manifests. They are never part of the repository."""
MANIFESTS = SHARED / "manifests"


class UpstreamFiles:
    """The newest commit of one repository."""

    def __init__(self, repository: str) -> None:
        folder = os.environ.get(VARIABLE)
        if not folder:
            pytest.skip(f"{VARIABLE} names no folder with {repository}")
        self._path = Path(folder) / repository
        if not self._path.exists():
            pytest.skip(f"{self._path} does not exist: clone https://github.com/{repository} there")

    def _git(self, *arguments: str) -> str:
        command = ["git", "-C", str(self._path), *arguments]
        return subprocess.run(command, check=True, capture_output=True, text=True).stdout

    def names(self, below: str) -> list[str]:
        """Return the paths of the files below a folder."""
        found = self._git("ls-tree", "-r", "--name-only", "HEAD", "--", f"{below}/")
        return found.splitlines()

    def text(self, path: str) -> str:
        """Return the content of a file."""
        return self._git("show", f"HEAD:{path}")
