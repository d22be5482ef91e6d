"""Sweeps from their first pod to their last: ``follow`` and the cycle together, on virtual time."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.fluxjob.follow import Slot, SlotState, follow
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.pod_facts import PodFact, WorkloadProgress
from fluxqueue.fluxjob.request import CPU, PODS
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.graph.ledger.placement import FOREVER, PlacedSlot, Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec.shape import equal_slots
from fluxqueue.policy.limits import Amounts
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.policy.queue_rules import Limits, QueueRules
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Decisions, Ongoing, Queues
from fluxqueue.scheduler.lack import Lack
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.scheduler.sweeps import GROWTH_MAX

CORES = 4
SINGLE_CORE = {CPU: 1000, PODS: 1}


def cluster(nodes: int, cores: int = CORES) -> Matcher:
    """Nodes of the same size."""
    made = Matcher(ShareLedger(), "pack")
    for n in range(nodes):
        capacity = {CPU: cores * 1000, PODS: 1000}
        made.set_node(NodeFact(name=f"n{n}", uid=f"u{n}", capacity=capacity), {})
    return made


def a_sweep(uid: str, count: int, *, jobid: int = 1, priority: int = 0, duration: int = 0) -> Lack:
    """A sweep that could use ``count`` more slots of one core."""
    return Lack(
        uid,
        count,
        equal_slots(1, SINGLE_CORE),
        (),
        None,
        queue="q",
        user="u",
        is_independent=True,
        jobid=jobid,
        priority=priority,
        duration_s=duration,
    )


def a_job(uid: str, cores: int, *, jobid: int, priority: int = 0, run_s: int = 100) -> PendingJob:
    """A job of single cores."""
    asked = equal_slots(cores, SINGLE_CORE, duration_s=run_s)
    return PendingJob(uid, jobid, priority, asked, "q", "u")


def given_to(decisions: Decisions, uid: str) -> int:
    """How many slots a sweep got."""
    return sum(len(placed) for lack, placed in decisions.grown.slots if lack.uid == uid)


@dataclass
class Life:
    """One sweep, its pods and slots as rows would hold them, and its Job controller."""

    tasks: int
    at_once: int
    matcher: Matcher
    slots: list[Slot] = field(default_factory=list)
    pods: dict[str, PodFact] = field(default_factory=dict)
    state: FluxJobState = FluxJobState.ALLOCATED
    done: set[int] = field(default_factory=set)
    most: int = 0

    def make_pods(self) -> None:
        """Do what the Job controller does: one pod for each open index, so many at once."""
        there = {pod.index for pod in self.pods.values() if not pod.is_terminal}
        for index in range(self.tasks):
            if len(there) >= self.at_once:
                return
            if index not in there | self.done:
                there.add(index)
                uid = f"p{index}-{len(self.pods)}"
                self.pods[uid] = PodFact(uid, uid, "Pending", is_gated=True, index=index)

    def look(self) -> int:
        """Reconcile, and return how many slots it lacks."""
        wanted = min(self.at_once, self.tasks - len(self.done))
        result = FluxJobState.COMPLETED if len(self.done) == self.tasks else None
        workload = WorkloadProgress(wanted=wanted, result=result, is_independent=True)
        decision = follow(self.state, workload, list(self.pods.values()), self.slots)
        by_number = {slot.number: slot for slot in self.slots}
        for number in decision.free:
            by_number[number] = replace(by_number[number], state=SlotState.FREE, pod_uid=None)
        for number in decision.give_back:
            by_number[number] = replace(by_number[number], state=SlotState.RETURNED, pod_uid=None)
        for number, uid in decision.assign:
            by_number[number] = replace(by_number[number], state=SlotState.HELD, pod_uid=uid)
            self.pods[uid] = replace(self.pods[uid], is_gated=False, phase="Running")
        self.slots = list(by_number.values())
        self.state = decision.state or self.state
        kept = [slot for slot in self.slots if slot.state is not SlotState.RETURNED]
        self.most = max(self.most, len(kept))
        assert len(kept) <= self.at_once
        if result is None:
            assert kept, "a sweep without a slot would have to be released again"
        self.matcher.cancel("x")
        for slot in kept:
            one = Placement((PlacedSlot(slot.node, tuple(SINGLE_CORE.items())),), 0, FOREVER)
            self.matcher.ledger.extend_apart("x", one)
        return decision.lacking

    def grow(self, lacking: int, now: int) -> None:
        """Run a cycle."""
        lack = replace(a_sweep("x", lacking), nodes=tuple(self._nodes()))
        decisions = run_cycle(
            self.matcher, [], POLICIES["easy"], now, ongoing=Ongoing(lacks=[lack])
        )
        for _, placed in decisions.grown.slots:
            self.slots += [Slot(len(self.slots) + n, one.nodes[0]) for n, one in enumerate(placed)]

    def _nodes(self) -> list[str]:
        return [slot.node for slot in self.slots if slot.state is not SlotState.RETURNED]

    def end(self, number: int, *, is_failure: bool) -> None:
        """Let a running pod end."""
        running = [pod for pod in self.pods.values() if pod.phase == "Running"]
        if not running:
            return
        pod = running[number % len(running)]
        phase = "Failed" if is_failure else "Succeeded"
        self.pods[pod.uid] = replace(pod, phase=phase)
        if not is_failure and pod.index is not None:
            self.done.add(pod.index)


@given(
    st.integers(1, 3),
    st.integers(1, 12),
    st.integers(1, 9),
    st.lists(st.tuples(st.integers(0, 20), st.booleans()), max_size=60),
)
@settings(max_examples=150, deadline=None)
def test_all_tasks_run_and_never_more_than_n_at_once(
    nodes: int, tasks: int, at_once: int, ends: list[tuple[int, bool]]
) -> None:
    """Whatever ends in which order. No node has more than it can hold."""
    life = Life(tasks, at_once, cluster(nodes), slots=[Slot(0, "n0")])
    more = iter(ends)
    for now in range(400):
        life.make_pods()
        lacking = life.look()
        if lacking:
            life.grow(lacking, now)
            life.look()
        assert (life.matcher.ledger.now.free >= 0).all(), "a node is overbooked"
        if life.state is FluxJobState.COMPLETED:
            break
        number, is_failure = next(more, (0, False))
        life.end(number, is_failure=is_failure)
    assert life.state is FluxJobState.COMPLETED, f"{life.done} of {tasks}"
    assert life.most <= min(at_once, nodes * CORES)
    assert all(slot.state is SlotState.RETURNED for slot in life.slots)


@given(
    st.integers(1, 4),
    st.lists(st.tuples(st.integers(1, 20), st.integers(0, 2), st.integers(0, 90)), max_size=4),
    st.lists(st.tuples(st.integers(1, 8), st.integers(0, 2)), max_size=4),
    st.sampled_from(sorted(POLICIES)),
)
@settings(max_examples=150, deadline=None)
def test_a_cycle_fills_the_cluster_in_order(
    nodes: int,
    sweeps: list[tuple[int, int, int]],
    jobs: list[tuple[int, int]],
    policy: str,
) -> None:
    """The first in order gets all that it can use. Nothing is overbooked."""
    matcher = cluster(nodes)
    lacks = [
        a_sweep(f"s{n}", count, jobid=n, priority=priority, duration=duration)
        for n, (count, priority, duration) in enumerate(sweeps)
    ]
    queue = [
        a_job(f"j{n}", cores, jobid=100 + n, priority=priority)
        for n, (cores, priority) in enumerate(jobs)
        if cores <= nodes * CORES
    ]
    queue.sort(key=lambda job: (-job.priority, job.jobid))
    decisions = run_cycle(matcher, queue, POLICIES[policy], 0, ongoing=Ongoing(lacks=lacks))
    assert (matcher.ledger.now.free >= 0).all()
    for lack in lacks:
        assert given_to(decisions, lack.uid) <= lack.count
    order = sorted([*queue, *lacks], key=lambda one: (-one.priority, one.jobid))
    if order and isinstance(order[0], Lack):
        assert given_to(decisions, order[0].uid) == min(order[0].count, nodes * CORES)


def test_a_sweep_takes_its_turn_between_jobs() -> None:
    """What is ahead of it starts first, and what is behind it gets what it leaves."""
    ahead = a_job("ahead", 3, jobid=9, priority=1)
    behind = a_job("behind", 1, jobid=10)
    lack = a_sweep("x", 4, jobid=5)
    decisions = run_cycle(
        cluster(2), [ahead, behind], POLICIES["easy"], 0, ongoing=Ongoing(lacks=[lack])
    )
    assert [job.uid for job, _ in decisions.allocated] == ["ahead", "behind"]
    assert given_to(decisions, "x") == 4


@pytest.mark.parametrize(("limit", "expected"), [(2, 2), (3, 3), (None, 4)])
def test_each_pod_of_a_sweep_counts_as_a_job(limit: int | None, expected: int) -> None:
    """A limit of jobs is about its pods, and blocks no other job."""
    rules = QueueRules("q", per_user=Limits(jobs=limit))
    queues = Queues({"q": rules}, {("q", "u"): Amounts(0, 0, 0)})
    found = run_cycle(
        cluster(1), [], POLICIES["easy"], 0, queues, ongoing=Ongoing(lacks=[a_sweep("x", 9)])
    )
    assert given_to(found, "x") == expected
    words = "perUser.jobs" if limit else "1 cpu"
    assert words in found.grown.barred["x"]


def test_a_promise_outlives_a_sweep_ahead() -> None:
    """The sweep is first in order, and would take each core as it becomes free."""
    matcher = cluster(1)
    matcher.allocate("old", _cores(3, until=50))
    large = a_job("large", 4, jobid=7)
    first = run_cycle(matcher, [large], POLICIES["easy"], 0)
    promised = {job.uid: where for job, where in first.reserved}
    assert promised["large"].starts_at == 50
    lack = a_sweep("x", 9, jobid=1, duration=1000)
    again = run_cycle(
        matcher, [large], POLICIES["easy"], 1, promised=promised, ongoing=Ongoing(lacks=[lack])
    )
    assert {job.uid: where.starts_at for job, where in again.reserved} == {"large": 50}
    assert given_to(again, "x") == 0
    short = a_sweep("x", 9, jobid=1, duration=40)
    again = run_cycle(
        matcher, [large], POLICIES["easy"], 1, promised=promised, ongoing=Ongoing(lacks=[short])
    )
    assert given_to(again, "x") == 1, "a short task ends before the promised start"


def test_a_cycle_gives_a_bounded_number_of_slots() -> None:
    """The next cycle follows at once, so that no sweep keeps others from deciding."""
    matcher = cluster(10, 64)
    decisions = run_cycle(
        matcher, [], POLICIES["easy"], 0, ongoing=Ongoing(lacks=[a_sweep("x", 100_000)])
    )
    assert given_to(decisions, "x") == GROWTH_MAX
    assert decisions.grown.is_more


def test_a_sweep_that_cannot_grow_blocks_a_queue_without_backfill() -> None:
    """Also if an equal sweep of another queue was tried before."""
    rules = {name: QueueRules(name, policy_name="fcfs") for name in ("a", "q")}
    matcher = cluster(1)
    matcher.allocate("old", _cores(4, until=FOREVER))
    other = replace(a_sweep("s0", 2, jobid=1), queue="a")
    job = a_job("later", 1, jobid=9)
    small = replace(job, request=equal_slots(1, {CPU: 0, PODS: 1}))
    found = run_cycle(
        matcher,
        [small],
        POLICIES["fcfs"],
        0,
        Queues(rules),
        ongoing=Ongoing(lacks=[other, a_sweep("s1", 2)]),
    )
    assert not found.allocated
    assert found.waiting[0][1] == "waits behind job 1 (fcfs)"


def _cores(number: int, until: int) -> Placement:
    slot = PlacedSlot("n0", tuple(SINGLE_CORE.items()))
    return Placement((slot,) * number, 0, until)


@given(st.lists(st.tuples(st.integers(0, 2), st.integers(1, 50)), max_size=8), st.integers(0, 8))
@settings(max_examples=100, deadline=None)
def test_further_slots_can_be_taken_back(parts: list[tuple[int, int]], number: int) -> None:
    """A second walk begins from exactly what was booked before the first."""
    ledger = cluster(3, 100).ledger
    kept = parts[: max(0, len(parts) - number)]
    for node, until in kept:
        ledger.extend_apart("x", _one(node, until))
    free, live = ledger.now.free.copy(), ledger.live.get("x")
    end = None if live is None else live.until
    for node, until in parts[len(kept) :]:
        ledger.extend_apart("x", _one(node, until))
    ledger.take_back("x", len(parts) - len(kept))
    assert np.array_equal(ledger.now.free[:, : free.shape[1]], free)
    left = ledger.live.get("x")
    assert (None if left is None else left.until) == end
    assert ledger.cancel("x") == bool(kept)
    assert np.array_equal(ledger.now.free, ledger.capacity)


def _one(node: int, until: int) -> Placement:
    return Placement((PlacedSlot(f"n{node}", tuple(SINGLE_CORE.items())),), 0, until)
