"""WorkloadPriorityClasses of Kueue: off without their definition, followed where there is one."""

from __future__ import annotations

from typing import Any

from fluxqueue.controller.observing.workload_classes import WorkloadClassWatch
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.discovery import find_served
from fluxqueue.kube.resources import CRDS, WORKLOAD_CLASSES, ApiResource
from localcluster import LocalCluster
from tests.support.clusters import config_of
from tests.support.waiting import eventually, until
from tests.support.workers import QUIET

CLASSES = ApiResource(
    "kueue.x-k8s.io", "v1beta1", "workloadpriorityclasses", "WorkloadPriorityClass", False
)


def definition() -> dict[str, Any]:
    """The definition, as Kueue leaves it."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"plural": CLASSES.plural, "kind": CLASSES.kind, "singular": CLASSES.kind.lower()}
    version = {"name": "v1beta1", "served": True, "storage": True}
    annotations = {"api-approved.kubernetes.io": "https://example.org/approved"}
    return {
        "metadata": {"name": CLASSES.key, "annotations": annotations},
        "spec": {
            "group": CLASSES.group,
            "scope": "Cluster",
            "names": names,
            "versions": [{**version, "schema": {"openAPIV3Schema": schema}}],
        },
    }


async def test_values_of_kueues_classes() -> None:
    """None without the definition. Then each value as it changes, and none for other texts."""
    async with LocalCluster(QUIET) as cluster, KubeClient(config_of(cluster)) as client:
        watch = WorkloadClassWatch(client)
        await watch.look()
        assert watch.values() == {}
        await client.create(CRDS, None, definition())

        await until(
            lambda: find_served(client, WORKLOAD_CLASSES),
            lambda found: found != [],
            "the definition served",
        )
        for name, value in (("urgent", 100), ("odd", "soon")):
            kind = {"apiVersion": CLASSES.api_version, "kind": CLASSES.kind}
            body = {**kind, "metadata": {"name": name}, "value": value}
            await client.create(CLASSES, None, body)
        await watch.look()
        assert watch.values() == {"workload:urgent": 100}
        await client.patch(CLASSES, None, "urgent", {"value": 200})

        await eventually(lambda: watch.values() == {"workload:urgent": 200}, "the new value")
        await client.delete(CRDS, None, CLASSES.key)

        async def is_gone() -> bool:
            return await find_served(client, WORKLOAD_CLASSES) == []

        await eventually(is_gone, "the definition gone")
        await watch.look()
        assert watch.values() == {}
        await watch.stop()
