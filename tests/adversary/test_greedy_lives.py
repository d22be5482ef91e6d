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

from fluxqueue.kube.resources import FLUXQUEUES, JOBS
from fluxqueue.scheduler.promises import START_TOLERANCE_S
from localcluster import NodeShape
from tests.adversary.greedy import CPU, NODES, RAISED_S, Life
from tests.adversary.tenants import tenancy
from tests.support.e2e.health import assert_invariants, assert_nothing_left, assert_own_nodes
from tests.support.e2e.world import World
from tests.support.figures import write_down
from tests.support.waiting import Pauses, eventually

LIVES = int(os.environ.get("FLUXQUEUE_TEST_GREEDY_LIVES", "4"))
SEED = int(os.environ.get("FLUXQUEUE_TEST_GREEDY_SEED", "0"))
AT_ONCE = 4
TOLERANCE_S = 2 * START_TOLERANCE_S
"""Four lives at once make the starts and ends of pods slower. What is broken is late by more."""


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
                await life.live()
            given, broken = await life.broken(TOLERANCE_S + pauses.longest_s)
            assert not life.greedy.faults, life.greedy.faults[:5]
        except BaseException:
            print("\n".join([f"life of seed {seed}:", *life.log]))
            raise
        if broken:
            print("\n".join([f"life of seed {seed}:", *life.log]))
        return given, [f"seed {seed}: {one}" for one in broken]


async def _lives(world: World, number: int) -> tuple[int, list[str]]:
    """Return how many promises were given, and those that were broken."""
    slots = asyncio.Semaphore(AT_ONCE)

    async def one(seed: int) -> tuple[int, list[str]]:
        async with slots:
            return await _live(world, seed)

    found = await asyncio.gather(*(one(SEED + seed) for seed in range(number)))
    await assert_nothing_left(world)
    await assert_own_nodes(world)
    return sum(given for given, _ in found), [line for _, broken in found for line in broken]


@pytest.mark.long("lives of half a minute, on the clock of the cluster")
@pytest.mark.timeout(7200)
async def test_lives_with_a_greedy_tenant(world: World) -> None:
    given, broken = await _lives(world, LIVES)
    write_down("greedy", cluster=world.kind, lives=LIVES, promises=given, broken=len(broken))
    print(f"{LIVES} lives, {given} promises, {len(broken)} broken")
    assert broken == []
    assert given >= LIVES, "these lives promise too little to judge"
    await assert_invariants(world)


@pytest.mark.long("lives of half a minute, on the clock of the cluster")
async def test_the_lives_find_a_limit_that_is_raised(
    world: World, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By a user that no policy stops, and that no operator has allowed it."""

    async def raise_it(life: Life, name: str) -> None:
        space, patch = life.greedy.space, {"spec": {"activeDeadlineSeconds": RAISED_S}}
        await space.client.patch(JOBS, space.name, name, patch)

    monkeypatch.setattr(Life, "_raise", raise_it)
    monkeypatch.setattr(Life, "_operator", raise_it)
    assert (await _lives(world, 2 * AT_ONCE))[1] != []
