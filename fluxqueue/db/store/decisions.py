"""Writes of the ``schedule`` task: what a cycle has decided.

``worker.schedule`` calls it in one transaction per cycle, which holds the matcher's term. All
decisions of a cycle become visible together or not at all.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from operator import itemgetter
from types import MappingProxyType

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
from fluxqueue.db.store.moves import Moved, apply_move, give_reasons
from fluxqueue.fluxjob.holders import SOME_WAIT
from fluxqueue.fluxjob.lifecycle import OUT_OF_SIGHT, RESERVED, STARTED, WAITING
from fluxqueue.fluxjob.states import RELEASED
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.scheduler.cycle_decisions import Decisions
from fluxqueue.scheduler.forecast import Outlook
from fluxqueue.scheduler.lack import Given
from fluxqueue.scheduler.node_choices import Choices
from fluxqueue.scheduler.pending_job import PendingJob

logger = logging.getLogger(__name__)

Rules = Mapping[str, QueueRules]
NO_RULES: Rules = MappingProxyType({})

RESERVED_REASON = "has a reservation; nothing behind it may delay it"


REUSE_S = 120.0
"""A row of a returned slot may be used again after this time: fair share has counted it by then."""


async def store_growth(tx: Transaction, given: Given, choices: Choices | None = None) -> None:
    """Add slots to live allocations. ``choices`` are further nodes of their pods.

    Reconciling gives the slots to the pods that wait. Where a limit prevents further slots, the
    reason of the FluxJob names that limit.
    """
    barred = {uid: f"{SOME_WAIT}: {why}" for uid, why in given.barred.items()}
    await give_reasons(tx, barred, RELEASED)
    slots = [
        {
            "uid": lack.uid,
            "n": number,
            "node": slot.node,
            "r": dict(slot.resources),
            "kind": slot.kind,
            "others": _others(choices, lack.uid, number),
        }
        for lack, placements in given.slots
        for number, slot in enumerate(slot for one in placements for slot in one.slots)
    ]
    if not slots:
        return
    await tx.execute(Q.give_more, rows=slots, reuse_s=REUSE_S)
    grown = sorted({lack.uid for lack, _ in given.slots})
    await tx.execute(Q.put_end_off, uids=grown)
    await tx.execute(Q.show_resized, uids=grown)


async def store_decisions(
    tx: Transaction,
    decisions: Decisions,
    *,
    term: int,
    words: Mapping[str, Outlook] | None = None,
    has_plan: bool = True,
    choices: Choices | None = None,
) -> set[str]:
    """Write what a cycle decided about FluxJobs that ``lock_queue`` has locked.

    ``words`` (by UID) replace the cycle's own reasons and give estimated starts. ``has_plan``:
    there may be reservations of the cycle before. ``choices``: further nodes of pods.

    Returns the UIDs without a stored allocation, because the FluxJob ended meanwhile. The caller
    must give back what it booked for them.
    """
    wanted = {job.uid for job, _ in decisions.allocated}
    stored = await _store_starts(tx, decisions.allocated, term, choices) if wanted else set()
    if has_plan or decisions.reserved or decisions.unpromised:
        await _replace_plan(tx, decisions)
    await _tell_waiting(tx, decisions, words or {})
    return wanted - stored


def _others(choices: Choices | None, uid: str, number: int) -> list[str] | None:
    """Return the further nodes of one slot, None if it has no choice."""
    of_job = (choices or {}).get(uid) or ()
    return list(of_job[number]) or None if number < len(of_job) else None


Starts = Sequence[tuple[PendingJob, Placement]]
"""Jobs that start, in the order of the cycle, and where."""


async def _store_starts(
    tx: Transaction, starts: Starts, term: int, choices: Choices | None
) -> set[str]:
    uids = [Moved(job.uid) for job, _ in starts]
    started = await apply_move(tx, STARTED, uids, query=Q.move_started)
    # Keep the order of the cycle, because the allocations are numbered in it.
    stored = [(job, placement) for job, placement in starts if job.uid in started]
    await _store_allocations(tx, stored, term, choices)
    return started


async def _store_allocations(
    tx: Transaction, stored: Starts, term: int, choices: Choices | None
) -> None:
    """Store allocations, each with its end by the request and its plan by ended runs."""
    if not stored:
        return
    allocations = [
        {
            "uid": job.uid,
            "starts_at": placement.starts_at,
            "until": _asked_end(job, placement),
            "plan_s": None if job.learned is None else job.learned.durations.long_s,
            "is_exclusive": placement.is_exclusive,
            "held": list(placement.held),
        }
        for job, placement in stored
    ]
    ids = await tx.fetch(
        Q.add_allocations,
        columns,
        term=term,
        rows=allocations,
    )
    placed = {job.uid: placement for job, placement in stored}
    slots = [
        {
            "a": allocation_id,
            "n": number,
            "node": slot.node,
            "r": dict(slot.resources),
            "kind": slot.kind,
            "others": _others(choices, uid, number),
        }
        for allocation_id, uid in ids
        for number, slot in enumerate(placed[uid].slots)
    ]
    await tx.execute(Q.add_slots, rows=slots)


def _asked_end(job: PendingJob, placement: Placement) -> int | None:
    """Return when a job ends by its request. None: it states no duration, so its queue plans it."""
    if job.is_planned:
        return None
    return placement.starts_at + int(job.request.duration_s) + job.request.grace_s


async def _replace_plan(tx: Transaction, decisions: Decisions) -> None:
    """Replace the reservations of the cycle before."""
    # FluxJobs that fell out of the cycle's view, behind many of a higher priority, lose their
    # reservations too. They are found by the reservations, which are few, not among all that wait.
    former = set(await tx.fetch(Q.reserved_uids, str))
    former -= {job.uid for job, _ in (*decisions.reserved, *decisions.waiting)}
    reason = "waits behind the FluxJobs that are looked at first"
    await apply_move(tx, OUT_OF_SIGHT, [Moved(uid, reason) for uid in former])
    await tx.execute(Q.delete_reservations)
    await _replace_expected(tx, decisions)
    plan = [
        {
            "uid": job.uid,
            "starts_at": placement.starts_at,
            "until": _asked_end(job, placement),
            "kept_from": placement.kept_from,
            "nodes": list(placement.nodes),
        }
        for job, placement in decisions.reserved
    ]
    if plan:
        await tx.execute(Q.add_reservations, rows=plan)


async def _replace_expected(tx: Transaction, decisions: Decisions) -> None:
    """Replace the latest starts that were kept without a promise."""
    await tx.execute(Q.delete_expected_starts)
    rows = [
        {
            "uid": job.uid,
            "latest_start": one.starts_at,
            "kept_from": one.kept_from,
            "nodes": list(one.nodes),
        }
        for job, one in decisions.unpromised
        if not one.is_firm
    ]
    if rows:
        await tx.execute(Q.add_expected_starts, rows=rows)


def _shown_start(placement: Placement, told: Outlook | None) -> int:
    """Return the expected start of a reservation: as it was shown, and no later than promised."""
    if told is None or told.expected_start is None:
        return placement.planned_start
    return min(told.expected_start, placement.starts_at)


async def _tell_waiting(
    tx: Transaction, decisions: Decisions, words: Mapping[str, Outlook]
) -> None:
    """Write for waiting FluxJobs the reservation, the expected start and the reason to wait."""
    rows = [
        {
            "uid": job.uid,
            "starts_at": _shown_start(placement, words.get(job.uid))
            if making_way is None
            else making_way.free_at,
            "state": str(RESERVED.target),
            "reason": making_way.describe()
            if making_way is not None
            else words[job.uid].reason
            if job.uid in words
            else RESERVED_REASON,
            "wait_reason": None,
            "position": words[job.uid].position if job.uid in words else None,
        }
        for job, placement in decisions.reserved
        for making_way in [decisions.making_way.get(job.uid)]
    ]
    rows += [
        {
            "uid": job.uid,
            "starts_at": one.expected_start,
            "state": str(WAITING.target),
            "reason": one.reason,
            "wait_reason": one.wait_reason,
            "position": one.position,
        }
        for job, reason in decisions.waiting
        for one in [
            words.get(job.uid)
            or Outlook(decisions.expected.get(job.uid), reason, decisions.wait_reason.get(job.uid))
        ]
    ]
    if rows:
        # In the order of the UIDs, as everywhere.
        rows.sort(key=itemgetter("uid"))
        await tx.execute(Q.explain_waits, rows=rows)
