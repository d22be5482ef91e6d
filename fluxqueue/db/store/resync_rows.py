"""What rows say that a resync compares with the cluster, read a page at a time.

Called by the controller (``observing.resync_diff``, ``observing.resync_repair``). It writes
nothing: what differs is put right by ``rebuild``, and by what the observer writes anyway.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
from fluxqueue.fluxjob.facts import WorkloadFacts


@dataclass(frozen=True, slots=True)
class RowSeen:
    """What a row says that the cluster can be compared with."""

    uid: str
    jobid: int
    state: str
    version: int
    flux_uid: str | None
    observed: Mapping[str, Any]
    result: str | None
    is_deleting: bool
    is_gone: bool
    is_cancelled: bool = False
    pods: Mapping[str, tuple[str, bool, bool, str | None]] = field(default_factory=dict)
    """UID -> (phase, is_gated, is_terminating, node)."""

    @property
    def facts(self) -> WorkloadFacts:
        """Return what was last seen of its workload."""
        return WorkloadFacts.of(self.observed)


@dataclass(frozen=True, slots=True)
class Present:
    """Rows that are not yet forgotten, and the pods that hold slots of theirs."""

    rows: Mapping[str, RowSeen]
    holders: frozenset[str]


async def read_uids(tx: Transaction) -> list[str]:
    """UIDs of all rows that a resync compares with the cluster."""
    return await tx.fetch(Q.compared_uids, str)


async def read_present(tx: Transaction, uids: Sequence[str]) -> Present:
    """Read what a resync compares with the cluster of some workloads.

    Rows that are over and gone are among them: an object may be there all the same.
    """
    rows = {row.uid: row for row in await tx.fetch(Q.rows_seen, RowSeen, uids=list(uids))}
    if not rows:
        return Present({}, frozenset())
    pods: dict[str, dict[str, Any]] = defaultdict(dict)
    for uid, pod, *fact in await tx.fetch(Q.pods_seen, columns, uids=list(rows)):
        pods[uid][pod] = tuple(fact)
    return Present(
        rows={uid: replace(row, pods=pods[uid]) for uid, row in rows.items()},
        holders=frozenset(await tx.fetch(Q.slot_holders, str, uids=list(rows))),
    )
