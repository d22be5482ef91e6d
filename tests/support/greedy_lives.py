"""Random lives of a queue that a greedy tenant shares: cycles on virtual time.

Jobs of the greedy tenant never end by themselves, or are tried again and again, and take all of
their grace. Kubernetes deletes their pods at their deadline, which counts from their last
resumption. What fluxqueue answers to an edit is asked of its own code: ``limit_now``, ``on_seen``,
``run_cycle`` (growth as well), ``Promises``. Its places are drawn as ``db/sql/32_place.sql`` does.
That an API server refuses a raise by a user is tested in ``tests/chart/test_limits_policy.py``.
``tests/adversary/test_greedy_lives.py`` runs such lives on a cluster.
"""

from __future__ import annotations

import random
import re
from dataclasses import dataclass, field, replace

from fluxqueue.fluxjob.holders import AUTHOR
from fluxqueue.fluxjob.lifecycle import StoredRow, on_seen
from fluxqueue.fluxjob.limit import Limit, limit_now
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.graph.ledger.placement import FOREVER, Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Ongoing
from fluxqueue.scheduler.lack import Lack
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.scheduler.promises import START_TOLERANCE_S, Mishaps, Promises
from tests.support.pool_model import node, request
from tests.support.rows import workload

STEPS = 30
LATENCY_S = 3
"""The most seconds from an allocation to the start of its pods."""
PLANNED_S = 10
"""What is planned for jobs that state no duration."""
EDITS = ("lower", "suspend", "resume", "resume", "operator", "grow", "grow")


@dataclass
class Run:
    """A running job: Kubernetes counts its limit from ``counts_from``, and ends it at ``ends_at``.

    ``runs_s``: it ends by itself after so long, all of its retries counted. ``lacking``: the slots
    that it still wants. ``goes_back``: it waits again when its pods are gone.
    """

    job: PendingJob
    nodes: list[str]
    starts_at: int
    limit: Limit
    counts_from: int
    runs_s: int | None
    ends_at: int | None = None
    lacking: int = 0
    is_stopped: bool = False
    goes_back: bool = False

    @property
    def is_greedy(self) -> bool:
        return self.job.uid.startswith("greedy")

    def gone_at(self) -> int | None:
        """Return when its last pod is gone. None: never."""
        killed_at = None if self.ends_at is None else self.ends_at + self.limit.grace_s
        done_at = None if self.runs_s is None else self.counts_from + self.runs_s
        return min((one for one in (killed_at, done_at) if one is not None), default=None)

    def is_ending(self, now: int) -> bool:
        return self.ends_at is not None and self.ends_at <= now


@dataclass
class Life:
    """One life: a few nodes, honest jobs, and a tenant that tries everything.

    ``allowed`` are the jobids that may excuse a late start: an operator has raised their limit, or
    has let them run without one (docs/admin/policies.md).
    """

    chance: random.Random
    now: int = 0
    matcher: Matcher = field(default_factory=lambda: Matcher(ShareLedger(), "lonode"))
    pending: dict[str, PendingJob] = field(default_factory=dict)
    held: dict[str, PendingJob] = field(default_factory=dict)
    running: dict[str, Run] = field(default_factory=dict)
    promises: Promises = field(default_factory=Promises)
    reserved: dict[str, Placement] = field(default_factory=dict)
    prolonged: list[int] = field(default_factory=list)
    allowed: set[int] = field(default_factory=set)
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
        has_limit = not is_greedy or chance.random() < 0.8
        duration_s = chance.randint(1, 40) if has_limit else PLANNED_S
        grace_s = chance.choice((0, 1, 30, 600)) if is_greedy else 0
        asked = request(chance.randint(1, 4), duration_s=duration_s, cpu=chance.randint(1, 4))
        asked = replace(asked, grace_s=grace_s)
        self.pending[uid] = PendingJob(
            *(uid, self.number, 0, asked), has_limit=has_limit, is_planned=not has_limit
        )

    def _put_behind(self, job: PendingJob) -> None:
        """Its author made it wait: it gets a new place, behind those that came meanwhile."""
        self.number += 1
        self.pending[job.uid] = replace(job, place=self.number)

    def _edit(self, run: Run, edit: str) -> None:
        if run.is_ending(self.now) and not run.is_stopped:
            return  # its time is over: its pods end
        if edit == "lower" and run.limit.is_limited and not run.is_stopped:
            self._limit(run, self.chance.randint(1, run.limit.duration_s or 1))
        elif edit == "operator" and run.limit.is_limited and self.chance.random() < 0.1:
            self._limit(run, (run.limit.duration_s or 0) + self.chance.randint(1, 3600))
            self.allowed.add(run.job.jobid)
        elif edit == "suspend" and not run.is_stopped:
            run.ends_at, run.is_stopped, run.goes_back, run.lacking = self.now, True, True, 0
        elif edit == "resume" and run.is_stopped:
            self._resume(run)
        elif edit == "grow" and not run.is_stopped:
            run.lacking = self.chance.randint(1, 4)

    def _limit(self, run: Run, duration_s: int) -> None:
        """The deadline of a running job is another one: the plan follows it."""
        before = self.matcher.ledger.live[run.job.uid].until
        run.ends_at = max(self.now, run.counts_from + duration_s)
        elapsed_s = self.now - run.starts_at
        run.limit = limit_now(run.limit, replace(run.limit, duration_s=duration_s), elapsed_s)
        held_s = run.limit.held_s
        until = FOREVER if held_s is None else run.starts_at + held_s
        self.matcher.ledger.end_at(run.job.uid, until)
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
            run.ends_at = self.now + (duration_s or 0) if is_limited else None

    def _end_those_due(self) -> None:
        for uid, run in list(self.running.items()):
            end = run.gone_at()
            if end is not None and end <= self.now:
                del self.running[uid]
                self.matcher.cancel(uid)
                if run.is_stopped:
                    self.held[uid] = run.job
                elif run.goes_back:
                    self._put_behind(run.job)

    def _cycle(self) -> None:
        queue = sorted(self.pending.values(), key=lambda job: job.turn)
        live = self.matcher.ledger.live
        overran = [r.job.jobid for u, r in self.running.items() if live[u].until < self.now]
        mishaps = Mishaps(overran, prolonged=self.prolonged)
        self.prolonged = []
        promised = {job.uid: self.reserved[job.uid] for job in queue if job.uid in self.reserved}
        decisions = run_cycle(
            *(self.matcher, queue, POLICIES["easy"], self.now),
            promised=promised,
            ongoing=Ongoing(lacks=self._lacks()),
        )
        for lack, placed in decisions.grown.slots:
            run = self.running[lack.uid]
            run.lacking -= len(placed)
            run.nodes += [node for one in placed for node in one.nodes]
        kept = [*decisions.reserved, *decisions.unpromised]
        self.reserved = {job.uid: placement for job, placement in kept}
        changed = self.promises.take_in(queue, decisions, now=self.now, mishaps=mishaps)
        for uid, promise in changed.items():
            if promise.excuse is None and uid.startswith("honest"):
                self.judged[uid] = promise.starts_at
        for job, placement in decisions.allocated:
            self._start(job, list(placement.nodes))

    def _lacks(self) -> list[Lack]:
        live = self.matcher.ledger.live
        found = [
            Lack(
                *(uid, run.lacking, run.job.request, tuple(run.nodes), live[uid].until),
                jobid=run.job.jobid,
                place=run.job.place,
                duration_s=int(run.job.request.duration_s),
                has_limit=run.job.has_limit,
            )
            for uid, run in self.running.items()
            if run.lacking and not run.is_ending(self.now)
        ]
        return sorted(found, key=lambda lack: lack.turn)

    def _start(self, job: PendingJob, nodes: list[str]) -> None:
        promise = self.promises.kept.get(job.uid)
        self.promises.settle(job.uid, self.now)
        promised = self.judged.pop(job.uid, None)
        if promised is not None:
            excuse, late_s = promise.excuse if promise else None, self.now - promised
            if is_broken(late_s, excuse, self.allowed):
                self.broken.append(f"{job.uid}: {late_s} s late, {excuse or 'unsaid'}")
            self.kept += late_s <= START_TOLERANCE_S
        del self.pending[job.uid]
        duration_s = int(job.request.duration_s)
        limit = Limit(duration_s, job.request.grace_s, job.has_limit)
        tries = self.chance.choice((1, 1, 2, 7))
        runs_s: int | None = tries * self.chance.randint(1, duration_s)
        if job.uid.startswith("greedy") and self.chance.random() < 0.7:
            runs_s = None
        begins = self.now + self.chance.randint(0, LATENCY_S)
        ends_at = begins + duration_s if job.has_limit else None
        if not job.has_limit:
            self.allowed.add(job.jobid)
        self.running[job.uid] = Run(job, nodes, self.now, limit, begins, runs_s, ends_at)


def is_broken(
    late_s: float, excuse: str | None, allowed: set[int], tolerance_s: float = START_TOLERANCE_S
) -> bool:
    """Return whether a start is late, and its excuse names no job that is ``allowed``."""
    named = {int(one) for one in re.findall(r"job (\d+)", excuse or "")}
    return late_s > tolerance_s and not named & allowed


def broken_promises(seed: int) -> tuple[int, list[str]]:
    """Live one life. Return how many promises were kept, and those broken without an excuse that
    an operator has caused."""
    life = Life(random.Random(seed))
    life.live()
    return life.kept, life.broken
