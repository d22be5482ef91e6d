"""Notices: Events for a FluxJob's users, beside the reason of its state.

They are written in the transaction that decides or observes them. The next status update brings
them to the cluster (``worker.status``), and the audit trail keeps them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q

UNMANAGED_USE = "UnmanagedUse"
"""Of a workload with a pod that uses more of its node than a slot covers."""


@dataclass(frozen=True, slots=True)
class Notice:
    """A report on a FluxJob. ``event`` is one word, ``key`` is that of the news."""

    uid: str
    event: str
    message: str
    key: str
    is_warning: bool = False


async def leave_notices(tx: Transaction, notices: Sequence[Notice]) -> None:
    """Write them into the audit trail and the rows. The next status update emits the Events."""
    if notices:
        await tx.execute(Q.leave_notices, rows=notices)
