"""Repairs of drift: each kind that has a safe repair, under the rows' locks, looked at anew.

The worker's ``maintain`` calls it for drift that it has seen twice. Drift means a defect of
fluxqueue or a manual change in the tables. Nothing here stops a pod or moves one. Drift without a
safe repair is left to people, with the way out (docs/admin/runbook.md).
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, NamedTuple

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
from fluxqueue.db.store.cluster_rows import tell_matcher
from fluxqueue.db.store.moves import Moved, apply_move
from fluxqueue.fluxjob.lifecycle import ALLOCATION_LOST
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.parse import read_stored
from fluxqueue.jobspec.shape import slot_needs, takes_whole_nodes

OVER_CAPACITY = "node over capacity"
ENDED_HOLDS = "ended workload holds an allocation"
NO_ALLOCATION = "running workload without an allocation"
NOT_RETURNED = "slot of an ended allocation not returned"
NO_SLOT = "ungated pod without a slot"

WAY_OUT: Mapping[str, str] = {
    OVER_CAPACITY: "passes when pods on it end; kubectl drain it if it must pass now",
    ENDED_HOLDS: "its pods still run and hold it; delete them if they should not",
    NO_ALLOCATION: "see docs/admin/runbook.md, 'drift that stays'",
    NOT_RETURNED: "see docs/admin/runbook.md, 'drift that stays'",
    NO_SLOT: "it has ended or is not bound; delete the pod if it should not be there",
}
"""What people can do where the repair does not apply."""


class NotDueRow(NamedTuple):
    """An allocation of a workload that does not run. ``is_used``: pods hold slots of it."""

    uid: str
    id: int
    is_over: bool
    is_used: bool


async def repair(database: Database, invariant: str) -> int:
    """Repair what can be repaired safely of one kind of drift, and return how many places."""
    mend = _REPAIRS.get(invariant)
    if mend is None:
        return 0
    async with database.begin() as tx:
        return await mend(tx)


async def _return_slots(tx: Transaction) -> int:
    """Free the slots that no allocation holds."""
    ended = await tx.fetch(Q.return_slots, str)
    await tell_matcher(tx, "allocation", ended)
    return len(ended)


async def _end_allocations(tx: Transaction) -> int:
    """End allocations that nothing uses.

    An allocation with running pods is given back to its workload.
    """
    rows = await tx.fetch(Q.allocations_not_due, NotDueRow)
    idle = [row.id for row in rows if not row.is_used]
    await tx.execute(Q.end_allocations, ids=idle)
    await _return_slots(tx)
    back = [row.uid for row in rows if row.is_used and not row.is_over]
    await _set_allocated(tx, back)
    return len(idle) + len(back)


async def _give_allocations(tx: Transaction) -> int:
    """Give running workloads without an allocation one for what runs.

    A workload that does not run waits again.
    """
    uids = await tx.fetch(Q.running_without_allocation, str)
    adopted = await _adopt(tx, uids)
    idle = [uid for uid in uids if uid not in adopted]
    await apply_move(
        tx,
        ALLOCATION_LOST,
        [Moved(uid, "what it was given is lost") for uid in idle],
        query=Q.move_without_allocation,
    )
    return len(uids)


async def _give_slots(tx: Transaction) -> int:
    """Give each running pod without a slot a slot where it runs."""
    states = dict(await tx.fetch(Q.pods_without_slots, columns))
    adopted = await _adopt(tx, list(states))
    waiting = [uid for uid, state in states.items() if state not in {"Allocated", "Running"}]
    await _set_allocated(tx, [uid for uid in waiting if uid in adopted])
    return len(adopted)


async def _set_allocated(tx: Transaction, uids: Sequence[str]) -> None:
    """Set them to ``Allocated`` by way of ``Pending``, the only state that leads there."""
    for state in ("Pending", "Allocated"):
        await tx.execute(
            Q.set_allocated,
            state=state,
            uids=list(uids),
        )


async def _adopt(tx: Transaction, uids: Sequence[str]) -> set[str]:
    """Give slots to bound pods of ``uids`` that have none, and return workloads with such pods."""
    asked = await tx.fetch(Q.requests_of, columns, uids=list(uids))
    terms = [_terms(uid, read_stored(request)) for uid, request in asked]
    made = await tx.fetch(Q.adopt_allocations, int, uids=list(uids), requests=terms)
    slots = await tx.fetch(Q.adopt_slots, columns, uids=list(uids), requests=terms)
    changed = {*made, *(allocation_id for allocation_id, _ in slots)}
    await tell_matcher(tx, "allocation", sorted(str(one) for one in changed))
    adopted = {uid for _, uid in slots}
    await tx.execute(Q.reconcile_now, uids=sorted(adopted))
    return adopted


def _terms(uid: str, jobspec: Jobspec) -> dict[str, Any]:
    """Return what a pod's slot takes of a request: the first of several kinds of slots."""
    needs = next(slot_needs(jobspec), ())
    return {"uid": uid, "is_exclusive": takes_whole_nodes(jobspec), "needs": dict(needs)}


_REPAIRS: Mapping[str, Callable[[Transaction], Awaitable[int]]] = {
    NOT_RETURNED: _return_slots,
    ENDED_HOLDS: _end_allocations,
    NO_ALLOCATION: _give_allocations,
    NO_SLOT: _give_slots,
}
