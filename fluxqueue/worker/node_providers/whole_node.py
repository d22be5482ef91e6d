"""The pod that takes one whole new node of a pool, for autoscalers that add nodes for pods.

Placeholders are such pods. A ProvisioningRequest describes them, and no pod exists.
"""

from __future__ import annotations

from typing import Any

from fluxqueue.fluxjob.request import CPU, DEVICE_CLASS_PREFIX, Taint
from fluxqueue.policy.node_pool import NodePool
from fluxqueue.workload import labels

IMAGE = "registry.k8s.io/pause:3.10"
REQUEST = "fluxqueue/node-request"
"""Label of an object of a provider: the number of its request."""
NOT_OF_CONTAINERS = frozenset({"pods"})
"""Resources of a node that no container asks for, beside devices of DRA.

An autoscaler finds the pool by all other resources and the labels. Few can judge devices.
"""
EXCLUDED_MAX = 500
"""The most present nodes that such a pod excludes by name."""


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
