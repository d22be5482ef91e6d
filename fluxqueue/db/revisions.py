"""The revisions that this code knows, read from the names of their files.

Used by ``migrate`` and by every connection, which says what it knows (``engine.connect_args``).
Reads no database and runs no migration. What *pre* and *post* mean is in ``migrations/README.md``.
"""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import NamedTuple

_PACKAGED = Path(__file__).resolve().parents[1] / "migrations"
MIGRATIONS = _PACKAGED if _PACKAGED.is_dir() else _PACKAGED.parents[1] / "migrations"
"""Inside the installed package, or at the top of the source tree."""


class Revision(NamedTuple):
    """One step. ``is_post``: it is only for databases that no code older than it uses."""

    number: str
    is_post: bool


def known() -> list[Revision]:
    """Return all revisions, oldest first."""
    names = sorted(path.stem for path in (MIGRATIONS / "versions").glob("[0-9]*_*.py"))
    assert names, f"no revisions in {MIGRATIONS}"
    return [Revision(name.split("_")[0], name.split("_")[1] == "post") for name in names]


def head() -> str:
    """Return the newest revision."""
    return known()[-1].number


def digest(number: str) -> str:
    """Return the SHA-256 of the text of all revisions up to ``number``."""
    found = hashlib.sha256()
    for folder in ("versions", "sql"):
        for path in sorted((MIGRATIONS / folder).glob("[0-9]*_*")):
            if path.is_file() and path.name.split("_")[0] <= number:
                found.update(path.name.encode() + b"\n" + path.read_bytes())
    return found.hexdigest()


def startable() -> str:
    """Return the newest *pre* revision.

    From it on this code works, whatever *post* ones follow it.
    """
    return [one.number for one in known() if not one.is_post][-1]


def after(found: str | None, *, until: str | None = None) -> list[Revision]:
    """Return the revisions that a database at ``found`` lacks, up to and with ``until``."""
    steps = known()
    numbers = [one.number for one in steps]
    first = numbers.index(found) + 1 if found in numbers else 0
    last = numbers.index(until) + 1 if until in numbers else len(numbers)
    return steps[first:last]
