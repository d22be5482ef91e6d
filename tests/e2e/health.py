"""The invariants, asserted after every end-to-end test: nothing is broken, nothing is left."""

from __future__ import annotations

from fluxqueue.checking import check
from fluxqueue.clock import SystemClock
from tests.e2e.world import NODES, World
from tests.support.waiting import eventually

LEFT_S = 120.0
PATIENCE_S = 30.0
"""What is in transit on a busy machine is no finding; what is broken stays so."""

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
    """Everything the rows still hold, in words; empty once all work is over."""
    found = {name: await world.rows(sql) for name, sql in _LEFT.items()}
    return [f"{name}: {row}" for name, rows in found.items() for row in rows]


async def assert_invariants(world: World) -> None:
    """The checker finds nothing, not even a warning."""
    await world.rows("SELECT 1")  # drops what connections a killed server has left in our pool
    findings = await check(world.database, world.client, SystemClock(), patience_s=PATIENCE_S)
    assert not findings, "\n".join(map(str, findings))


async def assert_nothing_left(world: World) -> None:
    """All slots are back, free is capacity on every node, and every invariant holds."""
    left: list[str] = []

    async def is_clean() -> bool:
        left[:] = await what_is_left(world)
        return not left

    try:
        await eventually(is_clean, "nothing left in the rows", timeout_s=LEFT_S)
    except AssertionError as error:
        raise AssertionError("\n".join([str(error), *left])) from error
    await assert_invariants(world)


async def assert_own_nodes(world: World) -> None:
    """The queue knows the nodes that the world began with, and no others: the next test counts."""
    own = sorted(one.name for one in NODES)
    known: list[str] = []

    async def are_known() -> bool:
        known[:] = [row["name"] for row in await world.rows("SELECT name FROM nodes")]
        return sorted(known) == own

    try:
        await eventually(are_known, "the nodes of the start", timeout_s=LEFT_S)
    except AssertionError as error:
        raise AssertionError(f"{error}; they are {sorted(known)}") from error
