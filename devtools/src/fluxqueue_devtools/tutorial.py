"""The cluster that the pages of the documentation use: its nodes, roles and second user.

``fluxqueue up`` starts it unless an option names other nodes. The tests of the pages have the same
nodes, so a page shows what its reader sees. It must not be used on a cluster of others.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field

from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.installation import put
from fluxqueue.kube.resources import CLUSTER_ROLES, ROLE_BINDINGS
from fluxqueue.kube.roles import build_roles

ZONE = "topology.kubernetes.io/zone"
RACK = "topology.kubernetes.io/rack"
SECOND_USER = "bob"
"""A user with the role ``edit`` in the namespace ``default``: ``kubectl --as bob``."""


@dataclass(frozen=True, slots=True)
class TutorialNode:
    """One node. Quantities are written as in Kubernetes. ``gpus`` are nvidia.com/gpu."""

    name: str
    cpu: str = "16"
    memory: str = "64Gi"
    gpus: int = 0
    labels: dict[str, str] = field(default_factory=dict)

    def argument(self) -> str:
        """Return it as the option ``--node`` of the embedded cluster."""
        sizes = {"cpu": self.cpu, "memory": self.memory, "gpus": str(self.gpus), **self.labels}
        return ",".join([self.name, *(f"{key}={value}" for key, value in sizes.items())])


def _main(name: str, zone: str, rack: str) -> TutorialNode:
    return TutorialNode(name, labels={"pool": "main", ZONE: zone, RACK: rack})


def _gpu(name: str) -> TutorialNode:
    return TutorialNode(name, cpu="8", memory="32Gi", gpus=4, labels={"pool": "gpu"})


NODES = (
    _main("node-1", "east", "r1"),
    _main("node-2", "east", "r1"),
    _main("node-3", "west", "r2"),
    _main("node-4", "west", "r2"),
    TutorialNode("single", labels={"pool": "single"}),
    _gpu("gpu-1"),
    _gpu("gpu-2"),
)


def node_arguments(nodes: Iterable[TutorialNode] = NODES) -> list[str]:
    """Return the options of the embedded cluster that make these nodes."""
    return [word for one in nodes for word in ("--node", one.argument())]


async def prepare(client: KubeClient) -> None:
    """Create the roles for users, and the role binding of the second user."""
    for role in build_roles():
        await put(client, CLUSTER_ROLES, role)
    group = "rbac.authorization.k8s.io"
    binding = {
        "metadata": {"name": SECOND_USER},
        "roleRef": {"apiGroup": group, "kind": "ClusterRole", "name": "edit"},
        "subjects": [{"apiGroup": group, "kind": "User", "name": SECOND_USER}],
    }
    await put(client, ROLE_BINDINGS, binding, namespace="default")
