"""CapacityBuffers: an autoscaler keeps as many empty nodes as a request needs.

cluster-autoscaler and Karpenter count the pods of a buffer without creating them. A buffer is
filled again when its nodes are used, so it is deleted as soon as its job starts.
"""

from __future__ import annotations

from typing import Any

from fluxqueue.db.store.node_pools import OrderedNodes
from fluxqueue.kube.resources import ApiResource
from fluxqueue.policy.node_pool import NodePool
from fluxqueue.worker.node_providers.template_objects import TemplateObjects
from fluxqueue.workload.objects import Object

GROUP, VERSION = "autoscaling.x-k8s.io", "v1beta1"


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
