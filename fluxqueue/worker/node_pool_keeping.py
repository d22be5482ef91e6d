"""What node pools ask of their providers, and their status, by the matcher's role holder.

The rows say which nodes are to come. This loop makes each provider follow them, and repeats that
until the rows and the cluster agree. A crash between two calls therefore leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import Any

from fluxqueue.db.store.node_pools import read_orders, refuse, settle
from fluxqueue.db.store.rule_rows import RuleRowKind, StoredRule, read_stored_rules
from fluxqueue.errors import (
    ApiError,
    ApiUnavailable,
    Conflict,
)
from fluxqueue.fluxjob.times import to_rfc3339
from fluxqueue.kube.events import Involved, build_event, tell_event
from fluxqueue.kube.resources import FLUX_NODE_POOLS
from fluxqueue.nodepools.cluster.placeholder import Placeholder
from fluxqueue.nodepools.cluster.providers import PLACEHOLDER, PROVIDERS
from fluxqueue.nodepools.plan.node_orders import PoolOrder
from fluxqueue.process import metrics
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.keeping import ObjectStatuses, Status, conditions, is_valid, keep

logger = logging.getLogger(__name__)

LOOP = "pools"
"""The name of this loop where the times of loops are reported."""

TURN_S = 2.0
"""The interval in seconds between two turns, while nothing has changed."""

IDLE_S = 5.0
"""The same while there are no pools."""

SHOWN_MAX = 20
"""The most requests that a status lists."""


class NodePoolKeeper:
    """Make the providers follow the rows while the term lasts.

    Parameters
    ----------
    changed : set when a cycle has asked for nodes, or needs some no more.
    """

    def __init__(self, context: WorkerContext, changed: asyncio.Event) -> None:
        self._context, self._changed = context, changed
        gauges = (metrics.POOL_NODES, metrics.POOL_ARRIVING)
        self._statuses = ObjectStatuses(context.client, FLUX_NODE_POOLS, "pools", gauges)
        self._swept: set[str] | None = None
        self._refusals: dict[str, str] = {}
        self._quiet: set[str] = set()

    async def run(self) -> None:
        """Run until cancelled."""
        await keep(self._context, LOOP, self.turn, self._rest)

    async def _rest(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(TURN_S if self._statuses.names else IDLE_S):
                await self._changed.wait()

    async def turn(self) -> None:
        """Make every provider follow its orders, and write the status of pools that changed."""
        # Before the rows are read: a change that comes meanwhile makes another turn.
        self._changed.clear()
        orders = await read_orders(self._context.database)
        await self._sweep(orders)
        for order in orders:
            await self._apply(order)
        await self._show_all([one for one in orders if one.stored is not None])

    async def _sweep(self, orders: Sequence[PoolOrder]) -> None:
        """Delete the placeholders of pools that are gone, when the pools have changed."""
        pools = {one.pool.name for one in orders if one.pool.provider == PLACEHOLDER}
        if pools != self._swept:
            context = self._context
            namespace = context.settings.own_namespace
            await Placeholder().sweep(context.client, pools, namespace)
            self._swept = pools

    async def _apply(self, order: PoolOrder) -> None:
        """Make one provider follow its order. A refusal for good fails its requests."""
        name = order.pool.name
        is_current = order.stored is not None
        if is_current:
            self._statuses.count(name, len(order.present), order.coming)
        has_orders = bool(order.open or order.ended or order.returning)
        if not has_orders and name in self._quiet:
            return
        self._quiet.discard(name)
        context = self._context
        try:
            provider = PROVIDERS[order.pool.provider]
            refused = await provider.apply(context.client, order, context.settings.own_namespace)
        except (ApiUnavailable, Conflict) as error:
            extra = {"action": "pools", "pool": name, "error": str(error)}
            logger.warning("provider is asked again", extra=extra)
            return
        except ApiError as error:
            # What has ended must still be taken back, so the provider is called again for it.
            await refuse(context.database, {one.number: str(error) for one in order.open})
            self._note_refusal(name, str(error))
            return
        except Exception:
            # A defect that one pool meets must not keep the nodes of the others from coming.
            logger.exception("provider failed", extra={"action": "pools", "pool": name})
            return
        self._refusals.pop(name, None)
        await refuse(context.database, refused)
        await settle(context.database, [one.number for one in order.ended])
        if not has_orders and is_current:
            self._quiet.add(name)  # compared once more after its last order, and found in order

    def _note_refusal(self, pool: str, error: str) -> None:
        """Log a refusal once."""
        if self._refusals.get(pool) != error:
            extra = {"action": "pools", "pool": pool, "error": error}
            logger.warning("provider refuses", extra=extra)
        self._refusals[pool] = error

    # --- status ----------------------------------------------------------------------------------

    async def _show_all(self, orders: Sequence[PoolOrder]) -> None:
        async with self._context.database.begin() as tx:
            pools = await read_stored_rules(tx, RuleRowKind.POOL)
        names = {one.name for one in pools}
        self._statuses.forget_others(names, {one.uid for one in pools})
        self._quiet &= names
        by_name = {one.pool.name: one for one in orders}
        for pool in pools:
            order, now_s = by_name.get(pool.name), self._context.clock.now_s()
            render = partial(render_pool_status, pool, order, at_s=now_s)
            before = await self._statuses.write(pool.name, pool.uid, render)
            if before is not None:
                await self._tell_failure(pool, order, before)

    async def _tell_failure(
        self, pool: StoredRule, order: PoolOrder | None, before: Status
    ) -> None:
        """Emit an Event for each further failure."""
        stored = None if order is None else order.stored
        if stored is None or stored.failures <= int(before.get("failures") or 0):
            return
        about = Involved(FLUX_NODE_POOLS.api_version, FLUX_NODE_POOLS.kind, "", pool.name, pool.uid)
        until = to_rfc3339(stored.retry_at)
        event = build_event(
            about,
            key=f"failure/{stored.retry_at}",
            reason="NodesNotProvided",
            message=f"{stored.why}; it is asked again at {until}",
            at_s=self._context.clock.now_s(),
            is_warning=True,
        )
        await tell_event(self._context.client, event)


def render_pool_status(
    pool: StoredRule, order: PoolOrder | None, before: Status, *, at_s: int
) -> dict[str, Any]:
    """Return a whole status. Conditions that do not change keep their time.

    ``order`` is None while no spec of the pool is in force.
    """
    stored = None if order is None else order.stored
    is_resting = stored is not None and stored.retry_at > at_s
    why = stored.why if stored is not None and is_resting else ""
    available = order is not None and not is_resting
    wanted = [
        is_valid(pool.fault),
        ("Available", available, "Failed" if is_resting else "AsSpecified", why),
    ]
    found: dict[str, Any] = {
        "observedGeneration": pool.generation,
        "conditions": conditions(before, wanted, at_s),
    }
    if order is None or stored is None:
        return found
    return found | {
        "nodes": len(order.present),
        "asked": sum(one.count for one in order.open),
        "arriving": order.coming,
        "failures": stored.failures,
        "provisioningSeconds": order.pool.expected_s(stored.learned),
        "measured": len(stored.learned),
        "requests": [
            {"job": order.jobs[one.number], "nodes": one.count, "arrived": len(one.arrived)}
            for one in order.open[:SHOWN_MAX]
        ],
    }
