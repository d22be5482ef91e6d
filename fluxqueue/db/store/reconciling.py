"""Reconciling a workload: what its rows require, written back in one transaction.

The worker's ``reconcile`` task calls it. It reads the row, its pods and its slots under the row's
lock, asks the pure ``fluxjob.follow``, and stores the answer (``reconciled``). The answer depends
on the rows alone, so reconciling twice or late is harmless. The look of a row stays pending
(``reconcile_at``) until its pods have been released (``finish``).
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.store import starts as starts_in_rows
from fluxqueue.db.store.dependencies import look_at
from fluxqueue.db.store.moves import vacate
from fluxqueue.db.store.pod_rows import count_unmanaged
from fluxqueue.db.store.slot_changes import ReconciledRow, SlotChanges
from fluxqueue.db.store.starts import MissingPods
from fluxqueue.db.store.workload_rows import StoredPod, StoredSlot, WorkloadRow
from fluxqueue.fluxjob.follow import FollowDecision, follow, is_lost_with
from fluxqueue.fluxjob.holders import (
    LOST,
    LOST_NODE,
    NOT_STARTED,
    SOME_WAIT,
    UNSEEN,
)
from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.fluxjob.lifecycle import on_requeued
from fluxqueue.fluxjob.node import Destination
from fluxqueue.fluxjob.pod_facts import WorkloadProgress
from fluxqueue.fluxjob.request import describe
from fluxqueue.fluxjob.start_watch import StartDecision, StartRules
from fluxqueue.fluxjob.states import FINAL, FluxJobState

_DEFAULT_RULES = StartRules()


@dataclass(frozen=True, slots=True)
class Ungate:
    """One pod to be released ``to`` the node of its slot.

    ``has_affinity``: it requires node affinity of its own. ``waited_s``: seconds since its FluxJob
    was submitted; None where that has run before. ``others``: hostnames of further nodes, among
    which kube-scheduler chooses. ``workload_kind``, ``owner``: as in the row of its FluxJob.
    """

    workload_uid: str
    pod_uid: str
    namespace: str
    name: str
    to: Destination
    jobid: int
    nodes: str
    has_affinity: bool = False
    waited_s: float | None = None
    others: tuple[str, ...] = ()
    workload_kind: str = ""
    owner: Mapping[str, str] | None = None


@dataclass(frozen=True, slots=True)
class Evict:
    """One pod that was released to a node that is gone, and is bound to no node."""

    workload_uid: str
    pod_uid: str
    namespace: str
    name: str


@dataclass(slots=True)
class Reconciled:
    """Effects on pods that a reconciliation requires, and the looks that stay pending until then.

    ``pending_actions`` maps the UID of each such workload to the value of its ``reconcile_at``.
    ``missing``: workloads with pods that were not created. ``start_failures``: the kind of each
    start that failed.
    """

    ungates: list[Ungate] = field(default_factory=list)
    evictions: list[Evict] = field(default_factory=list)
    missing: list[MissingPods] = field(default_factory=list)
    start_failures: list[str] = field(default_factory=list)
    pending_actions: dict[str, datetime | None] = field(default_factory=dict)

    def add(self, other: Reconciled) -> None:
        """Add those of another transaction."""
        self.ungates += other.ungates
        self.evictions += other.evictions
        self.missing += other.missing
        self.start_failures += other.start_failures
        self.pending_actions |= other.pending_actions


NAMED = 3
"""Lost slots that a reason names."""

_WAY_OUT = "other work has to end, a node to join, or a pod of its own to go"


async def reconcile(
    tx: Transaction,
    uids: Collection[str],
    *,
    if_observed: bool = False,
    rules: StartRules = _DEFAULT_RULES,
) -> Reconciled:
    """Reconcile workloads, and return the effects on their pods.

    ``if_observed``: only while a controller compares the rows with the cluster. ``rules``: how long
    a start may take.
    """
    await tx.execute(Q.lock_with_targets, uids=list(uids))
    # Lock the workloads and their targets at once and in order. Locking a target later could
    # deadlock.
    reconciled, changes = Reconciled(), SlotChanges()
    still: list[WorkloadRow] = []
    moved: list[tuple[WorkloadRow, FollowDecision]] = []
    starts: list[tuple[str, StartDecision]] = []
    for row in await tx.fetch(
        Q.workloads_to_reconcile, WorkloadRow, uids=list(uids), if_observed=if_observed
    ):
        state, change = FluxJobState(row.state), ReconciledRow(row.uid)
        is_pending = False
        if state.is_waiting and _is_over(row):
            _end_waiting(row, change)
        elif state.is_waiting and (row.facts.depends_on or row.blocked_by is not None):
            still.append(row)
        elif not state.is_final and row.allocation_id is not None:
            decision = _follow(row, state)
            changes.add(row.allocation_id, decision, has_indexes=_has_indexes(row))
            _change(row, decision, change)
            change.is_resized = bool(decision.give_back) and not _ends(decision)
            moved.append((row, decision))
            start = _judge_start(row, decision, rules)
            _tell_start(row, decision, start, change)
            starts.append((row.uid, start))
            is_pending = _note_effects(row, decision, start, reconciled)
        is_awaited = row.reconcile_at is not None or change.look_in_s is not None
        change.is_done = not is_pending and is_awaited
        if change != ReconciledRow(row.uid):
            changes.rows.append(change)
    await changes.write_slots(tx)
    await count_unmanaged(tx, {row.uid for row, decision in moved if _exceeds(row, decision)})
    await changes.write_rows(tx)
    await _note_sent(tx, reconciled.ungates)
    await _act_on_starts(tx, starts, reconciled)
    for one, decision in moved:
        if decision.must_vacate:
            # Its template names a node that is lost. It is matched anew.
            lost = f"its node {_lost_nodes(one)} is lost; it is placed anew"
            await vacate(tx, one.uid, by=LOST_NODE, reason=lost)
        if decision.is_requeued:
            await _store_requeued(tx, one, rules)
    if any(decision.lacking and decision.assign for _, decision in moved):
        # Some waiting pods got slots while others arrived, so as many wait as before. No row then
        # shows that the matcher has to add more, so wake it here.
        await tx.wake_matcher()
    await look_at(tx, still)
    return reconciled


def _ends(decision: FollowDecision) -> bool:
    """Return whether the allocation ends."""
    return decision.is_ended or decision.is_requeued


def _holders(row: WorkloadRow, decision: FollowDecision) -> dict[str, StoredSlot]:
    """Return the slot of each pod, as it is after a decision."""
    slots = {slot.number: slot for slot in row.slots}
    left = {*decision.free, *decision.give_back}
    held = {s.pod_uid: s for s in row.slots if s.pod_uid and s.number not in left}
    return held | {pod: slots[number] for number, pod in decision.assign}


def _exceeds(row: WorkloadRow, decision: FollowDecision) -> bool:
    """Return whether a bound pod uses more than its slot, or did when it was last counted."""
    holders = _holders(row, decision)
    return any(
        pod.is_counted or not _is_covered(pod, holders.get(pod.uid))
        for pod in row.pods.values()
        if pod.node is not None and not pod.is_terminal
    )


def _is_covered(pod: StoredPod, slot: StoredSlot | None) -> bool:
    return slot is not None and slot.may_be_on(pod.node) and _fits(pod, slot)


def _fits(pod: StoredPod, slot: StoredSlot) -> bool:
    """Return whether a pod asks for no more than its slot has."""
    return all(
        int(amount) <= int(slot.resources.get(name, 0)) for name, amount in pod.amounts.items()
    )


async def _note_sent(tx: Transaction, ungates: Sequence[Ungate]) -> None:
    """Mark these pods as sent, so that another look at the same workloads leaves them out."""
    if ungates:
        await tx.execute(Q.note_sent, pods=[one.pod_uid for one in ungates])


async def finish(
    database: Database,
    reconciled: Reconciled,
    *,
    let_go: Collection[str],
    failed: Collection[str],
) -> None:
    """Write down which pods have no gate any more, and clear the looks that are finished with that.

    A look that was requested meanwhile stays pending. ``failed``: workloads with a failed effect.
    """
    if reconciled.pending_actions:
        uids = sorted(reconciled.pending_actions)
        await database.execute(
            Q.finish_looks,
            uids=uids,
            pending_actions=[reconciled.pending_actions[uid] for uid in uids],
            pods=list(let_go),
            sent=[one.pod_uid for one in reconciled.ungates],
            failed=list(failed),
        )


def _is_over(row: WorkloadRow) -> bool:
    return row.result is not None or row.is_deleting


def _end_waiting(row: WorkloadRow, change: ReconciledRow) -> None:
    """Take a workload that ended or was deleted while it waited out of the queue at once."""
    change.state = FluxJobState(row.result) if row.result else FluxJobState.CANCELLED
    change.reason = "deleted while it waited" if row.is_deleting else "ended while it waited"
    if row.cancel_by is not None:
        change.reason = f"cancelled by {row.cancel_by}"


def _follow(row: WorkloadRow, state: FluxJobState) -> FollowDecision:
    """Return what follows for a workload with an allocation."""
    return follow(state, _workload(row), list(row.pods.values()), row.slots)


def _workload(row: WorkloadRow) -> WorkloadProgress:
    facts = row.facts
    return WorkloadProgress(
        wanted=facts.wanted,
        result=FluxJobState(row.result) if row.result else None,
        is_deleting=row.is_deleting,
        is_vacating=row.vacate_by is not None,
        is_pinned=row.pinned_to is not None,
        is_placed=row.is_placed,
        is_placing=starts_in_rows.is_placing(row),
        is_stopping=_is_stopping(row),
        wanted_of=facts.wanted_of,
        restarts_on_loss=facts.restarts_on_loss,
        is_independent=row.is_independent,
        is_whole=facts.is_whole,
    )


def _is_stopping(row: WorkloadRow) -> bool:
    """Return whether pods without a gate may exist that were not observed yet.

    That is so until its controller reports, after our last write, that there are none.
    """
    facts = row.facts
    comes_ungated = row.pinned_to is not None or facts.is_pinnable or facts.is_placeable
    released = row.released_generation
    is_idle = facts.is_idle and released is not None and facts.generation > released
    return facts.is_suspendable and comes_ungated and not is_idle


def _has_indexes(row: WorkloadRow) -> bool:
    return any(pod.index is not None for pod in row.pods.values())


def _change(row: WorkloadRow, decision: FollowDecision, change: ReconciledRow) -> None:
    """Fill in what becomes of the row. A requeued one is written separately."""
    if decision.is_requeued:
        return
    if decision.state is not None:
        change.state, change.reason = decision.state, _reason(row, decision)
        change.lacking = decision.lacking
        # Pods may come and go between two looks. A pod that was deleted need never have run.
        change.has_run = decision.state is not FluxJobState.CANCELLED
    elif decision.lacking != row.lacking:
        # Pods wait without a slot, or no longer do: the matcher adds what is lacking.
        change.lacking, change.reason = decision.lacking, _running_reason(row, decision)
    elif not decision.must_vacate and row.vacate_by is None:
        _tell_loss(row, decision, change)


def _tell_loss(row: WorkloadRow, decision: FollowDecision, change: ReconciledRow) -> None:
    """Leave a notice when running pods lose nodes, and another one when that is over."""
    said = _running_reason(row, decision)
    if said != row.reason and (said.startswith(LOST) or row.reason.startswith(LOST)):
        change.reason = said


def _judge_start(row: WorkloadRow, decision: FollowDecision, rules: StartRules) -> StartDecision:
    return starts_in_rows.judge(row, decision, _holders(row, decision), rules)


def _tell_start(
    row: WorkloadRow, decision: FollowDecision, start: StartDecision, change: ReconciledRow
) -> None:
    """Fill in what keeps its pods from running. What it lacks, or a lost node, is said first."""
    looks = [] if start.look_in_s is None else [start.look_in_s]
    looks += [starts_in_rows.placing_left_s(row)] if decision.is_kept else []
    change.look_in_s = min(looks, default=None)
    change.is_started = start.has_started and not row.is_started
    change.must_release = start.must_release
    starting = {} if start.starting is None else start.starting.to_json()
    if starting != (row.starting or {}):
        change.starting = starting
    was_told = row.starting is not None
    if start.must_requeue or not (start.reason or was_told) or decision.state in FINAL:
        return
    other = _running_reason(row, decision)
    reason = start.reason if start.reason and not other.startswith(LOST) else other
    if reason != row.reason or change.reason is not None:
        change.reason = reason


async def _act_on_starts(
    tx: Transaction, starts: Sequence[tuple[str, StartDecision]], reconciled: Reconciled
) -> None:
    """Write what follows from pods that do not start."""
    await starts_in_rows.mark_refused(
        tx, [uid for _, start in starts for uid in (*start.move, *start.refuse)]
    )
    for uid, start in starts:
        if start.must_requeue:
            await starts_in_rows.vacate(tx, uid, start)
        if start.starting is not None and (start.must_requeue or start.move):
            reconciled.start_failures.append(str(start.starting.fault))


def _note_effects(
    row: WorkloadRow,
    decision: FollowDecision,
    start: StartDecision,
    reconciled: Reconciled,
) -> bool:
    """Note the effects on its pods, and return whether there are any."""
    uid, workload = row.uid, _workload(row)
    before = len(reconciled.evictions) + len(reconciled.ungates)
    if row.facts.replaces_pods:
        reconciled.evictions += [
            Evict(uid, pod, row.pods[pod].namespace, row.pods[pod].name)
            for pod in dict.fromkeys((*decision.evict, *start.move, *start.again))
        ]
    if start.must_ask:
        since_s = float(row.now_s) - float(row.released_s or 0)
        reconciled.missing.append(
            MissingPods(uid, row.namespace, since_s, is_told=start.starting is not None)
        )
    if not (decision.is_ended or decision.is_requeued or workload.is_over or workload.is_vacating):
        reconciled.ungates += _ungates(row, decision)
    is_pending = len(reconciled.evictions) + len(reconciled.ungates) > before
    if is_pending:
        reconciled.pending_actions[uid] = row.reconcile_at
    return is_pending


def _lost_nodes(row: WorkloadRow) -> str:
    if row.pinned_to is not None:
        return str(row.pinned_to)
    pods = row.pods
    held = [slot for slot in row.slots if slot.pod_uid in pods]
    return compress(sorted({one.node for one in held if is_lost_with(pods[str(one.pod_uid)], one)}))


async def _store_requeued(tx: Transaction, row: WorkloadRow, rules: StartRules) -> None:
    """Put it back at its old place in the queue, or beside the queue where its author holds it.

    Either nothing of it has started, or its pods were made to end, so it may be placed anew. If its
    BatchJob is not suspended, the pending release suspends it.
    """
    has_failed = row.vacate_by == NOT_STARTED
    failed = starts_in_rows.failed_try(row, rules)
    requeued = on_requeued(row.author_hold, row.vacate_by, failed)
    await tx.execute(
        Q.requeue_reconciled,
        state=str(requeued.state),
        reason=requeued.reason,
        held_by=requeued.held_by,
        is_asked=requeued.is_asked,
        tries=failed.tries if has_failed else row.start_tries,
        delay_s=float(requeued.delay_s) if requeued.delay_s else None,
        uid=row.uid,
    )


def _reason(row: WorkloadRow, decision: FollowDecision) -> str:
    if decision.state is FluxJobState.CANCELLED and row.cancel_by is not None:
        return f"cancelled by {row.cancel_by}"
    found = _running_reason(row, decision)
    if decision.state is FluxJobState.CANCELLED and not found and row.reason == UNSEEN:
        return UNSEEN
    return found


def _running_reason(row: WorkloadRow, decision: FollowDecision) -> str:
    """Return what a running workload lacks: slots for waiting pods, or nodes under pods."""
    if not decision.lacking:
        return _loss_reason(row, decision)
    if row.is_independent:
        # The cycle says what they wait for. Most looks change nothing about that.
        said = row.reason if row.reason.startswith(SOME_WAIT) else SOME_WAIT
        return _loss_reason(row, decision) or said
    who = "1 of its pods waits" if decision.lacking == 1 else f"{decision.lacking} of its pods wait"
    lost = [slot for slot in row.slots if slot.is_lost and slot.number not in dict(decision.assign)]
    places = "; ".join(
        f"in place of slot {slot.number} on {slot.node}, which is lost: {describe(slot.resources)}"
        for slot in lost[:NAMED]
    )
    return f"{who} for a slot: {_WAY_OUT}{f' ({places})' if places else ''}"


def _loss_reason(row: WorkloadRow, decision: FollowDecision) -> str:
    """Return which nodes under its pods are down or gone, and what becomes of these pods."""
    under = [slot for slot in row.slots if slot.is_down and slot.pod_uid]
    if not under:
        return ""
    pods = row.pods
    if decision.is_ended and under and decision.state is not FluxJobState.COMPLETED:
        return f"lost with {compress(sorted({slot.node for slot in under}))}"
    held = [slot for slot in under if slot.pod_uid in pods]
    if not held or decision.is_ended:
        return ""
    nodes = compress(sorted({slot.node for slot in held}))
    are = "is" if len({slot.node for slot in held}) == 1 else "are"
    gone = "gone" if all(slot.is_gone for slot in held) else "down"
    if row.facts.replaces_pods:
        then = "a pod that is lost there is made again elsewhere"
    elif all(pods[str(slot.pod_uid)].node for slot in held):
        then = "Kubernetes deletes the pod there after a while, and no controller makes it again"
    else:
        then = "its pod was sent there and cannot be sent elsewhere: delete it and make it again"
    return f"{LOST}{nodes} {are} {gone}; {then}"


def _ungates(row: WorkloadRow, decision: FollowDecision) -> list[Ungate]:
    given = _holders(row, decision)
    # A pod that now asks for more than was decided for it stays gated: its slot is smaller.
    gated = [
        (pod, given[pod.uid])
        for pod in row.pods.values()
        if pod.is_gated and not pod.is_sent and pod.uid in given and _fits(pod, given[pod.uid])
    ]
    if not gated:
        return []
    nodes = compress(sorted({slot.node for slot in row.slots}))
    return [
        Ungate(
            workload_uid=row.uid,
            pod_uid=pod.uid,
            namespace=pod.namespace,
            name=pod.name,
            to=slot.to,
            jobid=row.jobid,
            nodes=nodes,
            has_affinity=row.facts.has_affinity,
            waited_s=row.waited_s,
            others=tuple(host for _, host in slot.others or ()),
            workload_kind=row.workload_kind,
            owner=row.facts.owner,
        )
        for pod, slot in gated
    ]
