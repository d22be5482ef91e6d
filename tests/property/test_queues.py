"""Several named queues on virtual time: each keeps its order, its limits and all promises.

The same ``run_cycle`` as in production, over queues with different policies and random limits.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.fluxjob.request import CPU, MEMORY
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Jobspec
from fluxqueue.policy.limits import Amounts
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.policy.queue_rules import NO_LIMITS, Limits, QueueRules
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Queues
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.scheduler.satisfiable import split_unsatisfiable
from tests.support.pool_model import node, request

HORIZON_S = 100_000
NODES = 3
NAMES = ("fcfs", "easy", "hybrid", "conservative")
"""One queue of each policy, named after it."""

USERS = ("", "alice", "bob")


@dataclass(frozen=True)
class Submission:
    """A job: when it comes, what it asks, how long it really runs, its user and place."""

    at: int
    asked: Jobspec
    runs_s: int
    queue: str
    user: str
    priority: int = 0


@dataclass
class Simulation:
    """Virtual time over one matcher. Limits are counted here by plain addition."""

    rules: dict[str, QueueRules]
    jobs: list[Submission]
    opens_at: int = 0
    """When stopped queues are started."""
    pools: Matcher = field(default_factory=lambda: Matcher(ShareLedger(), "lonode"))
    pending: dict[str, PendingJob] = field(default_factory=dict)
    running: dict[str, tuple[int, Placement]] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)
    promised: dict[str, list[int]] = field(default_factory=dict)
    plan: dict[str, Placement] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    impossible: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Until nothing is left, or time runs out."""
        for number in range(NODES):
            self.pools.set_node(node(f"n{number}"), {})
        arrivals = sorted(range(len(self.jobs)), key=lambda n: (self.jobs[n].at, n))
        now = 0
        while (arrivals or self.pending or self.running) and now < HORIZON_S:
            times = [end for end, _ in self.running.values()]
            times += [self.jobs[arrivals[0]].at] if arrivals else []
            times += [self.opens_at] if now < self.opens_at else []
            if not times:
                return
            now = max(now, min(times))
            for uid in [uid for uid, (end, _) in self.running.items() if end <= now]:
                del self.running[uid]
                self.pools.cancel(uid)
            while arrivals and self.jobs[arrivals[0]].at <= now:
                self._submit(arrivals.pop(0))
            self.cycle(now)

    def _submit(self, number: int) -> None:
        one = self.jobs[number]
        job = PendingJob(str(number), number, one.priority, one.asked, one.queue, one.user)
        _, never = split_unsatisfiable(self.pools, [job])
        if never:
            self.impossible.add(job.uid)
        else:
            self.pending[job.uid] = job

    def use(self) -> dict[tuple[str, str], Amounts]:
        """What runs, by queue and user."""
        found: dict[tuple[str, str], Amounts] = {}
        for uid, (_, got) in self.running.items():
            one = self.jobs[int(uid)]
            key = one.queue, one.user
            cpu = sum(dict(slot.resources).get(CPU, 0) for slot in got.slots)
            found[key] = found.get(key, Amounts()) + Amounts(1, len(set(got.nodes)), cpu)
        return found

    def cycle(self, now: int) -> None:
        """One cycle over all queues."""
        rules = {
            name: one if one.is_started or now < self.opens_at else QueueRules(name)
            for name, one in self.rules.items()
        }
        queue = sorted(self.pending.values(), key=lambda job: (-job.priority, job.jobid))
        decided = run_cycle(
            self.pools, queue, POLICIES["easy"], now, Queues(rules, self.use()), self.plan
        )
        self.plan = {job.uid: got for job, got in decided.reserved}
        for job, got in decided.allocated:
            assert rules[job.queue].is_started, "started although its queue is stopped"
            del self.pending[job.uid]
            self.started[job.uid] = now
            self.running[job.uid] = (now + self.jobs[job.jobid].runs_s, got)
        for job, got in decided.reserved:
            self.promised.setdefault(job.uid, []).append(got.starts_at)
        self.reasons = {job.uid: reason for job, reason in decided.waiting}
        told = [*decided.allocated, *decided.reserved, *decided.waiting]
        assert sorted(job.uid for job, _ in told) == sorted(job.uid for job in queue)
        self._check_limits()

    def _check_limits(self) -> None:
        totals: Counter[tuple[str, str]] = Counter()
        for (queue, user), used in self.use().items():
            _assert_within(used, self.rules[queue].per_user, f"{queue}/{user}")
            for name in ("jobs", "nodes", "cpu_m"):
                totals[queue, name] += getattr(used, name)
        for queue, rules in self.rules.items():
            used = Amounts(*(totals[queue, name] for name in ("jobs", "nodes", "cpu_m")))
            _assert_within(used, rules.total, queue)


def _assert_within(used: Amounts, limits: Limits, whose: str) -> None:
    for name in ("jobs", "nodes", "cpu_m"):
        limit = getattr(limits, name)
        assert limit is None or getattr(used, name) <= limit, f"{whose}: {name} over {limit}"


@st.composite
def submissions(draw: st.DrawFn, *, is_exact: bool = True) -> Submission:
    """One job that fits the cluster, mostly."""
    duration = draw(st.integers(1, 30))
    asked = request(
        draw(st.integers(1, 4)),
        duration_s=duration,
        is_spread=draw(st.booleans()),
        **{CPU: draw(st.integers(1, 4)), MEMORY: draw(st.integers(0, 8))},
    )
    late = 0 if is_exact else draw(st.sampled_from((-duration + 1, 0, 7, 200)))
    return Submission(
        draw(st.integers(0, 40)),
        asked,
        duration + late,
        draw(st.sampled_from(NAMES)),
        draw(st.sampled_from(USERS)),
        draw(st.sampled_from((0, 0, 0, 10))),
    )


LIMITS = st.builds(
    Limits,
    jobs=st.none() | st.integers(1, 3),
    nodes=st.none() | st.integers(NODES, 5),
    cpu_m=st.none() | st.integers(12, 20),
)
"""Never less than the largest job that the cluster can hold: 12 of cpu on 3 nodes."""

JOBS = st.lists(submissions(), max_size=14)


def _rules(**more: object) -> dict[str, QueueRules]:
    return {name: QueueRules(name, policy_name=name, **more) for name in NAMES}  # type: ignore[arg-type]


@st.composite
def limited_queues(draw: st.DrawFn) -> dict[str, QueueRules]:
    """Each queue with limits of its own, or none."""
    some = LIMITS | st.just(NO_LIMITS)
    return {
        name: QueueRules(name, policy_name=name, per_user=draw(some), total=draw(some))
        for name in NAMES
    }


@settings(max_examples=150, deadline=None)
@given(rules=limited_queues(), jobs=st.lists(submissions(is_exact=False), max_size=14))
def test_limits_are_never_exceeded_and_nobody_starves(
    rules: dict[str, QueueRules], jobs: list[Submission]
) -> None:
    """At any moment (checked after each cycle), and at the end everything possible has run."""
    simulation = Simulation(rules, jobs)
    simulation.run()
    assert not simulation.pending, f"never started: {simulation.reasons}"
    assert set(simulation.started) | simulation.impossible == {str(n) for n in range(len(jobs))}


@settings(max_examples=150, deadline=None)
@given(jobs=st.lists(submissions(is_exact=False), max_size=14))
def test_fcfs_never_overtakes_within_its_queue(jobs: list[Submission]) -> None:
    """Whatever the queues beside it do."""
    simulation = Simulation(_rules(), jobs)
    simulation.run()
    ours = [n for n in map(int, simulation.started) if jobs[n].queue == "fcfs"]
    for one in ours:
        for other in ours:
            is_before = (-jobs[other].priority, other) < (-jobs[one].priority, one)
            was_there = jobs[other].at <= simulation.started[str(one)]
            if is_before and was_there:
                assert simulation.started[str(other)] <= simulation.started[str(one)]


@settings(max_examples=200, deadline=None)
@given(jobs=JOBS)
def test_promises_hold_against_all_queues(jobs: list[Submission]) -> None:
    """All there from the beginning, exact durations: a promise of one queue is never put off."""
    at_once = [Submission(0, j.asked, j.runs_s, j.queue, j.user) for j in jobs]
    simulation = Simulation(_rules(), at_once)
    simulation.run()
    for uid, promises in simulation.promised.items():
        assert promises == sorted(promises, reverse=True), f"job {uid} was put off: {promises}"
        assert simulation.started[uid] <= promises[-1]


@settings(max_examples=100, deadline=None)
@given(jobs=JOBS, stopped=st.sets(st.sampled_from(NAMES)))
def test_a_stopped_queue_waits_and_goes_on(jobs: list[Submission], stopped: set[str]) -> None:
    """Nothing of it starts before it is started. The others are not held up by it."""
    rules = {
        name: QueueRules(name, policy_name=name, is_started=name not in stopped) for name in NAMES
    }
    simulation = Simulation(rules, jobs, opens_at=500)
    simulation.run()
    assert not simulation.pending
    for uid, at in simulation.started.items():
        assert (jobs[int(uid)].queue in stopped) <= (at >= 500)
    others = [uid for uid in simulation.started if jobs[int(uid)].queue not in stopped]
    alone = Simulation(rules, [j for j in jobs if j.queue not in stopped], opens_at=500)
    alone.run()
    assert [simulation.started[uid] for uid in sorted(others, key=int)] == [
        alone.started[uid] for uid in sorted(alone.started, key=int)
    ]


def test_a_blocked_fcfs_queue_is_not_starved_by_others() -> None:
    """Its head gets nodes although small work of another queue would always fit."""
    small = [
        Submission(at, request(cpu=2, duration_s=20), 20, "easy", "bob") for at in range(0, 400, 2)
    ]
    large = Submission(10, request(3, cpu=4, is_spread=True, duration_s=10), 10, "fcfs", "alice")
    simulation = Simulation(_rules(), [*small[:6], large, *small[6:]])
    simulation.run()
    assert simulation.started["6"] <= 10 + 20


def test_a_job_over_a_limit_blocks_nobody() -> None:
    """Not in its queue, whatever the policy, and it holds no nodes for later."""
    for name in NAMES:
        rules = {name: QueueRules(name, policy_name=name, per_user=Limits(jobs=1))}
        jobs = [
            Submission(0, request(cpu=1, duration_s=50), 50, name, "alice"),
            Submission(0, request(3, cpu=3, duration_s=50), 50, name, "alice"),
            Submission(0, request(2, cpu=4, duration_s=50), 50, name, "bob"),
        ]
        simulation = Simulation(rules, jobs)
        simulation.run()
        assert simulation.started == {"0": 0, "2": 0, "1": 50}, name


def _limited(**per_user: int) -> Simulation:
    rules = {"easy": QueueRules("easy", policy_name="easy", per_user=Limits(**per_user))}
    wide = request(3, cpu=4, is_spread=True, duration_s=10)
    jobs = [
        Submission(0, request(cpu=4, duration_s=50), 50, "easy", "alice"),
        Submission(1, wide, 10, "easy", "alice"),
        Submission(1, request(cpu=1, duration_s=10), 10, "easy", "alice"),
        Submission(2, request(cpu=1, duration_s=90), 90, "easy", "alice", priority=9),
    ]
    return Simulation(rules, jobs)


def test_a_reservation_counts_against_the_limit() -> None:
    """No job that could start beside it uses up what it needs to start itself."""
    for jobs, starts_at in ((2, 60), (3, 1)):
        simulation = _limited(jobs=jobs)
        del simulation.jobs[3]
        simulation.run()
        assert simulation.started == {"0": 0, "1": 50, "2": starts_at}


def test_a_smaller_job_of_a_user_at_a_limit_passes_a_larger_one() -> None:
    simulation = _limited(cpu_m=13)
    del simulation.jobs[3]
    simulation.run()
    assert simulation.started == {"0": 0, "1": 50, "2": 1}


def test_a_limit_that_is_used_up_meanwhile_ends_a_reservation() -> None:
    """A job of a higher priority is counted first. The reason says what is used up."""
    simulation = _limited(jobs=2)
    for number in range(NODES):
        simulation.pools.set_node(node(f"n{number}"), {})
    for now, number in ((0, 0), (1, 1)):
        simulation._submit(number)
        simulation.cycle(now)
    assert "1" in simulation.plan
    simulation._submit(3)
    simulation.cycle(2)
    assert simulation.started["3"] == 2
    assert simulation.plan == {}
    assert "perUser.jobs is 2, user alice has 2" in simulation.reasons["1"]
