"""How much work the requests of one user may cost in one cycle, so that no user holds up others.

Made by the worker for each cycle, and charged by ``cycle`` and ``forecast``. One request has a
bound of its own (``jobspec.bounds.MATCH_STEPS``), many of them have this one. A plain request is
never charged. Pure.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from fluxqueue.errors import TooComplex
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.bounds import MATCH_STEPS, Work

FREE_STEPS = 4_000
"""Steps of a decision that are not charged. Plain requests on 4,000 nodes need a tenth of it."""
USER_STEPS = 100_000
"""Charged steps of one user in one cycle: some 0.2 s. What costs more after that waits for a later
cycle. As much again may be spent on finding out which requests do."""


class NotThisTime(Exception):
    """Other requests of the user have used the time of this cycle."""


class Allowances:
    """The charged steps of each user in one cycle."""

    def __init__(self, spent: Mapping[str, int] | None = None) -> None:
        self._spent = dict(spent or {})

    def copy(self) -> Allowances:
        """Return a copy that is charged separately."""
        return Allowances(self._spent)

    @contextmanager
    def deciding(self, matcher: Matcher, user: str, request: Jobspec) -> Iterator[None]:
        """Limit the steps of ``matcher`` in this context, and charge them to ``user``.

        Raises
        ------
        NotThisTime
            The user has used up this cycle. A later cycle decides.
        TooComplex
            It costs more than one request may ever cost.
        """
        spent = self._spent.get(user, 0)
        if spent >= 2 * USER_STEPS:
            raise NotThisTime
        is_short = spent >= USER_STEPS
        steps = FREE_STEPS if is_short else MATCH_STEPS
        what = f"deciding about its {len(request.resources)} parts"
        work = Work(steps, what, within=matcher.work)
        try:
            with matcher.working(work):
                yield
        except TooComplex:
            if is_short and work.left < 0:
                raise NotThisTime from None
            raise
        finally:
            used = steps - work.left
            if used > FREE_STEPS:
                self._spent[user] = spent + used
