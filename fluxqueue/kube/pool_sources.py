"""What autoscalers have stored in a cluster, read for proposals of FluxNodePools.

``fluxqueue pools discover`` calls it with the rights of its user. What is not served is absent.
What may not be read is named in a note, and the rest is still read. It writes nothing.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from fluxqueue.errors import ApiError, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.discovery import find_served
from fluxqueue.kube.resources import (
    CONFIGMAPS,
    NODE_CLAIMS,
    NODE_POOLS,
    NODES,
    PODS,
    PROVISIONING_REQUESTS,
    ApiResource,
)
from fluxqueue.objects import Object
from fluxqueue.policy.pool_proposals.cluster_api import scalable_kinds
from fluxqueue.policy.pool_proposals.proposal import PresentNode, amounts_of
from fluxqueue.workload.pods import controller_owner
from fluxqueue.workload.resources import raw_request

T = TypeVar("T")

PERMANENT = frozenset({"DaemonSet", "Node"})
"""Owners of pods that each new node has, too."""


@dataclass(slots=True)
class PoolSources:
    """The objects that say which nodes could come. ``notes``: what could not be read, and why."""

    node_pools: list[Object] = field(default_factory=list)
    node_claims: list[Object] = field(default_factory=list)
    scalable: list[Object] = field(default_factory=list)
    status: Object = field(default_factory=dict)
    provisioning_classes: list[str] | None = None
    """The classes of present ProvisioningRequests. None: the kind is not served."""
    nodes: list[PresentNode] = field(default_factory=list)
    notes: list[str] = field(default_factory=list)


async def read_pool_sources(client: KubeClient, status: tuple[str, str]) -> PoolSources:
    """Read all sources.

    Parameters
    ----------
    status : Namespace and name of the status ConfigMap of cluster-autoscaler.

    Raises
    ------
    ApiUnavailable
        The API server cannot be reached.
    """
    found = PoolSources()
    found.node_pools = await _first(client, NODE_POOLS, found)
    found.node_claims = await _first(client, NODE_CLAIMS, found)
    none: list[ApiResource] = []
    kinds = set(scalable_kinds())
    served = await _try(lambda: find_served(client, kinds), none, "API groups", found)
    for resource in served:
        found.scalable += await _first(client, (resource,), found)
    found.status = await _try(
        lambda: client.get(CONFIGMAPS, *status), {}, f"ConfigMap {'/'.join(status)}", found
    )
    requests = await _try(
        lambda: client.list(PROVISIONING_REQUESTS), None, PROVISIONING_REQUESTS.key, found
    )
    if requests is not None:
        classes = {(one.get("spec") or {}).get("provisioningClassName") for one in requests.items}
        found.provisioning_classes = sorted(str(one) for one in classes if one)
    found.nodes = await _nodes(client, found)
    return found


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


async def _nodes(client: KubeClient, found: PoolSources) -> list[PresentNode]:
    """Return the nodes, each with what its permanent pods ask for."""
    nodes = await _try(lambda: client.list(NODES), None, NODES.key, found)
    if nodes is None:
        return []
    permanent: defaultdict[str, dict[str, int]] = defaultdict(dict)

    def look(pod: Object) -> None:
        node = pod["spec"].get("nodeName")
        if node and (controller_owner(pod) or {}).get("kind") in PERMANENT:
            own = permanent[node]
            for name, amount in raw_request(pod["spec"]).items():
                own[name] = own.get(name, 0) + amount
            own["pods"] = own.get("pods", 0) + 1

    read = await _try(lambda: client.collect(PODS, keep=look), None, PODS.key, found)
    return [
        _present(one, None if read is None else permanent[one["metadata"]["name"]])
        for one in nodes.items
    ]


def _present(node: dict[str, Any], permanent: dict[str, int] | None) -> PresentNode:
    meta = node["metadata"]
    return PresentNode(
        meta["name"],
        meta.get("labels") or {},
        meta.get("annotations") or {},
        tuple((node.get("spec") or {}).get("taints") or ()),
        amounts_of((node.get("status") or {}).get("allocatable")),
        permanent,
    )
