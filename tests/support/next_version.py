"""The next version of fluxqueue, made from this one: for tests of upgrades and rollbacks.

A copy of the code with one more migration of each kind (``migrations/README.md``). The *pre* one
gives the table of FluxJobs a column that this version knows nothing of, and makes a table of its
own. The *post* one takes a column away that this version writes and the next one does not.
"""

from __future__ import annotations

import shutil
import sys
from collections.abc import Sequence
from pathlib import Path

from fluxqueue.db import migrate

REPOSITORY = Path(__file__).parents[2]
COPIED = {
    "fluxqueue": "fluxqueue",
    "webhook/fluxqueue_webhook": "fluxqueue_webhook",
    "devtools/src/fluxqueue_devtools": "fluxqueue_devtools",
    "migrations": "migrations",
    "chart/crds": "chart/crds",
}
"""Folder to its place in the copy."""
PRE, POST = (f"{int(migrate.head()) + step:04d}" for step in (1, 2))
"""The revisions that it adds."""

_PRE = '''"""A column and a table that the version before does not know.

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
_POST = '''"""What the version before writes and this one does not.

Kind: post. Code before this version cannot write nodes any more.
"""

from alembic import op

revision = "{number}"
down_revision = "{before}"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Drop it. Older code starts no more."""
    op.drop_column("nodes", "seen_at")
    op.drop_table("next_things")
    op.execute("UPDATE schema_floor SET oldest_head = '{number}'")


def downgrade() -> None:
    """Not needed here."""
    raise NotImplementedError
'''


def make_next_version(folder: Path) -> Path:
    """Write the next version below ``folder``. Give what its ``PYTHONPATH`` must be."""
    root = folder / "next"
    for part, place in COPIED.items():
        shutil.copytree(
            REPOSITORY / part, root / place, ignore=shutil.ignore_patterns("__pycache__")
        )
    versions = root / "migrations" / "versions"
    for number, before, kind, text in (
        (PRE, migrate.head(), "pre", _PRE),
        (POST, PRE, "post", _POST),
    ):
        (versions / f"{number}_{kind}_next.py").write_text(
            text.format(number=number, before=before)
        )
    tables = root / "fluxqueue" / "db" / "tables.py"
    _replace(
        tables,
        '    Column("blocked_by", Text),\n',
        '    Column("next_note", Text, server_default="next", index=True),\n'
        '    Column("blocked_by", Text),\n',
    )
    seen_at = (
        '    Column("seen_at", DateTime(timezone=True), nullable=False, server_default=_NOW),\n'
    )
    # Another table has such a column, too.
    fact = '    Column("fact", JSONB, nullable=False),\n'
    _replace(tables, fact + seen_at, fact)
    queries = root / "fluxqueue" / "db" / "queries"
    _replace(queries / "cluster_rows.sql", ", seen_at = now()", "")
    return root


def _replace(path: Path, old: str, new: str) -> None:
    text = path.read_text(encoding="utf-8")
    assert text.count(old) == 1, f"{path.name} no longer has exactly one {old!r}"
    path.write_text(text.replace(old, new), encoding="utf-8")


def command_of_next(command: Sequence[str]) -> list[str]:
    """The same command line without the current folder, which would win over ``PYTHONPATH``."""
    assert list(command[:2]) == [sys.executable, "-m"], command
    return [sys.executable, "-P", *command[1:]]
