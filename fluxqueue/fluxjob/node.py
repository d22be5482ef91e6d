"""A node as the matcher sees it, and the pods on it that fluxqueue does not manage.

``workload.node_object`` makes these values from Node and Pod objects. The tables ``nodes`` and
``foreign_usage`` store them, and ``graph`` compiles them into arrays.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.fluxjob.request import Taint

NAME_KEY = "metadata.name"
"""The key of a node's name among its labels, as in Kubernetes' matchFields."""


CAPACITY_MAX = 2**52
"""As much as one node counts for at most: sums over many nodes stay within 64 bits."""

TOPOLOGY_PREFIX = "topology.kubernetes.io/"
"""The prefix of Kubernetes' labels for zone and region. Racks and blocks follow it."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The node that a pod is ungated to, and how to tell it from all others.

    ``hostname`` is the value of its label ``kubernetes.io/hostname``, None if it has none. It may
    differ from the name. ``is_labelled_index``: the value is its name, no other node has it, and
    the nodes are so few that kube-scheduler may look at each.
    """

    name: str
    hostname: str | None
    is_labelled_index: bool = False


@dataclass(frozen=True, slots=True)
class NodeFact:
    """One node: what it can hold, its labels, and whether it takes pods.

    ``capacity`` is the *allocatable* of the node: resource name -> base units (millicores, bytes,
    units). ``is_up``: Ready and not being deleted. ``is_schedulable``: not cordoned.

    ``numa_zones`` is what each NUMA zone can hold. It is empty unless the kubelet refuses pods that
    do not fit one zone (policy ``single-numa-node``). ``is_numa_for_pods``: the whole pod must fit
    one zone, not each container.

    ``unusable`` is the part of ``capacity`` that no new pod can have now, beside what pods request:
    devices that are tainted, or that ResourceClaims hold.
    """

    name: str
    uid: str
    capacity: Mapping[str, int]
    labels: Mapping[str, str] = field(default_factory=dict)
    taints: tuple[Taint, ...] = ()
    is_up: bool = True
    is_schedulable: bool = True
    numa_zones: tuple[Mapping[str, int], ...] = ()
    is_numa_for_pods: bool = False
    unusable: Mapping[str, int] = field(default_factory=dict)

    def to_json(self) -> dict[str, Any]:
        """Return the stored form. ``from_json`` is its inverse."""
        return {
            "name": self.name,
            "uid": self.uid,
            "capacity": dict(self.capacity),
            "labels": dict(self.labels),
            "taints": [[t.key, t.value, t.effect] for t in self.taints],
            "up": self.is_up,
            "schedulable": self.is_schedulable,
            **({"numa": [dict(zone) for zone in self.numa_zones]} if self.numa_zones else {}),
            **({"numaForPods": True} if self.is_numa_for_pods else {}),
            **({"unusable": dict(self.unusable)} if self.unusable else {}),
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NodeFact:
        """Read the stored form back."""
        return cls(
            name=data["name"],
            uid=data["uid"],
            capacity={k: min(CAPACITY_MAX, int(v)) for k, v in data["capacity"].items()},
            labels=dict(data.get("labels", {})),
            taints=tuple(Taint(*t) for t in data.get("taints", ())),
            is_up=bool(data.get("up", True)),
            is_schedulable=bool(data.get("schedulable", True)),
            numa_zones=tuple(
                {name: int(amount) for name, amount in zone.items()}
                for zone in data.get("numa", ())
            ),
            is_numa_for_pods=bool(data.get("numaForPods", False)),
            unusable={k: min(CAPACITY_MAX, int(v)) for k, v in data.get("unusable", {}).items()},
        )


@dataclass(frozen=True, slots=True)
class ForeignPod:
    """An unmanaged pod that is bound to a node: it counts against the node until it ends.

    ``is_permanent``: a DaemonSet pod or a static pod, which ends only with its node.
    """

    uid: str
    namespace: str
    name: str
    node: str
    resources: Mapping[str, int]
    is_permanent: bool = False
