"""NUMA: what of a pod a kubelet aligns, and which zones a node has.

Kubernetes pins nothing from outside. A kubelet whose policy is ``single-numa-node`` refuses a pod
that fits no zone, so such a pod is not sent there. Nodes tell their zones in NodeResourceTopology
objects (topology.node.k8s.io), which an agent on each node writes. What of a zone is in use changes
with every pod and is told late, so only what a zone has at all is looked at. Pure.
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
"""``topologyPolicies``: all that v1alpha1 has, and the older form of v1alpha2."""
_CORE = 1000


@dataclass(frozen=True, slots=True)
class NodeZones:
    """What each zone of a node can hold (base units); none where its kubelet does not insist."""

    zones: tuple[Mapping[str, int], ...] = ()
    is_for_pods: bool = False


def read_zones(topology: Mapping[str, Any]) -> NodeZones:
    """Read a NodeResourceTopology, v1alpha1 or v1alpha2. What cannot be read counts as no zone: a
    node is not lost to pods for what an agent wrote.
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
    """``container`` or ``pod``, if the policy is to give one zone only."""
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
    """What a kubelet would align for each container of a pod: devices, and of Guaranteed pods whole
    cores and memory (Kubernetes' static policies; the scheduler plugins go by the same).

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
    # One device lies in one zone anyway.
    devices = {name: count for name, count in amounts.items() if "/" in name and count > 1}
    return tuple(sorted(devices.items()))
