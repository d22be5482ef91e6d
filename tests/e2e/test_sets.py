"""Deployments, ReplicaSets and StatefulSets that ask to be queued: grown, shrunk, rolled."""

from __future__ import annotations

from collections import Counter
from typing import Any

import pytest

from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import (
    DEPLOYMENTS,
    FLUXJOBS,
    PODS,
    REPLICASETS,
    STATEFULSETS,
    Resource,
)
from tests.e2e.space import Space
from tests.support.waiting import eventually

Obj = dict[str, Any]

ASKS = {"fluxqueue/managed": "true"}
NEVER_ENDS = {"localcluster/never-ends": "true"}


def a_set(resource: Resource, name: str, *, replicas: int, cpu: str = "1", **spec: Any) -> Obj:
    """A set of the pool ``main`` whose pods ask to be queued."""
    app = {"app": name}
    pod_spec: Obj = {
        "nodeSelector": {"pool": "main"},
        "terminationGracePeriodSeconds": 1,
        "containers": [{"name": "m", "image": "none", "resources": {"requests": {"cpu": cpu}}}],
    }
    return {
        "apiVersion": "apps/v1",
        "kind": resource.kind,
        "metadata": {"name": name},
        "spec": {
            "replicas": replicas,
            "selector": {"matchLabels": app},
            **spec,
            "template": {
                "metadata": {"labels": app | ASKS, "annotations": NEVER_ENDS},
                "spec": pod_spec,
            },
        },
    }


async def until_running(space: Space, count: int) -> list[Obj]:
    """Until exactly so many pods are there, and all of them run."""

    async def look() -> list[Obj] | None:
        pods = (await space.client.list(PODS, space.name)).items
        phases = Counter(pod["status"].get("phase", "Pending") for pod in pods)
        return pods if phases == {"Running": count} else None

    return await eventually(look, what=f"{count} pods run")


async def until_held(space: Space, count: int) -> None:
    """Until so many slots are anybody's in this namespace."""
    sql = (
        "SELECT count(*) AS n FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id"
        " JOIN fluxjobs f USING (uid) WHERE f.namespace = :namespace AND s.state <> 'returned'"
    )

    async def look() -> bool:
        (row,) = await space.world.rows(sql, namespace=space.name)
        return bool(row["n"] == count)

    await eventually(look, what=f"{count} slots are held")


async def scale(space: Space, resource: Resource, name: str, replicas: int) -> None:
    body = {"spec": {"replicas": replicas}}
    await space.client.patch(resource, space.name, name, body, kind=PatchKind.MERGE)


@pytest.mark.parametrize("resource", [DEPLOYMENTS, REPLICASETS, STATEFULSETS])
async def test_a_set_is_one_fluxjob_that_grows_and_shrinks(
    space: Space, resource: Resource
) -> None:
    """Each pod where its slot is; a pod that leaves gives its slot back; the set leaves nothing."""
    await space.client.create(resource, space.name, a_set(resource, "web", replicas=2))
    await until_running(space, 2)
    (fluxjob,) = (await space.client.list(FLUXJOBS, space.name)).items
    assert fluxjob["metadata"]["name"] == f"web-{resource.kind.lower()}"
    await scale(space, resource, "web", 4)
    await until_running(space, 4)
    await until_held(space, 4)
    await scale(space, resource, "web", 1)
    await until_running(space, 1)
    await until_held(space, 1)
    await space.delete("web", resource)
    await space.until_gone(FLUXJOBS, fluxjob["metadata"]["name"])
    await until_held(space, 0)


async def test_a_rollout_on_a_full_cluster_goes_on(space: Space) -> None:
    """What an old pod gives back the new one takes; nobody waits for a room that never comes."""
    made = a_set(DEPLOYMENTS, "full", replicas=4, cpu="16")
    await space.client.create(DEPLOYMENTS, space.name, made)
    await until_running(space, 4)
    changed = {"spec": {"template": {"metadata": {"annotations": {"version": "2"}}}}}
    await space.client.patch(DEPLOYMENTS, space.name, "full", changed, kind=PatchKind.MERGE)

    async def is_rolled() -> bool:
        pods = (await space.client.list(PODS, space.name)).items
        new = [one for one in pods if one["metadata"]["annotations"].get("version") == "2"]
        return [one["status"]["phase"] for one in new] == ["Running"] * 4 and len(pods) == 4

    await eventually(is_rolled, what="the rollout is over")
    await space.delete("full", DEPLOYMENTS)
    await until_held(space, 0)


async def test_a_set_that_does_not_ask_is_left_alone(space: Space) -> None:
    made = a_set(DEPLOYMENTS, "free", replicas=2)
    del made["spec"]["template"]["metadata"]["labels"]["fluxqueue/managed"]
    await space.client.create(DEPLOYMENTS, space.name, made)
    pods = await until_running(space, 2)
    assert not any(pod["spec"].get("schedulingGates") for pod in pods)
    assert not (await space.client.list(FLUXJOBS, space.name)).items
    await space.delete("free", DEPLOYMENTS)
