"""Objects of providers in fluxqueue's own namespace, and the pod that takes one whole new node.

``placeholder`` and ``template_objects`` use both. Each object bears the name of its pool and the
number of its request. Calls that come twice, or after a crash, do no harm.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from fluxqueue.errors import Conflict, NotFound
from fluxqueue.fluxjob.request import CPU, DEVICE_CLASS_PREFIX, Taint
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import ApiResource
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


@dataclass(frozen=True, slots=True)
class OwnObjects:
    """The objects of one kind in fluxqueue's own namespace."""

    client: KubeClient
    namespace: str
    resource: ApiResource

    async def find(self, pool: NodePool | None = None) -> dict[str, Object]:
        """Return those of a pool by name, or of all pools."""
        selector = labels.NODE_POOL if pool is None else f"{labels.NODE_POOL}={pool.name}"
        found = await self.client.list(self.resource, self.namespace, label_selector=selector)
        return {one["metadata"]["name"]: one for one in found.items}

    async def create(
        self, pool: NodePool, name: str, number: int, body: Object, **meta: Any
    ) -> None:
        """Create an object for a request, unless it exists or its predecessor is about to go."""
        own = {labels.NODE_POOL: pool.name, REQUEST: str(number), **meta.pop("labels", {})}
        kind = {"apiVersion": self.resource.api_version, "kind": self.resource.kind}
        whole = {**kind, "metadata": {"name": name, "labels": own, **meta}, **body}
        try:
            await self.client.create(self.resource, self.namespace, whole, metadata_only=True)
        except Conflict:
            return

    async def delete(self, found: Object, grace_s: int | None = None) -> None:
        """Delete an object, unless it goes already."""
        meta = found["metadata"]
        if meta.get("deletionTimestamp"):
            return
        at = (self.resource, self.namespace, meta["name"])
        try:
            await self.client.delete(*at, uid=meta["uid"], grace_s=grace_s)
        except (NotFound, Conflict):
            return


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
