"""Scaling: one replica of a named object stands for one node of the pool.

It uses the subresource ``scale``, as ``kubectl scale`` does. MachineDeployments, MachinePools and
MachineSets of Cluster API have it, and so do the objects of other projects.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping

from fluxqueue.errors import ApiError, NotFound
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.resources import NODES, ApiResource
from fluxqueue.nodepools.plan.node_orders import PoolOrder
from fluxqueue.nodepools.pool import NodePool

logger = logging.getLogger(__name__)

MACHINES = ApiResource("cluster.x-k8s.io", "v1beta1", "machines", "Machine", namespaced=True)
MACHINE, MACHINE_NAMESPACE = "cluster.x-k8s.io/machine", "cluster.x-k8s.io/cluster-namespace"
"""Annotations of a node that Cluster API has made."""
DELETE_MACHINE = "cluster.x-k8s.io/delete-machine"
"""Annotation of a Machine: it goes first when its set is scaled down."""


class Scale:
    """The provider ``scale``."""

    async def apply(
        self, client: KubeClient, order: PoolOrder, namespace: str
    ) -> Mapping[int, str]:
        """Set the replicas to the nodes that the pool has and those that have yet to come.

        The number falls only if a request ended before its nodes came, or for nodes that must be
        returned. Any other surplus was made by another program or by a person, and stays.
        """
        del namespace  # the object has its own
        if not order.open and not order.ended and not order.returning:
            return {}
        # A node that is not marked stays. Otherwise another one could be taken in its place.
        going = [node for node in order.returning if await _mark(client, node)]
        resource, at = scaled_object(order.pool)
        try:
            found = await client.get(resource, *at, subresource="scale")
        except NotFound as error:  # it brings nothing, so nothing has to be taken back
            return {one.number: str(error) for one in order.open}
        now = int((found.get("spec") or {}).get("replicas") or 0)
        kept = len(order.present) - len(going)
        most = max(order.pool.most, kept)  # a smaller maximum removes no node
        wanted = min(most, max(order.pool.least, kept + order.coming))
        if wanted > now or (wanted < now and (order.ended or going)):
            body = {"spec": {"replicas": wanted}}
            await client.patch(resource, *at, body, kind=PatchKind.MERGE, subresource="scale")
            extra = {"action": "scale", "pool": order.pool.name, "from": now, "to": wanted}
            logger.info("node pool scaled", extra=extra)
        return {}


async def _mark(client: KubeClient, name: str) -> bool:
    """Cordon a node that is to go, and mark its Machine. Return whether both are done."""
    try:
        await _mark_both(client, name)
    except NotFound:
        return True  # it is gone
    except ApiError as error:
        extra = {"action": "scale", "node": name, "error": str(error)}
        logger.warning("node stays, because it cannot be marked", extra=extra)
        return False
    return True


async def _mark_both(client: KubeClient, name: str) -> None:
    node = await client.get(NODES, None, name)
    notes = node["metadata"].get("annotations") or {}
    machine, namespace = notes.get(MACHINE), notes.get(MACHINE_NAMESPACE)
    if machine and namespace:
        body = {"metadata": {"annotations": {DELETE_MACHINE: "yes"}}}
        await client.patch(MACHINES, namespace, machine, body, metadata_only=True)
    if not node["spec"].get("unschedulable"):
        cordon = {"spec": {"unschedulable": True}}
        await client.patch(NODES, None, name, cordon, metadata_only=True)


def scaled_object(pool: NodePool) -> tuple[ApiResource, tuple[str | None, str]]:
    """Return the resource of the object that is scaled, and where it is."""
    said = pool.parameters
    group, _, version = str(said["apiVersion"]).rpartition("/")
    namespace = said.get("namespace") or None
    resource = ApiResource(group, version, said["resource"], "Scale", namespace is not None)
    return resource, (namespace, said["name"])
