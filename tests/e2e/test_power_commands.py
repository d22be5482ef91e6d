"""Nodes that Jobs power on and off, as Slurm's ResumeProgram and SuspendProgram do."""

from __future__ import annotations

import os
import signal
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from fluxqueue.workload.labels import POWERED_DOWN
from tests.e2e.objects import FOR_EVER, job
from tests.e2e.pools import Pools
from tests.e2e.power_room import PowerRoom
from tests.e2e.space import Space
from tests.e2e.test_crashes import kill_part
from tests.e2e.world import WORKERS
from tests.support.waiting import eventually

PARTS = [f"worker-{number}" for number in range(WORKERS)]


@pytest_asyncio.fixture(loop_scope="session")
async def room(space: Space) -> AsyncIterator[PowerRoom]:
    """Machines of the test's own. They are off at its end."""
    made = PowerRoom(space)
    yield made
    await made.close()


@pytest_asyncio.fixture(loop_scope="session")
async def pools(space: Space, room: PowerRoom) -> AsyncIterator[Pools]:
    """Pools of the test's own. They go before their machines."""
    made = Pools(space)
    yield made
    await made.remove()


async def _until_off(pools: Pools, room: PowerRoom, pool: str) -> None:
    """Wait until no machine of a pool runs, and nothing is left of its commands."""

    async def is_off() -> bool:
        rows = await pools.space.world.rows(
            "SELECT node FROM pool_nodes WHERE pool = :pool", pool=pool
        )
        is_settled = all(row["is_settled"] for row in await pools.requests(pool))
        return not rows and is_settled and not await room.jobs(pool)

    await eventually(is_off, "all machines are off, and no Job is left", timeout_s=120)


@pytest.mark.long("machines go on and off twice, and Kubernetes notes a silent node late")
@pytest.mark.cases_long("machines that keep their Node object while they are off")
@pytest.mark.parametrize("keeps_objects", [False, True])
async def test_nodes_are_powered_on_for_a_gang_and_off_when_idle(
    space: Space, pools: Pools, room: PowerRoom, *, keeps_objects: bool
) -> None:
    """The hostlist goes to the command. A second job powers the same machines on again."""
    room.keeps_objects = keeps_objects
    pool = await pools.make_powered("power", room, idleTime="3s", max=4)
    hosts = f"{pool}-[1-2]"
    for number in (1, 2):
        await space.create(job(f"gang-{number}", pods=2, cpu="6", pool=pool, run=FOR_EVER))
        pods = await space.until_running(f"gang-{number}", 2)
        assert {pod["spec"]["nodeName"] for pod in pods} == {f"{pool}-1", f"{pool}-2"}
        await space.finish(f"gang-{number}")
        await space.until_job(f"gang-{number}")
        await _until_off(pools, room, pool)
        left = await room.nodes(pool)
        assert len(left) == (2 if keeps_objects else 0)
        assert all(POWERED_DOWN in one["metadata"]["annotations"] for one in left)
    assert [one for one in room.ran if one[0] == "resume"] == [("resume", hosts)] * 2
    assert [row["ended"] for row in await pools.requests(pool)] == ["used", "used"]
    assert room.powered_on == {f"{pool}-1": 2, f"{pool}-2": 2}


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_a_command_that_fails_says_why(space: Space, pools: Pools, room: PowerRoom) -> None:
    """Its last words are the reason. What it was to power on is powered off."""
    templates = await room.make_templates(
        "broken", **{"exit-code": "3", "message": "BMC of rack 7 does not answer"}
    )
    given = {"names": f"broken-{space.name}-[1-2]", **templates}
    first = await pools.make("broken", is_known=False, provider={"command": given}, priority=5)
    room.watch(first, pools.shape(first))
    await pools.make("other", labels_of=first)
    await space.create(job("gang", pods=2, cpu="6", pool=first))
    await space.until_job("gang")
    (row,) = await pools.requests(first)
    expected = "its provider refuses: the command failed: BMC of rack 7 does not answer"
    assert (row["ended"], row["reason"]) == ("failed", expected)
    await _until_off(pools, room, first)
    assert room.ran == [("suspend", f"{first}-[1-2]")]
    status = await pools.until(first, failures=1)
    assert status["missing"] == [f"{first}-1", f"{first}-2"]


async def test_a_missing_template_is_named(space: Space, pools: Pools, room: PowerRoom) -> None:
    """The administrator learns what to create."""
    given = {"names": f"none-{space.name}-1", "resume": "no-such", "suspend": "no-such"}
    first = await pools.make("none", is_known=False, provider={"command": given}, priority=5)
    await pools.make("other", labels_of=first)
    await space.create(job("one", cpu="6", pool=first))
    await space.until_job("one")
    (row,) = await pools.requests(first)
    assert "PodTemplate no-such does not exist in namespace" in row["reason"]
    assert not await room.jobs(first)


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_a_deleted_pool_powers_its_nodes_off(
    space: Space, pools: Pools, room: PowerRoom
) -> None:
    """Machines that have yet to come are powered off, although their pool is gone."""
    pool = await pools.make_powered("deleted", room)
    room.delay_s = 2.0
    await space.create(job("gang", pods=2, cpu="6", pool=pool))

    async def is_called() -> bool:
        return bool(room.ran)

    await eventually(is_called, "the command has run")
    await pools.remove()
    await _until_off(pools, room, pool)
    assert room.ran == [("resume", f"{pool}-[1-2]"), ("suspend", f"{pool}-[1-2]")]
    (row,) = await pools.requests(pool)
    assert row["ended"] == "withdrawn"
    await space.delete("gang")


@pytest.mark.long("seconds of processor time for a crash that a cheaper test covers in parts")
@pytest.mark.parametrize("step", ["arrived", "asked", "written"])
async def test_a_crash_of_all_workers_powers_each_node_once(
    space: Space, pools: Pools, room: PowerRoom, step: str
) -> None:
    """All workers die at one step. Each machine is powered on once, and off in the end."""
    pool = await pools.make_powered("crash", room, idleTime="3s")
    await space.create(job("gang", pods=2, cpu="6", pool=pool))

    async def is_asked() -> bool:
        return bool(await pools.requests(pool))

    async def is_written() -> bool:
        return bool(await room.jobs(pool))

    async def are_here() -> bool:
        return len(await room.nodes(pool)) == 2

    await eventually(is_asked, "it is asked for", every_s=0.01)
    if step != "asked":
        await eventually(is_written, "the Job exists")
    if step == "arrived":
        # Stopped workers cannot claim the nodes that come.
        for part in PARTS:
            os.kill(space.world.pid(part), signal.SIGSTOP)
        await eventually(are_here, "the nodes are here")
    for part in PARTS:
        await kill_part(space.world, part)
    await space.until_job("gang")
    await _until_off(pools, room, pool)
    assert [row["ended"] for row in await pools.requests(pool)] == ["used"]
    assert [one for one in room.ran if one[0] == "resume"] == [("resume", f"{pool}-[1-2]")]


@pytest.mark.long("nodes count as late after a minute at the earliest")
async def test_a_node_that_does_not_come_is_powered_off_and_tried_last(
    space: Space, pools: Pools, room: PowerRoom
) -> None:
    """One of two machines is broken. The gang uses the other one and a third."""
    pool = await pools.make_powered("late", room, provisioningTime="2s", max=4)
    room.broken.add(f"{pool}-2")
    await space.create(job("gang", pods=2, cpu="6", pool=pool, run=FOR_EVER))

    async def is_given_up() -> bool:
        return any(row["ended"] for row in await pools.requests(pool))

    await eventually(is_given_up, "the machine is late", timeout_s=120)
    status = await pools.until(pool, failures=1, missing=[f"{pool}-2"])
    assert status["nodes"] == 1
    pods = await space.until_running("gang", 2)
    assert {pod["spec"]["nodeName"] for pod in pods} == {f"{pool}-1", f"{pool}-3"}
    await space.finish("gang")
    await space.until_job("gang")
    assert ("suspend", f"{pool}-2") in room.ran
