"""The next version of fluxqueue, made from this one: for tests of upgrades and rollbacks.

A copy of the code that names itself so in its database connections, with one more migration of the
kind that runs before new code starts (``migrations/README.md``). Its table of FluxJobs has a column
that this version knows nothing of, and it has a table of its own.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from fluxqueue.db import migrate

REPOSITORY = Path(__file__).parents[2]
COPIED = ("fluxqueue", "webhook", "migrations", "chart/crds")
APPLICATION = "fluxqueue-next-"
"""What the ``application_name`` of its connections begins with."""

_REVISION = '''"""A column and a table that the version before does not know.

Kind: pre. Adds only.
"""

import sqlalchemy as sa
from alembic import op

revision = "{number}"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Add them."""
    op.add_column("fluxjobs", sa.Column("next_note", sa.Text, server_default="next"))
    op.create_index("ix_fluxjobs_next_note", "fluxjobs", ["next_note"])
    op.create_table("next_things", sa.Column("id", sa.Integer, primary_key=True))


def downgrade() -> None:
    """Drop them."""
    op.drop_table("next_things")
    op.drop_index("ix_fluxjobs_next_note", "fluxjobs")
    op.drop_column("fluxjobs", "next_note")
'''


def make_next_version(folder: Path) -> Path:
    """Write the next version below ``folder``; give what its ``PYTHONPATH`` must be."""
    root = folder / "next"
    for part in COPIED:
        shutil.copytree(
            REPOSITORY / part, root / part, ignore=shutil.ignore_patterns("__pycache__")
        )
    before = migrate.head()
    number = f"{int(before) + 1:04d}"
    text = _REVISION.format(number=number, before=before)
    (root / "migrations" / "versions" / f"{number}_pre_next.py").write_text(text)
    _replace(
        root / "fluxqueue" / "db" / "engine.py", '"fluxqueue-{role}"', f'"{APPLICATION}{{role}}"'
    )
    _replace(
        root / "fluxqueue" / "db" / "tables.py",
        '    Column("flux_rv", Text, ',
        '    Column("next_note", Text, server_default="next", index=True),\n'
        '    Column("flux_rv", Text, ',
    )
    return root


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path.name} no longer has exactly one {old!r}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def command_of_next(command: Sequence[str]) -> list[str]:
    """The same command line without the current folder, which would win over ``PYTHONPATH``."""
    assert list(command[:2]) == [sys.executable, "-m"], command
    return [sys.executable, "-P", *command[1:]]
