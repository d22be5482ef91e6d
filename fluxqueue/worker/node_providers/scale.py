"""Scaling: one replica of a named object stands for one node of the pool.

It uses the subresource ``scale``, as ``kubectl scale`` does. MachineDeployments, MachinePools and
MachineSets of Cluster API have it, and so do the objects of other projects.
"""

from __future__ import annotations

import logging

from fluxqueue.db.store.node_pools import PoolOrder
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.resources import ApiResource
from fluxqueue.policy.node_pool import NodePool

logger = logging.getLogger(__name__)


class Scale:
    """The provider ``scale``."""

    async def apply(self, client: KubeClient, order: PoolOrder, namespace: str) -> None:
        """Set the replicas to the nodes that the pool has and those that have yet to come.

        The number falls only if a request ended before its nodes came. Any other surplus was made
        by another program or by a person, and stays.
        """
        del namespace  # the object has its own
        if not order.open and not order.ended:
            return
        resource, at = scaled_object(order.pool)
        found = await client.get(resource, *at, subresource="scale")
        now = int((found.get("spec") or {}).get("replicas") or 0)
        wanted = max(order.pool.least, len(order.present) + order.coming)
        wanted = min(order.pool.most, wanted)
        if wanted > now or (wanted < now and order.ended):
            body = {"spec": {"replicas": wanted}}
            await client.patch(resource, *at, body, kind=PatchKind.MERGE, subresource="scale")
            extra = {"action": "scale", "pool": order.pool.name, "from": now, "to": wanted}
            logger.info("node pool scaled", extra=extra)


def scaled_object(pool: NodePool) -> tuple[ApiResource, tuple[str | None, str]]:
    """Return the resource of the object that is scaled, and where it is."""
    said = pool.parameters
    group, _, version = str(said["apiVersion"]).rpartition("/")
    namespace = said.get("namespace") or None
    resource = ApiResource(group, version, said["resource"], "Scale", namespace is not None)
    return resource, (namespace, said["name"])
