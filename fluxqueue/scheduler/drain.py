"""Expected starts behind the jobs that a forecast plans: when the queue has drained so far.

``worker.plans`` uses it for the rest of a deep queue, where a plan for each job costs too much. The
pace is that of the planned starts: a line through them, over the work ahead of them, which is slots
times planned seconds. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import linear_regression

from fluxqueue.fluxjob.wait_reason import WaitReason
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.scheduler.forecast import Outlook, roughly, rounded
from fluxqueue.scheduler.pending_job import PendingJob

PLANNED_MIN = 2
"""Fewer planned starts show no pace."""


@dataclass(slots=True)
class Drain:
    """One queue as it drains from ``now`` on: the jobs that were passed, and their work.

    ``last`` is the turn of the last of them.
    """

    now: int
    passed: int = 0
    last: tuple[int, int] = (0, 0)
    _work: float = 0.0
    _works: list[float] = field(default_factory=list)
    _starts: list[int] = field(default_factory=list)
    _line: tuple[float, float] | None = None

    def pass_by(self, turn: tuple[int, int], work: float, start: int | None = None) -> None:
        """Take a job into account, with its start if that is planned."""
        if start is not None:
            self._works.append(self._work)
            self._starts.append(start)
            self._line = None
        self._work += work
        self.passed, self.last = self.passed + 1, turn

    def start(self) -> int | None:
        """Return the expected start of the next job, None if no pace is known."""
        if len(self._starts) < PLANNED_MIN:
            return None
        if self._line is None:
            slope, at = linear_regression(self._works, self._starts)
            self._line = slope, at
        slope, at = self._line
        return max(self.now, round(at + max(0.0, slope) * self._work))


def with_drain(
    queue: Sequence[PendingJob], found: Mapping[str, Outlook], now: int, depths: Mapping[str, int]
) -> tuple[dict[str, Outlook], dict[str, Drain]]:
    """Return outlooks in which skipped jobs have a start, and each queue as it drains behind them.

    It does so behind its first jobs, as many as ``depths`` says. A cycle examines a few of the jobs
    behind these, too.
    """
    drains: dict[str, Drain] = {}
    outlooks = dict(found)
    for job in queue:
        drain = drains.setdefault(job.queue, Drain(now))
        outlook = found.get(job.uid)
        start = None if outlook is None else outlook.expected_start
        if outlook is not None and outlook.is_skipped:
            outlooks[job.uid] = replace(outlook, expected_start=drain.start())
        if drain.passed < depths[job.queue]:
            drain.pass_by(job.turn, job.request.size * job.by_plan.duration_s, start)
    return outlooks, drains


def outlook_behind(priority: int, drain: Drain, rules: QueueRules) -> Outlook:
    """Return the outlook of the next job of a queue, which no cycle examines yet."""
    if not rules.is_started:
        return Outlook(None, f"queue {rules.name} is stopped", WaitReason.STOPPED)
    reason = f"priority {priority} behind {roughly(drain.passed)} jobs"
    return Outlook(drain.start(), reason, position=rounded(drain.passed) + 1)
