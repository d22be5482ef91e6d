"""Things that are dear to make, made once for all processes of a test run.

Used by the fixtures in ``tests/conftest.py``. What is shared must not be changed by any test.
"""

from __future__ import annotations

import fcntl
import os
from collections.abc import Callable
from pathlib import Path

import pytest


def shared_folder(factory: pytest.TempPathFactory) -> Path:
    """A folder of this run that all its processes have in common."""
    own = factory.getbasetemp()
    return own.parent if os.environ.get("PYTEST_XDIST_WORKER") else own


def made_once(folder: Path, make: Callable[[Path], object]) -> Path:
    """Call ``make(folder)`` in the first process that gets here. The others wait until it is done.

    ``folder`` is there, and empty, when ``make`` is called. If that fails the next one tries again,
    in what is left.
    """
    folder.mkdir(parents=True, exist_ok=True)
    is_made = folder.with_name(f"{folder.name}.made")
    with folder.with_name(f"{folder.name}.lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not is_made.exists():
            make(folder)
            is_made.touch()
    return folder
