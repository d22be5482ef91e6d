"""What rows say that a resync compares with the cluster, read a page at a time.

Called by the controller (``observing.resync_diff``, ``observing.resync_repair``). It writes
nothing: what differs is put right by ``rebuild``, and by what the observer writes anyway.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluxqueue.db.database import Transaction
from fluxqueue.db.tables import LIVING
from fluxqueue.fluxjob.indexes import NO_INDEXES


@dataclass(frozen=True, slots=True)
class RowSeen:
    """What a row says that the cluster can be compared with."""

    uid: str
    jobid: int
    state: str
    version: int
    flux_uid: str | None
    wanted: int
    result: str | None
    is_deleting: bool
    is_gone: bool
    is_suspended: bool
    pods: Mapping[str, tuple[str, bool, bool, str | None]]
    """UID -> (phase, is_gated, is_terminating, node)."""
    ended_indexes: str = NO_INDEXES
    missing: int = 0
    is_cancelled: bool = False


@dataclass(frozen=True, slots=True)
class Present:
    """Rows that are not yet forgotten, and the pods that hold slots of theirs."""

    rows: Mapping[str, RowSeen]
    holders: frozenset[str]


_KEPT = f"(NOT is_gone OR {LIVING})"


async def read_uids(tx: Transaction) -> list[str]:
    """UIDs of all rows that a resync compares with the cluster."""
    rows = await tx.fetch(f"SELECT uid FROM fluxjobs WHERE {_KEPT}")  # noqa: S608 constant
    return [row["uid"] for row in rows]


async def read_present(tx: Transaction, uids: Sequence[str]) -> Present:
    """Read what a resync compares with the cluster of some workloads.

    Rows that are over and gone are among them: an object may be there all the same.
    """
    rows = await tx.fetch(
        "SELECT uid, jobid, state, version, flux_uid, wanted, result, is_deleting, is_gone,"
        " is_suspended, missing, CAST(ended_indexes AS text) AS ended_indexes,"
        " cancel_by IS NOT NULL AS is_cancelled FROM fluxjobs"
        " WHERE uid = ANY(CAST(:uids AS text[]))",
        uids=list(uids),
    )
    return await _present(tx, rows)


async def _present(tx: Transaction, rows: Sequence[Mapping[str, Any]]) -> Present:
    uids = [row["uid"] for row in rows]
    if not uids:
        return Present({}, frozenset())
    pods: dict[str, dict[str, tuple[str, bool, bool, str | None]]] = {}
    for row in await tx.fetch(
        "SELECT workload_uid, uid, phase, is_gated, is_terminating, node FROM pods"
        " WHERE workload_uid = ANY(CAST(:uids AS text[]))",
        uids=uids,
    ):
        fact = (row["phase"], row["is_gated"], row["is_terminating"], row["node"])
        pods.setdefault(row["workload_uid"], {})[row["uid"]] = fact
    holders = await tx.fetch(
        "SELECT s.pod_uid FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id"
        " WHERE a.uid = ANY(CAST(:uids AS text[])) AND s.pod_uid IS NOT NULL",
        uids=uids,
    )
    return Present(
        rows={row["uid"]: RowSeen(**row, pods=pods.get(row["uid"], {})) for row in rows},
        holders=frozenset(row["pod_uid"] for row in holders),
    )
