"""Placeholders: pods with the shape of a node, which an autoscaler adds nodes for.

cluster-autoscaler and Karpenter act on unschedulable pods. A job's own pods are gated or do not
exist yet, so each node that is asked for has a pod of a low priority instead. It holds its node
until the job starts. Then it is deleted, and kube-scheduler may preempt it before that.
``template_objects`` describes such pods in templates, and no pod exists.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fluxqueue.errors import Conflict, NotFound
from fluxqueue.fluxjob.request import CPU, DEVICE_CLASS_PREFIX, Taint
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import PODS
from fluxqueue.nodepools.plan.node_orders import OrderedNodes, PoolOrder
from fluxqueue.nodepools.pool import NodePool
from fluxqueue.workload import labels
from fluxqueue.workload.objects import Object

IMAGE = "registry.k8s.io/pause:3.10"
REQUEST = "fluxqueue/node-request"
"""Label of an object of a provider: the number of its request."""
NOT_OF_CONTAINERS = frozenset({"pods"})
"""Resources of a node that no container asks for, beside devices of DRA.

An autoscaler finds the pool by all other resources and the labels. Few can judge devices.
"""
EXCLUDED_MAX = 500
"""The most present nodes that such a pod excludes by name."""


class Placeholder:
    """The provider ``placeholder``."""

    async def apply(
        self, client: KubeClient, order: PoolOrder, namespace: str
    ) -> Mapping[int, str]:
        """Create the placeholders that are missing, and delete those that no request has."""
        selector = f"{labels.NODE_POOL}={order.pool.name}"
        found = (await client.list(PODS, namespace, label_selector=selector)).items
        there = {pod["metadata"]["name"]: pod for pod in found}
        wanted = {name for one in order.open for name in _names(order.pool.name, one)}
        # A node that no request waits for is free: the pods of a job need the place by now.
        free = set(order.present) - {node for one in order.open for node in one.arrived}
        for name, pod in sorted(there.items()):
            if name not in wanted or pod["spec"].get("nodeName") in free:
                await _delete(client, namespace, pod)
        for one in order.open:
            await self._create(client, order, one, namespace, there)
        return {}

    async def sweep(self, client: KubeClient, pools: Collection[str], namespace: str) -> None:
        """Delete the placeholders of all pools but ``pools``. The others were deleted, or changed.

        Their rows say nothing of a provider any more.
        """
        found = (await client.list(PODS, namespace, label_selector=labels.NODE_POOL)).items
        for pod in found:
            if pod["metadata"]["labels"][labels.NODE_POOL] not in pools:
                await _delete(client, namespace, pod)

    async def _create(
        self,
        client: KubeClient,
        order: PoolOrder,
        one: OrderedNodes,
        namespace: str,
        there: Mapping[str, Object],
    ) -> None:
        """Create the placeholders of one request, as many as nodes have yet to come."""
        names = _names(order.pool.name, one)
        # Those on a node hold it. If one of them was preempted, its node needs no other.
        unbound = [n for n in names if n in there and not there[n]["spec"].get("nodeName")]
        missing = [name for name in names if name not in there]
        for name in missing[: max(0, one.coming - len(unbound))]:
            body = placeholder_pod(order.pool, name, one.number, order.present)
            try:
                await client.create(PODS, namespace, body, metadata_only=True)
            except Conflict:
                continue  # it exists, or its predecessor is about to go


async def _delete(client: KubeClient, namespace: str, pod: Object) -> None:
    meta = pod["metadata"]
    if meta.get("deletionTimestamp"):
        return
    try:
        await client.delete(PODS, namespace, meta["name"], uid=meta["uid"], grace_s=0)
    except (NotFound, Conflict):
        return


def _names(pool: str, one: OrderedNodes) -> list[str]:
    return [f"{pool}-{one.number}-{index}" for index in range(one.count)]


def placeholder_pod(
    pool: NodePool, name: str, number: int, present: tuple[str, ...]
) -> dict[str, Any]:
    """Return the pod that holds a place on a new node of ``pool``, as ``whole_node`` describes."""
    own = {labels.NODE_POOL: pool.name, REQUEST: str(number), labels.MANAGED: "false"}
    said = pool.parameters
    spec = whole_node(pool, present)
    if said.get("image"):
        spec["containers"][0]["image"] = said["image"]
    if said.get("priorityClassName"):
        spec["priorityClassName"] = said["priorityClassName"]
    meta = {"name": name, "labels": own, "annotations": dict(said.get("annotations") or {})}
    return {"apiVersion": "v1", "kind": "Pod", "metadata": meta, "spec": spec}


def whole_node(pool: NodePool, present: tuple[str, ...]) -> dict[str, Any]:
    """Return the spec of a pod that takes a new node of ``pool``.

    ``present``: the nodes that the pool has. The pod takes none of them, or no node would be added.
    """
    amounts = {
        resource: f"{amount}m" if resource == CPU else str(amount)
        for resource, amount in pool.capacity.items()
        if resource not in NOT_OF_CONTAINERS
        and not resource.startswith(DEVICE_CLASS_PREFIX)
        and amount
    }
    no_rights = {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }
    container = {
        "name": "placeholder",
        "image": IMAGE,
        "resources": {"requests": amounts, "limits": amounts},
        "securityContext": no_rights,
    }
    return {
        "containers": [container],
        "nodeSelector": dict(pool.labels),
        "tolerations": [_toleration(one) for one in pool.taints],
        "affinity": _affinity(pool.name, present),
        "terminationGracePeriodSeconds": 0,
        "automountServiceAccountToken": False,
        "securityContext": {
            "runAsNonRoot": True,
            "runAsUser": 65534,
            "seccompProfile": {"type": "RuntimeDefault"},
        },
    }


def _toleration(taint: Taint) -> dict[str, str]:
    return {
        "key": taint.key,
        "operator": "Equal",
        "value": taint.value,
        "effect": taint.effect,
    }


def _affinity(pool: str, present: tuple[str, ...]) -> dict[str, Any]:
    """Return the affinity of such a pod: one on each node, and none on a present node."""
    apart = {
        "labelSelector": {"matchLabels": {labels.NODE_POOL: pool}},
        "topologyKey": labels.HOSTNAME,
    }
    found: dict[str, Any] = {
        "podAntiAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": [apart]}
    }
    if present:
        others = [
            {"key": "metadata.name", "operator": "NotIn", "values": [name]}
            for name in present[:EXCLUDED_MAX]
        ]
        term = {"nodeSelectorTerms": [{"matchFields": others}]}
        found["nodeAffinity"] = {"requiredDuringSchedulingIgnoredDuringExecution": term}
    return found
