"""The queues in which the jobs of one user hide those of others.

The worker's cycle (``schedule``) keeps this. A queue is examined to its depth only, and the jobs of
one user may fill it. Looking past them scans that queue. So it is done while it finds other users,
when a new user may be behind, and every few cycles. No SQL here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence, Set

from fluxqueue.scheduler.pending_job import PendingJob

EVERY = 8
"""One of this many cycles looks past every full queue. Jobs also arrive by a release or a move."""


class FullQueues:
    """Choose the queues in which the next cycle examines the first jobs of each user.

    These are ``to_look_past``.
    """

    def __init__(self, of_each: int) -> None:
        self.to_look_past: Set[str] = frozenset()
        self._of_each = of_each
        self._explored: Set[str] = frozenset()
        self._turn = 0

    def note(
        self, seen: Sequence[PendingJob], new: Sequence[PendingJob], depths: Mapping[str, int]
    ) -> bool:
        """Note what a cycle has seen. Return whether another cycle must follow at once.

        Parameters
        ----------
        seen : the heads of all queues, and the other jobs that the cycle examined.
        new : the jobs that this cycle has examined first.
        depths : how far each queue is examined.
        """
        counts, looked = Counter(job.queue for job in seen), self.to_look_past
        of_each = Counter((job.queue, job.user) for job in seen)
        full = {name for name, depth in depths.items() if counts[name] >= depth}
        hiding = {name for name in full & looked if counts[name] > depths[name]}
        known = self._explored | looked
        rare = {job.queue for job in new if of_each[job.queue, job.user] < self._of_each}
        unseen = (full - known) | ((full & rare) - looked)
        self._explored = full & known
        self._turn += 1
        self.to_look_past = hiding | unseen | (full if self._turn % EVERY == 0 else set())
        return bool(unseen)
