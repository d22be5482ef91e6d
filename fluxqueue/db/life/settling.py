"""Settling a workload: what its rows say must follow, written back in one transaction.

Called by the worker's ``settle`` task. Reads the row, its pods and its slots under the row's lock,
asks the pure ``fluxjob.follow``, and stores the answer. Because the answer depends on nothing but
the rows, settling twice or late is harmless. A row goes on owing the look (``settle_at``) until its
pods have been let go (``finish``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.leadership import OBSERVED
from fluxqueue.db.life.dependencies import LOCK_WITH_TARGETS, look_at
from fluxqueue.db.life.holders import AUTHOR, LOST_NODE
from fluxqueue.db.life.observations import tell_matcher
from fluxqueue.fluxjob.follow import (
    FollowDecision,
    PodFact,
    Slot,
    SlotState,
    WorkloadFact,
    follow,
)
from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.workload.managed import JOB


@dataclass(frozen=True, slots=True)
class Ungate:
    """One pod to be released to the node of its slot.

    ``has_affinity``: it requires node affinity of its own. ``waited_s``: seconds since its FluxJob
    was submitted; None where that has run before.
    """

    workload_uid: str
    pod_uid: str
    namespace: str
    name: str
    node: str
    hostname: str | None
    jobid: int
    nodes: str
    has_affinity: bool = False
    waited_s: float | None = None


@dataclass(frozen=True, slots=True)
class Evict:
    """One pod that was let go to a node that is gone, and is bound to none."""

    workload_uid: str
    pod_uid: str
    namespace: str
    name: str


@dataclass(slots=True)
class Settled:
    """What is to be done to pods after a settling, and the looks that stay owed until it is done.

    ``owed`` maps the UID of each such workload to what its ``settle_at`` was.
    """

    ungates: list[Ungate] = field(default_factory=list)
    evictions: list[Evict] = field(default_factory=list)
    owed: dict[str, datetime | None] = field(default_factory=dict)


_ROWS = f"""
SELECT f.uid, f.jobid, f.state, f.wanted, f.lacking, f.result, f.is_deleting, f.workload_kind,
       f.held_by, f.author_hold, f.vacate_by, f.cancel_by, f.blocked_by, f.blocked_reason,
       f.begin_at, f.settle_at, f.has_affinity, f.pinned_to,
       f.depends_on <> '[]' AS has_edges, coalesce(f.begin_at > now(), false) AS is_early,
       CASE WHEN f.started_at IS NULL
            THEN CAST(extract(epoch FROM now() - f.submitted_at) AS float8) END AS waited_s,
       a.id AS allocation_id,
       CASE WHEN a.id IS NOT NULL THEN (
           SELECT coalesce(jsonb_agg(jsonb_build_array(
                      s.number, s.node, s.state, s.pod_uid,
                      NOT coalesce((n.fact ->> 'up')::boolean
                                   AND (n.fact ->> 'schedulable')::boolean, false),
                      n.name IS NULL, s.refused_at IS NOT NULL, s.completion_index,
                      coalesce(s.completion_index <@ f.ended_indexes, false),
                      n.fact -> 'labels' ->> 'kubernetes.io/hostname') ORDER BY s.number), '[]')
           FROM allocation_slots s LEFT JOIN nodes n ON n.name = s.node
           WHERE s.allocation_id = a.id) END AS slots,
       CASE WHEN a.id IS NOT NULL THEN (
           SELECT coalesce(jsonb_agg(jsonb_build_array(
                      p.uid, p.name, p.phase, p.is_gated, p.is_terminating, p.node,
                      p.completion_index, p.namespace)), '[]')
           FROM pods p WHERE p.workload_uid = f.uid) END AS pods
FROM fluxjobs f LEFT JOIN allocations a ON a.uid = f.uid AND a.is_live
WHERE f.uid = ANY(CAST(:uids AS text[])) AND (NOT CAST(:if_observed AS bool) OR {OBSERVED})
ORDER BY f.uid
"""  # noqa: S608 constants


async def settle(tx: Transaction, uids: Collection[str], *, if_observed: bool = False) -> Settled:
    """Settle workloads; give what is to be done to their pods.

    ``if_observed``: only while a controller compares the rows with the cluster.
    """
    await tx.fetch(LOCK_WITH_TARGETS, uids=list(uids))
    settled = Settled()
    still: list[Mapping[str, Any]] = []
    done: list[str] = []
    for row in await tx.fetch(_ROWS, uids=list(uids), if_observed=if_observed):
        state = FluxJobState(row["state"])
        if state.is_waiting and _is_over(row):
            await _end_waiting(tx, row)
        elif state.is_waiting and (row["has_edges"] or row["blocked_by"] is not None):
            still.append(row)
        elif not state.is_final and await _settle_allocated(tx, row, state, settled):
            settled.owed[row["uid"]] = row["settle_at"]
            continue
        if row["settle_at"] is not None:
            done.append(row["uid"])
    await look_at(tx, still)
    if done:
        await tx.execute(
            "UPDATE fluxjobs SET settle_at = NULL WHERE uid = ANY(CAST(:uids AS text[]))", uids=done
        )
    return settled


_FINISH = """
WITH locked AS (
    SELECT uid FROM fluxjobs WHERE uid = ANY(CAST(:uids AS text[])) ORDER BY uid FOR NO KEY UPDATE
), let_go AS (
    UPDATE pods SET is_gated = false
    WHERE is_gated AND uid = ANY(CAST(:pods AS text[])) AND workload_uid IN (SELECT uid FROM locked)
)
UPDATE fluxjobs f SET settle_at = NULL, last_error = NULL
FROM unnest(CAST(:uids AS text[]), CAST(:owed AS timestamptz[])) AS o (uid, settle_at)
WHERE f.uid = o.uid AND f.settle_at = o.settle_at
  AND f.uid IN (SELECT uid FROM locked)
  AND NOT f.uid = ANY(CAST(:failed AS text[]))
"""


async def finish(
    database: Database,
    settled: Settled,
    *,
    let_go: Collection[str],
    failed: Collection[str],
) -> None:
    """Write down which pods have no gate any more, and whose look is done with that.

    A look that was asked for meanwhile stays owed. ``failed``: workloads of which something failed.
    """
    if settled.owed:
        uids = sorted(settled.owed)
        await database.execute(
            _FINISH,
            uids=uids,
            owed=[settled.owed[uid] for uid in uids],
            pods=list(let_go),
            failed=list(failed),
        )


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


def _final_state(row: Mapping[str, Any]) -> FluxJobState:
    return FluxJobState(row["result"]) if row["result"] else FluxJobState.CANCELLED


async def _settle_allocated(
    tx: Transaction, row: Mapping[str, Any], state: FluxJobState, settled: Settled
) -> bool:
    """Settle what has an allocation; tell whether something is to be done to its pods."""
    uid = row["uid"]
    if row["allocation_id"] is None:
        return False
    pods = {pod[0]: _pod_fact(pod) for pod in row["pods"]}
    slots = [_slot(slot) for slot in row["slots"]]
    workload = WorkloadFact(
        wanted=row["wanted"],
        result=FluxJobState(row["result"]) if row["result"] else None,
        is_deleting=row["is_deleting"],
        is_vacating=row["vacate_by"] is not None,
        is_pinned=row["pinned_to"] is not None,
    )
    decision = follow(state, workload, list(pods.values()), slots)
    await _store(tx, row, row["allocation_id"], decision)
    if decision.lacking != row["lacking"] and decision.state is None:
        await _store_lacking(tx, uid, decision.lacking)
    namespaces = {pod[0]: pod[7] for pod in row["pods"]}
    before = len(settled.evictions) + len(settled.ungates)
    if row["workload_kind"] == JOB:
        settled.evictions += [
            Evict(uid, pod, namespaces[pod], pods[pod].name) for pod in decision.evict
        ]
    if not (decision.is_ended or decision.is_requeued or workload.is_over or workload.is_vacating):
        settled.ungates += _ungates(row, pods, namespaces, slots, decision)
    return len(settled.evictions) + len(settled.ungates) > before


def _slot(row: Sequence[Any]) -> Slot:
    number, node, state, pod_uid, is_lost, is_gone, is_refused, index, is_spent, _ = row
    return Slot(
        number,
        node,
        SlotState(state),
        pod_uid,
        is_lost=is_lost,
        is_gone=is_gone,
        is_refused=is_refused,
        index=index,
        is_spent=is_spent,
    )


def _pod_fact(row: Sequence[Any]) -> PodFact:
    uid, name, phase, is_gated, is_terminating, node, index, _ = row
    return PodFact(
        uid=uid,
        name=name,
        phase=phase,
        is_gated=is_gated,
        is_terminating=is_terminating,
        node=node,
        index=index,
    )


async def _store(
    tx: Transaction, row: Mapping[str, Any], allocation_id: int, decision: FollowDecision
) -> None:
    uid = row["uid"]
    await _store_slots(tx, allocation_id, decision)
    has_indexes = any(pod[6] is not None for pod in row["pods"])
    await _store_indexes(tx, allocation_id, decision, has_indexes=has_indexes)
    if decision.is_ended or decision.is_requeued:
        await tx.execute(
            "UPDATE allocations SET is_live = false, ended_at = now() WHERE id = :id",
            id=allocation_id,
        )
    if decision.give_back or decision.is_ended:
        await tell_matcher(tx, "allocation", [str(allocation_id)])
    if decision.must_vacate:
        await _vacate_lost(tx, row)
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


async def _vacate_lost(tx: Transaction, row: Mapping[str, Any]) -> None:
    """Its template names a node that is lost: it is suspended, matched anew, and released again."""
    await tx.execute(
        "UPDATE fluxjobs SET vacate_by = :by, reason = :reason, release_at = now()"
        " WHERE uid = :uid",
        by=LOST_NODE,
        reason=f"its node {row['pinned_to']} is lost; it is placed anew",
        uid=row["uid"],
    )


async def _store_indexes(
    tx: Transaction, allocation_id: int, decision: FollowDecision, *, has_indexes: bool
) -> None:
    """Whose slots they are now that pods hold them; an index has one, the last it was given."""
    if decision.assign and has_indexes:
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
    is_lost = by in {None, LOST_NODE}
    reason = "a node it was given is lost" if is_lost else f"requeued by {by}"
    await tx.execute(
        "UPDATE fluxjobs SET state = :state, held_by = :held_by, reason = CASE"
        " WHEN author_hold IS NULL THEN :reason ELSE fluxjob_author_reason(author_hold) END,"
        " allocated_at = NULL, started_at = NULL, lacking = 0, is_examined = false,"
        " vacate_by = NULL, let_go_at = NULL, release_at = now(),"
        " requeues = requeues + CAST(:is_asked AS int) WHERE uid = :uid",
        state=str(FluxJobState.HELD if is_held else FluxJobState.PENDING),
        reason=reason,
        held_by=AUTHOR if is_held else None,
        is_asked=not is_lost,
        uid=row["uid"],
    )


async def _store_lacking(tx: Transaction, uid: str, lacking: int) -> None:
    """Pods wait without a slot, or no longer: the matcher adds what is lacking."""
    await tx.execute(
        "UPDATE fluxjobs SET lacking = :lacking, reason = :reason WHERE uid = :uid",
        lacking=lacking,
        reason=_lacking_reason(lacking),
        uid=uid,
    )


def _reason(row: Mapping[str, Any], decision: FollowDecision) -> str:
    if decision.state is FluxJobState.CANCELLED and row["cancel_by"] is not None:
        return f"cancelled by {row['cancel_by']}"
    return _lacking_reason(decision.lacking)


def _lacking_reason(lacking: int) -> str:
    return f"{lacking} of its pods wait for a slot" if lacking else ""


def _ungates(
    row: Mapping[str, Any],
    pods: Mapping[str, PodFact],
    namespaces: Mapping[str, str],
    slots: Sequence[Slot],
    decision: FollowDecision,
) -> list[Ungate]:
    node_of = {slot.number: slot.node for slot in slots}
    holders = {s.pod_uid: s.node for s in slots if s.pod_uid and s.number not in decision.free}
    holders |= {pod: node_of[number] for number, pod in decision.assign}
    gated = [uid for uid in holders if uid in pods and pods[uid].is_gated]
    if not gated:
        return []
    # The label may differ from the node's name.
    hostnames = {slot[1]: slot[9] for slot in row["slots"]}
    nodes = compress(sorted({slot.node for slot in slots}))
    return [
        Ungate(
            workload_uid=row["uid"],
            pod_uid=uid,
            namespace=namespaces[uid],
            name=pods[uid].name,
            node=holders[uid],
            hostname=hostnames.get(holders[uid]),
            jobid=row["jobid"],
            nodes=nodes,
            has_affinity=row["has_affinity"],
            waited_s=row["waited_s"],
        )
        for uid in gated
    ]
