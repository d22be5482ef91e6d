"""Objects that the controller cannot read or write down, each with its reason: all others go on.

Called by the controller (``observing.quarantine``) with the whole present list, so that one that is
mended disappears. The view ``quarantine`` shows them beside the FluxJobs that are set aside.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q


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
    await tx.execute(Q.drop_quarantined, rows=present)
    await tx.execute(Q.store_quarantined, rows=present)
