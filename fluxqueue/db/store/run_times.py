"""How long the last runs of alike work held their slots: what ``prediction`` learns from.

The transaction that ends a run writes them (``sql/40_accounting.sql``). The matcher reads what is
new since its last look. A run that commits behind a later one may be missed until the matcher is
made again: it is one of eight of its class.
"""

from __future__ import annotations

from typing import NamedTuple

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.prediction.learned_times import LearnedTimes
from fluxqueue.prediction.predictor import Likeness

OF_OWNER = 8_000
"""Runs of one owner in one queue that are read at once: the last eight of a thousand classes."""


_CUT = {"Requeued", FluxJobState.CANCELLED}
"""Results of runs that would have taken longer."""


class RunTimeRow(NamedTuple):
    """One ended run.

    ``owner`` is the user, or the namespace where admission named none. ``limit_s`` is None if
    nothing would have ended it. ``result`` is the final state, or ``Requeued``.
    """

    id: int
    queue: str
    owner: str
    template: str
    limit_s: int | None
    seconds: float
    result: str


class RunTimes:
    """What is known of run times, as of the last look at the rows."""

    def __init__(self) -> None:
        self.known = LearnedTimes()
        self._last = 0

    async def look(self, tx: Transaction) -> None:
        """Take the runs into account that have ended since."""
        for run in await tx.fetch(
            Q.run_times_after, RunTimeRow, after=self._last, of_owner=OF_OWNER
        ):
            like = Likeness(run.template, run.owner, run.queue, run.limit_s)
            self.known.learn(
                like,
                run.seconds,
                is_cut=run.result in _CUT,
                has_failed=run.result == FluxJobState.FAILED,
            )
            self._last = run.id
