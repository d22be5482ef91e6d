"""Deployments and StatefulSets, and what their tests wait for."""

from __future__ import annotations

from typing import Any

from fluxqueue.kube.resources import ApiResource
from tests.support.e2e.objects import Obj
from tests.support.e2e.space import Space
from tests.support.waiting import eventually

ASKS = {"fluxqueue/managed": "true"}
NEVER_ENDS = {"localcluster/never-ends": "true"}


def a_set(resource: ApiResource, name: str, *, replicas: int, cpu: str = "1", **spec: Any) -> Obj:
    """A set of the pool ``main`` with pods that ask to be queued."""
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


async def until_held(space: Space, count: int) -> None:
    """Until so many slots belong to pods in this namespace."""
    sql = (
        "SELECT count(*) AS n FROM allocation_slots s JOIN allocations a ON a.id = s.allocation_id"
        " JOIN fluxjobs f USING (uid) WHERE f.namespace = :namespace AND s.state <> 'returned'"
    )

    async def look() -> bool:
        (row,) = await space.world.rows(sql, namespace=space.name)
        return bool(row["n"] == count)

    await eventually(look, what=f"{count} slots are held")
