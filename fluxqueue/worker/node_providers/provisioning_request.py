"""ProvisioningRequests: cluster-autoscaler adds all nodes of a request at once, or none.

The spec of such an object cannot change, so each request of ours has one of its own.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.db.store.node_pools import OrderedNodes
from fluxqueue.kube.resources import PROVISIONING_REQUESTS, ApiResource
from fluxqueue.policy.node_pool import NodePool
from fluxqueue.worker.node_providers.template_objects import TemplateObjects
from fluxqueue.workload.objects import Object

FAILED, REVOKED, EXPIRED = "Failed", "CapacityRevoked", "BookingExpired"
"""Conditions after which the autoscaler brings no further nodes."""


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
