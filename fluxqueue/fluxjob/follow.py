"""How a released workload is followed: which pod holds which slot, and when slots return.

The worker's ``reconcile`` task calls the pure function ``follow`` with the facts of the rows. It
looks at present facts only, never at events. So repeats and any order of observations give the same
end.

A slot is *held* by one pod from its assignment until that pod is terminal or gone. A pod that is
being deleted still holds its slot, because its containers still run.

The rules (life of a batch workload, steps 6 to 8), for slots:

- A failed pod's slot stays with its workload, and the replacement takes it. In an Indexed BatchJob
  the replacement is the next pod of the same index. The slot is kept for it while others end, and
  the next pod waits for it while its predecessor terminates.
- A kept slot goes to another index only if nothing is lost by that. Its index has ended, or the
  workload has all the pods that it may run without it.
- A slot that the workload can no longer use is returned to the cluster at once.
- If a node refuses a pod (``OutOfcpu``), its slot is returned when that pod ends. The replacement
  gets a slot on another node.
- A sweep (independent pods) returns the slot of each pod that ends, and the next pod waits for its
  turn in the queue. Only the last slot stays with it.
- Pods that kube-scheduler treats as one (``is_whole``) are released together. While one of them has
  no slot, the others stay gated. If none holds a slot yet, all of them are matched again.
- If pods are unequal (a group), a pod gets only a slot of its own kind. If the kinds of the pods to
  come are known, slots of those kinds are kept.

For lost nodes:

- An unheld slot on a lost node is returned. If nothing is held yet, the whole allocation is
  returned and the workload is matched again. Otherwise the pods without a slot are counted and the
  matcher adds slots. Pods beyond the allocation (the parallelism of a BatchJob was raised) are
  counted in the same way.
- A gated pod that no process is ungating is not sent to a lost node. It gives its slot back and
  gets another one on another node.
- A pod that terminates on a lost node may never be gone. It holds its slot, and its replacement
  gets another slot beside it.
- A pod that was ungated to a node that no longer exists, and is bound to none, is deleted. Its
  BatchJob makes another one. A pod that may run is never touched.
- A pod is lost with its node if the node is gone, or is down and the pod was deleted. If the
  workload restarts on such a loss, all its pods are ended. It then returns to the queue without
  waiting for the lost pods.

For the whole workload:

- The allocation ends when the workload has ended (or is deleted) *and* every slot is unheld.
- Pods of a workload that was released in its template come without a gate, and take slots as they
  come, also if the workload is over by then. If their node is lost before one of them got there,
  the whole workload is placed again.
- Pods of a workload with placed indexes come without a gate, or gated if admission did not place
  them. A pod without a gate takes the slot with the number of its index, and no other one: it was
  sent to the node of that slot. If nodes are lost before a pod is bound, the whole workload is
  placed again.
- As long as the placement of an index is valid, its slot is neither returned nor given to another
  index. Its author may make the workload smaller and larger again, and the pod comes ungated.
- A workload that vacates (requeued, or suspended by its author) returns each slot as its pod ends,
  and gets none. When no slot is held, it returns to the queue.
- A vacating workload with pods that come without a gate keeps its slots longer. It keeps them until
  its controller reports that it is suspended and that no pod is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, replace
from enum import StrEnum

from fluxqueue.fluxjob.pod_facts import PodFact, WorkloadProgress
from fluxqueue.fluxjob.states import FluxJobState


class SlotState(StrEnum):
    """State of a slot in a live allocation."""

    FREE = "free"
    HELD = "held"
    RETURNED = "returned"


@dataclass(frozen=True, slots=True)
class Slot:
    """One slot of an allocation. ``number`` counts from 0 within it.

    ``is_lost``: its node is gone, down or cordoned, so no pod can start there. ``is_down``: the
    node is down or gone, not only cordoned. ``is_gone``: the node no longer exists. ``is_refused``:
    the node refused the pod that held this slot.

    ``index``: the completion index that owns the slot, because a pod of that index has held it.
    ``is_spent``: that index gets no further pod. ``is_named``: the template names its node for an
    index that has not ended. ``kind``: the label of its kind of slots in the request.
    """

    number: int
    node: str
    state: SlotState = SlotState.FREE
    pod_uid: str | None = None
    is_lost: bool = False
    is_gone: bool = False
    is_refused: bool = False
    index: int | None = None
    is_spent: bool = False
    is_named: bool = False
    kind: str = ""
    is_down: bool = False


@dataclass(frozen=True, slots=True)
class FollowDecision:
    """What must change: slots by number, pods by UID, and the state if it changes.

    ``lacking`` is the number of slots that the matcher must add. ``is_kept``: spare slots return
    once no placement is valid any more. The allocation ends with ``is_ended`` and with
    ``is_requeued``. ``evict`` are pods that cannot start anywhere any more. ``must_vacate``: no pod
    of the workload can start, and every further pod would be sent to the same place.
    """

    assign: tuple[tuple[int, str], ...] = ()
    free: tuple[int, ...] = ()
    give_back: tuple[int, ...] = ()
    state: FluxJobState | None = None
    lacking: int = 0
    is_kept: bool = False
    is_ended: bool = False
    is_requeued: bool = False
    evict: tuple[str, ...] = ()
    must_vacate: bool = False


def follow(
    state: FluxJobState, workload: WorkloadProgress, pods: Sequence[PodFact], slots: Sequence[Slot]
) -> FollowDecision:
    """Decide what follows from the present facts of one allocated workload.

    Parameters
    ----------
    state : The present state of the job (Allocated or Running).
    workload : The workload as last seen.
    pods : Its pods as last seen. A pod that is gone is absent.
    slots : All slots of its live allocation.
    """
    # 1. Find out which pods hold a slot now. A gated pod on a lost node no longer does, unless the
    # workload vacates: such a pod gets no other slot.
    live = {pod.uid: pod for pod in pods if not pod.is_terminal}
    holders = {
        slot.pod_uid: slot
        for slot in slots
        if slot.pod_uid is not None and slot.pod_uid in live and slot.state is SlotState.HELD
        if workload.is_vacating or not _may_go_elsewhere(live[slot.pod_uid], slot)
    }
    held = {slot.number for slot in holders.values()}
    freed = tuple(s.number for s in slots if s.state is SlotState.HELD and s.number not in held)
    unheld = [s for s in slots if s.state is not SlotState.RETURNED and s.number not in held]
    # 2. The workload is over. This goes before vacating: an ended job must not be requeued. Pods
    # without a gate may run and hold no slot yet, if its end is seen before they are looked at.
    if workload.is_over and not held and not (unheld and _arrived(live, holders, workload)):
        gone = tuple(s.number for s in slots if s.state is not SlotState.RETURNED)
        return FollowDecision(free=freed, give_back=gone, state=_end(workload), is_ended=True)
    started = state is FluxJobState.ALLOCATED and any(p.phase == "Running" for p in pods)
    # 3. It stops, and unseen pods may run: returning a slot now could use its node twice.
    if workload.is_vacating and workload.is_stopping and not workload.is_over:
        return _stop(workload, live, slots, holders, unheld, freed, has_started=started)
    lost = {uid for uid, slot in holders.items() if is_lost_with(live[uid], slot)}
    if workload.is_vacating and not workload.is_over:
        # 4. It vacates: return slots as pods end. A lost pod may never be seen to end, so do not
        # wait for it if the workload restarts on a loss.
        left = lost if workload.restarts_on_loss else set()
        is_held = bool(holders.keys() - left)
        unheld += [] if is_held else [holders[uid] for uid in sorted(left)]
        return _vacate(freed, unheld, is_held=is_held, has_started=started)
    # 5. A pod was lost with its node and all must restart: hand out no slots, end the others first.
    if lost and workload.restarts_on_loss and not workload.is_over:
        kept = FollowDecision(free=freed, must_vacate=True)
        return replace(kept, state=FluxJobState.RUNNING if started else None)
    is_lost = any(slot.is_lost for slot in unheld)
    # 6. Its template names the nodes of its pods, and further pods would be sent there too. So the
    # template must be changed before the workload waits.
    if workload.comes_ungated and not workload.is_over:
        is_lost = any(slot.is_lost or slot.is_refused for slot in (*unheld, *holders.values()))
        if is_lost and workload.wanted and not any(pod.node for pod in live.values()):
            kept = _stop(workload, live, slots, holders, unheld, freed, has_started=started)
            return replace(kept, must_vacate=True)
        # Such pods cannot use another node, so the next step does not apply to them.
        is_lost = False
    # 7. It continues: hand out its open slots. Released alone, a part of a whole would wait for the
    # others in kube-scheduler, with its slots.
    decision = _go_on(workload, live, slots, holders, unheld)
    is_short = workload.is_whole and decision.lacking > 0 and not workload.is_independent
    # 8. No pod held a slot when nodes were lost, or too few came: match all of it as one unit.
    if (is_lost or is_short) and not held and state is FluxJobState.ALLOCATED:
        return _requeue(freed, unheld)
    decision = _hold_back(decision, live) if is_short else decision
    # A slot that passes to the next pod at once is assigned, and must not be freed as well.
    taken = {number for number, _ in decision.assign}
    return replace(
        decision,
        free=tuple(number for number in freed if number not in taken),
        state=FluxJobState.RUNNING if started else None,
    )


def _go_on(
    workload: WorkloadProgress,
    live: Mapping[str, PodFact],
    slots: Sequence[Slot],
    holders: Mapping[str, Slot],
    unheld: Sequence[Slot],
) -> FollowDecision:
    """Divide the open slots between pods, indexes to come and the cluster."""
    # 1. Leave out open slots where no pod can start. Pinned pods all go to one node, and use their
    # slots there as long as one of them runs.
    unusable = {s.number for s in unheld if s.is_lost or s.is_refused}
    # While pods come with their nodes, the next pod of an index is sent to its slot all the same.
    useless = () if workload.is_pinned or workload.is_placing else tuple(sorted(unusable))
    if workload.is_independent:
        useless = tuple(sorted({*useless, *_past_their_turn(unheld, holders, unusable)}))
    # 2. Find holders of slots that the workload gives up: replacements must not wait for them.
    ended = {slot.index for slot in slots if slot.is_spent}
    leaving = {uid for uid, slot in holders.items() if _is_leaving(live[uid], slot, ended)}
    # A pod of an index with a held slot waits for that slot, and needs no other one.
    bound = {live[uid].index for uid in holders if uid not in leaving} - {None}
    # 3. Give open slots to the pods that wait.
    shared = _share([s for s in unheld if s.number not in useless], bound)
    if workload.is_independent:
        shared = dict.fromkeys(sorted(shared))  # no index waits for a slot of its own
    kinds = {slot.number: slot.kind for slot in unheld}
    if workload.is_over:
        waiting = _arrived(live, holders, workload)
    else:
        waiting = _waiting(live, holders, bound, workload)
    wanted = 0 if workload.is_over else workload.wanted
    active = {uid for uid, pod in live.items() if not pod.is_terminating} - leaving
    sent, waiting = _sent_to_their_slots(waiting, shared, workload)
    # The pod of a named slot may still come without a gate, so no other index gets that slot.
    named = {s.number: s.index for s in unheld if s.is_named and workload.is_placing}
    due = {pod.index for pod in waiting}
    barred = {number for number, _ in sent} | (unusable if workload.is_placed else set())
    barred |= {number for number, index in named.items() if index not in due}
    left = {number: index for number, index in shared.items() if number not in barred}
    assign = _assign(waiting, left, kinds, len(slots), is_more_to_come=len(active) < wanted)
    assign += sent
    # 4. Count the pods that may still come, to know how many slots to keep for them.
    taken = {number for number, _ in assign}
    uses = {*holders, *[uid for _, uid in assign if live[uid].index not in ended]} - leaving
    room = wanted - len(uses)
    spare = [number for number in shared if number not in taken]
    if workload.wanted_of:
        used = Counter(live[uid].kind for uid in uses)
        spare = _needed_first(spare, kinds, Counter(workload.wanted_of) - used)
    # A waiting pod without a slot of its kind cannot use the spare ones: keep none for it.
    served = {uid for _, uid in assign}
    of_other_kinds = sum(bool(pod.kind) and pod.uid not in served for pod in waiting)
    keep = max(0, room - of_other_kinds)
    # 5. Ask for more slots only for pods that are there, and after the spare ones are counted.
    # Pinned pods wait for a slot on their node: a slot elsewhere would be useless to them.
    usable = sum(number in left or not workload.is_placed for number in spare[:keep])
    lacking = max(0, min(len(waiting) + len(sent) - len(assign), room - usable))
    lacking = 0 if workload.is_pinned else lacking
    back = [number for number in spare[keep:] if number not in named or workload.is_over]
    return FollowDecision(
        assign=tuple(assign),
        give_back=(*useless, *sorted(back)),
        lacking=lacking,
        is_kept=len(back) < len(spare[keep:]),
        # While pods come with their nodes, the next pod would be sent to the same lost node.
        evict=()
        if workload.is_over or workload.is_pinned or workload.is_placing
        else _stranded(live, slots),
    )


def _hold_back(decision: FollowDecision, live: Mapping[str, PodFact]) -> FollowDecision:
    """Return the decision without slots for gated pods. The slots stay with the workload."""
    assign = tuple(one for one in decision.assign if not live[one[1]].is_gated)
    return replace(decision, assign=assign)


def _past_their_turn(
    unheld: Sequence[Slot], holders: Mapping[str, Slot], unusable: Container[int]
) -> list[int]:
    """Return the slots that a sweep gives back because the pod that held them has ended.

    One slot stays: a sweep without any would have to be released again.
    """
    used = [slot.number for slot in unheld if slot.state is SlotState.HELD]
    is_left = any(
        slot.number not in unusable for slot in unheld if slot.state is not SlotState.HELD
    ) or bool(holders)
    kept = [] if is_left else [number for number in used if number not in unusable][:1]
    return [number for number in used if number not in kept]


def _sent_to_their_slots(
    waiting: Sequence[PodFact], shared: Mapping[int, int | None], workload: WorkloadProgress
) -> tuple[list[tuple[int, str]], list[PodFact]]:
    """Give pods that were placed at their creation their slots. Return the other pods as well.

    The slot of an index has its number. If that slot is held or returned, the pod gets none: a slot
    on another node would be wrong. It is counted as unmanaged use until its slot is free.
    """
    if not workload.is_placed:
        return [], list(waiting)
    sent = [
        (pod.index, pod.uid)
        for pod in waiting
        if not pod.is_gated and pod.index is not None and pod.index in shared
    ]
    return sent, [pod for pod in waiting if pod.is_gated]


def _may_go_elsewhere(pod: PodFact, slot: Slot) -> bool:
    """Return whether the pod is still gated, and its slot's node takes no pod any more."""
    # A pod that is being ungated may already be bound: moving it could use two slots.
    is_here = pod.is_gated and not pod.is_sent and not pod.is_terminating
    return is_here and slot.is_lost


def is_lost_with(pod: PodFact, slot: Slot) -> bool:
    """Return whether a pod is lost with the node of its slot.

    It is lost if the node is gone, or is down and the pod was deleted from it.
    """
    return slot.is_gone or (slot.is_down and pod.is_terminating)


def _needed_first(
    spare: Sequence[int], kinds: Mapping[int, str], needed: Counter[str]
) -> list[int]:
    """Order the spare slots: those that match the kinds of pods to come are kept first."""
    first = []
    for number in spare:
        if needed[kinds[number]] > 0:
            needed[kinds[number]] -= 1
            first.append(number)
    return first + [number for number in spare if number not in first]


def _share(open_slots: Sequence[Slot], bound: Container[int | None]) -> dict[int, int | None]:
    """Return open slots by number, each with the index that it is kept for.

    The slots to give up last come first.
    """
    kept = {
        slot.number: None if slot.is_spent or slot.index in bound else slot.index
        for slot in open_slots
    }
    # The BatchJob creates the pod of the lowest index first, so that slot is needed first.
    order = sorted(kept, key=lambda number: (kept[number] is None, kept[number] or 0, number))
    return {number: kept[number] for number in order}


def _is_leaving(pod: PodFact, slot: Slot, ended: Container[int | None]) -> bool:
    """Return whether the pod holds a slot that the workload does not count as its own any more.

    The index of the pod has ended, or the pod terminates on a lost node.
    """
    return pod.index in ended or (pod.is_terminating and slot.is_lost)


def _vacate(
    freed: tuple[int, ...], unheld: Sequence[Slot], *, is_held: bool, has_started: bool
) -> FollowDecision:
    """Return the open slots, and requeue the workload once no slot is held."""
    if not is_held:
        return _requeue(freed, unheld)
    return FollowDecision(
        free=freed,
        give_back=tuple(slot.number for slot in unheld),
        state=FluxJobState.RUNNING if has_started else None,
    )


def _stop(
    workload: WorkloadProgress,
    live: Mapping[str, PodFact],
    slots: Sequence[Slot],
    holders: Mapping[str, Slot],
    unheld: Sequence[Slot],
    freed: tuple[int, ...],
    *,
    has_started: bool,
) -> FollowDecision:
    """Keep all slots for pods that may not have been seen yet. Pods that are seen take theirs."""
    pinned = replace(workload, is_pinned=True)
    # A gated pod gets no slot: it cannot start, and would keep an unseen pod from its own.
    seen = {uid: pod for uid, pod in live.items() if not pod.is_gated or uid in holders}
    assign = _go_on(pinned, seen, slots, holders, unheld).assign
    taken = {number for number, _ in assign}
    return FollowDecision(
        assign=assign,
        free=tuple(number for number in freed if number not in taken),
        state=FluxJobState.RUNNING if has_started else None,
    )


def _stranded(live: Mapping[str, PodFact], slots: Sequence[Slot]) -> tuple[str, ...]:
    """Return pods that were ungated to a node that no longer exists, and are bound to none."""
    return tuple(
        pod.uid
        for slot in slots
        if slot.is_gone and slot.pod_uid is not None
        for pod in [live.get(slot.pod_uid)]
        if pod is not None and pod.node is None and pod.phase == "Pending"
        if not pod.is_gated and not pod.is_terminating
    )


def _requeue(freed: tuple[int, ...], unheld: Sequence[Slot]) -> FollowDecision:
    """End the allocation and return the workload to the queue."""
    return FollowDecision(
        free=freed,
        give_back=tuple(slot.number for slot in unheld),
        state=FluxJobState.PENDING,
        is_requeued=True,
    )


def _end(workload: WorkloadProgress) -> FluxJobState:
    """Return the reported result, or Cancelled if the workload was deleted without one."""
    return workload.result or FluxJobState.CANCELLED


def _waiting(
    live: Mapping[str, PodFact],
    holders: Container[str],
    bound: Collection[int | None],
    workload: WorkloadProgress,
) -> list[PodFact]:
    """Return the pods that are to get a slot, in that order, one of each index."""
    found = sorted(
        (p for p in live.values() if p.uid not in holders and _needs_slot(p, workload)),
        # Terminating pods come last: they only use their node until they are gone.
        key=lambda p: (p.is_terminating, p.index if p.index is not None else -1, p.name),
    )
    # Two pods of one index would get two slots for one piece of work.
    served = set(bound)
    waiting: list[PodFact] = []
    for pod in found:
        if pod.index not in served:
            waiting.append(pod)
            served |= {pod.index} - {None}
    return waiting


def _arrived(
    live: Mapping[str, PodFact], holders: Container[str], workload: WorkloadProgress
) -> list[PodFact]:
    """Return the pods that came without a gate and hold no slot yet."""
    if not workload.comes_ungated:
        return []
    let_go = {uid: pod for uid, pod in live.items() if not pod.is_gated}
    return _waiting(let_go, holders, (), workload)


def _needs_slot(pod: PodFact, workload: WorkloadProgress) -> bool:
    """Return whether the pod is to get a slot.

    A pod without a gate that is first seen while it terminates gets one too. It uses its node until
    it is gone.
    """
    if pod.is_terminating:
        return workload.comes_ungated and not pod.is_gated and pod.node is not None
    return pod.is_gated or workload.comes_ungated


def _assign(
    waiting: Sequence[PodFact],
    shared: Mapping[int, int | None],
    kinds: Mapping[int, str],
    width: int,
    *,
    is_more_to_come: bool,
) -> list[tuple[int, str]]:
    """Give open slots to waiting pods. An index gets the slot that is kept for it.

    A pod without such a slot gets a slot that is kept for no index, its own number if possible.
    Slots of other indexes stay reserved while the workload may create more pods.
    """
    # Own slots first: a pod that may take any slot could take the slot of an index.
    own = {index: number for number, index in shared.items() if index is not None}
    chosen = [(own.pop(p.index), p.uid) for p in waiting if p.index is not None and p.index in own]
    reserved = {number for number, _ in chosen} | set(own.values() if is_more_to_come else ())
    left = sorted(number for number in shared if number not in reserved)
    served = {uid for _, uid in chosen}
    for pod in (pod for pod in waiting if pod.uid not in served):
        fitting = left if not pod.kind else [one for one in left if kinds[one] == pod.kind]
        if not fitting:
            continue
        first = pod.index % width if pod.index is not None else -1
        number = first if first in fitting else fitting[0]
        left.remove(number)
        chosen.append((number, pod.uid))
    return chosen
