"""The capacity of a cluster and its use, read through the API server.

``fluxqueue graph``, ``nodes``, ``tree`` and ``resource-query --from-cluster`` use it. They need no
database.
"""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import aclosing
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fluxqueue.cli.user.fluxjobs import HOLDING, read_line
from fluxqueue.cli.user.narrowed import Narrowed
from fluxqueue.errors import ApiError, InvalidSettings, NotFound
from fluxqueue.fluxjob.node import ForeignPod, NodeFact
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import load_config
from fluxqueue.kube.resources import NODE_TOPOLOGIES, NODES, PODS
from fluxqueue.workload.kinds import workload_uid
from fluxqueue.workload.node_object import foreign_pod, node_fact

BOUND = "spec.nodeName!=,status.phase!=Succeeded,status.phase!=Failed"
"""Field selector of pods that may use capacity of a node."""


@dataclass(frozen=True, slots=True)
class ClusterView:
    """Nodes, and the use of each (node -> resource -> base units).

    ``used`` is the use of all bound pods, ``foreign`` that of pods outside ``fluxjobs``.
    ``fluxjobs`` are the FluxJobs with an allocation.
    """

    nodes: list[NodeFact]
    used: dict[str, dict[str, int]]
    foreign: dict[str, dict[str, int]] = field(default_factory=dict)
    fluxjobs: list[dict[str, Any]] = field(default_factory=list)

    def free_nodes(self) -> list[NodeFact]:
        """Return the nodes with their free capacity as capacity."""
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
        There is no usable kubeconfig, or the cluster has no nodes.
    """
    config = load_config(str(kubeconfig) if kubeconfig else None)
    async with KubeClient(config) as client:
        return await view_cluster(client)


async def view_cluster(client: KubeClient) -> ClusterView:
    """Read the same over an open connection. Of each page only what counts is kept.

    Raises
    ------
    InvalidSettings
        The cluster has no nodes.
    """
    zones = await _topologies(client)
    nodes, _ = await client.collect(
        NODES, keep=lambda node: node_fact(node, zones.get(node["metadata"]["name"]))
    )
    if not nodes:
        raise InvalidSettings("the cluster has no nodes", where=client.config.server)
    pods, _ = await client.collect(PODS, keep=_bound, field_selector=BOUND)
    fluxjobs = await _running_fluxjobs(client)
    ours = {one["spec"]["workload"]["uid"] for one in fluxjobs}
    bound = [pod for pod in pods if pod is not None]
    others = [pod for uid, pod in bound if uid not in ours]
    nodes.sort(key=lambda node: (len(node.name), node.name))
    return ClusterView(nodes, _use([pod for _, pod in bound]), _use(others), fluxjobs)


def _bound(pod: dict[str, Any]) -> tuple[str, ForeignPod] | None:
    """Return the workload UID of a pod and its use, or None if it uses nothing."""
    fact = foreign_pod(pod)
    return None if fact is None else (workload_uid(pod), fact)


async def _topologies(client: KubeClient) -> dict[str, dict[str, Any]]:
    """Return NodeResourceTopology objects by node, none if they are not served or readable."""
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
    """Return FluxJobs with an allocation, none if fluxqueue is not installed."""

    found = []
    try:
        async with aclosing(Narrowed(client, None).pages(HOLDING)) as pages:
            async for page in pages:
                found += [one for one in page.items if read_line(one).state in HOLDING]
    except NotFound:
        return []
    return found


def _use(pods: Sequence[ForeignPod]) -> dict[str, dict[str, int]]:
    used: dict[str, dict[str, int]] = {}
    for pod in pods:
        on_node = used.setdefault(pod.node, {})
        for name, amount in pod.resources.items():
            on_node[name] = on_node.get(name, 0) + amount
    return used
