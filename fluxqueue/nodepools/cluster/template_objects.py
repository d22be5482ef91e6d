"""One object and one PodTemplate for each request, in fluxqueue's own namespace.

The object says how many nodes are wanted, and the template has the shape of a node. Both are
deleted when the request has ended. cluster-autoscaler adds all nodes of a ProvisioningRequest at
once, or none. It and Karpenter keep as many empty nodes as the pods of a CapacityBuffer need. A
buffer is filled again when its nodes are used, so it goes as soon as its job starts.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from fluxqueue.errors import NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import POD_TEMPLATES, PROVISIONING_REQUESTS, ApiResource
from fluxqueue.nodepools.cluster.own_objects import OwnObjects, whole_node
from fluxqueue.nodepools.plan.node_orders import OrderedNodes, PoolOrder
from fluxqueue.nodepools.pool import NodePool
from fluxqueue.workload import labels
from fluxqueue.workload.objects import Object

GROUP, VERSION = "autoscaling.x-k8s.io", "v1beta1"

FAILED, REVOKED, EXPIRED = "Failed", "CapacityRevoked", "BookingExpired"
"""Conditions after which the autoscaler brings no further nodes."""


def _never(found: Object, one: OrderedNodes) -> str:
    """Say that a request cannot fail. Its nodes are late."""
    del found, one
    return ""


@dataclass(frozen=True, slots=True)
class TemplateObjects:
    """A provider with such objects.

    ``resource``: that of the objects of a pool. ``spec``: that of the object for a request. It also
    receives the name of the PodTemplate. ``why_failed``: why no further nodes come for a request,
    empty if they still may.
    """

    resource: Callable[[NodePool], ApiResource]
    spec: Callable[[NodePool, OrderedNodes, str], dict[str, Any]]
    why_failed: Callable[[Object, OrderedNodes], str] = _never

    async def apply(
        self, client: KubeClient, order: PoolOrder, namespace: str
    ) -> Mapping[int, str]:
        """Create the objects of new requests, and delete those that no request has."""
        pool = order.pool
        objects = OwnObjects(client, namespace, self.resource(pool))
        templates = OwnObjects(client, namespace, POD_TEMPLATES)
        wanted = {f"{pool.name}-{one.number}": one for one in order.open}
        try:
            there = await objects.find(pool)
        except NotFound as error:  # no definition is installed, so nothing was asked for
            return {one.number: str(error) for one in order.open}
        # A template goes after its object, because the autoscaler reads both.
        for kind, found in ((objects, there), (templates, await templates.find(pool))):
            for name in sorted(found.keys() - wanted.keys()):
                await kind.delete(found[name])
        refused = {}
        for name, one in wanted.items():
            if name in there:
                why = self.why_failed(there[name], one)
                if why:
                    refused[one.number] = why
            elif one.coming:
                # A crash in between is repaired by the next call.
                template = {"template": _template(pool, order.present)}
                await templates.create(pool, name, one.number, template)
                spec = {"spec": self.spec(pool, one, name)}
                await objects.create(pool, name, one.number, spec)
        return refused


def _template(pool: NodePool, present: tuple[str, ...]) -> dict[str, Any]:
    """Return the pod of a template for new nodes. ``present``: the nodes of the pool."""
    own = {labels.NODE_POOL: pool.name, labels.MANAGED: "false"}
    return {"metadata": {"labels": own}, "spec": whole_node(pool, present)}


def request_spec(pool: NodePool, one: OrderedNodes, template: str) -> dict[str, Any]:
    """Return the spec of a ProvisioningRequest for the nodes that have yet to come.

    It cannot change, so each request of ours has an object of its own.
    """
    said = pool.parameters
    pods = {"podTemplateRef": {"name": template}, "count": one.coming}
    parameters = {"parameters": dict(said["parameters"])} if said.get("parameters") else {}
    return {
        "provisioningClassName": said["provisioningClassName"],
        "podSets": [pods],
        **parameters,
    }


def why_request_failed(found: Object, one: OrderedNodes) -> str:
    """Return the words of a condition after which no further nodes come.

    A booking that expires after all nodes have come changes nothing: they are held by then.
    """
    told: dict[str, Mapping[str, Any]] = {
        each["type"]: each
        for each in (found.get("status") or {}).get("conditions") or ()
        if each.get("status") == "True"
    }
    for kind in (FAILED, REVOKED, EXPIRED):
        if kind in told and (kind != EXPIRED or one.coming):
            reason, message = told[kind].get("reason", ""), told[kind].get("message", "")
            return f"{kind}: {message or reason}"
    return ""


def buffers(pool: NodePool) -> ApiResource:
    """Return CapacityBuffers in the version that the pool names."""
    version = str(pool.parameters.get("version") or VERSION)
    return ApiResource(GROUP, version, "capacitybuffers", "CapacityBuffer", True)


def buffer_spec(pool: NodePool, one: OrderedNodes, template: str) -> dict[str, Any]:
    """Return a spec for all nodes of a request. Those that have come count as empty."""
    strategy = pool.parameters.get("provisioningStrategy")
    own = {"provisioningStrategy": strategy} if strategy else {}
    return {"podTemplateRef": {"name": template}, "replicas": one.count, **own}


PROVISIONING_REQUEST = TemplateObjects(
    lambda _: PROVISIONING_REQUESTS, request_spec, why_request_failed
)
CAPACITY_BUFFER = TemplateObjects(buffers, buffer_spec)
