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
from fluxqueue.scheduler.cycle import Decisions, PendingJob

NAMED_MAX = 3
"""Jobs named in one excuse."""


@dataclass(slots=True)
class Promise:
    """The first start that was promised (epoch seconds), and why it may be missed."""

    starts_at: int
    excuse: str | None = None


@dataclass(frozen=True, slots=True)
class Mishaps:
    """What went wrong since the cycle before.

    ``overran``: jobids that hold resources past their planned end. ``lost``: nodes that have less
    room than before: down, cordoned, gone, or used by others.
    """

    overran: Sequence[int] = ()
    lost: Sequence[str] = ()


@dataclass(slots=True)
class Promises:
    """Promises by UID, brought up to date once per cycle."""

    kept: dict[str, Promise] = field(default_factory=dict)
    _places: dict[str, int] = field(default_factory=dict)

    def take_in(
        self,
        queue: Sequence[PendingJob],
        decisions: Decisions,
        *,
        now: int,
        mishaps: Mishaps,
    ) -> Mapping[str, Promise]:
        """Compare a cycle's plan with what was promised; give the promises that are new or
        newly excused.

        Parameters
        ----------
        queue : what the cycle walked, in its order.
        now : the cycle's time (epoch seconds).
        """
        planned = {job.uid: got.starts_at for job, got in decisions.reserved}
        planned |= {job.uid: now for job, _ in decisions.allocated}
        changed: dict[str, Promise] = {}
        overtaken = self._overtaken(queue)
        for job in queue:
            promise, start = self.kept.get(job.uid), planned.get(job.uid)
            if promise is None:
                if start is not None and start > now:
                    changed[job.uid] = self.kept[job.uid] = Promise(start)
            elif promise.excuse is None and (start is None or start > promise.starts_at):
                promise.excuse = _excuse(mishaps, overtaken.get(job.uid))
                if promise.excuse is not None:
                    changed[job.uid] = promise
        self._places = {job.uid: place for place, job in enumerate(queue)}
        return changed

    def forget(self, uid: str) -> None:
        """It has started, or is no longer in the queue: a new wait is a new promise."""
        self.kept.pop(uid, None)

    def _overtaken(self, queue: Sequence[PendingJob]) -> dict[str, int]:
        """Who has somebody before it that was not before it in the last cycle: UID -> jobid."""
        found: dict[str, int] = {}
        if not self._places:
            return found
        last = len(self._places)
        latest, newcomer = -1, 0
        for job in queue:
            place = self._places.get(job.uid, last)
            if latest > place:
                found[job.uid] = newcomer
            if place > latest:
                latest, newcomer = place, job.jobid
        return found


def _excuse(mishaps: Mishaps, newcomer: int | None) -> str | None:
    """The first that applies, in words."""
    if mishaps.overran:
        named = ", ".join(f"job {jobid}" for jobid in mishaps.overran[:NAMED_MAX])
        more = len(mishaps.overran) - NAMED_MAX
        return f"overrun by {named}" + (f" and {more} more" if more > 0 else "")
    if mishaps.lost:
        return f"less room on {compress(sorted(mishaps.lost))[:200]}"
    if newcomer is not None:
        return f"job {newcomer} was put before it"
    return None
