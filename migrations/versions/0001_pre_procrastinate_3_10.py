"""procrastinate 3.10 in a Postgres schema of its own.

Kind: pre. Creates only. Procrastinate tracks no versions itself, so its schema is part of our one
history. ``fluxqueue.db.migrate.check_procrastinate`` compares the installed package with it.
"""

from __future__ import annotations

from alembic import op

from fluxqueue.db.migrate import run_sql_file

revision = "0001"
down_revision = None
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create the schema ``procrastinate`` and everything in it."""
    op.execute("CREATE SCHEMA procrastinate")
    op.execute("SET LOCAL search_path TO procrastinate")
    run_sql_file("0001_procrastinate_3_10.sql")
    op.execute("SET LOCAL search_path TO public")


def downgrade() -> None:
    """Drop the schema with all its tasks."""
    op.execute("DROP SCHEMA procrastinate CASCADE")
