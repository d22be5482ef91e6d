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
from typing import Any

import orjson

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.store.rule_rows import RuleTable, read_in_force
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

POOL_CHANGED = "pool"
"""The kind of a change that makes the matcher read the pools again."""


# A pool that was made anew under its name has not failed, and its nodes may be of another kind.
NODE_POOLS = RuleTable(
    POOL_CHANGED,
    save="""
INSERT INTO node_pools AS p (name, uid, generation, spec, fault)
SELECT name, uid, generation, CASE WHEN fault IS NULL THEN spec END, fault
FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
    name text, uid text, generation bigint, spec jsonb, fault text)
ORDER BY name
ON CONFLICT (name) DO UPDATE SET
    uid = excluded.uid, generation = excluded.generation, fault = excluded.fault,
    spec = coalesce(excluded.spec, CASE WHEN p.uid = excluded.uid THEN p.spec END),
    failures = CASE WHEN (p.uid, p.generation) = (excluded.uid, excluded.generation)
        THEN p.failures ELSE 0 END,
    retry_at = CASE WHEN (p.uid, p.generation) = (excluded.uid, excluded.generation)
        THEN p.retry_at ELSE 0 END,
    learned = CASE WHEN p.uid = excluded.uid THEN p.learned ELSE '[]' END
WHERE (p.uid, p.generation, p.spec, p.fault)
    IS DISTINCT FROM (excluded.uid, excluded.generation, excluded.spec, excluded.fault)
RETURNING name
""",
    delete="DELETE FROM node_pools WHERE name = ANY(CAST(:gone AS text[])) RETURNING name",
    stored="SELECT name, uid, generation, fault FROM node_pools ORDER BY name",
)
"""FluxNodePools."""


# --- for a cycle ---------------------------------------------------------------------------------


async def read_node_pools(tx: Transaction) -> tuple[list[StoredPool], dict[str, str]]:
    """Read the pools in force, and why some of them cannot be used here."""
    return await read_in_force(
        tx,
        "SELECT name, spec, learned, failures, retry_at, failed_because AS why FROM node_pools"
        " WHERE spec IS NOT NULL ORDER BY name",
        lambda row: _stored(**row),
    )


def _stored(name: str, spec: Any, learned: Sequence[Any], **counted: Any) -> StoredPool:
    return StoredPool(read_node_pool(name, spec), tuple(map(int, learned)), **counted)


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


_OPEN = """
SELECT r.number, r.pool, r.uid, r.queue, r.count, r.price, r.asked_at, r.ready_at, r.kept,
       r.refused,
       coalesce(f.state IN ('Allocated', 'Running'), false) AS is_running,
       ARRAY(SELECT n.node FROM pool_nodes n WHERE n.request = r.number ORDER BY n.node) AS arrived
FROM node_requests r LEFT JOIN fluxjobs f ON f.uid = r.uid
WHERE r.ended IS NULL ORDER BY r.number
"""

_SPENT = """
SELECT r.queue, sum(r.price * r.count) AS price
FROM node_requests r JOIN fluxjobs f ON f.uid = r.uid
WHERE r.ended = 'used' AND f.state IN ('Allocated', 'Running') GROUP BY r.queue
"""


async def read_open_requests(tx: Transaction) -> OpenRequests:
    """Read the open requests. One that cannot be read keeps no present nodes for its job."""
    found = OpenRequests()
    for row in await tx.fetch_dicts(_OPEN):
        found.requests.append(
            NodeRequest(
                *(row["number"], row["pool"], row["uid"], row["queue"], row["count"]),
                *(row["asked_at"], row["ready_at"], tuple(row["arrived"])),
                kept=_kept(row["kept"]),
                price=Decimal(row["price"]),
            )
        )
        if row["is_running"]:
            found.running.add(row["uid"])
        if row["refused"] is not None:
            found.refused[row["number"]] = row["refused"]
    found.spent = {row["queue"]: Decimal(row["price"]) for row in await tx.fetch_dicts(_SPENT)}
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
    return {r["node"]: r["pool"] for r in await tx.fetch_dicts("SELECT node, pool FROM pool_nodes")}


async def read_returning(tx: Transaction) -> set[str]:
    """Return the nodes that their providers are to take back."""
    sql = "SELECT node FROM pool_nodes WHERE returned_at IS NOT NULL"
    return {row["node"] for row in await tx.fetch_dicts(sql)}


async def return_nodes(tx: Transaction, nodes: Collection[str], now: int) -> None:
    """Record that the providers are to take nodes back."""
    await tx.execute(
        "UPDATE pool_nodes SET returned_at = :now WHERE node = ANY(CAST(:nodes AS text[]))",
        nodes=sorted(nodes),
        now=now,
    )


async def store_pool_nodes(
    tx: Transaction, new: Mapping[str, str], gone: Collection[str], review: NodeReview
) -> None:
    """Write the nodes that pools have by now, each with the request that it came for."""
    if gone:
        await tx.execute(
            "DELETE FROM pool_nodes WHERE node = ANY(CAST(:gone AS text[]))", gone=sorted(gone)
        )
    of = {node: number for number, nodes in review.arrived.items() for node in nodes}
    rows = [{"node": n, "pool": p, "request": of.get(n)} for n, p in sorted(new.items())]
    if rows:
        await tx.execute(
            """
            INSERT INTO pool_nodes (node, pool, request)
            SELECT node, pool, request FROM jsonb_to_recordset(CAST(:rows AS jsonb)) AS r (
                node text, pool text, request bigint)
            ON CONFLICT (node) DO UPDATE SET pool = excluded.pool, request = excluded.request
            """,
            rows=orjson.dumps(rows).decode(),
        )


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
        await tx.execute(
            "UPDATE node_pools SET learned = CAST(:learned AS jsonb), failures = :failures,"
            " retry_at = :retry_at, failed_because = :why WHERE name = :name",
            name=name,
            learned=orjson.dumps(after.learned).decode(),
            failures=after.failures,
            retry_at=after.retry_at,
            why=after.why,
        )


async def _end(tx: Transaction, numbers: Sequence[int], end: RequestEnd, reason: str) -> None:
    if numbers:
        await tx.execute(
            "UPDATE node_requests SET ended = :ended, reason = :reason, ended_at = now()"
            " WHERE number = ANY(CAST(:numbers AS bigint[])) AND ended IS NULL",
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
            "UPDATE node_requests SET uid = :uid, kept = '[]',"
            " queue = coalesce((SELECT queue FROM fluxjobs WHERE uid = :uid), queue)"
            " WHERE number = :number AND ended IS NULL",
            number=number,
            uid=uid,
        )
    made = []
    for ask in plan.asks:
        kept = [{"node": one.node, "resources": dict(one.resources)} for one in ask.kept]
        (number,) = await tx.fetch(
            "INSERT INTO node_requests"
            " (pool, uid, queue, count, price, asked_at, ready_at, kept, pool_spec)"
            " VALUES (:pool, :uid, :queue, :count, :price, :now, :ready_at, CAST(:kept AS jsonb),"
            " coalesce((SELECT spec FROM node_pools WHERE name = :pool), '{}'))"
            " RETURNING number",
            int,
            pool=ask.pool,
            uid=ask.uid,
            queue=ask.queue,
            count=ask.count,
            price=ask.price,
            now=now,
            ready_at=ask.ready_at,
            kept=orjson.dumps(kept).decode(),
        )
        made.append(ask.request(number, now))
    return made


# --- for the providers ---------------------------------------------------------------------------


_ORDERED = """
SELECT r.number, r.pool, r.count, r.ended IS NOT NULL AS is_ended, r.pool_spec,
       coalesce(f.namespace || '/' || f.workload_name, '') AS job,
       ARRAY(SELECT n.node FROM pool_nodes n WHERE n.request = r.number ORDER BY n.node) AS arrived
FROM node_requests r LEFT JOIN fluxjobs f ON f.uid = r.uid
WHERE r.ended IS NULL OR NOT r.is_settled ORDER BY r.number
"""

_LABELLED = """
SELECT name FROM nodes WHERE fact -> 'labels' @> CAST(:labels AS jsonb) ORDER BY name
"""


async def read_orders(database: Database) -> list[PoolOrder]:
    """Read what the provider of each pool has to bring, and what to take back.

    Requests of a pool that was deleted, or that has another provider by now, are withdrawn.
    """
    async with database.begin() as tx:
        pools, _ = await read_node_pools(tx)
        requests = [UnsettledRequest(**row) for row in await tx.fetch_dicts(_ORDERED)]
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
            labels = orjson.dumps(dict(pool.labels)).decode()
            present = await tx.fetch_dicts(_LABELLED, labels=labels)
            ended = tuple(one.as_ordered() for one in some)
            orders.append(PoolOrder(pool, present=tuple(r["name"] for r in present), ended=ended))
        return orders


async def settle(database: Database, numbers: Sequence[int]) -> None:
    """Record that the provider has taken these requests back."""
    if numbers:
        async with database.begin() as tx:
            await _settle(tx, numbers)


async def _settle(tx: Transaction, numbers: Sequence[int]) -> None:
    if numbers:
        await tx.execute(
            "UPDATE node_requests SET is_settled = true"
            " WHERE number = ANY(CAST(:numbers AS bigint[])) AND ended IS NOT NULL",
            numbers=list(numbers),
        )


async def refuse(database: Database, refused: Mapping[int, str]) -> None:
    """Record why the provider refuses requests for good, and have a cycle decide about them."""
    if not refused:
        return
    async with database.begin() as tx:
        for number, why in sorted(refused.items()):
            await tx.execute(
                "UPDATE node_requests SET refused = :why WHERE number = :number"
                " AND ended IS NULL AND refused IS NULL",
                number=number,
                why=why,
            )
        await tx.wake_matcher()


async def read_starting(database: Database) -> set[str]:
    """Return the UIDs of the jobs that have nodes, but no pod of which runs yet."""
    async with database.begin() as tx:
        rows = await tx.fetch_dicts("SELECT uid FROM fluxjobs WHERE state = 'Allocated'")
    return {row["uid"] for row in rows}
