"""Any history of pods: slots are conserved, held by one pod each, and given back when they must."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.fluxjob.follow import FollowDecision, Slot, SlotState, follow, is_lost_with
from fluxqueue.fluxjob.pod_facts import PodFact, WorkloadProgress
from fluxqueue.fluxjob.states import TRANSITIONS, FluxJobState

RESULTS = (FluxJobState.COMPLETED, FluxJobState.FAILED)


@dataclass
class World:
    """The facts as rows would hold them, moved by random events."""

    width: int
    is_indexed: bool
    restarts: bool = False
    state: FluxJobState = FluxJobState.ALLOCATED
    slots: list[Slot] = field(default_factory=list)
    pods: dict[str, PodFact] = field(default_factory=dict)
    workload: WorkloadProgress = field(default_factory=lambda: WorkloadProgress(wanted=0))
    made: int = 0
    ended: set[int] = field(default_factory=set)

    def __post_init__(self) -> None:
        self.slots = [Slot(n, f"node-{n}") for n in range(self.width)]
        self.workload = WorkloadProgress(wanted=self.width, restarts_on_loss=self.restarts)

    def decide(self) -> FollowDecision:
        """Ask."""
        self.slots = [replace(slot, is_spent=slot.index in self.ended) for slot in self.slots]
        return follow(self.state, self.workload, list(self.pods.values()), self.slots)

    def apply(self, decision: FollowDecision) -> None:
        """Do what ``db.store.reconciling`` does with an answer, in the same order."""
        by_number = {slot.number: slot for slot in self.slots}
        for number in decision.free:
            by_number[number] = replace(by_number[number], state=SlotState.FREE, pod_uid=None)
        for number in decision.give_back:
            by_number[number] = replace(by_number[number], state=SlotState.RETURNED, pod_uid=None)
        for number, pod in decision.assign:
            index = self.pods[pod].index
            for slot in [slot for slot in by_number.values() if slot.index == index]:
                by_number[slot.number] = replace(slot, index=None)
            by_number[number] = replace(
                by_number[number], state=SlotState.HELD, pod_uid=pod, index=index
            )
        self.slots = [by_number[n] for n in range(self.width)]
        if decision.must_vacate:
            self.workload = replace(self.workload, is_vacating=True)
        if decision.is_requeued:
            self._match_anew()
        elif decision.state is not None:
            assert decision.state in {self.state, *TRANSITIONS[self.state]}
            self.state = decision.state

    def _match_anew(self) -> None:
        """The matcher places the whole on healthy nodes."""
        assert FluxJobState.PENDING in TRANSITIONS[self.state]
        self.state = FluxJobState.ALLOCATED
        self.workload = replace(self.workload, is_vacating=False)
        assert all(slot.state is SlotState.RETURNED for slot in self.slots)
        self.slots = [Slot(n, f"node-{n}") for n in range(self.width)]

    # --- what may happen between two looks -----------------------------------------------------

    def create(self, number: int) -> None:
        """A new gated pod."""
        self.made += 1
        uid = f"pod-{self.made}"
        index = number % (self.width + 1) if self.is_indexed else None
        self.pods[uid] = PodFact(uid, uid, "Pending", True, index=index)

    def ungate(self, number: int) -> None:
        """A pod with a slot is released and starts. No other gate goes."""
        holders = {slot.pod_uid for slot in self.slots}
        if (pod := self._pick(number)) and pod.uid in holders and pod.is_gated:
            self.pods[pod.uid] = replace(pod, is_gated=False, phase="Running")

    def fail(self, number: int) -> None:
        """A pod ends. A gated one cannot."""
        if (pod := self._pick(number)) and not pod.is_gated:
            phase = "Failed" if number % 2 else "Succeeded"
            self.pods[pod.uid] = replace(pod, phase=phase)
            if phase == "Succeeded" and pod.index is not None:
                self.ended.add(pod.index)

    def delete(self, number: int) -> None:
        """A pod is asked to go."""
        if pod := self._pick(number):
            self.pods[pod.uid] = replace(pod, is_terminating=True)

    def vanish(self, number: int) -> None:
        """A pod is gone."""
        if pod := self._pick(number):
            del self.pods[pod.uid]

    def want(self, number: int) -> None:
        """Fewer completions left, or another parallelism."""
        if not self.workload.is_over:
            self.workload = replace(self.workload, wanted=number % (self.width + 2))

    def finish(self, number: int) -> None:
        """The workload reports its end."""
        if self.workload.result is None:
            self.workload = replace(self.workload, wanted=0, result=RESULTS[number % 2])

    def lose(self, number: int) -> None:
        """A node is cordoned, or down."""
        is_down = number % 2 > 0
        self.slots = [
            replace(s, is_lost=True, is_down=s.is_down or is_down) if s.number == number % 5 else s
            for s in self.slots
        ]

    def remove(self, number: int) -> None:
        """The workload is deleted."""
        self.workload = replace(self.workload, is_deleting=True)

    def refuse(self, number: int) -> None:
        """A node would not take a pod that was released to it."""
        if (pod := self._pick(number)) and not pod.is_gated and not pod.is_terminal:
            self.pods[pod.uid] = replace(pod, phase="Failed", is_refused=True)
            self.slots = [replace(s, is_refused=s.pod_uid == pod.uid) for s in self.slots]

    def strand(self, number: int) -> None:
        """A node no longer exists. A pod that was released to it has not been bound."""
        lost = {number % 5} if number % 5 < 4 else set(range(self.width))  # or all of them
        self.slots = [
            replace(s, is_lost=True, is_gone=True) if s.number in lost else s for s in self.slots
        ]
        for slot in self.slots:
            pod = self.pods.get(slot.pod_uid or "")
            if slot.number in lost and pod is not None and not pod.is_terminal:
                self.pods[pod.uid] = replace(pod, phase="Pending", is_gated=False)

    def vacate(self, number: int) -> None:
        """It is requeued, or suspended by its author, or resumed in time."""
        self.workload = replace(self.workload, is_vacating=number % 3 > 0)

    def _pick(self, number: int) -> PodFact | None:
        pods = list(self.pods.values())
        return pods[number % len(pods)] if pods else None


EVENTS = (
    *("create", "ungate", "fail", "delete", "vanish", "want", "lose", "finish", "remove"),
    *("refuse", "strand", "vacate"),
)
LIVES = st.lists(
    st.tuples(st.sampled_from(EVENTS[:3] * 4 + EVENTS[3:7] * 2 + EVENTS[7:]), st.integers(0, 30)),
    max_size=40,
)


def _stays(world: World, slot: Slot) -> bool:
    """Whether a pod lives that holds a slot and keeps it: of a node that is lost only where it may
    have been sent there."""
    pod = world.pods.get(slot.pod_uid or "")
    if pod is None or pod.is_terminal:
        return False
    is_here = pod.is_gated and not pod.is_terminating and not world.workload.is_vacating
    return not (is_here and slot.is_lost)


def check_decision(world: World, before: list[Slot], decision: FollowDecision) -> None:
    """What must hold after every answer."""
    live = {uid for uid, pod in world.pods.items() if not pod.is_terminal}
    holders = Counter(slot.pod_uid for slot in world.slots if slot.pod_uid is not None)
    assert max(holders.values(), default=1) == 1, "a pod with two slots"
    assert set(holders) <= live, "a slot held for a pod that is terminal or gone"
    for slot in world.slots:
        assert (slot.state is SlotState.HELD) == (slot.pod_uid is not None)
    if decision.is_requeued:
        assert before or world.width == 0
        for slot in before:
            if not _stays(world, slot):
                continue
            if not world.restarts:
                raise AssertionError("requeued under a living pod")
            assert is_lost_with(world.pods[slot.pod_uid or ""], slot), "under a pod that stays"
        return
    for old, new in zip(before, world.slots, strict=True):
        assert (old.number, old.node) == (new.number, new.node)
        if old.state is SlotState.RETURNED:
            assert new.state is SlotState.RETURNED, "a returned slot came back"
        if _stays(world, old):
            assert new.pod_uid == old.pod_uid, "a slot was taken from a living pod"
    for uid in decision.evict:
        pod = world.pods[uid]
        assert pod.phase == "Pending", "a pod that may run was given up"
        assert not pod.is_gated
    if decision.must_vacate:
        return  # which the next look begins with
    if world.workload.is_vacating and not world.workload.is_over:
        assert not decision.assign, "a slot was given to what is to go"
        assert holders, "nothing is held, and it was not requeued"
        assert not any(slot.state is SlotState.FREE for slot in world.slots)
        return
    for number, uid in decision.assign:
        assert world.pods[uid].is_gated, f"slot {number} for a pod that never waited"
    must_end = world.workload.is_over and not holders
    assert decision.is_ended == must_end
    if must_end:
        assert all(slot.state is SlotState.RETURNED for slot in world.slots)
        assert world.state.is_final
    else:
        assert not world.state.is_final
        _check_kept(world, decision)


def _check_kept(world: World, decision: FollowDecision) -> None:
    wanted = 0 if world.workload.is_over else world.workload.wanted
    free = [slot for slot in world.slots if slot.state is SlotState.FREE]
    assert not any(slot.is_lost or slot.is_refused for slot in free)
    used = [s for s in world.slots if s.pod_uid is not None and not _is_beside(world, s)]
    lacking = max(0, wanted - len(used) - len(free))
    assert len(free) <= max(0, wanted - len(used)), "a slot is kept that nobody can use"
    if world.workload.is_over:
        assert not decision.lacking
        return
    without = _without(world, {world.pods[s.pod_uid or ""].index for s in used} - {None})
    active = [
        pod
        for pod in world.pods.values()
        if not pod.is_terminal and not pod.is_terminating and pod.index not in world.ended
    ]
    if without and free:
        assert len(active) < wanted, "a pod waits beside a free slot, and no other pod will come"
        for slot in free:
            assert slot.index is not None, "a pod waits beside a free slot"
            assert slot.index not in world.ended | {pod.index for pod in without}
    assert decision.lacking == min(len(without), lacking)


def _is_beside(world: World, slot: Slot) -> bool:
    """Whether it is held beside those that the workload is to have."""
    pod = world.pods[slot.pod_uid or ""]
    known = {s.index for s in world.slots if s.is_spent}
    return pod.index in known or (pod.is_terminating and slot.is_lost)


def _without(world: World, bound: set[int | None]) -> list[PodFact]:
    """Pods that wait for a slot: one of an index, and none with an index that has one."""
    has_slot = {slot.pod_uid for slot in world.slots}
    waiting = [
        pod
        for uid, pod in world.pods.items()
        if pod.is_gated and not pod.is_terminating and not pod.is_terminal and uid not in has_slot
        if pod.index not in bound
    ]
    first: dict[object, PodFact] = {}
    for pod in waiting:
        first.setdefault(pod.uid if pod.index is None else pod.index, pod)
    return list(first.values())


@settings(max_examples=400, deadline=None)
@given(width=st.integers(0, 4), is_indexed=st.booleans(), restarts=st.booleans(), life=LIVES)
def test_any_life_keeps_the_invariants(
    width: int, is_indexed: bool, restarts: bool, life: list[tuple[str, int]]
) -> None:
    """After every event: one holder a slot, one slot a pod, conserved, released exactly in time."""
    world = World(width, is_indexed, restarts)
    for event, number in life:
        getattr(world, event)(number)
        if world.state.is_final:
            return  # settled for good: db.settling never asks again
        before, decision = world.slots, world.decide()
        world.apply(decision)
        check_decision(world, before, decision)


@settings(max_examples=400, deadline=None)
@given(width=st.integers(0, 4), is_indexed=st.booleans(), restarts=st.booleans(), life=LIVES)
def test_settling_twice_is_settling_once(
    width: int, is_indexed: bool, restarts: bool, life: list[tuple[str, int]]
) -> None:
    """Several events may pass between two looks. A second look changes nothing."""
    world = World(width, is_indexed, restarts)
    for event, number in life:
        getattr(world, event)(number)
        if number % 3 == 0 and not world.state.is_final:
            world.apply(world.decide())
    if not world.state.is_final:
        decision = world.decide()
        world.apply(decision)
        while decision.must_vacate or decision.is_requeued:  # and placed anew: other facts
            decision = world.decide()
            world.apply(decision)
    if not world.state.is_final:
        again = world.decide()
        assert replace(again, lacking=0, evict=()) == FollowDecision()
        assert world.decide().evict == again.evict
        assert world.decide().lacking == again.lacking
