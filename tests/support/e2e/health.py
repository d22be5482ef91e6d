"""The invariants, asserted after every end-to-end test: nothing is broken, nothing is left."""

from __future__ import annotations

from fluxqueue.checking import check
from fluxqueue.clock import SystemClock
from tests.support.e2e.space import Space
from tests.support.e2e.world import NODES, World
from tests.support.waiting import until

LEFT_S = 120.0
PATIENCE_S = 30.0
"""What is in transit on a busy machine is no finding. What is broken stays so."""

_LEFT = {
    "drift": "SELECT * FROM drift",
    "pending_actions": "SELECT * FROM pending_actions",
    "live allocation": "SELECT * FROM allocations WHERE is_live",
    "slot not returned": "SELECT * FROM allocation_slots WHERE state <> 'returned'",
    "reservation": "SELECT * FROM reservations",
    "unfinished": "SELECT namespace, name, state, reason FROM fluxjobs WHERE ended_at IS NULL",
    "pod": "SELECT namespace, name, phase FROM pods",
    "used": "SELECT * FROM node_usage WHERE free <> capacity",
}


async def what_is_left(world: World) -> list[str]:
    """Everything the rows still hold, in words. Empty once all work is over."""
    found = {name: await world.rows(sql) for name, sql in _LEFT.items()}
    return [f"{name}: {row}" for name, rows in found.items() for row in rows]


async def assert_invariants(world: World) -> None:
    """The checker finds nothing, not even a warning."""
    await world.rows("SELECT 1")  # drops what connections a killed server has left in our pool
    findings = await check(world.database, world.client, SystemClock(), patience_s=PATIENCE_S)
    assert not findings, "\n".join(map(str, findings))


async def assert_nothing_left(world: World) -> None:
    """All slots are back, free is capacity on every node, and every invariant holds."""
    await until(
        lambda: what_is_left(world),
        lambda left: not left,
        "nothing left in the rows",
        timeout_s=LEFT_S,
    )
    await assert_invariants(world)


async def assert_own_nodes(world: World) -> None:
    """The queue knows the nodes that the world began with, and no others: the next test counts."""
    own = sorted(one.name for one in NODES)

    async def known() -> list[str]:
        return sorted(row["name"] for row in await world.rows("SELECT name FROM nodes"))

    await until(known, own.__eq__, "the nodes of the start", timeout_s=LEFT_S)


async def assert_no_allocation(space: Space) -> None:
    """No row says that anything of the namespace has a node, a moment later."""
    sql = (
        "SELECT FROM allocations a JOIN fluxjobs f USING (uid)"
        " WHERE a.is_live AND f.namespace = :namespace"
    )

    await until(
        lambda: space.world.rows(sql, namespace=space.name),
        lambda found: not found,
        "no live allocation",
    )
