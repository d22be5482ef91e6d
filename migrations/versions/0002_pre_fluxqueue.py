"""fluxqueue's own tables, the triggers that guard their states, and the views for people.

Kind: pre. Creates only. The text is frozen by ``migrations/freeze.py``.
"""

from __future__ import annotations

from fluxqueue.db.migrate import run_sql_file

revision = "0002"
down_revision = "0001"
branch_labels = None
depends_on = None


def upgrade() -> None:
    """Create everything."""
    run_sql_file("0002_fluxqueue_up.sql")


def downgrade() -> None:
    """Drop everything, with all data. The objects of the cluster can fill it again."""
    run_sql_file("0002_fluxqueue_down.sql")
