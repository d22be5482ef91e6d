"""What a blocked job can rely on (docs/admin/policies.md), for random queues on virtual time.

Some jobs state no duration, so their ends are only planned. Newcomers of a higher priority delay no
promise. They may delay a start that is only expected.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Queues
from tests.support.pool_model import request
from tests.support.submissions import (
    PLANNED_S,
    Simulation,
    Submission,
    Workload,
    pending,
    submissions,
)


@dataclass
class Kept(Simulation):
    """A simulation that remembers its reservations from cycle to cycle, as the worker does."""

    slack_s: int = PLANNED_S
    has_urgent: bool = False
    kept: dict[str, Placement] = field(default_factory=dict)
    latest: dict[str, list[int]] = field(default_factory=dict)
    """Latest starts of each job, from cycle to cycle."""
    has_overrun: bool = False
    """Since the last cycle, something has run longer than planned."""

    def _end_those_due(self, now: int) -> None:
        self.has_overrun = any(got.until < min(end, now) for end, got in self.running.values())
        super()._end_those_due(now)

    def cycle(self, now: int) -> None:
        """One cycle. Then the model says whether something is idle that need not be."""
        rules = QueueRules("default", planned_s=PLANNED_S, max_delay_s=self.slack_s)
        has_overrun = self.has_overrun or any(got.until <= now for _, got in self.running.values())
        found = run_cycle(
            self.pools, self.queue(), self.policy, now, Queues({"default": rules}), self.kept
        )
        for job, got in found.allocated:
            del self.pending[job.uid]
            self.started[job.uid] = now
            self.running[job.uid] = (now + self.jobs[job.jobid].runs_s, got)
            self.model.booked[job.uid] = got
        booked = [*found.reserved, *found.unpromised]
        for job, got in booked:
            is_promise = any(one is job for one, _ in found.reserved)
            assert got.is_firm == is_promise == (job.uid not in found.expected)
            assert is_promise or now < found.expected[job.uid] <= got.starts_at
            before = self.kept.get(job.uid)
            if before is not None and got.starts_at > before.starts_at and not is_promise:
                assert has_overrun or self.has_urgent, f"job {job.uid} was put off"
            self.latest.setdefault(job.uid, []).append(got.starts_at)
        for job, got in found.reserved:
            for other, one in booked:
                is_before = one.until <= got.starts_at and set(one.nodes) & set(got.nodes)
                assert not is_before or (one.is_firm and other.has_limit), f"job {job.uid}"
        self.kept = {job.uid: got for job, got in booked}
        self.model.now = now
        self.model.reserved = list(self.kept.values())
        assert not self.model.is_overcommitted()
        for job in self.pending.values():
            own = self.kept.get(job.uid)
            self.model.reserved = [one for one in self.kept.values() if one is not own]
            assert not self.model.fits(job.request, now), f"job {job.uid} fits, and waits"


@st.composite
def workloads(
    draw: st.DrawFn, *, is_exact: bool, has_endless: bool, has_urgent: bool = False
) -> Workload:
    """Nodes and jobs. Exact: jobs without a duration run as long as they are planned."""
    found = draw(st.lists(submissions(is_exact=is_exact, has_endless=has_endless), max_size=12))
    if not has_urgent:
        found.sort(key=lambda one: one.at)  # in the order of their numbers
    return draw(st.integers(1, 3)), [
        Submission(
            one.at,
            one.priority if has_urgent else 0,
            one.asked,
            PLANNED_S if is_exact and not one.asked.duration_s else one.runs_s,
        )
        for one in found
    ]


POLICY = st.sampled_from(("easy", "hybrid", "conservative"))


@settings(max_examples=200, deadline=None)
@given(POLICY, workloads(is_exact=True, has_endless=True), st.integers(1, 40))
def test_later_jobs_delay_a_start_by_the_slack_at_most(
    policy: str, work: Workload, slack_s: int
) -> None:
    """All run as planned: each job starts by its first latest start, and this never moves back."""
    simulation = Kept(POLICIES[policy], *work, slack_s=slack_s)
    simulation.run()
    assert not simulation.pending
    for uid, latest in simulation.latest.items():
        assert latest == sorted(latest, reverse=True), f"job {uid}: {latest}"
        assert simulation.started[uid] <= latest[0]


@settings(max_examples=150, deadline=None)
@given(POLICY, workloads(is_exact=True, has_endless=False, has_urgent=True))
def test_with_limits_each_start_is_a_promise(policy: str, work: Workload) -> None:
    """Every reservation is firm, whatever comes meanwhile, and the job starts by it."""
    simulation = Kept(POLICIES[policy], *work)
    simulation.run()
    assert all(one.is_firm for one in simulation.kept.values())
    for uid, promised in simulation.latest.items():
        assert simulation.started[uid] <= promised[0]


@settings(max_examples=150, deadline=None)
@given(POLICY, workloads(is_exact=False, has_endless=True))
def test_only_an_overrun_moves_a_latest_start(policy: str, work: Workload) -> None:
    """Durations are wrong, and some are not there. Every job starts at last (``Kept.cycle``)."""
    simulation = Kept(POLICIES[policy], *work)
    simulation.run()
    assert not simulation.pending


def test_a_small_job_without_a_duration_runs_before_a_blocked_head() -> None:
    """It is planned to end by the latest start, 15 + 15. A job of a week is not."""
    simulation = Kept(POLICIES["easy"], 2, [])
    simulation.run()
    wide = request(2, cpu=4, duration_s=10)
    asked = (request(cpu=1), wide, request(cpu=1), request(cpu=1, duration_s=604_800))
    simulation.jobs = [Submission(0, 0, one, 1_000) for one in asked]
    simulation.pending = {"0": pending(0, 0, asked[0])}
    simulation.cycle(0)
    simulation.pending = {str(n): pending(n, 0, asked[n]) for n in (1, 2, 3)}
    simulation.cycle(1)
    assert simulation.started == {"0": 0, "2": 1}
    assert simulation.latest["1"] == [2 * PLANNED_S]


def test_a_gap_before_a_latest_start_is_nothing_to_rely_on() -> None:
    """The head may start in it. So the job behind gets a time after the head."""
    asked = (request(cpu=3), request(cpu=2, duration_s=1), request(cpu=3, duration_s=1))
    simulation = Kept(POLICIES["hybrid"], 1, [])
    simulation.run()
    simulation.jobs = [Submission(0, 0, one, PLANNED_S) for one in asked]
    simulation.slack_s = 1
    simulation.pending = {str(n): pending(n, 0, one) for n, one in enumerate(asked)}
    simulation.cycle(0)
    assert simulation.latest == {"1": [PLANNED_S + 1], "2": [PLANNED_S + 2]}
