"""Node pools around a cycle: what has come before it, and what is asked for after it.

It belongs to ``schedule.CycleRunner``. If there are no pools and nothing is under way, it costs
nothing. The decisions are in the rows. This module only remembers the pools between cycles.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import Mapping, Sequence, Set
from dataclasses import dataclass, field
from decimal import Decimal
from math import ceil

from fluxqueue.clock import Clock
from fluxqueue.db.database import Transaction
from fluxqueue.db.store import node_pools
from fluxqueue.db.store.matcher_rows import NodeChanges
from fluxqueue.db.store.node_pools import OpenRequests
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.wait_reason import WaitReason
from fluxqueue.graph.ledger.placement import FOREVER, PlacedSlot, Placement
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Jobspec
from fluxqueue.nodepools.plan.coming_nodes import NodeRequest, PoolState, Reach
from fluxqueue.nodepools.plan.node_orders import StoredPool
from fluxqueue.nodepools.plan.node_plan import NodePlan, describe_requests, hold_nodes
from fluxqueue.nodepools.plan.node_requests import (
    NodeReview,
    RequestEnd,
    idle_nodes,
    review_requests,
)
from fluxqueue.nodepools.plan.provisioning import Supply, carry_over, plan_nodes
from fluxqueue.nodepools.pool import SCALE, NodePool
from fluxqueue.process import metrics
from fluxqueue.process.pacing import PLAN_REST_S, PLAN_SHARE, TimeShare
from fluxqueue.scheduler.cycle_decisions import Decisions, Queues
from fluxqueue.scheduler.forecast import Outlook
from fluxqueue.scheduler.pending_job import PendingJob

logger = logging.getLogger(__name__)

HOLDS_MAX = 20_000
"""The most requests for which it is remembered whether present nodes can hold them."""

LOOK_S = 5
"""The interval in seconds between two looks at what is under way, while nothing else happens."""


@dataclass(slots=True)
class NodePlanning:
    """Keep what is known of pools between cycles, for one holder of the matcher's role.

    ``changed`` is set when a provider has something to do. ``outlooks`` are the reports to jobs
    that wait for nodes, by UID.
    """

    clock: Clock
    changed: asyncio.Event = field(default_factory=asyncio.Event)
    outlooks: dict[str, Outlook] = field(default_factory=dict)
    _pools: dict[str, StoredPool] = field(default_factory=dict)
    _known: dict[str, str] = field(default_factory=dict)
    _open: OpenRequests = field(default_factory=OpenRequests)
    _held: dict[str, list[Placement]] = field(default_factory=dict)
    _counted: Counter[tuple[str, str]] = field(default_factory=Counter)
    _asked: Counter[str] = field(default_factory=Counter)
    _returning: set[str] = field(default_factory=set)
    _idle_since: dict[str, int] = field(default_factory=dict)
    _next_at: int | None = None
    _has_orders: bool = False
    _holds: dict[Jobspec, bool] = field(default_factory=dict)
    _judged: dict[str, tuple[NodeFact, NodePool | None]] = field(default_factory=dict)
    """The pool of each node by name, beside what is known of the node."""
    _last: NodePlan = field(default_factory=NodePlan)
    _rest: TimeShare = field(init=False)

    def __post_init__(self) -> None:
        self._rest = TimeShare(self.clock, PLAN_SHARE, most_s=PLAN_REST_S)

    def is_due(self, now: int) -> bool:
        """Return whether it is time to look at what is under way."""
        return self._next_at is not None and self._next_at <= now

    async def look(self, tx: Transaction, matcher: Matcher, changes: NodeChanges, now: int) -> None:
        """Read what has changed, and note which nodes have come and which requests ended.

        Call it after the ledger has the changes, and before any job is judged.
        """
        self.outlooks, self._held, self._next_at = {}, {}, None
        if changes.have_pools_changed:
            self._rest.forget()
            await self._read_pools(tx, matcher)
        if changes.have_nodes_changed or len(self._holds) > HOLDS_MAX:
            self._holds.clear()
        if not self._pools and not self._open.requests and not self._known:
            return
        if isinstance(matcher.further, Reach) and changes.have_nodes_changed:
            matcher.further.forget()
        self._open = await node_pools.read_open_requests(tx)
        if changes.have_nodes_changed or self._open.requests:
            await self._review(tx, matcher, now)

    async def _read_pools(self, tx: Transaction, matcher: Matcher) -> None:
        pools, unreadable = await node_pools.read_node_pools(tx)
        for name, why in unreadable.items():
            extra = {"action": "pools", "pool": name, "error": why}
            logger.warning("node pool left out", extra=extra)
        self._pools = {one.pool.name: one for one in pools}
        self._judged = {}
        self._known = await node_pools.read_pool_nodes(tx)
        self._returning = await node_pools.read_returning(tx)
        self._open = await node_pools.read_open_requests(tx)
        matcher.further = Reach(matcher.ledger, [one.pool for one in pools]) if pools else None

    async def _review(self, tx: Transaction, matcher: Matcher, now: int) -> None:
        """Assign new nodes to requests, and end requests that are over."""
        present = self._present(matcher)
        usable = matcher.ledger.masks.usable()
        rows = matcher.ledger.rows
        # A node that is not ready yet has not come.
        new = {
            name: pool
            for name, pool in present.items()
            if self._known.get(name) != pool and usable[rows[name]]
        }
        gone = self._known.keys() - present.keys()
        before = self._open
        review = review_requests(before.requests, new, before.running, before.refused, now)
        await node_pools.store_pool_nodes(tx, new, gone, review)
        await node_pools.store_review(tx, review, self._pools, now)
        if review.failures or review.learned:
            pools, _ = await node_pools.read_node_pools(tx)
            self._pools = {one.pool.name: one for one in pools}
        self._known = {n: p for n, p in self._known.items() if n not in gone} | new
        self._returning -= gone
        self._note_review(before.requests, review)
        self._open = OpenRequests(review.requests, before.running, {}, before.spent)

    def _note_review(self, before: Sequence[NodeRequest], review: NodeReview) -> None:
        for number, (end, why) in review.ended.items():
            self._note_end(before, number, end, why)
            self._rest.forget()  # the last plan still counts on it
        self._has_orders |= bool(review.ended or review.arrived)

    def _note_end(
        self, requests: Sequence[NodeRequest], number: int, end: RequestEnd, why: str
    ) -> None:
        pool = next(one.pool for one in requests if one.number == number)
        self._counted[pool, str(end)] += 1
        extra = {"action": "nodes", "pool": pool, "outcome": str(end), "why": why}
        logger.info("request for nodes ended", extra=extra)

    def _present(self, matcher: Matcher) -> dict[str, str]:
        """Return the pool of each node that belongs to one, by name.

        If its labels fit several pools, it is one of the pool with the most labels.
        """
        pools = sorted(
            (one.pool for one in self._pools.values()), key=lambda one: (-len(one.labels), one.name)
        )
        found = {}
        judged, self._judged = self._judged, {}
        for fact in matcher.ledger.masks.facts:
            if fact is None:
                continue
            # While nodes are under way, each cycle comes here. Few facts are new ones then.
            known, pool = judged.get(fact.name, (None, None))
            if known is not fact:
                pool = next((one for one in pools if one.has(fact)), None)
            self._judged[fact.name] = fact, pool
            if pool is not None:
                found[fact.name] = pool.name
        return found

    def hold(self, matcher: Matcher, now: int) -> Mapping[str, Sequence[Placement]]:
        """Reserve what is held for jobs that wait for nodes. The plan must be empty."""
        if self._open.requests:
            self._held = hold_nodes(matcher, self._open.requests, now)
        rows = matcher.ledger.rows
        going = tuple(PlacedSlot(name, ()) for name in sorted(self._returning) if name in rows)
        if not going:
            return self._held
        # No job may start on a node that is about to go. This belongs to no job.
        placement = Placement(going, now, FOREVER, is_exclusive=True)
        matcher.reserve(placement, now)
        return {**self._held, "": [placement]}

    async def plan(
        self,
        tx: Transaction,
        matcher: Matcher,
        jobs: Sequence[PendingJob],
        decisions: Decisions,
        queues: Queues,
        now: int,
    ) -> None:
        """Ask for nodes, and report to the jobs that wait for some. Call it after ``run_cycle``."""
        requests = self._open.requests
        if not self._pools and not requests:
            return
        rest_s = self._rest.left_s
        if rest_s:
            plan = carry_over(self._last, jobs, decisions, requests)
        else:
            plan = self._plan(matcher, jobs, decisions, queues, now)
        made = await node_pools.store_node_plan(tx, plan, now)
        self._note_plan(plan, requests)
        ended = {*plan.used, *plan.withdrawn}
        self._open.requests = [one for one in requests if one.number not in ended] + made
        self._report(plan, decisions, now)
        may_return = await self._return_idle(tx, matcher, now)
        if rest_s:
            self._next_at = now + ceil(rest_s)  # jobs that came meanwhile have no plan yet
        elif self._open.requests or plan.why or may_return:
            self._next_at = now + LOOK_S

    def _plan(
        self,
        matcher: Matcher,
        jobs: Sequence[PendingJob],
        decisions: Decisions,
        queues: Queues,
        now: int,
    ) -> NodePlan:
        with self._rest.work():
            self._last = plan_nodes(
                matcher,
                jobs,
                decisions,
                Supply(self.states, self._open.requests, spent=self._open.spent),
                now,
                queues=queues,
                held=self._held,
                holds=self._holds,
            )
        return self._last

    async def _return_idle(self, tx: Transaction, matcher: Matcher, now: int) -> bool:
        """Have providers take back the nodes that nothing has used for the idle time of a pool.

        Return whether there are nodes that could go at some time. The end of a job wakes no cycle
        if no other job waits.
        """
        may_return = False
        idle: set[str] = set()
        going: list[str] = []
        for name, stored in self._pools.items():
            idle_s = stored.pool.idle_s
            if idle_s is None or stored.pool.provider != SCALE:
                continue  # an autoscaler removes its own
            own = [node for node, pool in self._known.items() if pool == name]
            nodes = [node for node in own if node not in self._returning]
            left, unused = len(nodes), idle_nodes(matcher.ledger, nodes)
            may_return |= left > stored.pool.least
            idle.update(unused)
            for node in sorted(unused):
                since = self._idle_since.setdefault(node, now)
                if now - since >= idle_s and left > stored.pool.least:
                    going.append(node)
                    left -= 1
        self._idle_since = {n: at for n, at in self._idle_since.items() if n in idle}
        if going:
            await node_pools.return_nodes(tx, going, now)
            self._returning.update(going)
            self._has_orders = True
            logger.info("idle nodes go", extra={"action": "nodes", "nodes": ",".join(going)})
        return may_return

    def _note_plan(self, plan: NodePlan, requests: Sequence[NodeRequest]) -> None:
        for number in plan.used:
            self._note_end(requests, number, RequestEnd.USED, "its job has started")
        for number in plan.withdrawn:
            self._note_end(requests, number, RequestEnd.WITHDRAWN, "no job needs it any more")
        for ask in plan.asks:
            self._asked[ask.pool] += ask.count
            extra = {"action": "nodes", "pool": ask.pool, "count": ask.count, "uid": ask.uid}
            logger.info("nodes asked for", extra=extra)
        self._has_orders |= bool(plan.asks or plan.used or plan.withdrawn or plan.moved)

    def _report(self, plan: NodePlan, decisions: Decisions, now: int) -> None:
        """Say to each job what it waits for, in place of the cycle's own reason."""
        own: dict[str, list[NodeRequest]] = {}
        for one in self._open.requests:
            own.setdefault(plan.moved.get(one.number, one.uid), []).append(one)
        reserved = {job.uid: where.starts_at for job, where in decisions.reserved}
        reasons = {job.uid: reason for job, reason in decisions.waiting}
        for uid, ready_at in plan.ready_at.items():
            said = describe_requests(own.get(uid, ()), now) or "waits for nodes of other jobs"
            decisions.provisioning.add(uid)
            decisions.wait_reason[uid] = WaitReason.PROVISIONING
            start = reserved.get(uid, ready_at)
            self.outlooks[uid] = Outlook(start, said, WaitReason.PROVISIONING)
        for uid, why in plan.why.items():
            decisions.provisioning.add(uid)
            kind = decisions.wait_reason.get(uid)
            self.outlooks[uid] = Outlook(None, f"{reasons.get(uid, 'waits')}; {why}", kind)

    def committed(self) -> None:
        """Count what a cycle has decided, and wake the providers. Call it after the commit."""
        if self._has_orders:
            self._has_orders = False
            self.changed.set()
        for (pool, outcome), number in self._counted.items():
            metrics.NODE_REQUESTS_ENDED.labels(pool, outcome).inc(number)
        for pool, number in self._asked.items():
            metrics.NODES_ASKED.labels(pool).inc(number)
        self._counted.clear()
        self._asked.clear()

    @property
    def states(self) -> list[PoolState]:
        """Return all pools as they are now."""
        counts = Counter(self._known.values())
        return [one.state(counts[name]) for name, one in self._pools.items()]

    @property
    def requests(self) -> Sequence[NodeRequest]:
        """Return everything that is under way, or has come and is not used yet."""
        return self._open.requests

    @property
    def returning(self) -> Set[str]:
        """Return the nodes that their providers take back."""
        return self._returning

    @property
    def spent(self) -> Mapping[str, Decimal]:
        """Return what the nodes of running jobs cost for an hour, by queue."""
        return self._open.spent
