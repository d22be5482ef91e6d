"""Jobs with a size that their author changes: while they wait, and while they run."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.errors import ApiUnavailable, InvalidInput
from fluxqueue.jobspec.idset import decode as read_idset
from fluxqueue.kube import steer
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import JOBS, PODS
from fluxqueue.workload.pinning import pinned_node
from tests.support.e2e.group_members import until_reason
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod, job
from tests.support.e2e.replica_sets import until_held
from tests.support.e2e.space import Space
from tests.support.waiting import eventually

SINGLE = {"pool": "single", "run": FOR_EVER}
"""One node of 16 cpu."""


async def change(space: Space, name: str, **spec: Any) -> None:
    await space.client.patch(JOBS, space.name, name, {"spec": spec}, kind=PatchKind.MERGE)


async def until_running(space: Space, name: str, count: int) -> set[str]:
    """UIDs of the pods of the Job, once so many run and no other is there."""
    return {pod["metadata"]["uid"] for pod in await space.until_running(name, count)}


async def until_size(space: Space, name: str, size: int) -> None:
    async def look() -> bool:
        found = await space.fluxjob(name)
        return found is not None and found["spec"]["size"] == size

    await eventually(look, f"the FluxJob of {name} has size {size}")


async def test_who_is_made_larger_while_it_waits_starts_as_large_as_it_is(space: Space) -> None:
    """All at once, and not with what it was to have been."""
    await space.create(bare_pod("big", cpu="16", run=FOR_EVER, nodeSelector={"pool": "single"}))
    await space.until_state("big", "Running")
    await space.create(job("x", pods=2, cpu="4", completions=8, **SINGLE))
    await space.until_state("x", "Pending", "Reserved")
    await change(space, "x", parallelism=4)
    await until_size(space, "x", 4)
    await change(space, "x", parallelism=3)
    await until_size(space, "x", 3)
    assert (await space.client.get(JOBS, space.name, "x"))["spec"]["suspend"] is True
    await space.delete("big", PODS)
    await until_running(space, "x", 3)
    (row,) = await space.world.rows(
        "SELECT count(*) AS n FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id"
        " JOIN fluxjobs f USING (uid) WHERE f.namespace = :namespace AND f.name = 'x-job'",
        namespace=space.name,
    )
    assert row["n"] == 3, "matched once, as large as it is"
    await space.delete("x")


@pytest.mark.cases_long("the other completion mode")
@pytest.mark.parametrize("mode", ["NonIndexed", "Indexed"])
async def test_a_running_job_grows_as_room_comes_and_shrinks_at_once(
    space: Space, mode: str
) -> None:
    """What runs is not touched. What leaves gives back its slot, and no other."""
    first_size = {} if mode == "Indexed" else {"completions": 8}

    def sized(pods: int) -> Obj:
        # Of an Indexed Job both change together, or neither.
        return {"parallelism": pods} | ({"completions": pods} if mode == "Indexed" else {})

    await space.create(bare_pod("big", cpu="8", run=FOR_EVER, nodeSelector={"pool": "single"}))
    await space.until_state("big", "Running")
    await space.create(job("x", cpu="4", completionMode=mode, **SINGLE, **first_size))
    first = await until_running(space, "x", 1)
    await change(space, "x", **sized(4))
    await until_reason(space, "x", "Running", "2 of its pods wait for a slot")
    await until_held(space, 2 + 1)
    await until_size(space, "x", 4)
    await space.delete("big", PODS)
    assert await until_running(space, "x", 4) > first
    await change(space, "x", **sized(2))
    left = await until_running(space, "x", 2)
    await until_held(space, 2)
    if mode == "Indexed":
        assert left > first, "the first index keeps its pod"
    await change(space, "x", **sized(3))
    assert await until_running(space, "x", 3) > left
    await until_held(space, 3)
    await space.delete("x")
    await until_held(space, 0)


@pytest.mark.cases_long("the other completion mode")
@pytest.mark.parametrize("mode", ["NonIndexed", "Indexed"])
async def test_a_job_without_pods_is_held_until_its_parallelism_is_raised(
    space: Space, mode: str
) -> None:
    """It starts neither with no slots nor holds a place in the queue, before and after it ran."""
    await space.create(bare_pod("big", cpu="16", run=FOR_EVER, nodeSelector={"pool": "single"}))
    await space.until_state("big", "Running")
    await space.create(job("x", pods=2, cpu="4", completionMode=mode, **SINGLE))
    await space.until_state("x", "Pending", "Reserved")
    await change(space, "x", parallelism=0)
    await until_reason(space, "x", "Held", "paused by its author")
    with pytest.raises(InvalidInput, match='"parallelism":1'):
        await steer.release(space.client, await space.fluxjob("x") or {})
    await space.delete("big", PODS)
    await until_held(space, 0)
    await space.create(job("next", cpu="16", **SINGLE))
    await until_running(space, "next", 1)
    assert (await space.client.get(JOBS, space.name, "x"))["spec"]["suspend"] is True
    await space.delete("next")
    await change(space, "x", parallelism=2)
    await until_running(space, "x", 2)
    await change(space, "x", parallelism=0)
    await until_reason(space, "x", "Held", "paused by its author")
    await until_held(space, 0)
    await change(space, "x", parallelism=1)
    await until_running(space, "x", 1)
    await space.delete("x")
    await until_held(space, 0)


async def test_a_pod_that_is_resized_in_place_takes_its_room(space: Space) -> None:
    """What it was made larger by stays its own. It comes back with the pod."""
    made = await space.create(
        bare_pod("elastic", cpu="4", nodeSelector={"pool": "single"}, run=FOR_EVER)
    )
    await space.until_state("elastic", "Running")
    pod = await space.client.get(PODS, space.name, "elastic")
    (container,) = pod["spec"]["containers"]
    # A kubelet says what its containers have, and those of which it says nothing are not resized.
    (told,) = pod["status"]["containerStatuses"]
    has = {"containerStatuses": [{**told, "resources": container["resources"]}]}
    larger = {"name": container["name"], "resources": {"requests": {"cpu": "10"}}}
    at = (PODS, space.name, "elastic")
    strategic = {"kind": PatchKind.STRATEGIC}
    try:
        await space.client.patch(*at, {"status": has}, **strategic, subresource="status")
        spec = {"containers": [larger]}
        await space.client.patch(*at, {"spec": spec}, **strategic, subresource="resize")
    except ApiUnavailable:
        pytest.skip("this cluster resizes no pods")
    sql = (
        "SELECT s.resources ->> 'cpu' AS cpu FROM allocation_slots s"
        " JOIN allocations a ON a.id = s.allocation_id WHERE a.uid = :uid"
    )

    async def is_followed() -> bool:
        rows = await space.world.rows(sql, uid=made["metadata"]["uid"])
        return [row["cpu"] for row in rows] == ["10000"]

    await eventually(is_followed, "the slot is as large as the pod")
    await space.create(job("next", cpu="8", pool="single"))
    await space.until_state("next", "Pending", "Reserved")
    await space.delete("elastic", PODS)
    await space.until_job("next")


async def test_a_job_on_one_node_returns_the_slots_of_the_pods_that_it_gives_up(
    space: Space,
) -> None:
    """Its pods come without a gate. A policy refuses to make it larger (``test_gate_policy``)."""
    await space.create(job("x", pods=4, cpu="4", completions=4, **SINGLE))
    await until_running(space, "x", 4)
    stored = await space.client.get(JOBS, space.name, "x")
    assert pinned_node(stored) is not None
    await change(space, "x", parallelism=1)
    await until_held(space, 1)
    await until_size(space, "x", 1)

    async def is_shown() -> bool:
        found = (await space.fluxjob("x") or {})["status"]["R"]["attributes"]["fluxqueue"]
        return len(read_idset(found.get("returned", ""))) == 3

    await eventually(is_shown, "R says which slots were returned")
    await space.create(job("next", cpu="12", **SINGLE))
    await until_running(space, "next", 1)
    await space.delete("x")
    await space.delete("next")
    await until_held(space, 0)


async def test_an_indexed_job_that_changes_its_mind_runs_in_its_own_slots(space: Space) -> None:
    """Its template names the nodes of its indexes. What waits gets none of them meanwhile."""
    many = {"completionMode": "Indexed", "run": FOR_EVER, "pool": "main"}
    await space.create(job("x", pods=4, cpu="12", **many))
    await until_running(space, "x", 4)
    await change(space, "x", parallelism=2, completions=2)
    await until_running(space, "x", 2)
    await space.create(job("next", pods=2, cpu="12", **many))
    await space.until_state("next", "Pending", "Reserved")
    await change(space, "x", parallelism=4, completions=4)
    await until_running(space, "x", 4)
    await until_held(space, 4)
    await space.until_state("next", "Pending", "Reserved")
    await space.delete("x")
    await until_running(space, "next", 2)
    await space.delete("next")
    await until_held(space, 0)
