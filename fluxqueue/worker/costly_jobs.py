"""Jobs that the present load makes too costly to place: which of them the next cycle tries.

``schedule`` keeps this between cycles. Such a job could run on the empty cluster, so its request is
not to blame, and it waits. Each try costs as much as one request may cost, so each user has one try
at a time, and the pauses between tries grow. No SQL here.
"""

from __future__ import annotations

from collections.abc import Sequence

from fluxqueue.scheduler.pending_job import PendingJob

PAUSE_MIN_S, PAUSE_MAX_S = 5, 120
"""Pause in seconds after the first try, and the longest pause. Each pause doubles the last."""


class CostlyJobs:
    """The users with such jobs, and when each may try again (epoch seconds)."""

    def __init__(self) -> None:
        self._users: dict[str, str] = {}
        """The user of each such job, by its UID."""
        self._pauses: dict[str, tuple[int, int]] = {}
        """By user: the end of the pause, and its length."""

    def is_due(self, now: int) -> bool:
        """Return whether a pause has ended."""
        return any(until <= now for until, _ in self._pauses.values())

    def split(
        self, jobs: Sequence[PendingJob], now: int
    ) -> tuple[list[PendingJob], list[PendingJob]]:
        """Return the jobs that this cycle tries, and those that wait for a later one."""
        if not self._users:
            return list(jobs), []
        here = {job.uid for job in jobs}
        self._users = {uid: user for uid, user in self._users.items() if uid in here}
        users = set(self._users.values())
        self._pauses = {user: pause for user, pause in self._pauses.items() if user in users}
        tried: set[str] = set()
        due: list[PendingJob] = []
        later: list[PendingJob] = []
        for job in jobs:
            user = self._users.get(job.uid)
            if user is None or (user not in tried and self._pauses[user][0] <= now):
                due.append(job)
                tried |= set() if user is None else {user}
            else:
                later.append(job)
        return due, later

    def note(self, tried: Sequence[PendingJob], costly: Sequence[PendingJob], now: int) -> None:
        """Note which of the jobs that a cycle has ``tried`` were too costly."""
        for job in tried if self._users else ():
            self._users.pop(job.uid, None)
        for user in {job.user for job in costly}:
            last_s = self._pauses.get(user, (0, 0))[1]
            pause_s = min(PAUSE_MAX_S, max(PAUSE_MIN_S, 2 * last_s))
            self._pauses[user] = now + pause_s, pause_s
        self._users |= {job.uid: job.user for job in costly}
        users = set(self._users.values())
        self._pauses = {user: pause for user, pause in self._pauses.items() if user in users}
