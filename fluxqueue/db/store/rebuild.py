"""Rows made from the cluster, for a database that is empty, incomplete, or older than the cluster.

The controller (``controller.observing.resync_diff``) calls it under its term, page by page. The
nodes and pods that it relies on are written before. The matcher may look only afterwards. What runs
keeps its nodes and its number, what waits keeps its place, and what has ended stays ended. The only
effects on the cluster are those that these rows require.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterable, Mapping, Sequence
from contextlib import asynccontextmanager
from dataclasses import dataclass, field, replace
from itertools import islice
from typing import Any, TypeVar

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
from fluxqueue.db.store.cluster_rows import tell_matcher
from fluxqueue.db.store.observations import save_workloads
from fluxqueue.fluxjob.holders import (
    AUTHOR,
    BY_DEPENDENCY,
    BY_QUEUE,
    FOR_JOB,
    SET_ASIDE,
    SUSPENDED,
)
from fluxqueue.fluxjob.lifecycle import is_suspended_while_gated, waits_otherwise
from fluxqueue.fluxjob.observation import WorkloadSeen
from fluxqueue.fluxjob.states import FINAL, FluxJobState
from fluxqueue.jobspec.parse import read_stored
from fluxqueue.jobspec.shape import takes_whole_nodes
from fluxqueue.scheduler.adoption import AdoptedSlot, PlacedPod, keep, place, target_state
from fluxqueue.scheduler.record import DecisionRecord
from fluxqueue.workload.fluxjob_object import REASONS

S = FluxJobState
CHUNK = 500

Item = TypeVar("Item")
NodeResource = tuple[str, str]
"""Names of a node and of a resource."""


@dataclass(frozen=True, slots=True)
class Found:
    """A workload in the cluster: as seen, as its FluxJob says, and its pods that were released.

    ``last_nodes``: where the last pod of a completion index has failed. ``is_stranded``: it waits,
    though its row has ended.
    """

    seen: WorkloadSeen
    record: DecisionRecord | None
    pods: tuple[PlacedPod, ...] = ()
    last_nodes: Mapping[int, str] = field(default_factory=dict)
    is_stranded: bool = False


@dataclass(slots=True)
class TakenOver:
    """What ``take_over`` did: how many rows are new, were older than the cluster, and run."""

    created: int = 0
    corrected: int = 0
    adopted: int = 0


@dataclass(slots=True)
class _Case:
    """One workload while it is taken over."""

    found: Found
    target: FluxJobState
    has_row: bool
    slots: list[AdoptedSlot] = field(default_factory=list)

    @property
    def uid(self) -> str:
        return self.found.seen.uid

    @property
    def runs(self) -> bool:
        return self.target in {S.ALLOCATED, S.RUNNING}

    @property
    def has_begun(self) -> bool:
        """Return whether it waits no more."""
        return self.runs or self.target.is_final

    @property
    def has_run(self) -> bool:
        """Return whether it has ended and its record tells what it had."""
        record = self.found.record
        return self.target.is_final and record is not None and record.given is not None


async def take_over(
    tx: Transaction, found: Sequence[Found], held: Mapping[NodeResource, int] | None = None
) -> TakenOver:
    """Make the rows of ``found`` what the cluster says, whatever they are now.

    ``found`` is in the order of submission. Nodes and unmanaged pods must have been written before,
    because what a FluxJob may keep is measured against them. A final row stays final: its end was
    already reported, and is not reported twice.

    Large numbers are taken over page by page. Then ``prepare`` comes before the first page, and
    ``held`` is what belongs to pods of later pages, by node.
    """
    if not found:
        return TakenOver()
    async with _marked(tx):
        return await _take_over(tx, found, held or {})


@asynccontextmanager
async def _marked(tx: Transaction) -> AsyncIterator[None]:
    """Mark the session: rows are set to their states, and history says that they were rebuilt."""
    await tx.execute(Q.begin_rebuilding)
    yield
    await tx.execute(Q.end_rebuilding)


async def _take_over(
    tx: Transaction, found: Sequence[Found], held: Mapping[NodeResource, int]
) -> TakenOver:
    await _forget_ended(tx, [one for one in found if one.is_stranded])
    states = await _locked_states(tx, [one.seen.uid for one in found])
    jobids = await _free_jobids(tx, [one for one in found if one.seen.uid not in states])
    cases = [
        _case(one, has_row=one.seen.uid in states)
        for one in found
        if states.get(one.seen.uid) not in FINAL
    ]
    # Pods that a group no longer has are not missing: the group would gather for them, though it
    # runs or has ended.
    begun = {case.uid for case in cases if case.found.seen.facts.missing and case.has_begun}
    for chunk in _chunks(found):
        seen = [
            replace(one.seen, facts=replace(one.seen.facts, missing=0))
            if one.seen.uid in begun
            else one.seen
            for one in chunk
        ]
        await save_workloads(tx, seen, jobids=jobids)
    await _retire_allocations(tx, [case.uid for case in cases if case.has_row])
    await _adopt(tx, [case for case in cases if case.runs], held)
    await _remember(tx, [case for case in cases if case.has_run])
    await _set_states(tx, cases)
    await _tell_once(tx, [case.uid for case in cases])
    await _note_missing(tx, [case for case in cases if case.uid in begun])
    await _ask(tx, cases)
    return TakenOver(
        created=len(found) - len(states),
        corrected=sum(case.has_row for case in cases),
        adopted=sum(case.runs for case in cases),
    )


async def _forget_ended(tx: Transaction, stranded: Sequence[Found]) -> None:
    """Delete ended rows of workloads that wait.

    A row that has ended stays ended, so the workload gets another one. The lines in ``history`` and
    ``accounting`` stay.
    """
    uids = [one.seen.uid for one in stranded]
    if not uids:
        return
    gone = await tx.fetch(Q.forget_ended, columns, uids=uids)
    rows = [{"uid": uid, "jobid": jobid, "state": state} for uid, jobid, state in gone]
    await tx.execute(Q.note_queued_anew, rows=rows)


async def prepare(tx: Transaction, outdated: Sequence[str], *, highest_jobid: int) -> None:
    """Prepare a takeover in several transactions.

    All allocations of rows that are older than the cluster are taken back before the first new one
    is made. Numbers that FluxJobs of later pages claim are reserved.

    Parameters
    ----------
    outdated : UIDs of those that have a row. A row that is final keeps what it had.
    """
    if highest_jobid:
        await _reserve_jobids(tx, highest_jobid)
    states = await _locked_states(tx, outdated)
    await _retire_allocations(tx, [uid for uid, state in states.items() if state not in FINAL])


async def put_back(tx: Transaction, uids: Sequence[str]) -> None:
    """Restore what the pods of workloads that could not be taken over had before ``prepare``.

    The pods, as last seen, run on, so their resources must not be given to another workload. Slots
    that no pod held may have been given away since. What is lacking is matched anew.
    """
    await _locked_states(tx, uids)
    live = await tx.fetch(Q.put_back_allocations, str, uids=list(uids))
    await tell_matcher(tx, "allocation", live)


async def note_preemptions(tx: Transaction) -> None:
    """Write again which victims leave for which preemptors.

    Records of the victims contain this, and the next cycle finds anew which preemptor needs what
    they give back. Without this the cycle would preempt further FluxJobs.
    """
    await tx.execute(Q.rebuild_preemptions, for_job=FOR_JOB)


async def analyze(tx: Transaction) -> None:
    """Have the planner analyze tables that were just filled."""
    await tx.execute(Q.analyze_filled)


def _case(found: Found, *, has_row: bool) -> _Case:
    seen, record = found.seen, found.record
    said = record.state if record is not None else None
    held_by = record.held_by if said is S.HELD and record is not None else None
    is_held = seen.held_by is not None or seen.is_paused or _is_suspended_by_author(found)
    # The decisions of its queue and its dependencies are made anew.
    is_held |= held_by not in {None, AUTHOR, BY_QUEUE, BY_DEPENDENCY} | SET_ASIDE
    target = target_state(
        result=FluxJobState(seen.result) if seen.result else None,
        is_deleting=seen.is_deleting,
        is_held=is_held,
        pods=found.pods,
        record=record,
    )
    return _Case(found, target, has_row)


def _is_suspended_by_author(found: Found) -> bool:
    """Return whether it waits suspended by its author's wish.

    Only the object of one that waits gated tells that. Of any other its record does.
    """
    record = found.record
    is_held = record is not None and record.author_hold == SUSPENDED
    is_held |= is_suspended_while_gated(found.seen)
    return is_held and found.seen.facts.is_suspended and found.seen.held_by is None


async def _locked_states(tx: Transaction, uids: Sequence[str]) -> dict[str, str]:
    return dict(await tx.fetch(Q.lock_states, columns, uids=list(uids)))


async def _free_jobids(tx: Transaction, found: Sequence[Found]) -> dict[str, int]:
    """Return the numbers that FluxJobs say they have, as far as no other FluxJob has them.

    New numbers go on behind them.
    """
    claimed: dict[int, str] = {}
    for one in found:
        if one.record is not None and one.record.jobid is not None:
            claimed.setdefault(one.record.jobid, one.seen.uid)
    if not claimed:
        return {}
    for jobid in await tx.fetch(Q.jobids_taken, int, jobids=list(claimed)):
        del claimed[jobid]
    await _reserve_jobids(tx, max(claimed, default=1))
    return {uid: jobid for jobid, uid in claimed.items()}


async def _reserve_jobids(tx: Transaction, highest: int) -> None:
    """Have new numbers begin after ``highest`` and after all existing ones."""
    await tx.execute(Q.reserve_jobids, highest=highest)


async def _retire_allocations(tx: Transaction, uids: Sequence[str]) -> None:
    """End the allocations of older rows: the cluster shows what is true now."""
    ids = await tx.fetch(Q.retire_allocations, int, uids=list(uids))
    await tx.execute(Q.retire_slots, ids=ids)
    await tell_matcher(tx, "allocation", [str(one) for one in ids])


# --- allocations ----------------------------------------------------------------------------------


async def _adopt(tx: Transaction, cases: Sequence[_Case], held: Mapping[NodeResource, int]) -> None:
    """Store what runs: first everything that pods hold, then what still fits beside it."""
    for case in cases:
        case.slots = place(case.found.record, case.found.pods, case.found.last_nodes)
    await _free_pods(tx, [slot.pod_uid for case in cases for slot in case.slots if slot.pod_uid])
    ids = await _store_allocations(tx, cases)
    await _store_slots(
        tx, [(ids[c.uid], slot, "held") for c in cases for slot in c.slots if slot.pod_uid]
    )
    free = await _free_amounts(tx, {slot.node for case in cases for slot in case.slots})
    free = {key: amount - held.get(key, 0) for key, amount in free.items()}
    # Workloads that have started come first: one that has not started may be placed anew.
    for case in sorted(cases, key=lambda case: case.target is not S.RUNNING):
        await _store_rest(tx, ids[case.uid], case, free)
    await tell_matcher(tx, "allocation", [str(one) for one in ids.values()])


async def _remember(tx: Transaction, cases: Sequence[_Case]) -> None:
    """Keep what has ended as it was: accounting and its status use it."""
    ids = await _store_allocations(tx, cases)
    past = [
        (ids[case.uid], slot, "returned") for case in cases for slot in place(case.found.record, ())
    ]
    await _store_slots(tx, past)


async def _free_pods(tx: Transaction, pods: Sequence[str]) -> None:
    """Free the slots of these pods in other rows.

    A pod holds only one slot, so another row that claims the same pod is wrong.
    """
    await tx.execute(Q.free_slots_of_pods, pods=list(pods))


async def _store_allocations(tx: Transaction, cases: Sequence[_Case]) -> dict[str, int]:
    ids: dict[str, int] = {}
    for chunk in _chunks(cases):
        rows = [_terms(case) for case in chunk]
        made = await tx.fetch(Q.rebuild_allocations, columns, rows=rows)
        ids |= {uid: allocation for allocation, uid in made}
    return ids


def _terms(case: _Case) -> dict[str, Any]:
    record = case.found.record
    given = record.given if record is not None else None
    return {
        "uid": case.uid,
        "starts_at": given.starts_at if given else None,
        "until": given.until if given else None,
        "ended_at": record.ended_at_s if record else None,
        "is_live": case.runs,
        "is_exclusive": takes_whole_nodes(read_stored(case.found.seen.request)),
        "held": list(given.held) if given else [],
    }


async def _store_slots(tx: Transaction, slots: Sequence[tuple[int, AdoptedSlot, str]]) -> None:
    for chunk in _chunks(slots):
        await tx.execute(
            Q.rebuild_slots,
            rows=[
                {
                    "a": allocation,
                    "n": slot.number,
                    "node": slot.node,
                    "r": dict(slot.resources),
                    "state": state,
                    "pod": slot.pod_uid,
                    "i": slot.index,
                    "kind": slot.kind,
                }
                for allocation, slot, state in chunk
            ],
        )


async def _free_amounts(tx: Transaction, nodes: Iterable[str]) -> dict[NodeResource, int]:
    rows = await tx.fetch(Q.free_amounts, columns, nodes=sorted(nodes))
    return {(node, resource): int(free) for node, resource, free in rows}


async def _store_rest(
    tx: Transaction, allocation: int, case: _Case, free: dict[NodeResource, int]
) -> None:
    is_whole = not any(slot.pod_uid for slot in case.slots)
    kept = keep(case.slots, wanted=case.found.seen.facts.wanted, is_whole=is_whole, free=free)
    if is_whole and not kept:
        await tx.execute(Q.delete_allocation, id=allocation)
        case.target, case.slots = S.PENDING, []
        return
    await _store_slots(
        tx,
        [
            (allocation, slot, "free" if slot.number in kept else "returned")
            for slot in case.slots
            if slot.pod_uid is None
        ],
    )


# --- states ---------------------------------------------------------------------------------------


async def _set_states(tx: Transaction, cases: Sequence[_Case]) -> None:
    """Set each row to its state at once. The session is marked, so no guard asks for the way."""
    for chunk in _chunks(cases):
        await tx.execute(Q.rebuild_states, rows=[_times(case) for case in chunk])
        said = [_said(case) for case in chunk]
        await tx.execute(Q.rebuild_records, rows=said)
        await tx.execute(Q.rebuild_versions, rows=said)


def _times(case: _Case) -> dict[str, Any]:
    record = case.found.record
    times = {
        "uid": case.uid,
        "state": str(case.target),
        "is_final": case.target.is_final,
        "has_slots": case.runs or case.has_run,
    }
    if record is None:
        return times
    return times | {
        "held_by": case.found.seen.held_by or record.held_by,
        "allocated_at": record.given.starts_at if record.given else None,
        "started_at": record.started_at_s,
        "ended_at": record.ended_at_s,
        "submitted_at": record.submitted_at_s,
    }


def _said(case: _Case) -> dict[str, Any]:
    record, seen = case.found.record, case.found.seen
    # It ran and is suspended: this generation is later than any that our release made.
    released_generation = 0 if case.target is S.RUNNING and seen.facts.is_suspended else None
    if record is None:
        accepted_by = seen.queue if case.runs else None
        return {
            "uid": case.uid,
            "version": 0,
            "released_generation": released_generation,
            "accepted_by": accepted_by,
        }
    return {
        "uid": case.uid,
        "released_generation": released_generation,
        "author_hold": SUSPENDED if _is_suspended_by_author(case.found) else None,
        "version": record.version,
        "flux_uid": record.flux_uid,
        "place": record.place,
        "set_priority": record.set_priority,
        "set_queue": record.set_queue,
        "accepted_by": record.accepted_by,
        "requeue": record.requeue,
        "vacate_by": _vacate_by(case),
        "cancel_by": _cancel_by(case),
        "reason": record.reason if _has_reason(case, record) else None,
    }


def _has_reason(case: _Case, record: DecisionRecord) -> bool:
    """Return whether the recorded reason still holds: of a request under way, or of a hold."""
    is_held = case.target is S.HELD and record.state is S.HELD
    return bool(is_held or _vacate_by(case) or _cancel_by(case))


def _vacate_by(case: _Case) -> str | None:
    """Return the operator that requeued what runs, though not all its pods have ended."""
    record = case.found.record
    by = record.requeue_by if record is not None and case.runs else None
    return None if by == AUTHOR else by  # the BatchJob itself shows its author's wish


def _cancel_by(case: _Case) -> str | None:
    """Return the operator that cancelled the workload."""
    record = case.found.record
    return record.cancel_by if record is not None and not case.target.is_final else None


async def _tell_once(tx: Transaction, uids: Sequence[str]) -> None:
    """Mark these transitions as reported, because their Events were emitted when they happened.

    The state is published without an Event.
    """
    await tx.execute(
        Q.mark_told,
        states=[str(state) for state in REASONS],
        words=list(REASONS.values()),
        uids=list(uids),
    )


async def _note_missing(tx: Transaction, cases: Sequence[_Case]) -> None:
    """Write what is missing as it was seen. What has to be placed anew gathers from now on."""
    for chunk in _chunks(cases):
        await tx.execute(
            Q.set_missing,
            rows=[{"uid": one.uid, "missing": one.found.seen.facts.missing} for one in chunk],
        )


async def _ask(tx: Transaction, cases: Sequence[_Case]) -> None:
    """Request what is pending: unfinished releases, suspensions, a look at what runs or ends."""
    await tx.execute(
        Q.ask_for_effects,
        uids=[case.uid for case in cases],
        release=[
            case.uid
            for case in cases
            if case.target is S.ALLOCATED
            or (case.target is S.PENDING and waits_otherwise(case.found.seen, is_held=False))
            or _vacate_by(case) is not None
            or _cancel_by(case) is not None
        ],
        reconcile=[
            case.uid
            for case in cases
            if case.runs
            or (
                case.target in {S.PENDING, S.HELD}
                and (case.found.seen.result is not None or case.found.seen.is_deleting)
            )
        ],
    )


def _chunks(items: Sequence[Item]) -> Iterable[Sequence[Item]]:
    iterator = iter(items)
    while chunk := list(islice(iterator, CHUNK)):
        yield chunk
