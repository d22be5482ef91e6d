"""First promised starts, and the excuses for those that are not kept (invariant 9).

A FluxJob that is given a reservation is told a start; the first one told is its promise. Plans
are made anew in every cycle, so this ledger compares each new plan with what was promised and
writes down, the moment a plan falls behind, who is to blame: a job that overran its duration, a
node that was lost, or work that was put before it. A later start without such an excuse is a
broken promise. Kept by the worker's matcher and by simulations; pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.jobspec import Jobspec
from fluxqueue.scheduler.cycle import Decisions, PendingJob

START_TOLERANCE_S = 5
"""A start this long after the promised one, with nobody to blame, is a broken promise (seconds)."""

NAMED_MAX = 3
"""Jobs named in one excuse."""

NODES_MAX = 200
"""Characters of a hostlist in one excuse."""

BARRED = "a limit, or its queue was stopped"
AWAY = "held back, or too far back in its queue to be looked at"
ANOTHER = "it asks for something else now"


@dataclass(slots=True)
class Promise:
    """The first start that was promised (epoch seconds), and why it may be missed.

    ``request`` is what it was promised for; None where that is not known any more.
    """

    starts_at: int
    excuse: str | None = None
    request: Jobspec | None = None


@dataclass(frozen=True, slots=True)
class Mishaps:
    """What went wrong since the cycle before.

    ``overran``: jobids that hold resources past their planned end. ``lost``: nodes that have less
    room than before: down, cordoned, gone, or used by others. ``topped_up``: jobids that were
    given further slots because they had lost some, or were scaled up.
    """

    overran: Sequence[int] = ()
    lost: Sequence[str] = ()
    topped_up: Sequence[int] = ()

    def excuse(self) -> str | None:
        """Whom to blame for a plan that has fallen behind now, in words."""
        if self.overran:
            return f"overrun of {_name_jobs(self.overran)}"
        if self.lost:
            return f"less room on {compress(sorted(self.lost))[:NODES_MAX]}"
        if self.topped_up:
            return f"further slots for {_name_jobs(self.topped_up)}"
        return None


def _name_jobs(jobids: Sequence[int]) -> str:
    named = ", ".join(f"job {jobid}" for jobid in jobids[:NAMED_MAX])
    more = len(jobids) - NAMED_MAX
    return f"{named} and {more} more" if more > 0 else named


@dataclass(slots=True)
class Promises:
    """Promises by UID, brought up to date once per cycle."""

    kept: dict[str, Promise] = field(default_factory=dict)

    def take_in(
        self,
        queue: Sequence[PendingJob],
        decisions: Decisions,
        *,
        now: int,
        mishaps: Mishaps,
    ) -> Mapping[str, Promise]:
        """Compare a cycle's plan with what was promised; give the promises that are new or
        newly excused. Whoever is not in the queue has no promise any more.

        Parameters
        ----------
        queue : what the cycle walked, in its order.
        now : the cycle's time (epoch seconds).
        """
        planned = {job.uid: got.starts_at for job, got in decisions.reserved}
        planned |= {job.uid: now for job, _ in decisions.allocated}
        changed: dict[str, Promise] = {}
        for job in queue:
            promise, start = self.kept.get(job.uid), planned.get(job.uid)
            if promise is None:
                if start is not None and start > now:
                    promise = self.kept[job.uid] = Promise(start, request=job.request)
                    changed[job.uid] = promise
            elif promise.excuse is None and (start is None or start > promise.starts_at):
                promise.excuse = self._excuse(job, promise, decisions, mishaps)
                if promise.excuse is not None:
                    changed[job.uid] = promise
        present = {job.uid for job in queue}
        for uid in [uid for uid in self.kept if uid not in present]:
            promise = self.kept.pop(uid)
            if promise.excuse is None:
                promise.excuse = AWAY
                changed[uid] = promise
        return changed

    def _excuse(
        self, job: PendingJob, promise: Promise, decisions: Decisions, mishaps: Mishaps
    ) -> str | None:
        if promise.request not in {None, job.request}:
            return ANOTHER
        return BARRED if job.uid in decisions.barred else mishaps.excuse()

    def forget(self, uid: str) -> None:
        """It does not wait any more: a new wait is a new promise."""
        self.kept.pop(uid, None)

    def settle(self, uid: str, now: int) -> str | None:
        """It has started: was its promise *kept*, *excused* or *broken*? None where it had none."""
        promise = self.kept.pop(uid, None)
        if promise is None:
            return None
        if now <= promise.starts_at + START_TOLERANCE_S:
            return "kept"
        return "broken" if promise.excuse is None else "excused"
