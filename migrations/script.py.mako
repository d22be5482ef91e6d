"""${message}

Kind: pre (runs before the new code) or post (runs after the old code is gone)?
Say here what it locks and for how long.
"""

from __future__ import annotations

import sqlalchemy as sa
from alembic import op
${imports if imports else ""}
revision = ${repr(up_revision)}
down_revision = ${repr(down_revision)}
branch_labels = ${repr(branch_labels)}
depends_on = ${repr(depends_on)}


def upgrade() -> None:
    """Apply."""
    ${upgrades if upgrades else "pass"}


def downgrade() -> None:
    """Undo, or raise and say why it cannot be undone."""
    ${downgrades if downgrades else "pass"}
