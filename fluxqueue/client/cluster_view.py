"""The capacity of a cluster and its use, read through the API server.

``fluxqueue graph``, ``nodes``, ``tree`` and ``resource-query --from-cluster`` use it. They need no
database.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from contextlib import aclosing, suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any

from fluxqueue.client.fluxjob_lists import HOLDING, read_line
from fluxqueue.client.narrowed import Narrowed
from fluxqueue.errors import ApiError, InvalidInput, InvalidSettings, NotFound
from fluxqueue.fluxjob.hostlist import expand
from fluxqueue.fluxjob.node import ForeignPod, NodeFact
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import load_config
from fluxqueue.kube.resources import NODE_TOPOLOGIES, NODES, PODS
from fluxqueue.workload.kinds.table import workload_uid
from fluxqueue.workload.labels import JOBID
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
    bound = [pod for pod in pods if pod is not None]
    is_ours = _ours(fluxjobs)
    others = [one.use for one in bound if not is_ours(one)]
    nodes.sort(key=lambda node: (len(node.name), node.name))
    return ClusterView(nodes, _use([one.use for one in bound]), _use(others), fluxjobs)


@dataclass(frozen=True, slots=True)
class _BoundPod:
    """A pod on a node: its workload, the jobid on its label, and its use."""

    workload_uid: str
    jobid: str
    use: ForeignPod


def _bound(pod: dict[str, Any]) -> _BoundPod | None:
    """Return a pod that uses capacity of its node, or None if it uses nothing."""
    fact = foreign_pod(pod)
    if fact is None:
        return None
    jobid = (pod["metadata"].get("labels") or {}).get(JOBID, "")
    return _BoundPod(workload_uid(pod), str(jobid), fact)


def _ours(fluxjobs: Sequence[Mapping[str, Any]]) -> Callable[[_BoundPod], bool]:
    """Return the test for pods that run in an allocation.

    Pods of groups and sets have several makers, and none of them is the workload of the FluxJob.
    Their label names the job. It counts only in the namespace of that job, and on its nodes, so
    that a label cannot hide a pod that takes other capacity.
    """
    workloads = {one["spec"]["workload"]["uid"] for one in fluxjobs}
    places: dict[tuple[str, str], frozenset[str]] = {}
    for one in fluxjobs:
        status = one.get("status") or {}
        with suppress(InvalidInput):
            nodes = frozenset(expand(status.get("nodes") or ""))
            places[one["metadata"]["namespace"], str(status.get("jobid"))] = nodes

    def is_ours(pod: _BoundPod) -> bool:
        if pod.workload_uid in workloads:
            return True
        return pod.use.node in places.get((pod.use.namespace, pod.jobid), ())

    return is_ours


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
