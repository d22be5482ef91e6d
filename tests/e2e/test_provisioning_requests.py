"""Nodes that come by ProvisioningRequests: all nodes of a gang at once, or none.

The autoscaler is the simulated one. The definition is a small one of the tests.
"""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from fluxqueue.errors import Invalid
from fluxqueue.kube.resources import PROVISIONING_REQUESTS
from fluxqueue.workload.labels import OWN_NAMESPACE
from tests.support.e2e.kills import kill_part
from tests.support.e2e.objects import job
from tests.support.e2e.pools import Pools
from tests.support.e2e.space import Space
from tests.support.e2e.world import WORKERS
from tests.support.waiting import eventually

PARTS = [f"worker-{number}" for number in range(WORKERS)]


async def _has_requests(pools: Pools, pool: str, count: int) -> bool:
    return len(await pools.provisioning_requests(pool)) == count


async def _accepted(pools: Pools, pool: str) -> list[dict[str, Any]]:
    """The conditions of its only request, as soon as the autoscaler has written one."""
    (request,) = await pools.provisioning_requests(pool)
    return (request.get("status") or {}).get("conditions") or []


async def _is_cleared(pools: Pools, pool: str) -> bool:
    return not await pools.provisioning_requests(pool) and not await pools.templates(pool)


async def test_a_gang_gets_all_nodes_of_one_request(space: Space, pools: Pools) -> None:
    """One object asks for both nodes, with the class, its parameters and the shape of a node."""
    pool = await pools.make_requested("atomic", delay_s=3.0)
    await space.create(job("gang", pods=2, cpu="6", pool=pool, run={"duration": "2s"}))
    await eventually(lambda: _has_requests(pools, pool, 1), "there is one request")
    (request,) = await pools.provisioning_requests(pool)
    spec = request["spec"]
    assert spec["provisioningClassName"] == f"{space.name}.example.org"
    assert spec["parameters"] == {"ValidUntilSeconds": "600"}
    (pods,) = spec["podSets"]
    (template,) = await pools.templates(pool)
    assert pods == {"count": 2, "podTemplateRef": {"name": template["metadata"]["name"]}}
    pod = template["template"]["spec"]
    assert pod["containers"][0]["resources"]["requests"]["cpu"] == "8"
    assert pod["nodeSelector"]["own"] == pool
    await space.until_job("gang")
    nodes = {pod["spec"]["nodeName"] for pod in await space.pods("gang")}
    assert nodes == {f"{pool}-1", f"{pool}-2"}
    await eventually(lambda: _is_cleared(pools, pool), "both objects are deleted")
    await pools.until_none_is_left(pool)
    (row,) = await pools.requests(pool)
    assert (row["count"], row["ended"]) == (2, "used")


async def test_what_fails_says_why_and_another_pool_is_tried(space: Space, pools: Pools) -> None:
    """The autoscaler is out of quota. Its words are those of the pool, and the next pool brings."""
    first = await pools.make_requested("poor", refuses="out of quota in zone a", priority=5)
    await pools.make("rich", labels_of=first)
    await space.create(job("gang", pods=2, cpu="6", pool=first))
    await space.until_job("gang")
    (row,) = await pools.requests(first)
    assert row["ended"] == "failed"
    assert row["reason"] == "its provider refuses: Failed: out of quota in zone a"
    await eventually(lambda: _is_cleared(pools, first), "nothing of it is left")


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_capacity_that_is_revoked_fails_the_request(space: Space, pools: Pools) -> None:
    """The autoscaler takes back what it has promised. Another pool brings the nodes."""
    first = await pools.make_requested("revoked", delivers=0, priority=5)
    second = await pools.make("kept", labels_of=first)
    await space.create(job("gang", pods=2, cpu="6", pool=first))
    await eventually(lambda: _has_requests(pools, first, 1), "it is asked for")
    accepted = await eventually(lambda: _accepted(pools, first), "it is accepted")
    (request,) = await pools.provisioning_requests(first)
    condition = {
        "type": "CapacityRevoked",
        "status": "True",
        "reason": "Revoked",
        "message": "the reservation has ended",
        "lastTransitionTime": "2026-11-26T12:00:00Z",
    }
    await space.client.patch(
        PROVISIONING_REQUESTS,
        OWN_NAMESPACE,
        request["metadata"]["name"],
        {"status": {"conditions": [*accepted, condition]}},
        subresource="status",
    )
    await space.until_job("gang")
    (row,) = await pools.requests(first)
    assert row["reason"] == "its provider refuses: CapacityRevoked: the reservation has ended"
    (row,) = await pools.requests(second)
    assert row["ended"] == "used"


async def test_a_cancelled_job_withdraws_its_request(space: Space, pools: Pools) -> None:
    """The object is deleted before nodes come, so none comes."""
    pool = await pools.make_requested("withdrawn", delay_s=30.0)
    await space.create(job("gang", pods=2, cpu="6", pool=pool))
    await eventually(lambda: _has_requests(pools, pool, 1), "it is asked for")
    await space.delete("gang")
    await eventually(lambda: _is_cleared(pools, pool), "it is withdrawn")
    await pools.until_none_is_left(pool)
    (row,) = await pools.requests(pool)
    assert row["ended"] == "withdrawn"
    assert pools.autoscaler.delivered[pool] == 0


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_a_deleted_pool_withdraws_its_request(space: Space, pools: Pools) -> None:
    """The provider takes back what it has asked for, although its pool is gone."""
    pool = await pools.make_requested("deleted", delay_s=30.0)
    await space.create(job("gang", pods=2, cpu="6", pool=pool))
    await eventually(lambda: _has_requests(pools, pool, 1), "it is asked for")
    await pools.remove()
    assert await _is_cleared(pools, pool)
    (row,) = await pools.requests(pool)
    assert row["ended"] == "withdrawn"
    await space.delete("gang")


@pytest.mark.long("seconds of processor time for a crash that a cheaper test covers in parts")
@pytest.mark.parametrize("step", ["arrived", "asked", "written"])
async def test_a_crash_of_all_workers_repeats_nothing(
    space: Space, pools: Pools, step: str
) -> None:
    """All workers die at one step. One request is made in all, and the nodes come once."""
    pool = await pools.make_requested("crash", delay_s=3.0)
    await space.create(job("gang", pods=2, cpu="6", pool=pool))

    async def is_asked() -> bool:
        return bool(await pools.requests(pool))

    async def are_here() -> bool:
        return len(await pools.nodes(pool)) == 2

    await eventually(is_asked, "it is asked for", every_s=0.01)
    if step != "asked":
        await eventually(lambda: _has_requests(pools, pool, 1), "the object exists")
    if step == "arrived":
        # Stopped workers cannot claim the nodes that come.
        for part in PARTS:
            os.kill(space.world.pid(part), signal.SIGSTOP)
        await eventually(are_here, "the nodes are here")
    for part in PARTS:
        await kill_part(space.world, part)
    await space.until_job("gang")
    await pools.until_none_is_left(pool)
    assert [row["ended"] for row in await pools.requests(pool)] == ["used"]
    assert pools.autoscaler.delivered[pool] == 2


async def test_a_class_that_adds_no_nodes_is_refused(pools: Pools) -> None:
    """The class that only looks at present capacity would never bring a node."""
    given = {"provisioningClassName": "check-capacity.autoscaling.x-k8s.io"}
    with pytest.raises(Invalid, match="a class that adds nodes"):
        await pools.make("check", provider={"provisioningRequest": given})
