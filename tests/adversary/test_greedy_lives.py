"""No edit, omission, grace, retry or growth of a tenant breaks the promise to another one.

Random lives on the embedded cluster, as ``tests/property/test_greedy_tenant.py`` has them on
virtual time. ``FLUXQUEUE_TEST_GREEDY_LIVES=100`` runs so many, ``..._SEED`` begins at another one.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import pytest

from fluxqueue.kube.resources import FLUXQUEUES
from fluxqueue.scheduler.promises import START_TOLERANCE_S
from localcluster import NodeShape
from tests.adversary.greedy import CPU, NODES, Life
from tests.adversary.tenants import tenancy
from tests.e2e.health import assert_invariants, assert_nothing_left, assert_own_nodes
from tests.e2e.world import World
from tests.support.figures import write_down
from tests.support.machine import SharedMachine
from tests.support.waiting import Pauses, eventually

LIVES = int(os.environ.get("FLUXQUEUE_TEST_GREEDY_LIVES", "4"))
SEED = int(os.environ.get("FLUXQUEUE_TEST_GREEDY_SEED", "0"))
AT_ONCE = 4


@asynccontextmanager
async def _a_life(world: World, seed: int) -> AsyncIterator[Life]:
    """A queue, nodes and two namespaces, gone afterwards."""
    place = f"life-{seed}"
    names = [f"{place}-{number}" for number in range(NODES)]
    head = {"apiVersion": FLUXQUEUES.api_version, "kind": FLUXQUEUES.kind}
    await world.client.create(FLUXQUEUES, None, {**head, "metadata": {"name": place}, "spec": {}})

    async def is_known() -> bool:
        queues = await world.rows("SELECT 1 FROM fluxqueues WHERE name = :name", name=place)
        nodes = await world.rows("SELECT 1 FROM nodes WHERE name = ANY(:names)", names=names)
        return bool(queues) and len(nodes) == NODES

    for name in names:
        shape = NodeShape(name, cpu=str(CPU), memory="16Gi", labels={"pool": place})
        await world.late_nodes.add(shape)
    try:
        await eventually(is_known, f"queue and nodes of {place} are known")
        async with tenancy(world, f"vera-{seed}") as vera, tenancy(world, f"mallory-{seed}") as m:
            yield Life(vera, m, random.Random(seed), place)
    finally:
        for name in names:
            await world.late_nodes.fleet.remove(name)
        await world.client.delete(FLUXQUEUES, None, place)


async def _live(world: World, seed: int) -> tuple[int, list[str]]:
    async with _a_life(world, seed) as life:
        try:
            async with Pauses() as pauses:
                with SharedMachine() as machine:
                    await life.live()
            tolerance_s = START_TOLERANCE_S * machine.slower + pauses.longest_s
            given, broken = await life.broken(tolerance_s)
            assert not life.greedy.faults, life.greedy.faults[:5]
        except BaseException:
            print("\n".join([f"life of seed {seed}:", *life.log]))
            raise
        if broken:
            print("\n".join([f"life of seed {seed}:", *life.log]))
        return given, [f"seed {seed}: {one}" for one in broken]


@pytest.mark.long("lives of half a minute, on the clock of the cluster")
@pytest.mark.timeout(7200)
async def test_lives_with_a_greedy_tenant(world: World) -> None:
    given, broken = 0, list[str]()
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(seed: int) -> tuple[int, list[str]]:
        async with slots:
            return await _live(world, seed)

    for found in await asyncio.gather(*(one(SEED + number) for number in range(LIVES))):
        given += found[0]
        broken += found[1]
    write_down("greedy", cluster=world.kind, lives=LIVES, promises=given, broken=len(broken))
    print(f"{LIVES} lives, {given} promises, {len(broken)} broken")
    assert broken == []
    assert given >= LIVES, "these lives promise too little to judge"
    await assert_nothing_left(world)
    await assert_own_nodes(world)
    await assert_invariants(world)
