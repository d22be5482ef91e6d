"""What a cluster has and what of it is used, read through its API server.

For ``fluxqueue graph`` and ``resource-query --from-cluster``, which need no database.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from fluxqueue.errors import InvalidSettings
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import load_config
from fluxqueue.kube.resources import NODES, PODS
from fluxqueue.workload.nodes import foreign_pod, node_fact


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Nodes, and what all bound pods use of each: node -> resource -> base units."""

    nodes: list[NodeFact]
    used: dict[str, dict[str, int]]

    def free_nodes(self) -> list[NodeFact]:
        """The nodes with only what nobody uses as their capacity."""
        return [
            replace(
                node,
                capacity={
                    name: max(0, amount - self.used.get(node.name, {}).get(name, 0))
                    for name, amount in node.capacity.items()
                },
            )
            for node in self.nodes
        ]


async def read_cluster(kubeconfig: Path | None) -> ClusterView:
    """Read nodes, and the requests of all pods that are bound and have not ended.

    Raises
    ------
    InvalidSettings
        No usable kubeconfig, or the cluster has no nodes.
    """
    config = load_config(str(kubeconfig) if kubeconfig else None)
    async with KubeClient(config) as client:
        nodes = [node_fact(node) for node in (await client.list(NODES)).items]
        pods: list[dict[str, Any]] = (await client.list(PODS)).items
    if not nodes:
        raise InvalidSettings("the cluster has no nodes", where=config.server)
    used: dict[str, dict[str, int]] = {}
    for pod in filter(None, map(foreign_pod, pods)):
        on_node = used.setdefault(pod.node, {})
        for name, amount in pod.resources.items():
            on_node[name] = on_node.get(name, 0) + amount
    return ClusterView(sorted(nodes, key=lambda node: (len(node.name), node.name)), used)
