"""One object and one PodTemplate for each request, in fluxqueue's own namespace.

The object says how many nodes are wanted, and the template has the shape of a node. Both are
deleted when the request has ended. cluster-autoscaler adds all nodes of a ProvisioningRequest at
once, or none. It and Karpenter keep as many empty nodes as the pods of a CapacityBuffer need.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Mapping
from typing import Any

from fluxqueue.errors import Conflict, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import POD_TEMPLATES, PROVISIONING_REQUESTS, ApiResource
from fluxqueue.nodepools.cluster.placeholder import REQUEST, whole_node
from fluxqueue.nodepools.plan.node_orders import OrderedNodes, PoolOrder
from fluxqueue.nodepools.pool import NodePool
from fluxqueue.workload import labels
from fluxqueue.workload.objects import Object

GROUP, VERSION = "autoscaling.x-k8s.io", "v1beta1"

FAILED, REVOKED, EXPIRED = "Failed", "CapacityRevoked", "BookingExpired"
"""Conditions after which the autoscaler brings no further nodes."""


class TemplateObjects(ABC):
    """A provider with such objects."""

    @abstractmethod
    def resource(self, pool: NodePool) -> ApiResource:
        """Return the resource of the objects."""

    @abstractmethod
    def spec(self, pool: NodePool, one: OrderedNodes, template: str) -> dict[str, Any]:
        """Return the spec of the object for a request. ``template``: name of the PodTemplate."""

    @abstractmethod
    def why_failed(self, found: Object, one: OrderedNodes) -> str:
        """Return why no further nodes come for a request, empty if they still may."""

    async def apply(
        self, client: KubeClient, order: PoolOrder, namespace: str
    ) -> Mapping[int, str]:
        """Create the objects of new requests, and delete those that no request has."""
        resource = self.resource(order.pool)
        wanted = {object_name(order.pool, one): one for one in order.open}
        try:
            there = await _find(client, resource, namespace, order.pool)
        except NotFound as error:  # no definition is installed, so nothing was asked for
            return {one.number: str(error) for one in order.open}
        templates = await _find(client, POD_TEMPLATES, namespace, order.pool)
        # A template goes after its object, because the autoscaler reads both.
        for kind, found in ((resource, there), (POD_TEMPLATES, templates)):
            for name in sorted(found.keys() - wanted.keys()):
                await _delete(client, kind, namespace, found[name])
        refused = {}
        for name, one in wanted.items():
            if name in there:
                why = self.why_failed(there[name], one)
                if why:
                    refused[one.number] = why
            elif one.coming:
                await self._create(client, order, one, namespace)
        return refused

    async def _create(
        self, client: KubeClient, order: PoolOrder, one: OrderedNodes, namespace: str
    ) -> None:
        """Create a template, then its object. A crash in between is repaired by the next call."""
        for resource, body in (
            (POD_TEMPLATES, pod_template(order.pool, one, order.present)),
            (self.resource(order.pool), self.body(order.pool, one)),
        ):
            try:
                await client.create(resource, namespace, body, metadata_only=True)
            except Conflict:
                continue  # it exists, or its predecessor is about to go

    def body(self, pool: NodePool, one: OrderedNodes) -> dict[str, Any]:
        """Return the object that asks for the nodes of a request that have yet to come."""
        resource = self.resource(pool)
        return {
            "apiVersion": resource.api_version,
            "kind": resource.kind,
            "metadata": _meta(pool, one),
            "spec": self.spec(pool, one, object_name(pool, one)),
        }


async def _find(
    client: KubeClient, resource: ApiResource, namespace: str, pool: NodePool
) -> dict[str, Object]:
    selector = f"{labels.NODE_POOL}={pool.name}"
    found = (await client.list(resource, namespace, label_selector=selector)).items
    return {one["metadata"]["name"]: one for one in found}


async def _delete(client: KubeClient, resource: ApiResource, namespace: str, found: Object) -> None:
    meta = found["metadata"]
    if meta.get("deletionTimestamp"):
        return
    try:
        await client.delete(resource, namespace, meta["name"], uid=meta["uid"])
    except (NotFound, Conflict):
        return


def object_name(pool: NodePool, one: OrderedNodes) -> str:
    """Return the name of both objects of a request."""
    return f"{pool.name}-{one.number}"


def _meta(pool: NodePool, one: OrderedNodes) -> dict[str, Any]:
    own = {labels.NODE_POOL: pool.name, REQUEST: str(one.number)}
    return {"name": object_name(pool, one), "labels": own}


def pod_template(pool: NodePool, one: OrderedNodes, present: tuple[str, ...]) -> dict[str, Any]:
    """Return the template for the nodes of a request. ``present``: the nodes of the pool."""
    own = {labels.NODE_POOL: pool.name, labels.MANAGED: "false"}
    return {
        "apiVersion": POD_TEMPLATES.api_version,
        "kind": POD_TEMPLATES.kind,
        "metadata": _meta(pool, one),
        "template": {"metadata": {"labels": own}, "spec": whole_node(pool, present)},
    }


class ProvisioningRequest(TemplateObjects):
    """The provider ``provisioningRequest``."""

    def resource(self, pool: NodePool) -> ApiResource:
        """Return ProvisioningRequests."""
        del pool
        return PROVISIONING_REQUESTS

    def spec(self, pool: NodePool, one: OrderedNodes, template: str) -> dict[str, Any]:
        """Return a spec for the nodes that have yet to come."""
        said = pool.parameters
        pods = {"podTemplateRef": {"name": template}, "count": one.coming}
        parameters = {"parameters": dict(said["parameters"])} if said.get("parameters") else {}
        return {
            "provisioningClassName": said["provisioningClassName"],
            "podSets": [pods],
            **parameters,
        }

    def why_failed(self, found: Object, one: OrderedNodes) -> str:
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


class CapacityBuffer(TemplateObjects):
    """The provider ``capacityBuffer``."""

    def resource(self, pool: NodePool) -> ApiResource:
        """Return CapacityBuffers in the version that the pool names."""
        version = str(pool.parameters.get("version") or VERSION)
        return ApiResource(GROUP, version, "capacitybuffers", "CapacityBuffer", True)

    def spec(self, pool: NodePool, one: OrderedNodes, template: str) -> dict[str, Any]:
        """Return a spec for all nodes of a request. Those that have come count as empty."""
        strategy = pool.parameters.get("provisioningStrategy")
        own = {"provisioningStrategy": strategy} if strategy else {}
        return {"podTemplateRef": {"name": template}, "replicas": one.count, **own}

    def why_failed(self, found: Object, one: OrderedNodes) -> str:
        """Return nothing: a buffer does not fail. Its nodes are late."""
        del found, one
        return ""
