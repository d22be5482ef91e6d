"""Packages of others, installed for a test: built from a source tree, without a network."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path


def install_into(source: Path, folder: Path) -> Path:
    """Install the package at ``source`` into ``folder``, as pip does. Return the folder.

    The backend that builds it is the one of this project, which is installed here.
    """
    offline = ("--no-index", "--no-deps", "--no-build-isolation", "--disable-pip-version-check")
    subprocess.run(
        [sys.executable, "-m", "pip", "install", "--quiet", *offline, "--target", folder, source],
        check=True,
        capture_output=True,
        text=True,
    )
    return folder
