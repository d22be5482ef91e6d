"""The shape of a simulated node, and the Node object made from it. Pure."""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime

from localcluster.loops.objects import write_time
from localcluster.obj import Obj
from localcluster.types import names
from localcluster.types.quantity import QuantityError, value_of

LEASE_DURATION_S = 40
RENEW_S = 10.0
GPU_RESOURCE = "nvidia.com/gpu"
KUBELET_VERSION = "v1.36.0-localcluster"


@dataclass(frozen=True, slots=True)
class NodeShape:
    """One node. Quantities are written as in Kubernetes. ``gpus`` are nvidia.com/gpu."""

    name: str
    cpu: str = "32"
    memory: str = "128Gi"
    gpus: int = 0
    pods: int = 110
    labels: dict[str, str] = field(default_factory=dict)
    extended: dict[str, str] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Raise ValueError that names the field, the value and what is allowed."""
        if wrong := names.dns_subdomain(self.name):
            raise ValueError(f"name of a node: {self.name!r}: {wrong[0]}")
        for key, text in {"cpu": self.cpu, "memory": self.memory, **self.extended}.items():
            if not _is_amount(text):
                why = "is no quantity such as 16, 500m or 64Gi"
                raise ValueError(f"{key} of node {self.name!r}: {text!r} {why}")
        for key, count in (("gpus", self.gpus), ("pods", self.pods)):
            if count < 0:
                raise ValueError(f"{key} of node {self.name!r}: {count} is less than 0")
        for key, value in self.labels.items():
            if wrong := [*names.qualified_name(key), *names.label_value(value)]:
                raise ValueError(f"label {key}={value} of node {self.name!r}: {wrong[0]}")


def _is_amount(text: str) -> bool:
    try:
        return value_of(text) >= 0
    except QuantityError:
        return False


def node_object(shape: NodeShape, ip: str, now: datetime) -> Obj:
    """Return the Node as its kubelet registers it, ready."""
    capacity = {
        "cpu": shape.cpu,
        "memory": shape.memory,
        "pods": str(shape.pods),
        "ephemeral-storage": "100Gi",
        **shape.extended,
    }
    if shape.gpus:
        capacity[GPU_RESOURCE] = str(shape.gpus)
    labels = {
        "kubernetes.io/hostname": shape.name,
        "kubernetes.io/os": "linux",
        "kubernetes.io/arch": "amd64",
        "beta.kubernetes.io/os": "linux",
        "beta.kubernetes.io/arch": "amd64",
        "localcluster/simulated": "true",
        **shape.labels,
    }
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {
            "name": shape.name,
            "labels": labels,
            "annotations": {"node.alpha.kubernetes.io/ttl": "0"},
        },
        "spec": {},
        "status": {
            "capacity": capacity,
            "allocatable": dict(capacity),
            "conditions": ready_conditions(now),
            "addresses": [
                {"type": "InternalIP", "address": ip},
                {"type": "Hostname", "address": shape.name},
            ],
            "nodeInfo": {
                "machineID": shape.name,
                "systemUUID": shape.name,
                "bootID": shape.name,
                "kernelVersion": "simulated",
                "osImage": "localcluster",
                "containerRuntimeVersion": "simulated://1",
                "kubeletVersion": KUBELET_VERSION,
                "kubeProxyVersion": "",
                "operatingSystem": "linux",
                "architecture": "amd64",
            },
        },
    }


def ready_conditions(now: datetime) -> list[Obj]:
    """Return the conditions of a healthy node."""
    at = write_time(now)
    facts = (
        ("MemoryPressure", "False", "KubeletHasSufficientMemory", "sufficient memory available"),
        ("DiskPressure", "False", "KubeletHasNoDiskPressure", "no disk pressure"),
        ("PIDPressure", "False", "KubeletHasSufficientPID", "sufficient PID available"),
        ("Ready", "True", "KubeletReady", "kubelet is posting ready status"),
    )
    return [
        {
            "type": kind,
            "status": status,
            "lastHeartbeatTime": at,
            "lastTransitionTime": at,
            "reason": reason,
            "message": message,
        }
        for kind, status, reason, message in facts
    ]
