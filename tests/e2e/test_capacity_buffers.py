"""Nodes that come by CapacityBuffers, of which an autoscaler keeps as many empty ones."""

from __future__ import annotations

import pytest

from tests.support.e2e.kills import kill_part
from tests.support.e2e.objects import job
from tests.support.e2e.pools import Pools
from tests.support.e2e.space import Space
from tests.support.e2e.world import WORKERS
from tests.support.waiting import eventually


async def _has_buffers(pools: Pools, pool: str, count: int) -> bool:
    return len(await pools.buffers(pool)) == count


async def _is_cleared(pools: Pools, pool: str) -> bool:
    return not await pools.buffers(pool) and not await pools.templates(pool)


@pytest.mark.long("seconds of processor time for a crash that a cheaper test covers in parts")
async def test_a_buffer_is_not_filled_again_when_its_job_starts(space: Space, pools: Pools) -> None:
    """Two nodes come in all, and the workers die in between. The buffer goes with the start."""
    pool = await pools.make_buffered("buffer", delay_s=2.0)
    await space.create(job("gang", pods=2, cpu="6", pool=pool, run={"duration": "5s"}))
    await eventually(lambda: _has_buffers(pools, pool, 1), "there is one buffer")
    (buffer,) = await pools.buffers(pool)
    (template,) = await pools.templates(pool)
    reference = {"name": template["metadata"]["name"]}
    assert buffer["spec"] == {"podTemplateRef": reference, "replicas": 2}
    for number in range(WORKERS):
        await kill_part(space.world, f"worker-{number}")
    await space.until_job("gang")
    nodes = {pod["spec"]["nodeName"] for pod in await space.pods("gang")}
    assert nodes == {f"{pool}-1", f"{pool}-2"}
    await eventually(lambda: _is_cleared(pools, pool), "both objects are deleted")
    await pools.until_none_is_left(pool)
    assert pools.autoscaler.delivered[pool] == 2
    assert [row["ended"] for row in await pools.requests(pool)] == ["used"]


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_a_cancelled_job_withdraws_its_buffer(space: Space, pools: Pools) -> None:
    """The buffer goes. A node that comes nevertheless is removed as idle."""
    pool = await pools.make_buffered("withdrawn", delay_s=3.0)
    await space.create(job("gang", pods=2, cpu="6", pool=pool))
    await eventually(lambda: _has_buffers(pools, pool, 1), "it is asked for")
    await space.delete("gang")
    await eventually(lambda: _is_cleared(pools, pool), "it is withdrawn")
    await pools.until_none_is_left(pool)
    assert [row["ended"] for row in await pools.requests(pool)] == ["withdrawn"]
