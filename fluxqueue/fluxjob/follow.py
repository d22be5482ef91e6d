"""How a released workload is followed: which pod holds which slot, and when slots go back.

One pure function, ``follow``, called by the worker's ``settle`` task with what the rows say. It
never looks at an event, only at the present facts, so any number of repeats and any order of
observations give the same end.

The rules (design: life of a batch workload, steps 6 to 8):

- A slot is *held* by one pod from its assignment until that pod is terminal or gone. A pod that
  is only being deleted still holds its slot: its containers still run.
- A failed pod's slot returns to its own workload; the replacement takes it. Of an Indexed BatchJob
  that is the next pod of the same index: its slot is kept for it while others end, and it waits
  for it while its predecessor is going. A kept slot is given to another index only where none is
  lost by it: the index has ended, or the workload has as many pods as it may run without it.
- A slot the workload can no longer use is returned to the cluster at once.
- A slot that nobody holds on a node that is lost goes back too. Where nothing has been held yet the
  whole allocation does, and the workload is matched anew; otherwise the pods that then lack a slot
  are counted, and the matcher adds slots. Pods beyond the allocation (a BatchJob whose parallelism
  was raised) are counted alike.
- The allocation ends when the workload has ended (or is deleted) *and* every slot is unheld.
- A slot whose node refused its pod (``OutOfcpu``) goes back when that pod is over; the replacement
  gets another, somewhere else.
- A pod that has its gate yet, and that nobody is letting go at this moment, is not sent to a node
  that is lost: it gives its slot back and gets another, elsewhere.
- A pod that is going on a lost node may never be gone: it holds its slot, and its replacement gets
  another beside it.
- A pod that was let go to a node that no longer exists, and is bound to none, is given up: its
  BatchJob makes another. A pod that may run is never touched.
- Pods of a workload that was released in its template come without a gate and take their slots as
  they come. If their node is lost and none of them has got there, all of it has to be placed anew.
- Where pods are unequal (a group), a pod gets a slot of its own kind and no other. Where it is
  known of which kinds those are that are yet to come, slots of these are kept.
- A pod is lost with its node where that is gone, or is down and the pod was deleted. Of a workload
  that restarts then all pods are made to end, and it goes back to the queue without waiting for
  those that were lost.
- A workload that is to vacate (requeued, or suspended by its author) gives each slot back as its
  pod ends and gets none; when none is held it goes back to the queue. One whose pods come without a
  gate keeps its slots until whoever makes them says that it is suspended and that none is left.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Container, Mapping, Sequence
from dataclasses import dataclass, field, replace
from enum import StrEnum

from fluxqueue.fluxjob.states import FluxJobState


class SlotState(StrEnum):
    """A slot of a live allocation."""

    FREE = "free"
    HELD = "held"
    RETURNED = "returned"


@dataclass(frozen=True, slots=True)
class Slot:
    """One place of an allocation: ``number`` counts from 0 within it.

    ``is_lost``: its node is gone, down or cordoned, so no pod can start there; ``is_down``: it is
    not only cordoned; ``is_gone``: it no longer exists. ``is_refused``: it would not take the pod
    that held this slot. ``index``: the completion index whose slot it is, since a pod of it has
    held it; ``is_spent``: no pod of that index will be made any more. ``kind``: label of its kind
    of slots in the request.
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
    kind: str = ""
    is_down: bool = False


@dataclass(frozen=True, slots=True)
class PodFact:
    """One pod of ours as last seen. ``index`` is the completion index of an Indexed BatchJob;

    ``is_refused``: it has failed because its node would not take it; ``kind``: label of the kind
    of slots that it needs, empty where all its workload's are equal. ``uses``: what it asks for by
    its own words, resource and base units. ``is_sent``: somebody is letting it go.
    ``is_killed``: its deletion was asked for before its containers ended, so how they ended says
    nothing about the work.
    """

    uid: str
    name: str
    phase: str
    is_gated: bool
    is_terminating: bool = False
    node: str | None = None
    index: int | None = None
    is_refused: bool = False
    kind: str = ""
    uses: tuple[tuple[str, int], ...] = ()
    is_sent: bool = False
    is_killed: bool = False

    @property
    def is_terminal(self) -> bool:
        """Whether its containers have ended for good."""
        return self.phase in {"Succeeded", "Failed"}


@dataclass(frozen=True, slots=True)
class WorkloadFact:
    """The workload object as last seen.

    ``wanted`` is how many pods it may still run at once (parallelism, bounded by the completions
    left); ``result`` is set when it has reported its end; ``is_deleting`` when it is gone or going;
    ``is_vacating`` when its pods are to go and it is to wait again; ``is_pinned`` when its pods
    come without a gate, because its template names the node of all its slots; ``is_stopping`` when
    it vacates, and such pods may be there that nobody has seen. ``wanted_of``: of ``wanted``, how
    many need each kind of slots, where that is known before they come. ``restarts_on_loss``: where
    a pod is lost with its node, all of them start anew.
    """

    wanted: int
    result: FluxJobState | None = None
    is_deleting: bool = False
    is_vacating: bool = False
    is_pinned: bool = False
    is_stopping: bool = False
    wanted_of: Mapping[str, int] = field(default_factory=dict)
    restarts_on_loss: bool = False

    @property
    def is_over(self) -> bool:
        """Whether it will never want another pod."""
        return self.result is not None or self.is_deleting


GONE = WorkloadFact(wanted=0, is_deleting=True)
"""A workload that no longer exists."""


@dataclass(frozen=True, slots=True)
class FollowDecision:
    """What must change: slots by number, pods by uid, and perhaps the state.

    ``lacking`` is how many slots the matcher shall add; with ``is_ended`` and with ``is_requeued``
    the allocation ends. ``evict`` are pods that can start nowhere any more; ``must_vacate`` says
    that none of them can, and that every other would come to the same place.
    """

    assign: tuple[tuple[int, str], ...] = ()
    free: tuple[int, ...] = ()
    give_back: tuple[int, ...] = ()
    state: FluxJobState | None = None
    lacking: int = 0
    is_ended: bool = False
    is_requeued: bool = False
    evict: tuple[str, ...] = ()
    must_vacate: bool = False


def follow(
    state: FluxJobState, workload: WorkloadFact, pods: Sequence[PodFact], slots: Sequence[Slot]
) -> FollowDecision:
    """Decide what follows from the present facts of one allocated workload.

    Parameters
    ----------
    state : the FluxJob's present state (Allocated or Running).
    workload : the workload as last seen.
    pods : its pods as last seen; a pod that is gone is simply absent.
    slots : all slots of its live allocation.
    """
    live = {pod.uid: pod for pod in pods if not pod.is_terminal}
    holders = {
        slot.pod_uid: slot
        for slot in slots
        if slot.pod_uid is not None and slot.pod_uid in live and slot.state is SlotState.HELD
        if workload.is_vacating or not _may_go_elsewhere(live[slot.pod_uid], slot)
    }
    held = {slot.number for slot in holders.values()}
    freed = tuple(s.number for s in slots if s.state is SlotState.HELD and s.number not in held)
    if workload.is_over and not held:
        gone = tuple(s.number for s in slots if s.state is not SlotState.RETURNED)
        return FollowDecision(free=freed, give_back=gone, state=_end(workload), is_ended=True)
    unheld = [s for s in slots if s.state is not SlotState.RETURNED and s.number not in held]
    started = state is FluxJobState.ALLOCATED and any(p.phase == "Running" for p in pods)
    if workload.is_vacating and workload.is_stopping and not workload.is_over:
        return _stop(workload, live, slots, holders, unheld, freed, has_started=started)
    lost = {uid for uid, slot in holders.items() if is_lost_with(live[uid], slot)}
    if workload.is_vacating and not workload.is_over:
        # Nobody waits for a pod that may never be seen to go: its slot goes back without it.
        left = lost if workload.restarts_on_loss else set()
        is_held = bool(holders.keys() - left)
        unheld += [] if is_held else [holders[uid] for uid in sorted(left)]
        return _vacate(freed, unheld, is_held=is_held, has_started=started)
    if lost and workload.restarts_on_loss and not workload.is_over:
        kept = FollowDecision(free=freed, must_vacate=True)
        return replace(kept, state=FluxJobState.RUNNING if started else None)
    is_lost = any(slot.is_lost for slot in unheld)
    if workload.is_pinned and not workload.is_over:
        is_lost = any(slot.is_lost or slot.is_refused for slot in (*unheld, *holders.values()))
        if is_lost and workload.wanted and not any(pod.node for pod in live.values()):
            kept = _stop(workload, live, slots, holders, unheld, freed, has_started=started)
            return replace(kept, must_vacate=True)
        is_lost = False
    if is_lost and not held and state is FluxJobState.ALLOCATED:
        return _requeue(freed, unheld)
    decision = _go_on(workload, live, slots, holders, unheld)
    taken = {number for number, _ in decision.assign}
    return replace(
        decision,
        free=tuple(number for number in freed if number not in taken),
        state=FluxJobState.RUNNING if started else None,
    )


def _go_on(
    workload: WorkloadFact,
    live: Mapping[str, PodFact],
    slots: Sequence[Slot],
    holders: Mapping[str, Slot],
    unheld: Sequence[Slot],
) -> FollowDecision:
    """Share out the slots that nobody holds: to pods, to indexes to come, to the cluster."""
    # Pods that all go to one node use what they have there, as long as one of them runs.
    is_choice = not workload.is_pinned
    useless = tuple(s.number for s in unheld if is_choice and (s.is_lost or s.is_refused))
    ended = {slot.index for slot in slots if slot.is_spent}
    leaving = {uid for uid, slot in holders.items() if _is_leaving(live[uid], slot, ended)}
    # Whoever is of an index that has its slot waits until that slot is there; it needs no other.
    bound = {live[uid].index for uid in holders if uid not in leaving} - {None}
    shared = _share([s for s in unheld if s.number not in useless], bound)
    kinds = {slot.number: slot.kind for slot in unheld}
    waiting = [] if workload.is_over else _waiting(live, holders, bound, workload)
    wanted = 0 if workload.is_over else workload.wanted
    active = {uid for uid, pod in live.items() if not pod.is_terminating} - leaving
    assign = _assign(waiting, shared, kinds, len(slots), is_more_to_come=len(active) < wanted)
    taken = {number for number, _ in assign}
    uses = {*holders, *[uid for _, uid in assign if live[uid].index not in ended]} - leaving
    room = wanted - len(uses)
    spare = [number for number in shared if number not in taken]
    if workload.wanted_of:
        used = Counter(live[uid].kind for uid in uses)
        spare = _needed_first(spare, kinds, Counter(workload.wanted_of) - used)
    # A pod that waits for a slot of its kind is none that a slot of another need be kept for.
    served = {uid for _, uid in assign}
    choosy = sum(bool(pod.kind) and pod.uid not in served for pod in waiting)
    keep = max(0, room - choosy)
    # Pods that all go to one node can use no slot elsewhere: they wait for one of theirs.
    lacking = max(0, min(len(waiting) - len(assign), room - len(spare[:keep])))
    lacking = 0 if workload.is_pinned else lacking
    return FollowDecision(
        assign=tuple(assign),
        give_back=(*useless, *sorted(spare[keep:])),
        lacking=lacking,
        evict=() if workload.is_over or workload.is_pinned else _stranded(live, slots),
    )


def _may_go_elsewhere(pod: PodFact, slot: Slot) -> bool:
    """Whether nobody has sent it to its node, which takes no pod any more."""
    is_here = pod.is_gated and not pod.is_sent and not pod.is_terminating
    return is_here and slot.is_lost


def is_lost_with(pod: PodFact, slot: Slot) -> bool:
    """Whether a pod is lost with the node of its slot: that is gone, or was given up by whoever
    deleted the pod from it.
    """
    return slot.is_gone or (slot.is_down and pod.is_terminating)


def _needed_first(
    spare: Sequence[int], kinds: Mapping[int, str], needed: Counter[str]
) -> list[int]:
    """Slots in the order in which they are kept: those of the kinds that pods to come will need."""
    first = []
    for number in spare:
        if needed[kinds[number]] > 0:
            needed[kinds[number]] -= 1
            first.append(number)
    return first + [number for number in spare if number not in first]


def _share(open_slots: Sequence[Slot], bound: Container[int | None]) -> dict[int, int | None]:
    """Open slots by number, each with the index it is kept for; those to be given up last first."""
    kept = {
        slot.number: None if slot.is_spent or slot.index in bound else slot.index
        for slot in open_slots
    }
    # The BatchJob makes the pod of the lowest index first.
    order = sorted(kept, key=lambda number: (kept[number] is None, kept[number] or 0, number))
    return {number: kept[number] for number in order}


def _is_leaving(pod: PodFact, slot: Slot, ended: Container[int | None]) -> bool:
    """Whether it holds a slot that is not one of those the workload is to have.

    Its index has ended, and it is not yet seen to; or it is going where nobody may see it go.
    """
    return pod.index in ended or (pod.is_terminating and slot.is_lost)


def _vacate(
    freed: tuple[int, ...], unheld: Sequence[Slot], *, is_held: bool, has_started: bool
) -> FollowDecision:
    if not is_held:
        return _requeue(freed, unheld)
    return FollowDecision(
        free=freed,
        give_back=tuple(slot.number for slot in unheld),
        state=FluxJobState.RUNNING if has_started else None,
    )


def _stop(
    workload: WorkloadFact,
    live: Mapping[str, PodFact],
    slots: Sequence[Slot],
    holders: Mapping[str, Slot],
    unheld: Sequence[Slot],
    freed: tuple[int, ...],
    *,
    has_started: bool,
) -> FollowDecision:
    """All slots are kept for pods that may yet be seen; those that are seen take theirs."""
    pinned = replace(workload, is_pinned=True)
    let_go = {uid: pod for uid, pod in live.items() if not pod.is_gated}
    assign = _go_on(pinned, let_go, slots, holders, unheld).assign
    taken = {number for number, _ in assign}
    return FollowDecision(
        assign=assign,
        free=tuple(number for number in freed if number not in taken),
        state=FluxJobState.RUNNING if has_started else None,
    )


def _stranded(live: Mapping[str, PodFact], slots: Sequence[Slot]) -> tuple[str, ...]:
    """Pods that were let go to a node that no longer exists and are bound to none."""
    return tuple(
        pod.uid
        for slot in slots
        if slot.is_gone and slot.pod_uid is not None
        for pod in [live.get(slot.pod_uid)]
        if pod is not None and pod.node is None and pod.phase == "Pending"
        if not pod.is_gated and not pod.is_terminating
    )


def _requeue(freed: tuple[int, ...], unheld: Sequence[Slot]) -> FollowDecision:
    return FollowDecision(
        free=freed,
        give_back=tuple(slot.number for slot in unheld),
        state=FluxJobState.PENDING,
        is_requeued=True,
    )


def _end(workload: WorkloadFact) -> FluxJobState:
    return workload.result or FluxJobState.CANCELLED


def _waiting(
    live: Mapping[str, PodFact],
    holders: Container[str],
    bound: Collection[int | None],
    workload: WorkloadFact,
) -> list[PodFact]:
    """Pods that are to get a slot, in the order in which they do: one of each index."""
    found = sorted(
        (p for p in live.values() if p.uid not in holders and _needs_slot(p, workload)),
        key=lambda p: (p.is_terminating, p.index if p.index is not None else -1, p.name),
    )
    served = set(bound)
    waiting: list[PodFact] = []
    for pod in found:
        if pod.index not in served:
            waiting.append(pod)
            served |= {pod.index} - {None}
    return waiting


def _needs_slot(pod: PodFact, workload: WorkloadFact) -> bool:
    """Whether it is to get a slot; also one that came without a gate and is first seen as it goes:
    it uses its node until it is gone.
    """
    if pod.is_terminating:
        return workload.is_pinned and pod.node is not None
    return pod.is_gated or workload.is_pinned


def _assign(
    waiting: Sequence[PodFact],
    shared: Mapping[int, int | None],
    kinds: Mapping[int, str],
    width: int,
    *,
    is_more_to_come: bool,
) -> list[tuple[int, str]]:
    """Give open slots to waiting pods: an index gets the slot that is kept for it.

    Who has none gets one that is kept for nobody, the one of its own number if it can. Others are
    kept as long as the workload may make more pods: the indexes that have begun come first.
    """
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
