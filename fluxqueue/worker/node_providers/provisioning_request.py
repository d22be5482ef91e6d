"""ProvisioningRequests: cluster-autoscaler adds all nodes of a request at once, or none.

Each request of ours is one object of ``autoscaling.x-k8s.io/v1`` in fluxqueue's own namespace. Its
PodTemplate has the shape of a node. The spec of such an object cannot change, so it is deleted when
the request has ended.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.db.store.node_pools import OrderedNodes, PoolOrder
from fluxqueue.errors import Conflict, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import POD_TEMPLATES, PROVISIONING_REQUESTS, ApiResource
from fluxqueue.objects import Object
from fluxqueue.policy.node_pool import NodePool
from fluxqueue.worker.node_providers.provider import OrderOutcome
from fluxqueue.worker.node_providers.whole_node import REQUEST, whole_node
from fluxqueue.workload import labels

FAILED, REVOKED, EXPIRED = "Failed", "CapacityRevoked", "BookingExpired"
"""Conditions after which the autoscaler brings no further nodes."""


class ProvisioningRequest:
    """The provider ``provisioningRequest``."""

    async def apply(self, client: KubeClient, order: PoolOrder, namespace: str) -> OrderOutcome:
        """Create the objects of new requests, and delete those that no request has."""
        wanted = {_name(order.pool, one): one for one in order.open}
        try:
            there = await _find(client, PROVISIONING_REQUESTS, namespace, order.pool)
        except NotFound as error:  # no definition is installed, so nothing was asked for
            return OrderOutcome({one.number: str(error) for one in order.open})
        templates = await _find(client, POD_TEMPLATES, namespace, order.pool)
        # A template goes after its request, because the autoscaler reads both.
        for resource, found in ((PROVISIONING_REQUESTS, there), (POD_TEMPLATES, templates)):
            for name in sorted(found.keys() - wanted.keys()):
                await _delete(client, resource, namespace, found[name])
        refused = {}
        for name, one in wanted.items():
            if name in there:
                why = why_failed(there[name], one)
                if why:
                    refused[one.number] = why
            elif one.coming:
                await _create(client, order, one, namespace)
        return OrderOutcome(refused)


async def _find(
    client: KubeClient, resource: ApiResource, namespace: str, pool: NodePool
) -> dict[str, Object]:
    selector = f"{labels.NODE_POOL}={pool.name}"
    found = (await client.list(resource, namespace, label_selector=selector)).items
    return {one["metadata"]["name"]: one for one in found}


async def _create(client: KubeClient, order: PoolOrder, one: OrderedNodes, namespace: str) -> None:
    """Create a template, then its request. A crash in between is repaired by the next call."""
    for resource, body in (
        (POD_TEMPLATES, pod_template(order.pool, one, order.present)),
        (PROVISIONING_REQUESTS, provisioning_request(order.pool, one)),
    ):
        try:
            await client.create(resource, namespace, body, metadata_only=True)
        except Conflict:
            continue  # it exists, or its predecessor is about to go


async def _delete(client: KubeClient, resource: ApiResource, namespace: str, found: Object) -> None:
    meta = found["metadata"]
    if meta.get("deletionTimestamp"):
        return
    try:
        await client.delete(resource, namespace, meta["name"], uid=meta["uid"])
    except (NotFound, Conflict):
        return


def _name(pool: NodePool, one: OrderedNodes) -> str:
    return f"{pool.name}-{one.number}"


def _meta(pool: NodePool, one: OrderedNodes) -> dict[str, Any]:
    own = {labels.NODE_POOL: pool.name, REQUEST: str(one.number)}
    return {"name": _name(pool, one), "labels": own}


def pod_template(pool: NodePool, one: OrderedNodes, present: tuple[str, ...]) -> dict[str, Any]:
    """Return the template for the nodes of a request. ``present``: the nodes of the pool."""
    own = {labels.NODE_POOL: pool.name, labels.MANAGED: "false"}
    return {
        "apiVersion": POD_TEMPLATES.api_version,
        "kind": POD_TEMPLATES.kind,
        "metadata": _meta(pool, one),
        "template": {"metadata": {"labels": own}, "spec": whole_node(pool, present)},
    }


def provisioning_request(pool: NodePool, one: OrderedNodes) -> dict[str, Any]:
    """Return the object that asks for the nodes of a request that have yet to come."""
    said = pool.parameters
    spec = {
        "provisioningClassName": said["provisioningClassName"],
        "podSets": [{"podTemplateRef": {"name": _name(pool, one)}, "count": one.coming}],
    }
    if said.get("parameters"):
        spec["parameters"] = dict(said["parameters"])
    return {
        "apiVersion": PROVISIONING_REQUESTS.api_version,
        "kind": PROVISIONING_REQUESTS.kind,
        "metadata": _meta(pool, one),
        "spec": spec,
    }


def why_failed(found: Object, one: OrderedNodes) -> str:
    """Return why the autoscaler brings no further nodes for a request, empty if it still does.

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
