"""First promised starts, and the excuses for promises that are not kept (invariant 9).

The first reservation of a job is its promise. Every cycle makes a new plan, so this ledger
compares each new plan with the promise. When a plan falls behind, it records the cause: a job that
overran its duration, a lost node, or work that was put ahead. A later start without such an excuse
is a broken promise.

The worker's matcher keeps this ledger, and so do simulations. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fluxqueue.fluxjob.hostlist import compress, is_host
from fluxqueue.jobspec import Jobspec
from fluxqueue.scheduler.cycle_decisions import Decisions
from fluxqueue.scheduler.pending_job import PendingJob

START_TOLERANCE_S = 5
"""Seconds after which a later start without an excuse is a broken promise."""

NAMED_MAX = 3
"""Jobs named in one excuse."""

NODES_MAX = 200
"""Characters of a hostlist in one excuse."""

OVERRAN = "overrun of "
BARRED = "a limit, or its queue was stopped"
AWAY = "held, or too far back in its queue to be examined"
ANOTHER = "its request has changed"


@dataclass(slots=True)
class Promise:
    """The first promised start in epoch seconds, and the excuse for missing it.

    ``request`` is what the start was promised for, None if that is no longer known.
    """

    starts_at: int
    excuse: str | None = None
    request: Jobspec | None = None


@dataclass(frozen=True, slots=True)
class Mishaps:
    """What went wrong since the previous cycle.

    ``overran`` are jobids that hold resources past their limit, or past their plan without one.
    ``lost`` are nodes with less capacity than before: down, cordoned, gone, or used by unmanaged
    pods. ``prolonged`` are jobids with a later planned end than before: their limit was raised, or
    their pods take longer to end. ``closed`` are reservations that close further nodes or times.
    """

    overran: Sequence[int] = ()
    lost: Sequence[str] = ()
    prolonged: Sequence[int] = ()
    closed: Sequence[str] = ()

    def excuse(self) -> str | None:
        """Return the cause of a plan that has just fallen behind, in words."""
        if self.overran:
            return f"{OVERRAN}{_name_jobs(self.overran)}"
        if self.prolonged:
            return f"later end of {_name_jobs(self.prolonged)}"
        if self.closed:
            more = len(self.closed) - NAMED_MAX
            named = ", ".join(self.closed[:NAMED_MAX])
            return f"maintenance {named}" + (f" and {more} more" if more > 0 else "")
        if self.lost:
            named = compress(sorted(filter(is_host, self.lost))) or "nodes without a valid name"
            return f"less capacity on {named[:NODES_MAX]}"
        return None


def _name_jobs(jobids: Sequence[int]) -> str:
    named = ", ".join(f"job {jobid}" for jobid in jobids[:NAMED_MAX])
    more = len(jobids) - NAMED_MAX
    return f"{named} and {more} more" if more > 0 else named


@dataclass(slots=True)
class Promises:
    """Promises by UID, compared with the plan once per cycle."""

    kept: dict[str, Promise] = field(default_factory=dict)

    def take_in(
        self,
        queue: Sequence[PendingJob],
        decisions: Decisions,
        *,
        now: int,
        mishaps: Mishaps,
    ) -> Mapping[str, Promise]:
        """Compare the plan of a cycle with the promises, and return those that changed.

        Parameters
        ----------
        queue : The jobs that the cycle walked, in its order. A job outside it has no promise any
            more.
        now : The time of the cycle in epoch seconds.

        Returns
        -------
        By UID, the promises that are new or have a new excuse.
        """
        planned = {job.uid: got.starts_at for job, got in decisions.reserved}
        planned |= {job.uid: now for job, _ in decisions.allocated}
        changed: dict[str, Promise] = {}
        for job in queue:
            promise, start = self.kept.get(job.uid), planned.get(job.uid)
            if promise is None:
                if start is not None and start > now:
                    promise = self.kept[job.uid] = Promise(start, request=job.stated)
                    changed[job.uid] = promise
            elif promise.excuse is None and (start is None or start > promise.starts_at):
                promise.excuse = self._excuse(job, promise, decisions, mishaps)
                if promise.excuse is not None:
                    changed[job.uid] = promise
        # A job that left the queue is not planned any more, so nothing can keep its promise.
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
        if promise.request not in {None, job.stated}:
            return ANOTHER
        return BARRED if job.uid in decisions.barred else mishaps.excuse()

    def forget(self, uid: str) -> None:
        """Drop the promise of a job that no longer waits: a new wait is a new promise."""
        self.kept.pop(uid, None)

    def settle(self, uid: str, now: int) -> str | None:
        """Return *kept*, *excused* or *broken* for a job that has started, None without promise."""
        promise = self.kept.pop(uid, None)
        if promise is None:
            return None
        if now <= promise.starts_at + START_TOLERANCE_S:
            return "kept"
        return "broken" if promise.excuse is None else "excused"
