"""Objects that the controller cannot read or write down, each with its reason: all others go on.

Called by the controller (``observing.quarantine``) with the whole present list, so that one that is
mended disappears. The view ``quarantine`` shows them beside the FluxJobs that are set aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass

import orjson

from fluxqueue.db.database import Transaction


@dataclass(frozen=True, slots=True)
class Quarantined:
    """One object. ``kind``: what it is, as ``node``. ``key``: its UID or name."""

    kind: str
    key: str
    namespace: str
    name: str
    reason: str


async def store_quarantined(tx: Transaction, present: Sequence[Quarantined]) -> None:
    """Make the table equal to ``present``. What stands there already keeps its time."""
    rows = orjson.dumps([asdict(one) for one in present]).decode()
    await tx.execute(
        "DELETE FROM quarantined_objects s WHERE NOT EXISTS ("
        " SELECT FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (kind text, key text)"
        " WHERE r.kind = s.kind AND r.key = s.key)",
        rows=rows,
    )
    await tx.execute(
        """
        INSERT INTO quarantined_objects AS s (kind, key, namespace, name, reason)
        SELECT kind, key, namespace, name, reason
        FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
            kind text, key text, namespace text, name text, reason text)
        ORDER BY kind, key
        ON CONFLICT (kind, key) DO UPDATE SET reason = excluded.reason
        WHERE s.reason IS DISTINCT FROM excluded.reason
        """,
        rows=rows,
    )
