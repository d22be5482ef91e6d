"""Nodes that do not exist yet: pools as administrators apply them, and an autoscaler.

The autoscaler is the simulated one. It adds nodes for unschedulable pods, as real ones do.
"""

from __future__ import annotations

import random

import pytest

from fluxqueue.errors import Invalid
from fluxqueue.kube.resources import EVENTS, FLUX_NODE_POOLS, FLUXJOBS, NODES
from fluxqueue.nodepools.plan.node_protection import KEYS, ON
from fluxqueue.workload.labels import SOURCE_MISSING
from tests.support.e2e.kills import VICTIMS, kill_part
from tests.support.e2e.objects import FOR_EVER, job
from tests.support.e2e.pools import Pools
from tests.support.e2e.space import Space
from tests.support.e2e.world import WORKERS
from tests.support.waiting import eventually, until

TABLE = "application/json;as=Table;g=meta.k8s.io;v=v1"
"""What kubectl asks for when it prints columns."""


async def test_a_gang_gets_nodes_that_no_cluster_had(space: Space, pools: Pools) -> None:
    """Placeholders make the autoscaler add two nodes. The job runs on them, and they go."""
    pool = await pools.make("grow", delay_s=4.0)
    await space.create(job("gang", pods=2, cpu="6", pool=pool, run={"duration": "2s"}))

    async def is_told() -> bool:
        status = (await space.fluxjob("gang") or {}).get("status") or {}
        return "2 nodes of pool" in status.get("reason", "")

    await eventually(is_told, "it says what was asked for")
    told = (await space.fluxjob("gang") or {})["status"]
    assert told["state"] == "Provisioning"
    assert told["expectedStart"]
    assert await _printed(space, "status.state=Provisioning") == [("Provisioning", told["reason"])]
    assert await _printed(space, "status.state=Pending") == []
    await space.until_job("gang")
    nodes = {pod["spec"]["nodeName"] for pod in await space.pods("gang")}
    assert len(nodes) == 2
    assert all(name.startswith(pool) for name in nodes)
    await pools.until_none_is_left(pool)
    (row,) = await pools.requests(pool)
    assert (row["count"], row["ended"]) == (2, "used")
    assert row["ready_at"] - row["asked_at"] == 30
    status = await pools.until(pool, nodes=0, arriving=0, measured=2)
    assert {one["type"]: one["status"] for one in status["conditions"]} == {
        "Valid": "True",
        "Available": "True",
    }


async def _printed(space: Space, selector: str) -> list[tuple[str, str]]:
    """STATE and REASON as ``kubectl get fluxjobs`` prints them."""
    path = FLUXJOBS.path(space.name)
    table = await space.client.request("GET", path, query={"fieldSelector": selector}, accept=TABLE)
    names = [one["name"] for one in table["columnDefinitions"]]
    rows = [row["cells"] for row in table.get("rows") or ()]
    return [(row[names.index("State")], row[names.index("Reason")]) for row in rows]


async def test_a_scaled_object_brings_nodes(space: Space, pools: Pools) -> None:
    """One replica for each node, and none more after a job was cancelled before they came."""
    pool = await pools.make_scaled("scaled")
    await space.create(job("scaled", pods=3, cpu="6", pool=pool))
    await space.until_job("scaled")
    assert await pools.replicas(pool) == 3

    await pools.autoscaler.give_up()  # nothing comes any more
    await space.create(job("never", pods=4, cpu="6", pool=pool, run=FOR_EVER))
    await pools.until(pool, nodes=3, arriving=1)
    await eventually(lambda: _has_replicas(pools, pool, 4), "one more is asked for")
    await space.delete("never")
    await eventually(lambda: _has_replicas(pools, pool, 3), "it is withdrawn")
    first, second = await pools.requests(pool)
    assert (first["ended"], second["ended"]) == ("used", "withdrawn")


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_a_deleted_pool_gives_up_the_replicas_that_have_not_come(
    space: Space, pools: Pools
) -> None:
    """The replicas of nodes that are here stay, also above the minimum of the pool."""
    pool = await pools.make_scaled("gone", min=0)
    await space.create(job("here", cpu="6", pool=pool))
    await space.until_job("here")
    await pools.autoscaler.give_up()  # nothing comes any more
    await space.create(job("never", pods=3, cpu="6", pool=pool, run=FOR_EVER))

    async def are_asked_for() -> bool:
        # The first node counts as used until the end of its job is seen.
        return await pools.replicas(pool) >= 3

    await eventually(are_asked_for, "more nodes are asked for")
    await pools.delete(pool)
    await eventually(lambda: _has_replicas(pools, pool, 1), "they are withdrawn")
    await space.delete("never")


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_idle_nodes_of_a_scaled_object_go_back(space: Space, pools: Pools) -> None:
    """All but the minimum are cordoned and returned after the idle time."""
    pool = await pools.make_scaled("idle", min=1, idleTime="3s")
    await space.create(job("three", pods=3, cpu="6", pool=pool))
    await space.until_job("three")

    async def are_gone() -> bool:
        return len(await pools.nodes(pool)) == 1 and await pools.replicas(pool) == 1

    await eventually(are_gone, "one node is left")
    await space.create(job("one", cpu="6", pool=pool))
    await space.until_job("one")
    assert len(await pools.requests(pool)) == 1, "the node that stayed is used"


async def _has_replicas(pools: Pools, name: str, count: int) -> bool:
    return await pools.replicas(name) == count


async def test_bad_pools_are_refused(pools: Pools) -> None:
    """The definition refuses what cannot be meant."""
    with pytest.raises(Invalid, match="min must not be more than max"):
        await pools.make("bad", min=5)
    with pytest.raises(Invalid, match=r"such as 3\.10"):
        await pools.make("bad", pricePerHour="3,10")
    with pytest.raises(Invalid, match=r"(?i)properties"):
        await pools.make("bad", provider={})
    with pytest.raises(Invalid, match="at most 40 lower-case letters"):
        await pools.make("bad.name")
    with pytest.raises(Invalid, match="at most 40 lower-case letters"):
        await pools.make("b" * 40)


async def test_a_pool_that_refuses_leaves_its_turn_to_the_next(space: Space, pools: Pools) -> None:
    """The object of the first pool does not exist. The second pool brings the nodes."""
    first = await pools.make("first", scale=True, is_known=False, priority=10)
    await pools.make("second", labels_of=first)
    await space.create(job("gang", pods=2, cpu="6", pool=first))
    await space.until_job("gang")
    (row,) = await pools.requests(first)
    assert row["ended"] == "failed"
    assert "404" in row["reason"]
    status = await pools.until(first, failures=1)
    (available,) = [one for one in status["conditions"] if one["type"] == "Available"]
    assert available["status"] == "False"
    assert "its provider refuses" in available["message"]

    async def is_told() -> bool:
        events = (await space.client.list(EVENTS, "default")).items
        ours = [one for one in events if one["involvedObject"]["name"] == first]
        return [one["reason"] for one in ours] == ["NodesNotProvided"]

    await eventually(is_told, "an Event names the pool that failed")


@pytest.mark.long("seconds of processor time for a crash that a cheaper test covers in parts")
@pytest.mark.parametrize("part", VICTIMS)
async def test_a_crash_leaves_no_node_behind(space: Space, pools: Pools, part: str) -> None:
    """A part dies when nodes are asked for, when one is here, and when the job runs.

    The job gets its nodes once, and all of them go.
    """
    pool = await pools.make("crash", delay_s=2.0)
    await space.create(job("gang", pods=2, cpu="6", pool=pool, run={"duration": "8s"}))

    async def is_asked_for() -> bool:
        return bool(await pools.requests(pool))

    async def is_here() -> bool:
        return bool(await pools.nodes(pool))

    for look, what in ((is_asked_for, "nodes are asked for"), (is_here, "a node is here")):
        await eventually(look, what)
        await VICTIMS[part](space.world)
    await space.until_state("gang", "Running", "Completed")
    await VICTIMS[part](space.world)
    await space.until_job("gang")
    await pools.until_none_is_left(pool)
    asked = await pools.requests(pool)
    assert [row["ended"] for row in asked] == ["used"], (asked, await space.history("gang"))
    assert pools.autoscaler.delivered[pool] == 2


@pytest.mark.long("seconds of processor time for a crash that a cheaper test covers in parts")
async def test_a_crash_asks_for_no_further_replicas(space: Space, pools: Pools) -> None:
    """All workers die when replicas are asked for, and when nodes are here."""
    pool = await pools.make_scaled("crash")
    await space.create(job("gang", pods=2, cpu="6", pool=pool, run={"duration": "8s"}))

    async def is_here() -> bool:
        return bool(await pools.nodes(pool))

    for look, what in (
        (lambda: _has_replicas(pools, pool, 2), "two replicas are asked for"),
        (is_here, "a node is here"),
    ):
        await eventually(look, what)
        for number in range(WORKERS):
            await kill_part(space.world, f"worker-{number}")
    await space.until_job("gang")
    assert await pools.replicas(pool) == 2
    assert [row["ended"] for row in await pools.requests(pool)] == ["used"]


@pytest.mark.long("an idle node must stay longer than it does without protection")
async def test_a_promised_node_is_kept_from_the_autoscaler(space: Space, pools: Pools) -> None:
    """Both workers die meanwhile. The node stays idle until the gang starts, and goes after it."""
    pool = await pools.make("keep", most=2, idle_s=1.0)
    await space.create(job("first", pods=2, cpu="6", pool=pool, run={"duration": "2s"}))
    await space.until_state("first", "Running")
    run = {"duration": "16s"}
    await space.create(job("one", cpu="6", pool=pool, run=run, wishes=run))
    await space.create(job("both", pods=2, cpu="6", pool=pool, run=FOR_EVER))
    await space.until_job("first")
    await space.until_state("both", "Reserved")
    nodes = set(await pools.nodes(pool))
    assert len(nodes) == 2
    await eventually(lambda: _are_protected(pools, pool, nodes), "both nodes are annotated")
    for part in ("worker-0", "worker-1"):
        await kill_part(space.world, part)
    pods = await space.until_running("both", 2)
    assert {pod["spec"]["nodeName"] for pod in pods} == nodes
    await space.finish("both")
    await space.until_job("both")
    assert pools.autoscaler.delivered[pool] == 2, "the promised node never went"
    await pools.until_none_is_left(pool)


async def _are_protected(pools: Pools, pool: str, names: set[str]) -> bool:
    selector = f"localcluster/node-pool={pool}"
    found = (await pools.space.client.list(NODES, label_selector=selector)).items
    notes = {one["metadata"]["name"]: one["metadata"].get("annotations") or {} for one in found}
    return all(notes[name].get(key) == ON for name in names for key in KEYS)


async def test_what_is_not_needed_any_more_is_withdrawn(space: Space, pools: Pools) -> None:
    """A job is cancelled before its nodes come: its placeholders go, and no node stays."""
    pool = await pools.make("gone", is_known=False)
    await space.create(job("gang", pods=2, cpu="6", pool=pool))

    await until(
        lambda: pools.placeholders(pool),
        lambda found: len(found) == 2,
        "placeholders wait for nodes",
    )
    await space.delete("gang")
    await pools.until_none_is_left(pool)
    (row,) = await pools.requests(pool)
    assert row["ended"] == "withdrawn"


@pytest.mark.long("many jobs take turns on a few nodes that come and go")
async def test_many_jobs_leave_no_node_behind(space: Space, pools: Pools) -> None:
    """200 random gangs over three pools, some cancelled at once: all others run, all nodes go."""
    chance = random.Random(35)
    first = await pools.make("a", most=6, pricePerHour="3")
    others = [await pools.make(name, most=4, labels_of=first, delay_s=1.0) for name in ("b", "c")]
    names = [f"gang-{number}" for number in range(200)]
    await space.create_all(
        job(name, pods=chance.randint(1, 3), cpu=str(chance.choice((2, 4, 6))), pool=first)
        for name in names
    )
    cancelled = set(chance.sample(names, 20))
    for name in cancelled:
        await space.delete(name)
    await space.until_all_complete(set(names) - cancelled, timeout_s=600)
    for name in (first, *others):
        await pools.until_none_is_left(name)
        rows = await pools.requests(name)
        assert {row["ended"] for row in rows} <= {"used", "withdrawn"}
        assert pools.autoscaler.delivered[name] <= sum(row["count"] for row in rows)


@pytest.mark.long("nodes count as late after a minute at the earliest")
async def test_a_partial_delivery_is_kept_and_another_pool_brings_the_rest(
    space: Space, pools: Pools
) -> None:
    """One of two nodes comes. The request fails when the other is late, and the gang uses it."""
    first = await pools.make("part", delivers=1, idle_s=300.0, provisioningTime="2s", priority=5)
    second = await pools.make("rest", labels_of=first)
    await space.create(job("gang", pods=2, cpu="6", pool=first, run=FOR_EVER))

    async def is_told() -> bool:
        status = (await space.fluxjob("gang") or {}).get("status") or {}
        return "1 of them is here" in status.get("reason", "")

    await eventually(is_told, "it says that one node has come")
    pods = await space.until_running("gang", 2)
    nodes = sorted(pod["spec"]["nodeName"] for pod in pods)
    assert [name.rpartition("-")[0] for name in nodes] == sorted([first, second])
    await space.finish("gang")
    await space.until_job("gang")
    (row,) = await pools.requests(first)
    assert (row["ended"], row["reason"]) == ("failed", "1 of 2 nodes have not come in time")
    (row,) = await pools.requests(second)
    assert (row["count"], row["ended"]) == (1, "used")


@pytest.mark.long("sources are looked at once in a minute")
async def test_a_discovered_pool_brings_nodes_and_follows_its_source(
    space: Space, pools: Pools
) -> None:
    """A NodePool of Karpenter: its limits change, and then it goes."""
    name = await pools.make_source("found", most=1)
    await pools.discover(name)
    await space.create(job("one", cpu="6", pool=name))
    await space.until_job("one")
    (row,) = await pools.requests(name)
    assert (row["count"], row["ended"]) == (1, "used")

    await pools.bound_source(name, most=2)
    await eventually(lambda: _has_most(pools, name, 2), "the maximum follows", timeout_s=90)
    await space.create(job("two", pods=2, cpu="6", pool=name))
    await space.until_job("two")
    await pools.delete_source(name)
    await eventually(lambda: _is_noted(pools, name), "its source is gone", timeout_s=90)


async def _has_most(pools: Pools, name: str, most: int) -> bool:
    found = await pools.space.client.get(FLUX_NODE_POOLS, None, name)
    return int(found["spec"]["max"]) == most


async def _is_noted(pools: Pools, name: str) -> bool:
    found = await pools.space.client.get(FLUX_NODE_POOLS, None, name)
    return SOURCE_MISSING in found["metadata"]["annotations"]
