"""One scheduling cycle: from a queue and a pool set to decisions.

Called by the worker's ``schedule`` task inside its transaction, and by simulations on virtual
time: no clock, no rows, no sockets. The pool set is left with the cycle's allocations booked; if
the transaction that stores the decisions fails, the caller must throw the pool set away.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.fluxjob.request import ResourceRequest
from fluxqueue.graph.pools import UNKNOWN_END, Placement, PoolSet
from fluxqueue.graph.reasons import why_never
from fluxqueue.policy.queue_policy import QueuePolicy


@dataclass(frozen=True, slots=True)
class PendingJob:
    """One FluxJob of the queue, as the cycle needs it."""

    uid: str
    jobid: int
    priority: int
    request: ResourceRequest
    queue: str = "default"
    user: str = ""


@dataclass(slots=True)
class Decisions:
    """What one cycle decided; ``waiting`` says why, and when where that is known."""

    allocated: list[tuple[PendingJob, Placement]] = field(default_factory=list)
    reserved: list[tuple[PendingJob, Placement]] = field(default_factory=list)
    unsatisfiable: list[tuple[PendingJob, str]] = field(default_factory=list)
    waiting: list[tuple[PendingJob, str]] = field(default_factory=list)


def split_unsatisfiable(
    pools: PoolSet,
    jobs: Iterable[PendingJob],
    answers: dict[ResourceRequest, str | None] | None = None,
) -> tuple[list[PendingJob], list[tuple[PendingJob, str]]]:
    """Part the FluxJobs that could run on the empty cluster from those that never can.

    ``answers`` remembers the reason (None: possible) by request; it holds until nodes change.
    """
    possible: list[PendingJob] = []
    never: list[tuple[PendingJob, str]] = []
    answers = {} if answers is None else answers
    for job in jobs:
        if job.request not in answers:
            fits = pools.is_satisfiable(job.request)
            answers[job.request] = None if fits else why_never(pools, job.request)
        reason = answers[job.request]
        if reason is None:
            possible.append(job)
        else:
            never.append((job, reason))
    return possible, never


def run_cycle(
    pools: PoolSet, queue: Iterable[PendingJob], policy: QueuePolicy, now: int
) -> Decisions:
    """Walk the queue once under ``policy`` and decide.

    Parameters
    ----------
    pools : nodes and everything booked; allocations made here are booked in it.
    queue : FluxJobs in queue order (priority, then submission), none of them unsatisfiable.
    policy : how many reservations, and whether to look past a blocked FluxJob.
    now : epoch seconds.
    """
    pools.clear_plan()
    walk = _Walk(pools, policy, now)
    for job in queue:
        walk.step(job)
    return walk.decisions


class _Walk:
    """State of one walk: who blocks, how many reservations are given, what is known not to fit."""

    def __init__(self, pools: PoolSet, policy: QueuePolicy, now: int) -> None:
        self.pools, self.policy, self.now = pools, policy, now
        self.decisions = Decisions()
        self._blocker: PendingJob | None = None
        self._promised = 0
        # During a walk free resources only shrink, so what did not fit once will not fit again.
        self._hopeless: dict[ResourceRequest, str] = {}
        self._unplannable: dict[ResourceRequest, str] = {}

    def step(self, job: PendingJob) -> None:
        """Start ``job``, promise it a start, or say why it waits."""
        if self._blocker is not None and not self.policy.is_backfilling:
            self._wait(job, f"waits behind job {self._blocker.jobid}")
            return
        reason = self._hopeless.get(job.request)
        if reason is None:
            try:
                placement = self.pools.match_now(job.request, self.now)
            except InsufficientResources as busy:
                reason = busy.reason
                self._hopeless[job.request] = reason
            else:
                self.pools.book(job.uid, placement)
                self.decisions.allocated.append((job, placement))
                return
        self._blocker = self._blocker or job
        if self._promised < self.policy.reservation_depth:
            self._reserve(job, reason)
        else:
            self._wait(job, reason)

    def _reserve(self, job: PendingJob, reason: str) -> None:
        # During a walk the future only fills up too.
        without = self._unplannable.get(job.request)
        if without is not None:
            self._wait(job, without)
            return
        try:
            placement = self.pools.match_later(job.request, self.now)
        except InsufficientResources as unknown:
            without = self._unplannable[job.request] = f"{reason}; {unknown.reason}"
            self._wait(job, without)
            return
        self.pools.reserve(placement, self.now)
        self._promised += 1
        if placement.starts_at < UNKNOWN_END:
            self.decisions.reserved.append((job, placement))
            return
        nodes = compress(sorted(set(placement.nodes)))
        self._wait(job, f"{reason} on {nodes}, where running jobs have no known end")

    def _wait(self, job: PendingJob, reason: str) -> None:
        self.decisions.waiting.append((job, reason))
