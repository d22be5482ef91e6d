"""Requests for nodes in rows: what is asked for, kept, and taken back, on a real Postgres."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from fluxqueue.db.store.node_pools import read_orders, settle
from fluxqueue.db.store.rule_rows import RuleRowKind, RuleSeen, save_rules
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.nodepools.plan.node_orders import PoolOrder
from tests.support.pool_model import request
from tests.support.rows import Row, Rows, cpu_node, workload
from tests.support.seen import queue, see_queues

PLACEHOLDER = {"placeholder": {}}
SCALE = {"scale": {"apiVersion": "a.example/v1", "resource": "sets", "name": "large"}}


async def see_pool(rows: Rows, name: str, generation: int = 1, **more: Any) -> None:
    """Write a pool of nodes with eight cores."""
    node = {"labels": {"pool": name}, "allocatable": {"cpu": "8", "memory": "1Ti"}}
    base = {"node": node, "max": 4, "provisioningTime": "5m", "provider": PLACEHOLDER}
    seen = RuleSeen(name, f"uid-{name}", generation, {**base, **more})
    async with rows.database.begin() as tx:
        await save_rules(tx, RuleRowKind.POOL, [seen], ())


def large_node(name: str) -> NodeFact:
    """A node of the pool ``large``."""
    return replace(cpu_node(name, 8000), labels={"pool": "large", "kubernetes.io/hostname": name})


async def remove_pool(rows: Rows, name: str) -> None:
    """Delete a pool."""
    async with rows.database.begin() as tx:
        await save_rules(tx, RuleRowKind.POOL, [], [name])


async def requests(rows: Rows) -> list[Row]:
    """All requests, oldest first."""
    return await rows.fetch(
        "SELECT number, pool, uid, count, ended, reason, is_settled FROM node_requests"
        " ORDER BY number"
    )


async def orders(rows: Rows) -> list[PoolOrder]:
    """What the providers get."""
    return await read_orders(rows.database)


async def test_a_job_behind_the_examined_head_keeps_its_request(rows: Rows) -> None:
    """The queue is examined to a depth of one. The owner of the request is examined as well."""
    await see_queues(rows, queue("short", queueDepth=1))
    await see_pool(rows, "large")
    await rows.add_nodes(cpu_node("n1", 4000))
    await rows.see(workload("busy", request(cpu=4000), queue="short"))
    await rows.match()
    await rows.see(workload("owner", request(cpu=8000), queue="short"))
    await rows.match()
    (asked,) = await requests(rows)
    assert (asked["uid"], asked["count"]) == ("owner", 1)
    for number in range(3):
        await rows.see(workload(f"first-{number}", request(cpu=4000), queue="short", priority=100))
    await rows.match()
    (kept,) = await requests(rows)
    assert kept["ended"] is None
    await rows.add_nodes(large_node("large-1"))
    await rows.match()
    assert (await rows.states())["owner"] == "Allocated"
    assert [one["ended"] for one in await requests(rows)] == ["used"]


async def test_a_deleted_pool_takes_back_what_it_has_asked_for(rows: Rows) -> None:
    """Its former provider gets an order without open requests, until that is settled."""
    await see_pool(rows, "large", min=1, provider=SCALE)
    await rows.add_nodes(large_node("large-1"))
    await rows.see(workload("a", request(2, cpu=8000)))
    await rows.match()
    (order,) = await orders(rows)
    assert [one.coming for one in order.open] == [1]
    await remove_pool(rows, "large")
    for _ in range(2):
        (former,) = await orders(rows)
        assert (former.stored, former.open, former.present) == (None, (), ("large-1",))
        assert former.pool.parameters["name"] == "large"
        assert former.pool.least == 0, "its minimum is no longer wanted"
    await rows.match()
    assert (await rows.states())["a"] == "Unsatisfiable"
    await settle(rows.database, [one.number for one in former.ended])
    assert await orders(rows) == []
    (row,) = await requests(rows)
    assert (row["ended"], row["reason"]) == ("withdrawn", "its pool or provider was removed")


async def test_a_replaced_provider_takes_back_what_it_has_asked_for(rows: Rows) -> None:
    """The job gets nodes of the new provider, and the old one sees that none are wanted."""
    await see_pool(rows, "large", provider=SCALE)
    await rows.see(workload("a", request(2, cpu=8000)))
    await rows.match()
    await see_pool(rows, "large", generation=2)
    current, former = await orders(rows)
    assert (current.pool.provider, former.pool.provider) == ("placeholder", "scale")
    assert [one.count for one in former.ended] == [2]
    await rows.match()
    current, former = await orders(rows)
    assert [one.count for one in current.open] == [2]
    await settle(rows.database, [one.number for one in former.ended])
    assert [one.pool.provider for one in await orders(rows)] == ["placeholder"]


async def test_a_changed_placeholder_stays_in_charge(rows: Rows) -> None:
    """Another image is no other provider: what was asked for still comes."""
    await see_pool(rows, "large")
    await rows.see(workload("a", request(2, cpu=8000)))
    await rows.match()
    await see_pool(rows, "large", generation=2, provider={"placeholder": {"image": "other"}})
    (order,) = await orders(rows)
    assert [one.count for one in order.open] == [2]
