"""Settling a workload: what its rows say must follow, written back in one transaction.

Called by the worker's ``ungate`` and ``cleanup`` tasks. Reads the row, its pods and its slots under
the row's lock, asks the pure ``fluxjob.follow``, and stores the answer. Because the answer depends
on nothing but the rows, settling twice or late is harmless.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluxqueue.db.database import Transaction
from fluxqueue.db.life.dependencies import LOCK_WITH_TARGETS, look_at
from fluxqueue.db.life.observations import ANNOTATION, AUTHOR, tell_matcher
from fluxqueue.db.outbox import put, put_payloads
from fluxqueue.db.task_queue import TaskName
from fluxqueue.fluxjob.follow import (
    FollowDecision,
    PodFact,
    Slot,
    SlotState,
    WorkloadFact,
    follow,
)
from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.workload.managed import JOB


@dataclass(frozen=True, slots=True)
class Ungate:
    """One pod to be released to the node of its slot.

    ``waited_s``: seconds since its FluxJob was submitted; None where that has run before.
    """

    workload_uid: str
    pod_uid: str
    namespace: str
    name: str
    node: str
    hostname: str | None
    jobid: int
    nodes: str
    waited_s: float | None = None


async def settle(tx: Transaction, uids: Sequence[str]) -> list[Ungate]:
    """Settle workloads; give the pods that hold a slot and are still gated."""
    await tx.fetch(LOCK_WITH_TARGETS, uids=list(uids))
    rows = await tx.fetch(
        "SELECT uid, jobid, state, wanted, lacking, result, is_deleting, is_gone, workload_kind,"
        " held_by, author_hold, vacate_by, cancel_by, blocked_by, blocked_reason, begin_at,"
        " depends_on <> '[]' AS has_edges, coalesce(begin_at > now(), false) AS is_early,"
        " CASE WHEN started_at IS NULL"
        " THEN CAST(extract(epoch FROM now() - submitted_at) AS float8) END AS waited_s"
        " FROM fluxjobs"
        " WHERE uid = ANY(CAST(:uids AS text[])) ORDER BY uid",
        uids=list(uids),
    )
    ungates: list[Ungate] = []
    still: list[Mapping[str, Any]] = []
    for row in rows:
        state = FluxJobState(row["state"])
        if state.is_waiting and _is_over(row):
            await _end_waiting(tx, row)
        elif state.is_waiting and (row["has_edges"] or row["blocked_by"] is not None):
            still.append(row)
        elif not state.is_final:
            ungates += await _settle_allocated(tx, row, state)
    await look_at(tx, still)
    return ungates


def _is_over(row: Mapping[str, Any]) -> bool:
    return row["result"] is not None or bool(row["is_deleting"])


async def _end_waiting(tx: Transaction, row: Mapping[str, Any]) -> None:
    """A workload that ended or was deleted while it waited leaves the queue at once."""
    reason = "deleted while it waited" if row["is_deleting"] else "ended while it waited"
    if row["cancel_by"] is not None:
        reason = f"cancelled by {row['cancel_by']}"
    await tx.execute(
        "UPDATE fluxjobs SET state = :state, ended_at = now(), expected_start = NULL,"
        " reason = :reason WHERE uid = :uid",
        state=str(_final_state(row)),
        reason=reason,
        uid=row["uid"],
    )
    tx.wake(TaskName.SCHEDULE)


def _final_state(row: Mapping[str, Any]) -> FluxJobState:
    return FluxJobState(row["result"]) if row["result"] else FluxJobState.CANCELLED


async def _settle_allocated(
    tx: Transaction, row: Mapping[str, Any], state: FluxJobState
) -> list[Ungate]:
    uid = row["uid"]
    allocation = await tx.fetch_one(
        "SELECT id FROM allocations WHERE uid = :uid AND is_live", uid=uid
    )
    if allocation is None:
        return []
    pods = await tx.fetch("SELECT * FROM pods WHERE workload_uid = :uid", uid=uid)
    slots = await _slots(tx, allocation["id"])
    workload = WorkloadFact(
        wanted=row["wanted"],
        result=FluxJobState(row["result"]) if row["result"] else None,
        is_deleting=row["is_deleting"],
        is_vacating=row["vacate_by"] is not None,
    )
    decision = follow(state, workload, [_pod_fact(pod) for pod in pods], slots)
    await _store(tx, row, allocation["id"], decision)
    if decision.evict and row["workload_kind"] == JOB:
        await put_payloads(tx, TaskName.RELEASE, [(uid, {"evict": list(decision.evict)})])
    if decision.lacking != row["lacking"] and decision.state is None:
        await _store_lacking(tx, uid, decision.lacking)
    if decision.is_ended or decision.is_requeued or workload.is_over or workload.is_vacating:
        return []
    if decision.lacking:
        tx.wake(TaskName.SCHEDULE)
    return await _ungates(tx, row, {pod["uid"]: pod for pod in pods}, slots, decision)


async def _slots(tx: Transaction, allocation_id: int) -> list[Slot]:
    rows = await tx.fetch(
        "SELECT number, node, s.state, pod_uid, NOT coalesce((n.fact ->> 'up')::boolean"
        " AND (n.fact ->> 'schedulable')::boolean, false) AS is_lost,"
        " n.name IS NULL AS is_gone, refused_at IS NOT NULL AS is_refused, completion_index,"
        " coalesce(completion_index <@ f.ended_indexes, false) AS is_spent"
        " FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id"
        " JOIN fluxjobs f USING (uid) LEFT JOIN nodes n ON n.name = s.node"
        " WHERE allocation_id = :id ORDER BY number",
        id=allocation_id,
    )
    return [
        Slot(
            r["number"],
            r["node"],
            SlotState(r["state"]),
            r["pod_uid"],
            is_lost=r["is_lost"],
            is_gone=r["is_gone"],
            is_refused=r["is_refused"],
            index=r["completion_index"],
            is_spent=r["is_spent"],
        )
        for r in rows
    ]


def _pod_fact(row: Mapping[str, Any]) -> PodFact:
    return PodFact(
        uid=row["uid"],
        name=row["name"],
        phase=row["phase"],
        is_gated=row["is_gated"],
        is_terminating=row["is_terminating"],
        node=row["node"],
        index=row["completion_index"],
    )


async def _store(
    tx: Transaction, row: Mapping[str, Any], allocation_id: int, decision: FollowDecision
) -> None:
    uid = row["uid"]
    await _store_slots(tx, allocation_id, decision)
    await _store_indexes(tx, allocation_id, decision)
    if decision.is_ended or decision.is_requeued:
        await tx.execute(
            "UPDATE allocations SET is_live = false, ended_at = now() WHERE id = :id",
            id=allocation_id,
        )
    if decision.give_back or decision.is_ended:
        await tell_matcher(tx, "allocation", [str(allocation_id)])
    if decision.is_requeued:
        await _store_requeued(tx, row)
    elif decision.state is not None:
        await tx.execute(
            """
            UPDATE fluxjobs SET state = :state, reason = :reason, lacking = :lacking,
                started_at = CASE WHEN :has_run THEN coalesce(started_at, now())
                                  ELSE started_at END,
                ended_at = CASE WHEN :is_ended THEN now() END
            WHERE uid = :uid
            """,
            state=str(decision.state),
            reason=_reason(row, decision),
            lacking=decision.lacking,
            # Pods may come and go between two looks; one that was deleted need never have run.
            has_run=decision.state is not FluxJobState.CANCELLED,
            is_ended=decision.is_ended,
            uid=uid,
        )


async def _store_indexes(tx: Transaction, allocation_id: int, decision: FollowDecision) -> None:
    """Whose slots they are now that pods hold them; an index has one, the last it was given."""
    if decision.assign:
        await tx.execute(
            """
            WITH given AS (
                SELECT s.number, p.completion_index AS index
                FROM allocation_slots s JOIN pods p ON p.uid = s.pod_uid
                WHERE s.allocation_id = :a AND s.number = ANY(CAST(:numbers AS int[])))
            UPDATE allocation_slots s
            SET completion_index = (SELECT g.index FROM given g WHERE g.number = s.number)
            WHERE s.allocation_id = :a
              AND (s.number IN (SELECT number FROM given)
                   OR s.completion_index IN (SELECT index FROM given))
            """,
            a=allocation_id,
            numbers=[number for number, _ in decision.assign],
        )


async def _store_slots(tx: Transaction, allocation_id: int, decision: FollowDecision) -> None:
    """Let go first, so that a pod's uid is free again before it is written a second time."""
    if decision.free or decision.give_back:
        await tx.execute(
            """
            UPDATE allocation_slots SET pod_uid = NULL,
                state = CASE WHEN number = ANY(CAST(:back AS int[])) THEN 'returned'
                             ELSE 'free' END,
                returned_at = CASE WHEN number = ANY(CAST(:back AS int[])) THEN now() END
            WHERE allocation_id = :a AND number = ANY(CAST(:numbers AS int[]))
            """,
            a=allocation_id,
            back=list(decision.give_back),
            numbers=[*decision.free, *decision.give_back],
        )
    if decision.assign:
        await tx.execute(
            """
            UPDATE allocation_slots s SET state = 'held', pod_uid = g.pod_uid, returned_at = NULL
            FROM unnest(CAST(:numbers AS int[]), CAST(:pods AS text[])) AS g (number, pod_uid)
            WHERE s.allocation_id = :a AND s.number = g.number
            """,
            a=allocation_id,
            numbers=[number for number, _ in decision.assign],
            pods=[pod for _, pod in decision.assign],
        )


async def _store_requeued(tx: Transaction, row: Mapping[str, Any]) -> None:
    """Back to its old place in the queue, or beside it where its author holds it.

    Either nothing of it has started, or its pods were made to end: it may be placed anew. Its
    BatchJob is suspended, if it is not, by the release that is owed.
    """
    is_held, by = row["author_hold"] is not None, row["vacate_by"]
    reason = "a node it was given is lost" if by is None else f"requeued by {by}"
    if is_held:
        is_noted = row["author_hold"] == ANNOTATION
        reason = "held by its annotation fluxqueue/hold" if is_noted else "suspended by its author"
    await tx.execute(
        "UPDATE fluxjobs SET state = :state, reason = :reason, held_by = :held_by,"
        " allocated_at = NULL, started_at = NULL, lacking = 0, is_examined = false,"
        " vacate_by = NULL, let_go_at = NULL,"
        " requeues = requeues + CASE WHEN vacate_by IS NULL THEN 0 ELSE 1 END WHERE uid = :uid",
        state=str(FluxJobState.HELD if is_held else FluxJobState.PENDING),
        reason=reason,
        held_by=AUTHOR if is_held else None,
        uid=row["uid"],
    )
    await put(tx, TaskName.RELEASE, [row["uid"]])
    tx.wake(TaskName.SCHEDULE)


async def _store_lacking(tx: Transaction, uid: str, lacking: int) -> None:
    """Pods wait without a slot, or no longer: the matcher adds what is lacking."""
    await tx.execute(
        "UPDATE fluxjobs SET lacking = :lacking, reason = :reason WHERE uid = :uid",
        lacking=lacking,
        reason=_lacking_reason(lacking),
        uid=uid,
    )
    if lacking:
        tx.wake(TaskName.SCHEDULE)


def _reason(row: Mapping[str, Any], decision: FollowDecision) -> str:
    if decision.state is FluxJobState.CANCELLED and row["cancel_by"] is not None:
        return f"cancelled by {row['cancel_by']}"
    return _lacking_reason(decision.lacking)


def _lacking_reason(lacking: int) -> str:
    return f"{lacking} of its pods wait for a slot" if lacking else ""


async def _ungates(
    tx: Transaction,
    row: Mapping[str, Any],
    pods: Mapping[str, Mapping[str, Any]],
    slots: Sequence[Slot],
    decision: FollowDecision,
) -> list[Ungate]:
    node_of = {slot.number: slot.node for slot in slots}
    holders = {s.pod_uid: s.node for s in slots if s.pod_uid and s.number not in decision.free}
    holders |= {pod: node_of[number] for number, pod in decision.assign}
    gated = [uid for uid in holders if uid in pods and pods[uid]["is_gated"]]
    if not gated:
        return []
    hostnames = await _hostnames(tx, sorted(set(holders.values())))
    nodes = compress(sorted({slot.node for slot in slots}))
    return [
        Ungate(
            workload_uid=row["uid"],
            pod_uid=uid,
            namespace=pods[uid]["namespace"],
            name=pods[uid]["name"],
            node=holders[uid],
            hostname=hostnames.get(holders[uid]),
            jobid=row["jobid"],
            nodes=nodes,
            waited_s=row["waited_s"],
        )
        for uid in gated
    ]


async def _hostnames(tx: Transaction, names: Sequence[str]) -> dict[str, str | None]:
    """The ``kubernetes.io/hostname`` label of nodes: it may differ from the node's name."""
    rows = await tx.fetch(
        "SELECT name, fact FROM nodes WHERE name = ANY(CAST(:names AS text[]))", names=list(names)
    )
    facts = [NodeFact.from_json(row["fact"]) for row in rows]
    return {fact.name: fact.labels.get("kubernetes.io/hostname") for fact in facts}
