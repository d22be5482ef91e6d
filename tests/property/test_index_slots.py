"""Any history of an Indexed BatchJob: an index that was given a slot gets that slot again.

Unless it was taken away: by its node, or because the BatchJob was given another parallelism. What
is seen of the BatchJob and of its pods lags behind what is so, each by itself. The Job controller
makes the pod of the lowest missing index first (kubernetes/pkg/controller/job,
``firstPendingIndexes``).
"""

from __future__ import annotations

import random
from collections.abc import Collection, Iterator
from dataclasses import dataclass, field, replace

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.fluxjob.follow import Slot, SlotState, follow
from fluxqueue.fluxjob.pod_facts import PodFact, WorkloadProgress
from fluxqueue.fluxjob.states import FluxJobState

ROUNDS_MAX = 40


@dataclass
class World:
    """What is so, what is seen of it, and the slots as rows hold them."""

    width: int
    completions: int
    is_patient: bool
    fault_chance: float
    pods: dict[str, PodFact] = field(default_factory=dict)
    ended: set[int] = field(default_factory=set)
    parallelism: int = 0
    slots: list[Slot] = field(default_factory=list)
    homes: dict[int, int] = field(default_factory=dict)
    seen_pods: dict[str, PodFact] = field(default_factory=dict)
    seen_ended: set[int] = field(default_factory=set)
    seen_parallelism: int = 0
    is_scaled: bool = False
    made: int = 0

    def __post_init__(self) -> None:
        self.parallelism = self.seen_parallelism = self.width
        self.slots = [Slot(n, f"node-{n}") for n in range(self.width)]

    # --- Kubernetes ---------------------------------------------------------------------------

    def make(self, number: int) -> None:
        """Some of the missing pods, the lowest index first."""
        for index in self.missing()[: 1 + number % 6]:
            self.made += 1
            uid = f"{index}-{self.made}"
            self.pods[uid] = PodFact(uid, uid, "Pending", True, index=index)

    def missing(self) -> list[int]:
        """Indexes that are to get a pod now."""
        over = self.over()
        # ``podReplacementPolicy``: whether it waits until a pod that is going has gone.
        there = [p for p in self.pods.values() if not p.is_terminal]
        active = [p for p in there if self.is_patient or not p.is_terminating]
        room = min(self.parallelism, self.completions - len(over)) - len(active)
        taken = over | {p.index for p in active}
        return [n for n in range(self.completions) if n not in taken][: max(0, room)]

    def over(self) -> set[int | None]:
        """Indexes that have ended, whether or not status tells yet."""
        return self.ended | {p.index for p in self.pods.values() if p.phase == "Succeeded"}

    def fail(self, number: int) -> None:
        """A running pod fails."""
        self._end(number, "Failed")

    def succeed(self, number: int) -> None:
        """A running pod succeeds."""
        self._end(number, "Succeeded")

    def _end(self, number: int, phase: str) -> None:
        if pod := self._pick(number, lambda p: p.phase == "Running"):
            self.pods[pod.uid] = replace(pod, phase=phase)

    def give_up(self, number: int) -> None:
        """``backoffLimitPerIndex``: an index has failed for good."""
        there = {p.index for p in self.pods.values() if not p.is_terminal}
        failed = self._pick(number, lambda p: p.phase == "Failed" and p.index not in there)
        if failed is not None and failed.index is not None:
            self.ended.add(failed.index)

    def delete(self, number: int) -> None:
        """A pod is asked to go."""
        if pod := self._pick(number, lambda p: not p.is_terminating):
            self.pods[pod.uid] = replace(pod, is_terminating=True)

    def vanish(self, number: int) -> None:
        """A pod that has ended, or was asked to go, is gone.

        One that has succeeded stays until its BatchJob goes, unless a user deletes it: not before
        status has told of it, and, else its end was never seen, not before that was seen.
        """
        if pod := self._pick(number, lambda p: p.is_terminal or p.is_terminating):
            if pod.phase == "Succeeded" and pod.index is not None:
                self.ended.add(pod.index)
                if pod.index not in self.seen_ended:
                    return
            del self.pods[pod.uid]

    def scale(self, number: int) -> None:
        """Another parallelism. The pods beyond it are asked to go.

        From now on more indexes may have begun than there are slots, so none has one for certain.
        """
        self.parallelism = 1 + number % (self.width + 1)
        self.is_scaled = True
        active = [p for p in self.pods.values() if not p.is_terminal and not p.is_terminating]
        for pod in active[: max(0, len(active) - self.parallelism)]:
            self.pods[pod.uid] = replace(pod, is_terminating=True)

    def cordon(self, number: int) -> None:
        """A node takes no pods any more, or does again."""
        slot = self.slots[number % len(self.slots)]
        self.slots[slot.number] = replace(slot, is_lost=not slot.is_lost)
        self._forget(slot.number)

    def lose(self, number: int) -> None:
        """A node is gone, with its pods."""
        slot = self.slots[number % len(self.slots)]
        self.slots[slot.number] = replace(slot, is_lost=True, is_gone=True)
        self._forget(slot.number)
        pod = self.pods.get(slot.pod_uid or "")
        if pod is not None and not pod.is_terminal:
            del self.pods[pod.uid]

    def refuse(self, number: int) -> None:
        """A node would not take a pod."""
        held = [s for s in self.slots if s.pod_uid in self.pods]
        slot = held[number % len(held)] if held else None
        pod = self.pods[slot.pod_uid or ""] if slot is not None else None
        if slot is not None and pod is not None and pod.phase == "Running":
            self.pods[pod.uid] = replace(pod, phase="Failed", is_refused=True)
            self._forget(slot.number)

    def _forget(self, number: int) -> None:
        self.homes = {index: home for index, home in self.homes.items() if home != number}

    def _pick(self, number: int, wish: object) -> PodFact | None:
        found = [pod for pod in self.pods.values() if wish(pod)]  # type: ignore[operator]
        return found[number % len(found)] if found else None

    # --- what we do ---------------------------------------------------------------------------

    def look_at_pods(self, number: int) -> None:
        """The informer of pods catches up."""
        self.seen_pods = dict(self.pods)
        refused = {p.uid for p in self.pods.values() if p.is_refused}
        self.slots = [
            replace(s, is_refused=s.is_refused or s.pod_uid in refused) for s in self.slots
        ]

    def look_at_job(self, number: int) -> None:
        """The informer of BatchJobs catches up."""
        self.seen_ended, self.seen_parallelism = set(self.ended), self.parallelism

    def settle(self, number: int) -> None:
        """What follows from what is seen. The matcher adds what is lacking, now and then."""
        succeeded = {p.index for p in self.seen_pods.values() if p.phase == "Succeeded"}
        over = self.seen_ended | succeeded
        wanted = min(self.seen_parallelism, self.completions - len(over))
        self.slots = [replace(s, is_spent=s.index in over) for s in self.slots]
        pods = list(self.seen_pods.values())
        decision = follow(FluxJobState.RUNNING, WorkloadProgress(wanted=wanted), pods, self.slots)
        for n in decision.free:
            self.slots[n] = replace(self.slots[n], state=SlotState.FREE, pod_uid=None)
        for n in decision.give_back:
            self.slots[n] = replace(self.slots[n], state=SlotState.RETURNED, pod_uid=None)
        for n, uid in decision.assign:
            self._assign(n, uid)
        self._ungate()
        if decision.lacking and number % 2:
            first = len(self.slots)
            more = range(first, first + decision.lacking)
            self.slots += [Slot(n, f"node-{n}") for n in more]

    def _assign(self, number: int, uid: str) -> None:
        index = self.seen_pods[uid].index
        assert index is not None
        self.slots = [replace(s, index=None) if s.index == index else s for s in self.slots]
        slot = self.slots[number]
        self.slots[number] = replace(slot, state=SlotState.HELD, pod_uid=uid, index=index)
        # A pod that was made before its predecessor succeeded after all may run anywhere.
        if index not in self.over() and not self.is_scaled:
            assert self.homes.setdefault(index, number) == number, f"index {index} has moved"

    def _ungate(self) -> None:
        holders = {slot.pod_uid for slot in self.slots}
        for pod in list(self.pods.values()):
            if pod.uid in holders and pod.is_gated and not pod.is_terminating:
                self.pods[pod.uid] = replace(pod, is_gated=False, phase="Running")

    def look(self) -> None:
        """All is seen as it is."""
        self.look_at_pods(0)
        self.look_at_job(0)
        self.settle(1)

    def check(self, before: Collection[Slot]) -> None:
        """One slot an index, and what was returned stays so."""
        indexes = [s.index for s in self.slots if s.index is not None]
        assert len(indexes) == len(set(indexes)), "an index with two slots"
        for old in before:
            if old.state is SlotState.RETURNED:
                assert self.slots[old.number].state is SlotState.RETURNED

    def come_to_an_end(self) -> None:
        """No more faults: every index ends, none has waited for a slot that does not come."""
        self.slots = [replace(s, is_lost=s.is_gone) for s in self.slots]
        self.parallelism = max(1, self.parallelism)
        for _ in range(ROUNDS_MAX):
            self.make(5)
            self.look()
            self.look()
            for pod in list(self.pods.values()):
                if pod.is_terminating and not pod.is_terminal:
                    del self.pods[pod.uid]
                elif pod.phase == "Running":
                    self.pods[pod.uid] = replace(pod, phase="Succeeded")
            for number in range(self.completions):
                self.vanish(number)
            if len(self.ended) == self.completions:
                return
        raise AssertionError(f"not over: {self}")


FAULTS = ("cordon", "cordon", "lose", "refuse", "scale", "delete", "delete")


def _step(world: World, draw: random.Random) -> Iterator[str]:
    """Several things between two looks. Each kind of them may be left out."""
    yield from ["fail"] * draw.choice((0, 0, 1, 2)) + ["succeed"] * draw.choice((0, 0, 0, 1, 2))
    yield from ["vanish"] * draw.choice((0, 0, 1, 3))
    if draw.random() < 0.1:
        yield "give_up"
    if draw.random() < world.fault_chance:
        yield draw.choice(FAULTS)
    for event, chance in (("make", 0.6), ("look_at_pods", 0.7), ("look_at_job", 0.5)):
        if draw.random() < chance:
            yield event
    yield "settle"


@settings(max_examples=300, deadline=None)
@given(seed=st.integers(0, 2**32))
def test_an_index_keeps_its_slot(seed: int) -> None:
    """However late each is seen, and in the end every index has run."""
    draw = random.Random(seed)
    width = draw.randrange(1, 6)
    completions = width + draw.choice((0, 0, 1, 12))
    world = World(width, completions, draw.random() < 0.5, draw.choice((0.0, 0.1, 0.3)))
    world.make(width)
    world.look()
    for _ in range(60):
        for event in _step(world, draw):
            before = list(world.slots)
            getattr(world, event)(draw.randrange(60))
            world.check(before)
    world.come_to_an_end()
