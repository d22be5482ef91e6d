"""What node pools ask of their providers, and their status, by the matcher's role holder.

The rows say which nodes are to come. This loop makes each provider follow them, and repeats that
until the rows and the cluster agree. A crash between two calls therefore leaves nothing behind.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Mapping, Sequence
from contextlib import suppress
from typing import Any

from fluxqueue.db.store.node_pools import NODE_POOLS, read_orders, refuse, settle
from fluxqueue.db.store.rule_rows import StoredRule, read_stored_rules
from fluxqueue.errors import (
    ApiError,
    ApiUnavailable,
    Conflict,
    DatabaseUnavailable,
    NotFound,
)
from fluxqueue.fluxjob.times import to_rfc3339
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.events import Involved, build_event, tell_event
from fluxqueue.kube.resources import FLUX_NODE_POOLS
from fluxqueue.nodepools.cluster.placeholder import Placeholder
from fluxqueue.nodepools.cluster.providers import PLACEHOLDER, PROVIDERS
from fluxqueue.nodepools.plan.node_orders import PoolOrder
from fluxqueue.process import metrics
from fluxqueue.worker.conditions import condition
from fluxqueue.worker.context import WorkerContext

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
        self._written: dict[str, dict[str, Any]] = {}
        self._counted: set[str] = set()
        self._swept: set[str] | None = None
        self._refusals: dict[str, str] = {}
        self._quiet: set[str] = set()

    async def run(self) -> None:
        """Run until cancelled."""
        while True:
            try:
                with self._context.liveness.turn(LOOP):
                    await self.turn()
            except (DatabaseUnavailable, ApiUnavailable, ApiError) as error:
                logger.warning("will try again", extra={"action": "pools", "error": str(error)})
            except Exception:
                # A defect here may delay nodes, but must not stop the matching beside it.
                logger.exception("keeping the node pools failed")
            await self._rest()

    async def _rest(self) -> None:
        with suppress(TimeoutError):
            async with asyncio.timeout(TURN_S if self._counted else IDLE_S):
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
            metrics.POOL_NODES.labels(name).set(len(order.present))
            metrics.POOL_ARRIVING.labels(name).set(order.coming)
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
            pools = await read_stored_rules(tx, NODE_POOLS)
        self._forget(pools)
        by_name = {one.pool.name: one for one in orders}
        for pool in pools:
            self._counted.add(pool.name)
            try:
                await self._show(pool, by_name.get(pool.name))
            except (ApiUnavailable, DatabaseUnavailable):
                raise
            except Exception as error:  # noqa: BLE001  one pool must not block the others
                metrics.ROWS_SKIPPED.labels("pools").inc()
                extra = {"action": "pools", "pool": pool.name, "error": str(error)}
                logger.warning("status of a node pool not written", extra=extra)

    def _forget(self, pools: Sequence[StoredRule]) -> None:
        """Remove the figures of pools that are gone."""
        for name in self._counted - {one.name for one in pools}:
            for gauge in (metrics.POOL_NODES, metrics.POOL_ARRIVING):
                with suppress(KeyError):
                    gauge.remove(name)
        self._counted &= {one.name for one in pools}
        self._quiet &= self._counted
        uids = {one.uid for one in pools}
        self._written = {uid: one for uid, one in self._written.items() if uid in uids}

    async def _show(self, pool: StoredRule, order: PoolOrder | None) -> None:
        client = self._context.client
        before = self._written.get(pool.uid)
        try:
            if before is None:
                found = await client.get(FLUX_NODE_POOLS, None, pool.name)
                before = found.get("status") or {}
            now_s = self._context.clock.now_s()
            status = render_pool_status(pool, order, before, at_s=now_s)
            if status != before:
                await client.patch(
                    FLUX_NODE_POOLS,
                    None,
                    pool.name,
                    {"status": status},
                    kind=PatchKind.MERGE,
                    subresource="status",
                    metadata_only=True,
                )
                await self._tell_failure(pool, order, before)
        except NotFound:
            return
        self._written[pool.uid] = status

    async def _tell_failure(
        self, pool: StoredRule, order: PoolOrder | None, before: Mapping[str, Any]
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
    pool: StoredRule,
    order: PoolOrder | None,
    before: Mapping[str, Any],
    *,
    at_s: int,
) -> dict[str, Any]:
    """Return a whole status. Conditions that do not change keep their time.

    ``order`` is None while no spec of the pool is in force.
    """
    stored = None if order is None else order.stored
    is_resting = stored is not None and stored.retry_at > at_s
    why = stored.why if stored is not None and is_resting else ""
    wanted = [
        ("Valid", pool.fault is None, "InForce" if pool.fault is None else "SetAside", pool.fault),
        (
            "Available",
            order is not None and not is_resting,
            "Failed" if is_resting else "AsSpecified",
            why,
        ),
    ]
    old = {one["type"]: one for one in before.get("conditions") or ()}
    conditions = [
        condition(old.get(name), name, holds, reason, message or "", at_s)
        for name, holds, reason, message in wanted
    ]
    found: dict[str, Any] = {"observedGeneration": pool.generation, "conditions": conditions}
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
