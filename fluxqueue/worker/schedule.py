"""The ``schedule`` task: one cycle after the other, each one transaction under the matcher's term.

Run only by the worker that holds the matcher's role (``leader``). The pool set is a cache of the
rows with this one owner: after any failure it is thrown away and read again, because nobody can
tell which of its bookings were committed.
"""

from __future__ import annotations

import logging

from fluxqueue.db.database import Transaction
from fluxqueue.db.decisions import (
    lacking,
    load_graph,
    lock_queue,
    mark_examined,
    queue_head,
    set_pending_again,
    store_decisions,
    store_top_up,
    take_changes,
    unexamined,
    unsatisfiable,
)
from fluxqueue.db.leadership import check_term
from fluxqueue.fluxjob.request import MatchPolicy, ResourceRequest
from fluxqueue.graph.pools import PoolSet
from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.scheduler.cycle import Decisions, run_cycle, split_unsatisfiable
from fluxqueue.scheduler.top_up import top_up
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
        self._answers: dict[ResourceRequest, str | None] = {}

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
        await lock_queue(
            tx,
            depth=self._policy.queue_depth,
            examined_max=EXAMINED_MAX,
            have_nodes_changed=have_nodes_changed,
        )
        if have_nodes_changed:
            await self._reconsider(tx, pools)
        pools.clear_plan()
        now = self._context.clock.now_s()
        await store_top_up(tx, top_up(pools, await lacking(tx), now))
        new = await unexamined(tx, limit=EXAMINED_MAX)
        if new:
            await mark_examined(tx, *split_unsatisfiable(pools, new, self._answers))
        # Nodes may have gone since these were examined, further back in the queue.
        queue, never = split_unsatisfiable(
            pools, await queue_head(tx, depth=self._policy.queue_depth), self._answers
        )
        if never:
            await mark_examined(tx, [], never)
        decisions = run_cycle(pools, queue, self._policy, now)
        for uid in await store_decisions(tx, decisions, term=self._term):
            pools.cancel(uid)
        _log(decisions)
        is_full = len(queue) + len(never) == self._policy.queue_depth
        is_more_behind = is_full and bool(decisions.allocated or never)
        return is_more_behind or len(new) == EXAMINED_MAX

    async def _reconsider(self, tx: Transaction, pools: PoolSet) -> None:
        """Nodes have changed: what could never run may run now."""
        self._answers.clear()
        possible, _ = split_unsatisfiable(pools, await unsatisfiable(tx), self._answers)
        await set_pending_again(tx, possible)


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
