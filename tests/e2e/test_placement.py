"""Where workloads run: whole nodes, one per node, one zone, GPUs, and what nodes do meanwhile."""

from __future__ import annotations

from fluxqueue.kube.resources import NODES, PODS
from fluxqueue_devtools.tutorial import ZONE
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.objects import FOR_EVER, bare_pod, job
from tests.support.e2e.space import WAITING, Space
from tests.support.e2e.world import World, late_node
from tests.support.waiting import until


async def test_an_exclusive_job_has_its_nodes_to_itself(space: Space) -> None:
    """One core asked for, a whole node given: the next Job waits for the node."""
    async with space.recording() as seen:
        alone = job(
            "alone", cpu="1", pool="single", run={"duration": "1s"}, wishes={"exclusive": "true"}
        )
        await space.create_all([alone, job("next", cpu="1", pool="single")])
        await space.until_all_complete(["alone", "next"])
    assert not seen.overlap("alone", "next")


async def test_spread_puts_one_pod_on_each_node(space: Space) -> None:
    """Although all would fit on one."""
    async with space.recording() as seen:
        await space.create(job("wide", pods=4, pool="main", wishes={"spread": "node"}))
        await space.until_job("wide")
    nodes = [str(pod.node) for pod in seen.seen("wide").values()]
    assert sorted(nodes) == ["node-1", "node-2", "node-3", "node-4"]


async def test_within_keeps_all_pods_in_one_zone(space: Space) -> None:
    """Four pods of a zone's half size need the whole of one zone. Six fit none."""
    zone_of = {
        node["metadata"]["name"]: node["metadata"]["labels"].get(ZONE)
        for node in (await space.client.list(NODES)).items
    }
    async with space.recording() as seen:
        await space.create(job("near", pods=4, cpu="8", pool="main", wishes={"within": "zone"}))
        await space.until_job("near")
        zones = {zone_of[str(pod.node)] for pod in seen.seen("near").values()}
    assert len(zones) == 1
    assert zones <= {"east", "west"}
    await space.create(job("far", pods=6, cpu="8", pool="main", wishes={"within": "zone"}))
    told = await space.until_state("far", "Unsatisfiable")
    assert "within one zone" in told["status"]["reason"]


async def test_gpus_are_counted(space: Space) -> None:
    """Eight GPUs on two nodes: three pods of three can never be, two run together."""
    gpus = {"nvidia.com/gpu": "3"}
    async with space.recording() as seen:
        await space.create(job("two", pods=2, requests=gpus, run={"duration": "1s"}))
        await space.create(job("one", requests=gpus))
        await space.until_all_complete(["two", "one"])
    nodes = [str(pod.node) for pod in seen.seen("two").values()]
    assert sorted(nodes) == ["gpu-1", "gpu-2"]
    assert seen.most_at_once() <= 2
    await space.create(job("three", pods=3, requests=gpus))
    await space.until_state("three", "Unsatisfiable")


async def test_memory_is_counted(space: Space) -> None:
    """64Gi hold one pod of 40Gi at a time, however many cores are left."""
    async with space.recording() as seen:
        await space.create_all(
            job(f"fat-{n}", pool="single", requests={"memory": "40Gi"}) for n in range(2)
        )
        await space.until_all_complete(["fat-0", "fat-1"])
    assert seen.most_at_once() == 1


async def test_foreign_pods_are_subtracted_and_given_back(space: Space, unmanaged: Space) -> None:
    """A pod that was pinned past the queue takes its cores away until it is gone."""
    foreign = bare_pod("foreign", cpu="10", run=FOR_EVER, nodeName="single")
    await unmanaged.create(foreign)
    sql = (
        "SELECT foreign_used FROM node_usage WHERE node = 'single' AND resource = 'cpu'"
        " AND foreign_used > 0"
    )

    await until(
        lambda: space.world.rows(sql),
        lambda found: [int(row["foreign_used"]) for row in found] == [10_000],
        "10 foreign cores",
    )
    async with space.recording() as seen:
        await space.create(job("waits", cpu="8", pool="single"))
        await space.create(job("fits", cpu="6", pool="single", activeDeadlineSeconds=300))
        await space.until_job("fits")
        await space.until_state("waits", *WAITING)
        await assert_invariants(space.world)
        await unmanaged.delete("foreign", PODS)
        await space.until_job("waits")
    assert seen.order() == ["fits", "waits"]


async def test_a_cordoned_node_gets_nothing_until_it_is_uncordoned(space: Space) -> None:
    """What runs there stays. What wants to go there waits, and is not called impossible."""
    await space.create(job("stays", cpu="8", pool="single", run=FOR_EVER))
    await space.until_state("stays", "Running")
    await _cordon(space, is_cordoned=True)
    try:
        await space.create(job("waits", cpu="8", pool="single"))
        await space.until_state("waits", *WAITING, "Unsatisfiable")
        await space.create(job("other", cpu="8", pool="main"))
        await space.until_job("other")  # the queue has looked at all
        told = await space.until_state("waits", *WAITING)
        assert told["status"]["reason"]
        assert not await space.pods("waits")
    finally:
        await _cordon(space, is_cordoned=False)
    await space.until_job("waits")
    assert [pod["status"]["phase"] for pod in await space.pods("stays")] == ["Running"]


async def _cordon(space: Space, *, is_cordoned: bool) -> None:
    await space.client.patch(NODES, None, "single", {"spec": {"unschedulable": is_cordoned}})


async def test_a_node_that_joins_makes_the_impossible_possible(space: Space, late: World) -> None:
    """Unsatisfiable is about the cluster as it is. It is looked at again when nodes change."""
    await space.create(job("huge", cpu="30"))
    await space.until_state("huge", "Unsatisfiable")
    await late.late_nodes.add(late_node(1, "32"))
    await space.until_job("huge")
    assert {pod["spec"]["nodeName"] for pod in await space.pods("huge")} == {"late-1"}


async def test_a_node_that_leaves_makes_waiting_jobs_impossible(space: Space, late: World) -> None:
    """And its return makes them possible again."""
    for number in (1, 2):
        await late.late_nodes.add(late_node(number, "4"))
    await space.create(job("blocker", cpu="4", pool="late", run=FOR_EVER))
    blocker = await space.until_state("blocker", "Running")
    await space.create(job("pair", pods=2, cpu="4", pool="late"))
    await space.until_state("pair", *WAITING)
    idle = ({"late-1", "late-2"} - {blocker["status"]["nodes"]}).pop()
    await late.late_nodes.fleet.remove(idle)
    told = await space.until_state("pair", "Unsatisfiable")
    assert "the empty cluster holds 1" in told["status"]["reason"]
    await late.late_nodes.add(late_node(int(idle[-1]), "4"))
    await space.until_state("pair", *WAITING)
    await space.delete("blocker")
    await space.until_job("pair")
