"""What a cluster has and what of it is used, read through its API server.

For ``fluxqueue graph`` and ``resource-query --from-cluster``, which need no database.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fluxqueue.errors import ApiError, InvalidSettings, NotFound
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import load_config
from fluxqueue.kube.resources import FLUXJOBS, NODE_TOPOLOGIES, NODES, PODS
from fluxqueue.workload.nodes import foreign_pod, node_fact
from fluxqueue.workload.pods import controller_owner

_HOLDING = ("Allocated", "Running")


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Nodes, and what bound pods use of each (node -> resource -> base units): ``used`` all of
    them, ``foreign`` those that are not of ``fluxjobs``, which hold an allocation.
    """

    nodes: list[NodeFact]
    used: dict[str, dict[str, int]]
    foreign: dict[str, dict[str, int]] = field(default_factory=dict)
    fluxjobs: list[dict[str, Any]] = field(default_factory=list)

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
        zones = await _topologies(client)
        nodes = [
            node_fact(node, zones.get(node["metadata"]["name"]))
            for node in (await client.list(NODES)).items
        ]
        pods: list[dict[str, Any]] = (await client.list(PODS)).items
        fluxjobs = await _running_fluxjobs(client)
    if not nodes:
        raise InvalidSettings("the cluster has no nodes", where=config.server)
    ours = {one["spec"]["workload"]["uid"] for one in fluxjobs}
    others = [pod for pod in pods if not ours & _uids(pod)]
    nodes.sort(key=lambda node: (len(node.name), node.name))
    return ClusterView(nodes, _use(pods), _use(others), fluxjobs)


async def _topologies(client: KubeClient) -> dict[str, dict[str, Any]]:
    """NodeResourceTopology objects by node; none where the cluster serves none, or hides them."""
    for resource in NODE_TOPOLOGIES:
        try:
            found = (await client.list(resource)).items
        except ApiError as error:
            if error.code not in {403, 404}:
                raise
        else:
            return {one["metadata"]["name"]: one for one in found}
    return {}


async def _running_fluxjobs(client: KubeClient) -> list[dict[str, Any]]:
    """FluxJobs with an allocation; none where fluxqueue is not installed."""
    try:
        found: list[dict[str, Any]] = (await client.list(FLUXJOBS)).items
    except NotFound:
        return []
    return [one for one in found if (one.get("status") or {}).get("state") in _HOLDING]


def _uids(pod: dict[str, Any]) -> set[str]:
    """UIDs under which a pod's FluxJob may know its workload."""
    owner = controller_owner(pod)
    return {pod["metadata"]["uid"], *([] if owner is None else [owner["uid"]])}


def _use(pods: list[dict[str, Any]]) -> dict[str, dict[str, int]]:
    used: dict[str, dict[str, int]] = {}
    for pod in filter(None, map(foreign_pod, pods)):
        on_node = used.setdefault(pod.node, {})
        for name, amount in pod.resources.items():
            on_node[name] = on_node.get(name, 0) + amount
    return used
