"""FluxNodePools in rows, and the nodes that were asked for.

The controller writes the pools with ``rule_rows``. A cycle reads and decides in its transaction, so
a request for nodes and the decision of the cycle become visible together. The worker that holds the
matcher's role then makes the provider do what the rows say (``worker.node_pool_keeping``). A crash
in between loses nothing, because the rows stay.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from typing import Any, NamedTuple

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
from fluxqueue.db.store.rule_rows import RuleRowKind, read_in_force, record
from fluxqueue.graph.ledger.placement import PlacedSlot
from fluxqueue.nodepools.plan.coming_nodes import NodeRequest
from fluxqueue.nodepools.plan.node_orders import (
    PoolOrder,
    StoredPool,
    UnsettledRequest,
    former_pools,
)
from fluxqueue.nodepools.plan.node_plan import NodePlan
from fluxqueue.nodepools.plan.node_requests import NodeReview, RequestEnd
from fluxqueue.nodepools.pool import read_node_pool

# --- for a cycle ---------------------------------------------------------------------------------


async def read_node_pools(tx: Transaction) -> tuple[list[StoredPool], dict[str, str]]:
    """Read the pools in force, and why some of them cannot be used here."""
    return await read_in_force(tx, RuleRowKind.POOL, _stored)


def _stored(name: str, spec: Any, found: Mapping[str, Any]) -> StoredPool:
    return StoredPool(
        read_node_pool(name, spec),
        tuple(map(int, found.get("learned", ()))),
        int(found.get("failures", 0)),
        int(found.get("retry_at", 0)),
        str(found.get("why", "")),
    )


class RequestRow(NamedTuple):
    """An open request. ``kept``: the present nodes that its job uses beside them."""

    number: int
    pool: str
    uid: str
    queue: str
    nodes: int
    price: Decimal
    asked_at: int
    ready_at: int
    kept: Any
    refused: str | None
    is_running: bool
    arrived: Sequence[str]


@dataclass(slots=True)
class OpenRequests:
    """The open requests, and what has become of their jobs and providers.

    ``running``: the UIDs of jobs that have started. ``refused``: the error of the provider, by the
    number of the request. ``spent``: what the nodes of running jobs cost for an hour, by queue.
    """

    requests: list[NodeRequest] = field(default_factory=list)
    running: set[str] = field(default_factory=set)
    refused: dict[int, str] = field(default_factory=dict)
    spent: dict[str, Decimal] = field(default_factory=dict)


async def read_open_requests(tx: Transaction) -> OpenRequests:
    """Read the open requests. One that cannot be read keeps no present nodes for its job."""
    found = OpenRequests()
    for row in await tx.fetch(Q.open_requests, RequestRow):
        found.requests.append(
            NodeRequest(
                *(row.number, row.pool, row.uid, row.queue, row.nodes),
                *(row.asked_at, row.ready_at, tuple(row.arrived)),
                kept=_kept(row.kept),
                price=row.price,
            )
        )
        if row.is_running:
            found.running.add(row.uid)
        if row.refused is not None:
            found.refused[row.number] = row.refused
    found.spent = dict(await tx.fetch(Q.spent_by_queue, columns))
    return found


def _kept(stored: Any) -> tuple[PlacedSlot, ...]:
    try:
        return tuple(
            PlacedSlot(
                str(one["node"]),
                tuple(sorted((name, int(n)) for name, n in one["resources"].items())),
            )
            for one in stored
        )
    except (TypeError, KeyError, ValueError, AttributeError):
        return ()


async def read_pool_nodes(tx: Transaction) -> dict[str, str]:
    """Return the pool of each known node."""
    return dict(await tx.fetch(Q.pool_nodes, columns))


async def read_returning(tx: Transaction) -> set[str]:
    """Return the nodes that their providers are to take back."""
    return set(await tx.fetch(Q.returning_nodes, str))


async def return_nodes(tx: Transaction, nodes: Collection[str], now: int) -> None:
    """Record that the providers are to take nodes back."""
    await tx.execute(
        Q.return_nodes,
        nodes=sorted(nodes),
        now=now,
    )


async def store_pool_nodes(
    tx: Transaction, new: Mapping[str, str], gone: Collection[str], review: NodeReview
) -> None:
    """Write the nodes that pools have by now, each with the request that it came for."""
    if gone:
        await tx.execute(Q.delete_pool_nodes, gone=sorted(gone))
    of = {node: number for number, nodes in review.arrived.items() for node in nodes}
    rows = [{"node": n, "pool": p, "request": of.get(n)} for n, p in sorted(new.items())]
    if rows:
        await tx.execute(Q.save_pool_nodes, rows=rows)


async def store_review(
    tx: Transaction, review: NodeReview, pools: Mapping[str, StoredPool], now: int
) -> None:
    """Write how requests ended, what was learned of pools, and which of them failed."""
    for number, (end, reason) in sorted(review.ended.items()):
        await _end(tx, [number], end, reason)
    for name in sorted(review.learned.keys() | review.failures.keys()):
        stored = pools.get(name)
        if stored is None:
            continue
        after = stored.after(review.learned.get(name, ()), review.failures.get(name), now)
        counted = {"failures": after.failures, "retry_at": after.retry_at, "why": after.why}
        await record(tx, RuleRowKind.POOL, name, {"learned": after.learned, **counted})


async def _end(tx: Transaction, numbers: Sequence[int], end: RequestEnd, reason: str) -> None:
    if numbers:
        await tx.execute(
            Q.end_requests,
            numbers=list(numbers),
            ended=str(end),
            reason=reason,
        )


async def store_node_plan(tx: Transaction, plan: NodePlan, now: int) -> list[NodeRequest]:
    """Write what a cycle decided about nodes. Return the new requests with their numbers."""
    await _end(tx, plan.used, RequestEnd.USED, "its job has started")
    await _end(tx, plan.withdrawn, RequestEnd.WITHDRAWN, "no job needs it any more")
    for number, uid in sorted(plan.moved.items()):
        await tx.execute(
            Q.move_request,
            number=number,
            uid=uid,
        )
    made = []
    for ask in plan.asks:
        kept = [{"node": one.node, "resources": dict(one.resources)} for one in ask.kept]
        (number,) = await tx.fetch(
            Q.add_request,
            int,
            pool=ask.pool,
            uid=ask.uid,
            queue=ask.queue,
            count=ask.count,
            price=ask.price,
            now=now,
            ready_at=ask.ready_at,
            kept=kept,
        )
        made.append(ask.request(number, now))
    return made


# --- for the providers ---------------------------------------------------------------------------


async def read_orders(database: Database) -> list[PoolOrder]:
    """Read what the provider of each pool has to bring, and what to take back.

    Requests of a pool that was deleted, or that has another provider by now, are withdrawn.
    """
    async with database.begin() as tx:
        pools, _ = await read_node_pools(tx)
        requests = await tx.fetch(Q.unsettled_requests, UnsettledRequest)
        if not pools and not requests:
            return []
        former, lost = former_pools(requests, {one.pool.name: one.pool for one in pools})
        retired = {one.number for _, some in former for one in some} | lost
        await _end(tx, sorted(retired), RequestEnd.WITHDRAWN, "its pool or provider was removed")
        await _settle(tx, sorted(lost))
        current = [one for one in requests if one.number not in retired]
        nodes, returning = await read_pool_nodes(tx), await read_returning(tx)
        orders = [one.order(current, nodes, returning) for one in pools]
        for pool, some in former:
            present = await tx.fetch(Q.labelled_nodes, str, labels=dict(pool.labels))
            ended = tuple(one.as_ordered() for one in some)
            orders.append(PoolOrder(pool, present=tuple(present), ended=ended))
        return orders


async def settle(database: Database, numbers: Sequence[int]) -> None:
    """Record that the provider has taken these requests back."""
    if numbers:
        async with database.begin() as tx:
            await _settle(tx, numbers)


async def _settle(tx: Transaction, numbers: Sequence[int]) -> None:
    if numbers:
        await tx.execute(
            Q.settle_requests,
            numbers=list(numbers),
        )


async def refuse(database: Database, refused: Mapping[int, str]) -> None:
    """Record why the provider refuses requests for good, and have a cycle decide about them."""
    if not refused:
        return
    async with database.begin() as tx:
        for number, why in sorted(refused.items()):
            await tx.execute(
                Q.refuse_request,
                number=number,
                why=why,
            )
        await tx.wake_matcher()


async def read_starting(database: Database) -> set[str]:
    """Return the UIDs of the jobs that have nodes, but no pod of which runs yet."""
    return set(await database.fetch(Q.starting_jobs, str))
