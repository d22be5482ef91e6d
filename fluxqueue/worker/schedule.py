"""The ``schedule`` task: one cycle after the other, each one transaction under the matcher's term.

Run only by the worker that holds the matcher's role (``leader``). The pool set is a cache of the
rows with this one owner: after any failure it is thrown away and read again, because nobody can
tell which of its bookings were committed.
"""

from __future__ import annotations

import logging

from fluxqueue.db.database import Transaction
from fluxqueue.db.decisions import (
    load_graph,
    mark_examined,
    queue_head,
    set_pending_again,
    store_decisions,
    take_changes,
    unexamined,
    unsatisfiable,
)
from fluxqueue.db.leadership import check_term
from fluxqueue.graph.pools import MatchPolicy, PoolSet
from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.scheduler.cycle import Decisions, run_cycle, split_unsatisfiable
from fluxqueue.worker.context import WorkerContext

logger = logging.getLogger(__name__)

ROLE = "matcher"
EXAMINED_MAX = 2000
"""New FluxJobs looked at for satisfiability in one cycle."""


class Matcher:
    """The one owner of the pool set while its term lasts."""

    def __init__(self, context: WorkerContext, term: int) -> None:
        self._context = context
        self._term = term
        settings = context.settings
        self._policy = queue_policy(settings.queue_policy, queue_depth=settings.queue_depth)
        self._match_policy = MatchPolicy(settings.match_policy)
        self._pools: PoolSet | None = None

    async def run(self) -> None:
        """Run cycles until one neither starts anything nor leaves anything unexamined.

        Raises
        ------
        LostLeadership
            Another worker has taken the role over; nothing of the last cycle was stored.
        """
        while await self._cycle():
            pass

    async def _cycle(self) -> bool:
        try:
            async with self._context.database.begin() as tx:
                await check_term(tx, ROLE, self._term)
                return await self._decide(tx)
        except BaseException:
            self._pools = None
            raise

    async def _decide(self, tx: Transaction) -> bool:
        """One cycle; tell whether another should follow at once."""
        pools = self._pools
        if pools is None:
            pools = PoolSet(self._match_policy)
            await load_graph(tx, pools)
            have_nodes_changed = True
        else:
            have_nodes_changed = await take_changes(tx, pools)
        self._pools = pools
        if have_nodes_changed:
            await self._reconsider(tx, pools)
        new = await unexamined(tx, limit=EXAMINED_MAX)
        if new:
            possible, never = split_unsatisfiable(pools, new)
            await mark_examined(tx, possible, never)
        queue = await queue_head(tx, depth=self._policy.queue_depth)
        decisions = run_cycle(pools, queue, self._policy, self._context.clock.now_s())
        for uid in await store_decisions(tx, decisions, term=self._term):
            pools.cancel(uid)
        _log(decisions)
        is_more_behind = len(queue) == self._policy.queue_depth and bool(decisions.allocated)
        return is_more_behind or len(new) == EXAMINED_MAX

    async def _reconsider(self, tx: Transaction, pools: PoolSet) -> None:
        """Nodes have changed: what could never run may run now, and the other way round."""
        possible, _ = split_unsatisfiable(pools, await unsatisfiable(tx))
        await set_pending_again(tx, possible)
        waiting = await queue_head(tx, depth=self._policy.queue_depth)
        possible, never = split_unsatisfiable(pools, waiting)
        await mark_examined(tx, possible, never)


def _log(decisions: Decisions) -> None:
    if decisions.allocated:
        logger.info(
            "cycle",
            extra={
                "action": "cycle",
                "allocated": len(decisions.allocated),
                "reserved": len(decisions.reserved),
                "waiting": len(decisions.waiting),
            },
        )
