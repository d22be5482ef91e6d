"""NodePools and NodeClaims of Karpenter."""

from __future__ import annotations

from typing import Any

from fluxqueue.nodepools.proposals.proposal import PresentNode

GI = 1 << 30
GPU = "nvidia.com/gpu"


def claim(pool: str, kind: str, number: int, *, took_s: int = 60, **allocatable: str) -> Any:
    """A NodeClaim with a node that is ready."""
    came = {"type": "Initialized", "status": "True",
            "lastTransitionTime": f"2026-05-01T10:{took_s // 60:02}:{took_s % 60:02}Z"}  # fmt: skip
    return {
        "metadata": {
            "name": f"{pool}-{kind}-{number}",
            "creationTimestamp": "2026-05-01T10:00:00Z",
            "labels": {"karpenter.sh/nodepool": pool, "node.kubernetes.io/instance-type": kind},
        },
        "status": {
            "nodeName": f"ip-{kind}-{number}",
            "capacity": {"cpu": "16", "memory": "64Gi", GPU: "4"},
            "allocatable": {
                "cpu": "15890m",
                "memory": "60Gi",
                GPU: "4",
                "pods": "110",
                "hugepages-2Mi": "0",
                **allocatable,
            },
            "conditions": [came],
        },
    }


def node_pool(name: str, **spec: Any) -> Any:
    """A NodePool with a template."""
    template = {
        "metadata": {"labels": {"team": "hpc"}},
        "spec": {
            "requirements": [
                {"key": "karpenter.sh/capacity-type", "operator": "In", "values": ["spot"]},
                {"key": "kubernetes.io/arch", "operator": "In", "values": ["amd64", "arm64"]},
                {"key": "example.com/generation", "operator": "Gt", "values": ["2"]},
            ],
            "taints": [{"key": GPU, "value": "true", "effect": "NoSchedule"}],
            "startupTaints": [{"key": "example.com/agent", "effect": "NoExecute"}],
        },
    }
    return {"metadata": {"name": name}, "spec": {"template": template, **spec}}


def present(name: str, **more: Any) -> PresentNode:
    """A node of 16 cores with a DaemonSet that asks for half a core."""
    allocatable = {"cpu": 16000, "memory": 60 * GI, "pods": 110}
    values = {
        "labels": {},
        "taints": (),
        "allocatable": allocatable,
        "permanent": {"cpu": 500, "pods": 2},
        **more,
    }
    return PresentNode(name, **values)
