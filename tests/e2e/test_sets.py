"""Deployments, ReplicaSets and StatefulSets that ask to be queued: grown, shrunk, rolled."""

from __future__ import annotations

from collections import Counter

import pytest

from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import (
    DAEMONSETS,
    DEPLOYMENTS,
    FLUXJOBS,
    PODS,
    REPLICASETS,
    STATEFULSETS,
    ApiResource,
)
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod
from tests.support.e2e.replica_sets import ASKS, a_set, until_held
from tests.support.e2e.space import Space, make_space, remove_space
from tests.support.e2e.world import World, late_node
from tests.support.waiting import eventually


async def until_running(space: Space, count: int) -> list[Obj]:
    """Until exactly so many pods are there, and all of them run."""

    async def look() -> list[Obj] | None:
        pods = (await space.client.list(PODS, space.name)).items
        phases = Counter(pod["status"].get("phase", "Pending") for pod in pods)
        return pods if phases == {"Running": count} else None

    return await eventually(look, what=f"{count} pods run")


async def scale(space: Space, resource: ApiResource, name: str, replicas: int) -> None:
    body = {"spec": {"replicas": replicas}}
    await space.client.patch(resource, space.name, name, body, kind=PatchKind.MERGE)


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize("resource", [DEPLOYMENTS, REPLICASETS, STATEFULSETS])
async def test_a_set_is_one_fluxjob_that_grows_and_shrinks(
    space: Space, resource: ApiResource
) -> None:
    """Each pod where its slot is. A pod that leaves gives its slot back. The set leaves nothing."""
    made = await space.client.create(resource, space.name, a_set(resource, "web", replicas=2))
    await until_running(space, 2)

    async def is_told() -> bool:
        found = await space.events_on(made["metadata"]["uid"])
        return "Started" in [one["reason"] for one in found]

    await eventually(is_told, "the set's own Events tell the story")
    (fluxjob,) = (await space.client.list(FLUXJOBS, space.name)).items
    assert fluxjob["metadata"]["name"] == f"web-{resource.kind.lower()}"
    shown = fluxjob["spec"]["workload"]
    assert (shown["apiVersion"], shown["kind"], shown["name"]) == ("apps/v1", resource.kind, "web")
    await scale(space, resource, "web", 4)
    await until_running(space, 4)
    await until_held(space, 4)
    await scale(space, resource, "web", 1)
    await until_running(space, 1)
    await until_held(space, 1)
    await space.delete("web", resource)
    await space.until_gone(FLUXJOBS, fluxjob["metadata"]["name"])
    await until_held(space, 0)


def version(number: int) -> Obj:
    """A change of the template, which begins a rollout."""
    return {"spec": {"template": {"metadata": {"annotations": {"version": str(number)}}}}}


def rolling(**limits: int) -> Obj:
    return {"strategy": {"type": "RollingUpdate", "rollingUpdate": limits}}


async def change(space: Space, resource: ApiResource, name: str, body: Obj) -> None:
    await space.client.patch(resource, space.name, name, body, kind=PatchKind.MERGE)


async def until_rolled(space: Space, number: int, count: int) -> None:
    """Until all pods are of a version, and run."""

    async def is_rolled() -> bool:
        pods = (await space.client.list(PODS, space.name)).items
        notes = [one["metadata"]["annotations"].get("version") for one in pods]
        phases = [one["status"].get("phase") for one in pods]
        return notes == [str(number)] * count and phases == ["Running"] * count

    await eventually(is_rolled, what=f"version {number} runs")


async def until_says(space: Space, words: str) -> Obj:
    """Until the only FluxJob says so."""

    async def look() -> Obj | None:
        found = (await space.client.list(FLUXJOBS, space.name)).items
        said = [one for one in found if words in (one.get("status") or {}).get("reason", "")]
        return said[0] if said else None

    return await eventually(look, what=words)


async def test_a_rollout_on_a_full_cluster_goes_on(space: Space) -> None:
    """What an old pod gives back the new one takes. No pod waits for a room that never comes."""
    made = a_set(DEPLOYMENTS, "full", replicas=4, cpu="16")
    await space.client.create(DEPLOYMENTS, space.name, made)
    await until_running(space, 4)
    await change(space, DEPLOYMENTS, "full", version(2))
    await until_rolled(space, 2, 4)
    await space.delete("full", DEPLOYMENTS)
    await until_held(space, 0)


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_a_surge_pod_on_a_full_cluster_waits_and_says_for_what(space: Space) -> None:
    """No old pod may go first, so the rollout waits, and so it does on any cluster. Each of the
    ways out that the FluxJob names is one: a pod of its own that goes, undoing it.
    """
    limits = rolling(maxUnavailable=0, maxSurge=1)
    made = a_set(DEPLOYMENTS, "tight", replicas=4, cpu="16", **limits)
    await space.client.create(DEPLOYMENTS, space.name, made)
    await until_running(space, 4)
    before = {pod["metadata"]["uid"] for pod in await until_running(space, 4)}
    await change(space, DEPLOYMENTS, "tight", version(2))
    said = await until_says(space, "1 of its pods waits for a slot: other work has to end")
    assert said["status"]["state"] == "Running"
    pods = (await space.client.list(PODS, space.name)).items
    (surge,) = [pod for pod in pods if pod["metadata"]["uid"] not in before]
    assert surge["spec"]["schedulingGates"] == [{"name": "fluxqueue"}]
    assert {pod["metadata"]["uid"] for pod in pods} > before

    await change(space, DEPLOYMENTS, "tight", version(1))  # as `kubectl rollout undo` does
    await change(space, DEPLOYMENTS, "tight", {"spec": {"paused": True}})
    await change(space, DEPLOYMENTS, "tight", version(3))
    await change(space, DEPLOYMENTS, "tight", {"spec": rolling(maxUnavailable=1, maxSurge=0)})
    await change(space, DEPLOYMENTS, "tight", {"spec": {"paused": False}})
    await until_rolled(space, 3, 4)
    await until_held(space, 4)
    await space.delete("tight", DEPLOYMENTS)
    await until_held(space, 0)


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize("resource", [DEPLOYMENTS, STATEFULSETS])
async def test_what_stands_of_a_set_is_matched_together(
    space: Space, resource: ApiResource
) -> None:
    """All or none of what is there when it is first seen. Those that come later as room comes."""
    await space.create(bare_pod("big", cpu="16", run=FOR_EVER, nodeSelector={"pool": "main"}))
    await space.until_state("big", "Running")
    more = {"podManagementPolicy": "Parallel"} if resource is STATEFULSETS else {}
    made = a_set(resource, "gang", replicas=4, cpu="16", **more)
    await space.client.create(resource, space.name, made)
    name = f"gang-{resource.kind.lower()}"

    async def waits() -> Obj | None:
        found = (await space.client.list(FLUXJOBS, space.name)).items
        its = [one for one in found if one["metadata"]["name"] == name]
        states = [one["status"].get("state") for one in its]
        return its[0] if states in (["Pending"], ["Reserved"]) and _size_of(its[0]) == 4 else None

    await eventually(waits, what="four wait together")
    assert len(await _running(space)) == 1
    await space.delete("big", PODS)
    await until_running(space, 4)
    await space.delete("gang", resource)
    await until_held(space, 0)


def _size_of(fluxjob: Obj) -> int:
    return int(fluxjob["spec"]["size"])


async def _running(space: Space) -> list[Obj]:
    pods = (await space.client.list(PODS, space.name)).items
    return [pod for pod in pods if pod["status"].get("phase") == "Running"]


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize("resource", [DEPLOYMENTS, REPLICASETS, STATEFULSETS])
async def test_a_label_on_the_set_itself_is_enough(space: Space, resource: ApiResource) -> None:
    made = a_set(resource, "web", replicas=2)
    made["spec"]["template"]["metadata"]["labels"].pop("fluxqueue/managed")
    made["metadata"]["labels"] = ASKS
    await space.client.create(resource, space.name, made)
    await until_running(space, 2)
    await until_held(space, 2)
    await space.delete("web", resource)
    await until_held(space, 0)


async def test_a_label_that_comes_later_has_the_set_queued(space: Space) -> None:
    """Its template changes, so its pods are made anew, and these are queued."""
    made = a_set(DEPLOYMENTS, "late", replicas=2)
    made["spec"]["template"]["metadata"]["labels"].pop("fluxqueue/managed")
    await space.client.create(DEPLOYMENTS, space.name, made)
    await until_running(space, 2)
    await until_held(space, 0)
    await change(space, DEPLOYMENTS, "late", {"metadata": {"labels": ASKS}})
    await until_held(space, 2)
    await until_running(space, 2)
    await space.delete("late", DEPLOYMENTS)
    await until_held(space, 0)


async def test_in_a_namespace_that_says_so_all_sets_are_queued(space: Space) -> None:
    """Those that say no are not, and DaemonSets never are."""
    managed = await make_space(space.world, {"fluxqueue/sets": "managed"})
    try:
        for name, labels in (("web", {}), ("free", {"fluxqueue/managed": "false"})):
            made = a_set(DEPLOYMENTS, name, replicas=1)
            its = made["spec"]["template"]["metadata"]["labels"]
            its.pop("fluxqueue/managed")
            its |= labels
            await managed.client.create(DEPLOYMENTS, managed.name, made)
        agent = a_set(DAEMONSETS, "agent", replicas=1)
        del agent["spec"]["replicas"]
        await managed.client.create(DAEMONSETS, managed.name, agent)
        pods = await until_running(managed, 6)
        asked = [pod for pod in pods if "fluxqueue/group" in pod["metadata"]["annotations"]]
        assert [pod["metadata"]["labels"]["app"] for pod in asked] == ["web"]
        (fluxjob,) = (await managed.client.list(FLUXJOBS, managed.name)).items
        assert fluxjob["metadata"]["name"] == "web-deployment"
        for name, resource in (("web", DEPLOYMENTS), ("free", DEPLOYMENTS), ("agent", DAEMONSETS)):
            await managed.delete(name, resource)
        await until_held(managed, 0)
    finally:
        await remove_space(managed)


async def test_an_evicted_pod_of_a_set_gets_its_slot_back(space: Space) -> None:
    """Its replacement takes what it gives back, on a full cluster as well."""
    made = a_set(STATEFULSETS, "db", replicas=4, cpu="16", podManagementPolicy="Parallel")
    await space.client.create(STATEFULSETS, space.name, made)
    pods = await until_running(space, 4)
    old = next(pod for pod in pods if pod["metadata"]["name"] == "db-2")
    eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": "db-2"}}
    path = PODS.path(space.name, "db-2", "eviction")
    await space.client.request("POST", path, body=eviction)

    async def is_replaced() -> bool:
        found = await _running(space)
        uids = {pod["metadata"]["uid"] for pod in found}
        return len(found) == 4 and old["metadata"]["uid"] not in uids

    await eventually(is_replaced, what="another runs in its place")
    await until_held(space, 4)
    await space.delete("db", STATEFULSETS)
    await until_held(space, 0)


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_pods_of_a_set_on_a_lost_node_are_made_anew_elsewhere(
    space: Space, late: World
) -> None:
    """What ran there gives its slots back when its pods are gone. Their successors get others."""
    await late.late_nodes.add(late_node(1, "4"))
    made = a_set(DEPLOYMENTS, "web", replicas=2, cpu="2")
    made["spec"]["template"]["spec"]["nodeSelector"] = {"pool": "late"}
    await space.client.create(DEPLOYMENTS, space.name, made)
    before = {pod["metadata"]["uid"] for pod in await until_running(space, 2)}
    await late.late_nodes.add(late_node(2, "4"))
    await late.late_nodes.fleet.remove("late-1")

    async def are_replaced() -> bool:
        found = await _running(space)
        return [pod["spec"]["nodeName"] for pod in found] == ["late-2"] * 2

    await eventually(are_replaced, what="two others run elsewhere")
    assert not before & {pod["metadata"]["uid"] for pod in await _running(space)}
    await until_held(space, 2)
    await space.delete("web", DEPLOYMENTS)
    await until_held(space, 0)


async def test_a_set_that_does_not_ask_is_left_alone(space: Space) -> None:
    made = a_set(DEPLOYMENTS, "free", replicas=2)
    del made["spec"]["template"]["metadata"]["labels"]["fluxqueue/managed"]
    await space.client.create(DEPLOYMENTS, space.name, made)
    pods = await until_running(space, 2)
    assert not any(pod["spec"].get("schedulingGates") for pod in pods)
    assert not (await space.client.list(FLUXJOBS, space.name)).items
    await space.delete("free", DEPLOYMENTS)
