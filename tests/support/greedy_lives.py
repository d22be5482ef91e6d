"""Random lives of a queue that a greedy tenant shares: cycles on virtual time.

Jobs of the greedy tenant never end by themselves and take all of their grace. Kubernetes deletes
their pods at their deadline, which counts from their last resumption. What fluxqueue answers to an
edit is asked of its own code: ``limit_now``, ``on_seen``, ``run_cycle``, ``Promises``. That an API
server refuses a raise by a user is tested in ``tests/chart/test_limits_policy.py``.
"""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace

from fluxqueue.fluxjob.holders import AUTHOR
from fluxqueue.fluxjob.lifecycle import StoredRow, on_seen
from fluxqueue.fluxjob.limit import Limit, limit_now
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.graph.ledger.placement import FOREVER, Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.scheduler.cycle import PendingJob, run_cycle
from fluxqueue.scheduler.promises import START_TOLERANCE_S, Mishaps, Promises
from tests.support.pool_model import node, request
from tests.support.rows import workload

STEPS = 30
LATENCY_S = 3
"""The most seconds from an allocation to the start of its pods."""
EDITS = ("lower", "suspend", "resume", "resume", "operator")


@dataclass
class Run:
    """A running job: Kubernetes counts its limit from ``counts_from``, and ends it at ``ends_at``.

    ``runs_s``: it ends by itself. ``goes_back``: it is queued again when its pods are gone.
    """

    job: PendingJob
    placement: Placement
    limit: Limit
    counts_from: int
    runs_s: int | None
    ends_at: int | None = None
    is_stopped: bool = False
    goes_back: bool = False

    @property
    def is_greedy(self) -> bool:
        return self.runs_s is None

    def gone_at(self) -> int | None:
        """Return when its last pod is gone. None: never."""
        if self.runs_s is not None:
            return self.counts_from + self.runs_s
        return None if self.ends_at is None else self.ends_at + self.limit.grace_s

    def is_ending(self, now: int) -> bool:
        return self.ends_at is not None and self.ends_at <= now


@dataclass
class Life:
    """One life: a few nodes, honest jobs, and a tenant that tries everything."""

    chance: random.Random
    now: int = 0
    matcher: Matcher = field(default_factory=lambda: Matcher(ShareLedger(), "lonode"))
    pending: dict[str, PendingJob] = field(default_factory=dict)
    held: dict[str, PendingJob] = field(default_factory=dict)
    running: dict[str, Run] = field(default_factory=dict)
    promises: Promises = field(default_factory=Promises)
    prolonged: list[int] = field(default_factory=list)
    allowed: set[str] = field(default_factory=set)
    judged: dict[str, int] = field(default_factory=dict)
    broken: list[str] = field(default_factory=list)
    kept: int = 0
    number: int = 0

    def live(self) -> None:
        for number in range(self.chance.randint(1, 4)):
            self.matcher.set_node(node(f"n{number}", cpu=4), {})
        for _ in range(STEPS):
            until = self.now + self.chance.randint(1, 15)
            self._act()
            self._cycle()
            # A cycle follows each end, as in the worker.
            while (end := self._next_end(until)) is not None:
                self.now = end
                self._end_those_due()
                self._cycle()
            self.now = until

    def _next_end(self, until: int) -> int | None:
        ends = [end for run in self.running.values() if (end := run.gone_at()) is not None]
        return min((max(end, self.now) for end in ends if end <= until), default=None)

    def _act(self) -> None:
        chance = self.chance
        if chance.random() < 0.5:
            self._submit(is_greedy=chance.random() < 0.6)
        greedy = [run for run in self.running.values() if run.is_greedy]
        if greedy:
            self._edit(chance.choice(greedy), chance.choice(EDITS))
        of_tenant = sorted(uid for uid in self.pending if uid.startswith("greedy"))
        if of_tenant and chance.random() < 0.2:
            uid = chance.choice(of_tenant)
            self.held[uid] = self.pending.pop(uid)
        elif self.held:
            uid = chance.choice(sorted(self.held))
            self._put_behind(self.held.pop(uid))

    def _submit(self, *, is_greedy: bool) -> None:
        self.number += 1
        chance = self.chance
        uid = f"{'greedy' if is_greedy else 'honest'}-{self.number}"
        duration_s = chance.randint(1, 40)
        if is_greedy and chance.random() < 0.2:
            duration_s = 0
        grace_s = chance.choice((0, 1, 30, 600)) if is_greedy else 0
        asked = request(
            chance.randint(1, 4), duration_s=duration_s or None, cpu=chance.randint(1, 4)
        )
        self.pending[uid] = PendingJob(uid, self.number, 0, replace(asked, grace_s=grace_s))

    def _put_behind(self, job: PendingJob) -> None:
        """Queue it behind those that came meanwhile: its place is not the question here."""
        self.number += 1
        self.pending[job.uid] = replace(job, jobid=self.number)

    def _edit(self, run: Run, edit: str) -> None:
        if run.is_ending(self.now) and not run.is_stopped:
            return  # its time is over: its pods end
        if edit == "lower" and run.limit.is_limited and not run.is_stopped:
            self._limit(run, self.chance.randint(1, run.limit.duration_s or 1))
        elif edit == "operator" and run.limit.is_limited and self.chance.random() < 0.1:
            self._limit(run, (run.limit.duration_s or 0) + self.chance.randint(1, 3600))
            self.allowed.add(f"job {run.job.jobid}")
        elif edit == "suspend" and not run.is_stopped:
            run.ends_at, run.is_stopped, run.goes_back = self.now, True, True
        elif edit == "resume" and run.is_stopped:
            self._resume(run)

    def _limit(self, run: Run, duration_s: int) -> None:
        """The deadline of a running job is another one: the plan follows it."""
        before = run.placement.until
        run.ends_at = max(self.now, run.counts_from + duration_s)
        elapsed_s = self.now - run.placement.starts_at
        run.limit = limit_now(run.limit, replace(run.limit, duration_s=duration_s), elapsed_s)
        held_s = run.limit.held_s
        until = FOREVER if held_s is None else run.placement.starts_at + held_s
        run.placement = replace(run.placement, until=until)
        self.matcher.cancel(run.job.uid)
        self.matcher.allocate(run.job.uid, run.placement)
        if until > before:
            self.prolonged.append(run.job.jobid)

    def _resume(self, run: Run) -> None:
        """Its author resumes it before its pods are gone. Does it keep its slots?"""
        row = StoredRow(FluxJobState.RUNNING, vacate_by=AUTHOR, released_generation=2)
        is_limited = run.limit.is_limited
        seen = workload(run.job.uid, is_limited=is_limited, is_suspended=False, generation=4)
        change = on_seen(row, seen, needs_look=True, is_reshaped=False)
        run.is_stopped = False
        if change.vacate_by is None:
            run.counts_from, run.goes_back = self.now, False
            duration_s = run.limit.duration_s
            run.ends_at = None if duration_s is None else self.now + duration_s

    def _end_those_due(self) -> None:
        for uid, run in list(self.running.items()):
            end = run.gone_at()
            if end is not None and end <= self.now:
                del self.running[uid]
                self.matcher.cancel(uid)
                if run.goes_back:
                    self._put_behind(run.job)

    def _cycle(self) -> None:
        queue = sorted(self.pending.values(), key=lambda job: job.jobid)
        live = self.matcher.ledger.live
        overran = [r.job.jobid for u, r in self.running.items() if live[u].until < self.now]
        mishaps = Mishaps(overran, prolonged=self.prolonged)
        self.prolonged = []
        decisions = run_cycle(self.matcher, queue, POLICIES["easy"], self.now)
        is_known = all(run.limit.is_limited for run in self.running.values())
        is_known = is_known and all(j.request.duration_s for j, _ in decisions.allocated)
        changed = self.promises.take_in(queue, decisions, now=self.now, mishaps=mishaps)
        for uid, promise in changed.items():
            # With work whose end nobody enforces, nothing can be promised.
            if promise.excuse is None and is_known and uid.startswith("honest"):
                self.judged[uid] = promise.starts_at
        for job, placement in decisions.allocated:
            self._start(job, placement)

    def _start(self, job: PendingJob, placement: Placement) -> None:
        promise = self.promises.kept.get(job.uid)
        self.promises.settle(job.uid, self.now)
        promised = self.judged.pop(job.uid, None)
        if promised is not None:
            excuse = "" if promise is None or promise.excuse is None else promise.excuse
            is_late = self.now > promised + START_TOLERANCE_S
            if is_late and not any(one in excuse.split(" of ")[-1] for one in self.allowed):
                self.broken.append(f"{job.uid}: {self.now - promised} s late, {excuse or 'unsaid'}")
            self.kept += not is_late
        del self.pending[job.uid]
        duration_s = int(job.request.duration_s) or None
        limit = Limit(duration_s, job.request.grace_s, duration_s is not None)
        runs_s = None if job.uid.startswith("greedy") else self.chance.randint(1, duration_s or 1)
        begins = self.now + self.chance.randint(0, LATENCY_S)
        ends_at = None if duration_s is None else begins + duration_s
        self.running[job.uid] = Run(job, placement, limit, begins, runs_s, ends_at)


def broken_promises(seed: int) -> tuple[int, list[str]]:
    """Live one life. Return how many promises were kept, and those broken without an excuse that
    an operator has caused."""
    life = Life(random.Random(seed))
    life.live()
    return life.kept, life.broken
