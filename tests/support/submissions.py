"""Random queues, and the simulator that runs them."""

from __future__ import annotations

from dataclasses import dataclass, field, replace

from hypothesis import strategies as st

from fluxqueue.fluxjob.request import CPU, MEMORY
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Jobspec
from fluxqueue.policy.queue_policy import QueuePolicy
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.scheduler.satisfiable import split_unsatisfiable
from tests.support.pool_model import Model, node, request

HORIZON_S = 100_000
PLANNED_S = 15


def pending(number: int, priority: int, asked: Jobspec) -> PendingJob:
    """A job in its queue, which plans what states no duration."""
    planned = replace(asked, duration_s=asked.duration_s or float(PLANNED_S))
    return PendingJob(str(number), number, priority, planned, has_limit=bool(asked.duration_s))


@dataclass(frozen=True)
class Submission:
    """A job: when it comes, what it asks, how long it really runs."""

    at: int
    priority: int
    asked: Jobspec
    runs_s: int


Workload = tuple[int, list[Submission]]


@dataclass
class Simulation:
    """Virtual time over one matcher. Every answer is checked against the plain model."""

    policy: QueuePolicy
    nodes: int
    jobs: list[Submission]
    pools: Matcher = field(default_factory=lambda: Matcher(ShareLedger(), "lonode"))
    model: Model = field(default_factory=lambda: Model(0))
    pending: dict[str, PendingJob] = field(default_factory=dict)
    running: dict[str, tuple[int, Placement]] = field(default_factory=dict)
    started: dict[str, int] = field(default_factory=dict)
    promised: dict[str, list[int]] = field(default_factory=dict)
    order: list[str] = field(default_factory=list)
    impossible: set[str] = field(default_factory=set)

    def run(self) -> None:
        """Until nothing is left, or time runs out."""
        for number in range(self.nodes):
            fact = node(f"n{number}")
            self.pools.set_node(fact, {})
            self.model.nodes[fact.name] = fact
        arrivals = sorted(range(len(self.jobs)), key=lambda n: (self.jobs[n].at, n))
        now = 0
        while (arrivals or self.pending or self.running) and now < HORIZON_S:
            times = [end for end, _ in self.running.values()]
            times += [self.jobs[arrivals[0]].at] if arrivals else []
            if not times:
                return
            now = max(now, min(times))
            self._end_those_due(now)
            while arrivals and self.jobs[arrivals[0]].at <= now:
                self._submit(arrivals.pop(0))
            self.cycle(now)

    def _submit(self, number: int) -> None:
        one = self.jobs[number]
        job = pending(number, one.priority, one.asked)
        _, never = split_unsatisfiable(self.pools, [job])
        if never:
            self.impossible.add(job.uid)
        else:
            self.pending[job.uid] = job

    def _end_those_due(self, now: int) -> None:
        for uid, (end, _) in list(self.running.items()):
            if end <= now:
                del self.running[uid], self.model.booked[uid]
                assert self.pools.cancel(uid)

    def queue(self) -> list[PendingJob]:
        """Priority, then submission."""
        return sorted(self.pending.values(), key=lambda job: (-job.priority, job.jobid))

    def cycle(self, now: int) -> None:
        """One cycle. Then the model is asked whether it was sound."""
        queue = self.queue()
        decisions = run_cycle(self.pools, queue, self.policy, now)
        self.model.now, self.model.reserved = now, []
        for job, got in decisions.allocated:
            assert len(got.slots) == job.request.size, "not all, so nothing"
            del self.pending[job.uid]
            self.started[job.uid] = now
            self.order.append(job.uid)
            self.running[job.uid] = (now + self.jobs[job.jobid].runs_s, got)
            self.model.booked[job.uid] = got
        self.model.reserved = [got for _, got in (*decisions.reserved, *decisions.unpromised)]
        for job, got in decisions.reserved:
            assert got.starts_at > now
            self.promised.setdefault(job.uid, []).append(got.starts_at)
        assert not self.model.is_overcommitted(), "with all promises kept, something is overbooked"
        assert self.model.is_exclusive_kept()
        told = [*decisions.allocated, *decisions.reserved, *decisions.waiting]
        assert sorted(job.uid for job, _ in told) == sorted(job.uid for job in queue)
        assert all(reason for _, reason in decisions.waiting)


@st.composite
def submissions(draw: st.DrawFn, *, is_exact: bool, has_endless: bool = False) -> Submission:
    """One job that fits a cluster of a few nodes, mostly."""
    duration = draw(st.integers(1, 30))
    endless = has_endless and draw(st.booleans())
    asked = request(
        draw(st.integers(1, 4)),
        duration_s=None if endless else duration,
        is_exclusive=draw(st.sampled_from((False, False, False, True))),
        is_spread=draw(st.booleans()),
        **{CPU: draw(st.integers(1, 5)), MEMORY: draw(st.integers(0, 8))},
    )
    late = 0 if is_exact else draw(st.sampled_from((-duration + 1, 0, 0, 7, 200)))
    return Submission(
        draw(st.integers(0, 40)), draw(st.sampled_from((0, 0, 0, 10))), asked, duration + late
    )
