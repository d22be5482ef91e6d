"""NUMA: what a kubelet aligns for a pod, and which zones a node has.

Kubernetes pins nothing from outside. A kubelet with the policy ``single-numa-node`` refuses a pod
that fits no zone, so such a pod is not sent there. NodeResourceTopology objects
(topology.node.k8s.io) describe the zones of a node. An agent on each node writes them. The used
part of a zone changes with every pod and is reported late. So only the total capacity of a zone is
checked. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.request import CPU, MEMORY
from fluxqueue.jobspec.demand import Bundle
from fluxqueue.workload.quantity import to_base_units

_ZONE = "Node"
_POLICY, _SCOPE = "topologyManagerPolicy", "topologyManagerScope"
_SINGLE = "single-numa-node"
_OLD_POLICIES = {"SingleNUMANodeContainerLevel": "container", "SingleNUMANodePodLevel": "pod"}
"""``topologyPolicies``: all values of v1alpha1, and the older form of v1alpha2."""
_CORE = 1000


@dataclass(frozen=True, slots=True)
class NodeZones:
    """The capacity of each zone of a node (base units). No zones if its kubelet does not insist."""

    zones: tuple[Mapping[str, int], ...] = ()
    is_for_pods: bool = False


def read_zones(topology: Mapping[str, Any]) -> NodeZones:
    """Read a NodeResourceTopology, v1alpha1 or v1alpha2. Unreadable parts count as no zone.

    So a bad object from an agent does not take a node away from pods.
    """
    scope = _scope(topology)
    if scope is None:
        return NodeZones()
    zones = [zone for zone in topology.get("zones") or () if zone.get("type") == _ZONE]
    try:
        found = tuple(
            {
                one["name"]: to_base_units(one["name"], one["allocatable"], where="allocatable")
                for one in zone.get("resources") or ()
            }
            for zone in zones
        )
    except (InvalidInput, KeyError, TypeError):
        return NodeZones()
    return NodeZones(tuple(filter(None, found)), scope == "pod")


def _scope(topology: Mapping[str, Any]) -> str | None:
    """Return ``container`` or ``pod`` if the policy requires a single zone, or else None."""
    said = {
        one.get("name"): one.get("value")
        for one in topology.get("attributes") or ()
        if isinstance(one, dict)
    }
    if _POLICY in said:
        return str(said.get(_SCOPE) or "container") if said[_POLICY] == _SINGLE else None
    policies = topology.get("topologyPolicies") or ()
    return _OLD_POLICIES.get(policies[0]) if policies else None


def read_bundles(spec: Mapping[str, Any], *, where: str = "spec") -> tuple[Bundle, ...]:
    """Return what a kubelet would align for each container of a pod.

    These are devices, and for Guaranteed pods also whole cores and memory. The rules are
    Kubernetes' static policies, which the scheduler plugins follow, too.

    Raises
    ------
    InvalidInput
        A quantity cannot be read.
    """
    before, beside = spec.get("initContainers") or (), spec.get("containers") or ()
    is_guaranteed = all(map(_is_guaranteed, (*before, *beside)))
    sidecars = (one for one in before if one.get("restartPolicy") == "Always")
    found = (_bundle(one, where, is_guaranteed=is_guaranteed) for one in (*sidecars, *beside))
    return tuple(filter(None, found))


def _is_guaranteed(container: Mapping[str, Any]) -> bool:
    resources = container.get("resources") or {}
    limits, requests = resources.get("limits") or {}, resources.get("requests") or {}
    return all(
        name in limits and _same(name, requests.get(name, limits[name]), limits[name])
        for name in (CPU, MEMORY)
    )


def _same(name: str, one: Any, other: Any) -> bool:
    return to_base_units(name, one, where=name) == to_base_units(name, other, where=name)


def _bundle(container: Mapping[str, Any], where: str, *, is_guaranteed: bool) -> Bundle:
    resources = container.get("resources") or {}
    amounts = {
        name: to_base_units(name, value, where=f"{where}.containers.resources.{name}")
        for name, value in {**(resources.get("limits") or {}),
                            **(resources.get("requests") or {})}.items()
    }  # fmt: skip
    cores = amounts.get(CPU, 0)
    if is_guaranteed and cores >= _CORE and cores % _CORE == 0:
        return tuple(sorted(amounts.items()))
    # One device is in one zone anyway.
    devices = {name: count for name, count in amounts.items() if "/" in name and count > 1}
    return tuple(sorted(devices.items()))
