"""Placeholders: pods with the shape of a node, which an autoscaler adds nodes for.

cluster-autoscaler and Karpenter act on unschedulable pods. A job's own pods are gated or do not
exist yet, so each node that is asked for has a pod of a low priority instead. It holds its node
until the job starts. Then it is deleted, and kube-scheduler may preempt it before that.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any

from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import PODS
from fluxqueue.nodepools.cluster.own_objects import OwnObjects, whole_node
from fluxqueue.nodepools.plan.node_orders import OrderedNodes, PoolOrder
from fluxqueue.nodepools.pool import NodePool
from fluxqueue.workload import labels
from fluxqueue.workload.objects import Object


class Placeholder:
    """The provider ``placeholder``."""

    async def apply(
        self, client: KubeClient, order: PoolOrder, namespace: str
    ) -> Mapping[int, str]:
        """Create the placeholders that are missing, and delete those that no request has."""
        pods = OwnObjects(client, namespace, PODS)
        there = await pods.find(order.pool)
        wanted = {name for one in order.open for name in _names(order.pool.name, one)}
        # A node that no request waits for is free: the pods of a job need the place by now.
        free = set(order.present) - {node for one in order.open for node in one.arrived}
        for name, pod in sorted(there.items()):
            if name not in wanted or pod["spec"].get("nodeName") in free:
                await pods.delete(pod, grace_s=0)
        for one in order.open:
            for name in _missing(order.pool, one, there):
                notes = dict(order.pool.parameters.get("annotations") or {})
                unmanaged = {labels.MANAGED: "false"}
                spec = {"spec": placeholder_spec(order.pool, order.present)}
                await pods.create(
                    *(order.pool, name, one.number, spec), labels=unmanaged, annotations=notes
                )
        return {}

    async def sweep(self, client: KubeClient, pools: Collection[str], namespace: str) -> None:
        """Delete the placeholders of all pools but ``pools``. The others were deleted, or changed.

        Their rows say nothing of a provider any more.
        """
        pods = OwnObjects(client, namespace, PODS)
        for pod in (await pods.find()).values():
            if pod["metadata"]["labels"][labels.NODE_POOL] not in pools:
                await pods.delete(pod, grace_s=0)


def _names(pool: str, one: OrderedNodes) -> list[str]:
    return [f"{pool}-{one.number}-{index}" for index in range(one.count)]


def _missing(pool: NodePool, one: OrderedNodes, there: Mapping[str, Object]) -> list[str]:
    """Return the placeholders to create for a request: as many as nodes have yet to come."""
    names = _names(pool.name, one)
    # Those on a node hold it. If one of them was preempted, its node needs no other.
    unbound = [n for n in names if n in there and not there[n]["spec"].get("nodeName")]
    missing = [name for name in names if name not in there]
    return missing[: max(0, one.coming - len(unbound))]


def placeholder_spec(pool: NodePool, present: tuple[str, ...]) -> dict[str, Any]:
    """Return the spec of a pod that holds a place on a new node of ``pool``."""
    said, spec = pool.parameters, whole_node(pool, present)
    if said.get("image"):
        spec["containers"][0]["image"] = said["image"]
    if said.get("priorityClassName"):
        spec["priorityClassName"] = said["priorityClassName"]
    return spec
