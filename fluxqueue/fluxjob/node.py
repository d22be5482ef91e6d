"""A node as the matcher sees it, and what others use of it.

Made by ``workload.nodes`` from Node and Pod objects, stored in ``nodes`` and ``foreign_usage``,
compiled into arrays by ``graph``.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.fluxjob.request import Taint

NAME_KEY = "metadata.name"
"""The key under which a node's name stands among its labels (Kubernetes' matchFields)."""


TOPOLOGY_PREFIX = "topology.kubernetes.io/"
"""Where Kubernetes keeps zone and region; racks and blocks are labelled after this pattern."""


@dataclass(frozen=True, slots=True)
class Destination:
    """The node that a pod is let go to, and what tells it from all others.

    ``hostname``: the value of its label ``kubernetes.io/hostname``, which may differ from its name;
    None where it has none. ``is_told_by_label``: the value is its name, no other node bears it, and
    nodes are so few that kube-scheduler may look at each.
    """

    name: str
    hostname: str | None
    is_told_by_label: bool = False


@dataclass(frozen=True, slots=True)
class NodeFact:
    """One node: what it can hold, how it is labelled, and whether it takes pods.

    ``capacity`` is the node's *allocatable*, resource name -> base units (millicores, bytes,
    units). ``is_up`` is Ready and not being deleted; ``is_schedulable`` is not cordoned.
    ``numa_zones``: what each NUMA zone can hold, where the kubelet refuses a pod that does not fit
    one (its policy is ``single-numa-node``); empty elsewhere. ``is_numa_for_pods``: it wants the
    whole pod in one zone, not each container.
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

    def to_json(self) -> dict[str, Any]:
        """Give the stored form; ``from_json`` is its inverse."""
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
        }

    @classmethod
    def from_json(cls, data: Mapping[str, Any]) -> NodeFact:
        """Read the stored form back."""
        return cls(
            name=data["name"],
            uid=data["uid"],
            capacity={k: int(v) for k, v in data["capacity"].items()},
            labels=dict(data.get("labels", {})),
            taints=tuple(Taint(*t) for t in data.get("taints", ())),
            is_up=bool(data.get("up", True)),
            is_schedulable=bool(data.get("schedulable", True)),
            numa_zones=tuple(
                {name: int(amount) for name, amount in zone.items()}
                for zone in data.get("numa", ())
            ),
            is_numa_for_pods=bool(data.get("numaForPods", False)),
        )


@dataclass(frozen=True, slots=True)
class ForeignPod:
    """A pod bound to a node that is not ours: it counts against the node until it ends.

    ``is_permanent``: of a DaemonSet, or run by the node itself; it ends with its node only.
    """

    uid: str
    namespace: str
    name: str
    node: str
    resources: Mapping[str, int]
    is_permanent: bool = False
