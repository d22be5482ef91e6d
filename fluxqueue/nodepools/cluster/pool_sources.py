"""What autoscalers have stored in a cluster, read for proposals of FluxNodePools.

``fluxqueue pools discover`` calls it with the rights of its user, and the controller for pools that
follow their sources. What is not served is absent. What may not be read is named in a note, and the
rest is still read. It writes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fluxqueue.errors import ApiError, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import (
    CONFIGMAPS,
    NODE_CLAIMS,
    NODE_POOLS,
    NODES,
    PODS,
    PROVISIONING_REQUESTS,
    ApiResource,
)
from fluxqueue.nodepools.proposals import cluster_autoscaler, karpenter
from fluxqueue.nodepools.proposals.cluster_autoscaler import (
    propose_cluster_autoscaler,
    read_node_groups,
)
from fluxqueue.nodepools.proposals.karpenter import propose_karpenter
from fluxqueue.nodepools.proposals.proposal import (
    PoolProposal,
    PresentNode,
    amounts_of,
    with_own_names,
)
from fluxqueue.workload.objects import Object
from fluxqueue.workload.pod_resources import raw_request
from fluxqueue.workload.pods import controller_owner

T = TypeVar("T")

PERMANENT = frozenset({"DaemonSet", "Node"})
"""Owners of pods that each new node has, too."""


@dataclass(slots=True)
class PoolSources:
    """The objects that say which nodes could come. ``notes``: what could not be read, and why."""

    node_pools: list[Object] = field(default_factory=list)
    node_claims: list[Object] = field(default_factory=list)
    status: Object = field(default_factory=dict)
    provisioning_classes: list[str] | None = None
    """The classes of present ProvisioningRequests. None: the kind is not served."""
    nodes: list[PresentNode] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)

    def proposals(self) -> list[PoolProposal]:
        """Return the proposals of all sources. A name that two of them use gets a number."""
        return with_own_names(
            [
                *propose_karpenter(self.node_pools, self.node_claims, self.nodes),
                *propose_cluster_autoscaler(read_node_groups(self.status), self.nodes),
            ]
        )

    def given(
        self, key: str, spec: Object, proposals: Sequence[PoolProposal]
    ) -> Mapping[str, Any] | None:
        """Return the fields that a source gives a FluxNodePool now. None: the source is gone.

        Parameters
        ----------
        key : the name of the source.
        spec : that of the FluxNodePool, for sources that have no node now.
        proposals : those of all sources.
        """
        for one in proposals:
            if one.key == key and one.spec is not None:
                return one.given
        if key.startswith(karpenter.KEY):
            return karpenter.known_of_karpenter(key, self.node_pools, spec)
        groups = read_node_groups(self.status)
        return cluster_autoscaler.known_of_cluster_autoscaler(key, groups)


Sample = Callable[[Sequence[Object]], Sequence[Object]]


async def read_pool_sources(
    client: KubeClient, status: tuple[str, str], sample: Sample | None = None
) -> PoolSources:
    """Read all sources.

    Parameters
    ----------
    status : Namespace and name of the status ConfigMap of cluster-autoscaler.
    sample : Chooses the nodes that count, and only their pods are read. None: all nodes and pods
        are read, and the classes of ProvisioningRequests.

    Raises
    ------
    ApiUnavailable
        The API server cannot be reached.
    """
    found = PoolSources()
    found.node_pools = await _first(client, NODE_POOLS, found)
    found.node_claims = await _first(client, NODE_CLAIMS, found)
    found.status = await _try(
        lambda: client.get(CONFIGMAPS, *status), {}, f"ConfigMap {'/'.join(status)}", found
    )
    if sample is None:
        found.provisioning_classes = await _classes(client, found)
    found.nodes = await _nodes(client, found, sample)
    return found


async def _classes(client: KubeClient, found: PoolSources) -> list[str] | None:
    """Return the classes of present ProvisioningRequests, or None if the kind is not served."""
    requests = await _try(
        lambda: client.list(PROVISIONING_REQUESTS), None, PROVISIONING_REQUESTS.key, found
    )
    if requests is None:
        return None
    classes = {(one.get("spec") or {}).get("provisioningClassName") for one in requests.items}
    return sorted(str(one) for one in classes if one)


async def _try(read: Callable[[], Awaitable[T]], absent: T, what: str, found: PoolSources) -> T:
    """Return what is read. If it is not served or does not exist, return ``absent``."""
    try:
        return await read()
    except NotFound:
        return absent
    except ApiError as error:
        found.notes.append(f"{what} could not be read: {error}")
        return absent


async def _first(
    client: KubeClient, versions: Sequence[ApiResource], found: PoolSources
) -> list[Object]:
    """Return all objects of a kind, in the first version that is served."""
    for resource in versions:
        listed = await _try(lambda r=resource: client.list(r), None, resource.key, found)  # type: ignore[misc]
        if listed is not None:
            return list(listed.items)
    return []


async def _nodes(
    client: KubeClient, found: PoolSources, sample: Sample | None
) -> list[PresentNode]:
    """Return the nodes, each with what its permanent pods ask for."""
    nodes = await _try(lambda: client.list(NODES), None, NODES.key, found)
    if nodes is None:
        return []
    chosen = nodes.items if sample is None else sample(nodes.items)
    permanent: defaultdict[str, dict[str, int]] = defaultdict(dict)

    def look(pod: Object) -> None:
        node = pod["spec"].get("nodeName")
        if node and (controller_owner(pod) or {}).get("kind") in PERMANENT:
            own = permanent[node]
            for name, amount in raw_request(pod["spec"]).items():
                own[name] = own.get(name, 0) + amount
            own["pods"] = own.get("pods", 0) + 1

    async def read() -> bool:
        if sample is None:
            await client.collect(PODS, keep=look)
        for one in () if sample is None else chosen:
            on = f"spec.nodeName={one['metadata']['name']}"
            for pod in (await client.list(PODS, field_selector=on)).items:
                look(pod)
        return True

    is_read = await _try(read, False, PODS.key, found)
    return [
        _present(one, permanent[one["metadata"]["name"]] if is_read else None) for one in chosen
    ]


def _present(node: Object, permanent: dict[str, int] | None) -> PresentNode:
    meta = node["metadata"]
    return PresentNode(
        meta["name"],
        meta.get("labels") or {},
        tuple((node.get("spec") or {}).get("taints") or ()),
        amounts_of((node.get("status") or {}).get("allocatable")),
        permanent,
    )
