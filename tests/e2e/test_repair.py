"""Nodes are lost under what runs: what starts anew, what is replaced, and what is said."""

from __future__ import annotations

import pytest

from fluxqueue.errors import Invalid
from fluxqueue.kube.resources import PODS
from tests.support.e2e.group_members import until_reason
from tests.support.e2e.objects import FOR_EVER, bare_pod, job
from tests.support.e2e.space import Space
from tests.support.e2e.world import World, late_node
from tests.support.waiting import eventually

REQUEUE = {"on-node-loss": "requeue"}


async def nodes_of(space: Space, name: str, count: int) -> set[str]:
    """Where the running pods of a Job are, once there are so many."""
    found: set[str] = set()

    async def look() -> bool:
        pods = [
            pod
            for pod in await space.pods(name)
            if pod["status"].get("phase") == "Running"
            and "deletionTimestamp" not in pod["metadata"]
        ]
        found.clear()
        found.update(pod["spec"]["nodeName"] for pod in pods)
        return len(pods) == count

    await eventually(look, f"{count} pods of {name} run")
    return set(found)


async def test_a_gang_that_wishes_it_starts_anew_as_a_whole(space: Space, late: World) -> None:
    """Also the pods on the node that is there still: one that is lost leaves none to go on."""
    for number in (1, 2):
        await late.late_nodes.add(late_node(number, "4"))
    gang = job("gang", pods=2, cpu="4", pool="late", wishes=REQUEUE, run=FOR_EVER)
    await space.create(gang)
    assert await nodes_of(space, "gang", 2) == {"late-1", "late-2"}
    first = {pod["metadata"]["uid"] for pod in await space.pods("gang")}
    await late.late_nodes.fleet.remove("late-2")
    waiting = await space.until_state("gang", "Pending", "Reserved", "Unsatisfiable")
    assert waiting["status"]["jobid"]
    await late.late_nodes.add(late_node(2, "4"))
    assert await nodes_of(space, "gang", 2) == {"late-1", "late-2"}
    second = {pod["metadata"]["uid"] for pod in await space.pods("gang")}
    assert not first & second
    await space.delete("gang")


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_a_gang_that_does_not_wish_it_names_the_slot_that_waits(
    space: Space, late: World
) -> None:
    for number in (1, 2):
        await late.late_nodes.add(late_node(number, "4"))
    await space.create(job("rest", pods=2, cpu="4", pool="late", run=FOR_EVER))
    await nodes_of(space, "rest", 2)
    await late.late_nodes.fleet.remove("late-2")
    words = "on late-2, which is lost: 4 cpu"
    said = await until_reason(space, "rest", "Running", words)
    assert "1 of its pods waits for a slot" in said["status"]["reason"]
    await late.late_nodes.add(late_node(2, "4"))
    await nodes_of(space, "rest", 2)
    await space.delete("rest")


async def test_a_bare_pod_whose_node_is_gone_says_so(space: Space, late: World) -> None:
    """It is not made again: that it was lost with its node is said as long as it is there."""
    await late.late_nodes.add(late_node(1, "4"))
    pod = bare_pod("solo", cpu="4", nodeSelector={"pool": "late"}, run=FOR_EVER)
    # It stays until that was seen.
    pod["metadata"]["finalizers"] = ["example.org/look-at-it"]
    await space.create(pod)
    await space.until_state("solo", "Running")
    await late.late_nodes.fleet.remove("late-1")
    try:
        await until_reason(space, "solo", "Failed", "lost with late-1")
    finally:
        await space.client.patch(PODS, space.name, "solo", {"metadata": {"finalizers": None}})
    await space.until_gone(PODS, "solo")


async def test_what_cannot_go_back_to_the_queue_may_not_wish_it(space: Space) -> None:
    pod = bare_pod("solo")
    pod["metadata"]["annotations"]["fluxqueue/on-node-loss"] = "requeue"
    with pytest.raises(Invalid, match="only what can be suspended goes back to the queue"):
        await space.create(pod)
