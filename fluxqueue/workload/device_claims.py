"""What the ResourceClaims of a pod ask of its node: whole devices by class, or a claim's place.

``surroundings`` calls it. Requests of a template become resources of the pod, by the names under
which ``workload.devices`` counts the devices of nodes. An allocated claim binds its pods to nodes.
What cannot be judged is left to kube-scheduler. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from fluxqueue.fluxjob.request import Taint
from fluxqueue.jobspec.constraint import Constraint
from fluxqueue.workload.constraints import read_node_selector
from fluxqueue.workload.devices import read_tolerations
from fluxqueue.workload.objects import Object
from fluxqueue.workload.pods import controller_owner

LEFT = "devices of DRA"
"""The name of what is left to kube-scheduler, for users."""

REQUESTS_MAX = 1000
"""The most requests of one pod that are read. Others are left to kube-scheduler."""


class DeviceObjects(Protocol):
    """The objects that claims of pods refer to. What is unknown is absent."""

    def claim_template(self, namespace: str, name: str) -> Object | None:
        """Return a ResourceClaimTemplate."""
        ...

    def resource_claim(self, namespace: str, name: str) -> Object | None:
        """Return a ResourceClaim."""
        ...

    def device_resource(self, device_class: str) -> str | None:
        """Return the resource name under which devices of a class are counted."""
        ...

    def device_takes(self, device_class: str) -> Mapping[str, int] | None:
        """Return the most that a device of a class takes of its node. None if that is unknown."""
        ...

    def device_taints(self, device_class: str) -> Collection[Taint]:
        """Return the taints that some devices of a class have."""
        ...

    def is_doubtful(self, resource: str) -> bool:
        """Return whether some of the devices that serve a resource cannot be counted."""
        ...


@dataclass(slots=True)
class DeviceNeeds:
    """What one pod needs: devices by resource, and where. ``is_left``: some of it is not judged."""

    amounts: dict[str, int] = field(default_factory=dict)
    where: list[Constraint] = field(default_factory=list)
    is_left: bool = False


def device_needs(spec: Mapping[str, Any], namespace: str, around: DeviceObjects) -> DeviceNeeds:
    """Return what the ResourceClaims of a pod with ``spec`` need."""
    found = DeviceNeeds(is_left=asks_for_doubtful(spec, around))
    left = REQUESTS_MAX
    for entry in spec.get("resourceClaims") or ():
        template, name = entry.get("resourceClaimTemplateName"), entry.get("resourceClaimName")
        if template:
            known = around.claim_template(namespace, str(template))
            devices = ((((known or {}).get("spec") or {}).get("spec")) or {}).get("devices") or {}
            requests = devices.get("requests") or ()
            left -= len(requests)
            if known is None or left < 0 or devices.get("constraints"):
                found.is_left = True
            if left >= 0:
                _add_requests(found, requests, around)
        else:
            _add_claim(found, around.resource_claim(namespace, str(name)))
    return found


def asks_for_doubtful(spec: Mapping[str, Any], around: DeviceObjects) -> bool:
    """Tell whether a pod asks for an extended resource with devices that cannot be counted."""
    return any(map(around.is_doubtful, extended_resources(spec)))


def extended_resources(spec: Mapping[str, Any]) -> set[str]:
    """Return the names of extended resources that the containers of a pod ask for."""
    return {
        str(name)
        for key in ("containers", "initContainers")
        for container in spec.get(key) or ()
        for part in ("requests", "limits")
        for name in (container.get("resources") or {}).get(part) or ()
        if "/" in name
    }


def _add_requests(found: DeviceNeeds, requests: Sequence[Object], around: DeviceObjects) -> None:
    for request in requests:
        exactly = request.get("exactly") or {}
        if exactly.get("adminAccess"):
            # It takes nothing from others, but needs a node with such devices.
            found.is_left = True
            continue
        resource = counted_as(request, around)
        if resource is None:
            found.is_left = True
            continue
        count = int(exactly.get("count") or 1)
        takes = around.device_takes(str(exactly.get("deviceClassName")))
        found.is_left |= takes is None
        for name, amount in ((resource, 1), *(takes or {}).items()):
            found.amounts[name] = found.amounts.get(name, 0) + amount * count
        # Fewer devices than those of the class may be good enough for it, or free.
        is_narrower = bool(exactly.get("selectors") or exactly.get("capacity"))
        found.is_left |= is_narrower or around.is_doubtful(resource)


def counted_as(request: Object, around: DeviceObjects) -> str | None:
    """Return the resource by which a request is counted, None if it is left.

    One that tolerates a taint of a device may get more devices than others. So it is left while
    there is such a device: it could otherwise wait for ever.
    """
    exactly = request.get("exactly") or {}
    device_class = str(exactly.get("deviceClassName"))
    if (exactly.get("allocationMode") or "ExactCount") != "ExactCount":
        return None
    tolerations = read_tolerations(request)
    if tolerations and any(
        one.tolerates(taint) for taint in around.device_taints(device_class) for one in tolerations
    ):
        return None
    return around.device_resource(device_class)


def is_always_counted(request: Object) -> bool:
    """Return whether a request is counted whatever taints there are, if its class is known."""
    exactly = request.get("exactly") or {}
    is_exact = (exactly.get("allocationMode") or "ExactCount") == "ExactCount"
    return bool(exactly) and is_exact and not exactly.get("tolerations")


def _add_claim(found: DeviceNeeds, claim: Object | None) -> None:
    """Add the place of a claim that is allocated already. All its pods share its devices."""
    allocation = ((claim or {}).get("status") or {}).get("allocation")
    if allocation is None:
        found.is_left = True
    elif selector := allocation.get("nodeSelector"):
        where = "status.allocation.nodeSelector"
        found.where.append(read_node_selector(selector, where))


def claim_owner(claim: Object) -> str | None:
    """Return the UID of the pod for which a claim was made from a template, or None."""
    owner = controller_owner(claim)
    return None if owner is None else str(owner["uid"])


def named_claims(spec: Mapping[str, Any]) -> set[str]:
    """Return the ResourceClaims that a pod names itself."""
    entries = spec.get("resourceClaims") or ()
    return {str(one["resourceClaimName"]) for one in entries if one.get("resourceClaimName")}


def templates_of(spec: Mapping[str, Any]) -> set[str]:
    """Return the ResourceClaimTemplates that a pod names."""
    entries = spec.get("resourceClaims") or ()
    found = (one.get("resourceClaimTemplateName") for one in entries)
    return {str(name) for name in found if name}
