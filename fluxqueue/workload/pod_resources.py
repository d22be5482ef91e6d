"""What a pod asks of its node: the effective request, as the scheduler and kubelet count it.

Called by ``workload.pod_request`` for managed workloads and by ``workload.node_object`` for
unmanaged pods.

Source of the algorithm: ``k8s.io/component-helpers/resource.PodRequests`` (1.34). It includes a
default that the API server sets for pods but not yet for pod templates. If a container has a limit
and no request, the limit is the request.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from fluxqueue.errors import TooComplex
from fluxqueue.fluxjob.request import CPU, MEMORY, PODS
from fluxqueue.workload.quantity import MAX_UNITS, to_base_units
from fluxqueue.workload.site import DEFAULT_CPU_M

Amounts = dict[str, int]

CLAIMED = "nodeAllocatableResourceClaimStatuses"
"""Field of a pod's status: what its claims take of its node beside the requests in its spec."""

QUANTITIES_MAX = 10_000
"""Maximum of containers and quantities in one managed pod. To read them takes some 0.2 s."""

INFEASIBLE: Mapping[str, str] = {"type": "PodResizePending", "reason": "Infeasible"}
"""What the condition of a pod contains that was resized beyond its node."""


def effective_request(
    spec: Mapping[str, Any], *, where: str = "spec", default_cpu_m: int = DEFAULT_CPU_M
) -> Amounts:
    """Count what a managed pod with ``spec`` needs, resource name -> base units.

    Parameters: ``where`` is the path of ``spec`` in its object, for messages. ``default_cpu_m``
    (millicores) counts if no cpu is requested. The result always contains ``pods: 1``.

    Raises
    ------
    InvalidInput
        A quantity cannot be read, or there are more than ``QUANTITIES_MAX``. ``where`` of the error
        names the field.
    """
    _check_number(spec, where)
    amounts = raw_request(spec, where=where)
    if CPU not in amounts and default_cpu_m:
        amounts[CPU] = default_cpu_m
    return amounts


def _check_number(spec: Mapping[str, Any], where: str) -> None:
    number = len(spec.get("overhead") or ())
    for field in ("containers", "initContainers"):
        for container in spec.get(field) or ():
            resources = container.get("resources") or {}
            number += 1 + sum(len(resources.get(part) or ()) for part in ("requests", "limits"))
        if number > QUANTITIES_MAX:
            raise TooComplex(
                f"more than {QUANTITIES_MAX} containers and quantities in one pod",
                where=f"{where}.{field}",
                hint="leave some out, or split the pod",
            )


def raw_request(
    spec: Mapping[str, Any], *, where: str = "spec", status: Mapping[str, Any] | None = None
) -> Amounts:
    """Count what a pod with ``spec`` requests itself. Without a cpu request, no cpu is counted.

    ``status`` (of a running pod) matters after an in-place resize. Until the kubelet has made a
    container smaller, the larger amount is in use. A resize that its node can never make does not
    count: kube-scheduler does not count it, either.
    """
    in_use = _amounts_in_use(status or {})
    total = _containers(spec, where, in_use)
    _override_by_pod_level(total, spec.get("resources") or {}, f"{where}.resources")
    if in_use.of_pod:
        of_pod = {name: n for name, n in in_use.of_pod.items() if is_pod_level(name)}
        total.update(of_pod) if in_use.is_infeasible else _raise_to(total, of_pod)
    _add(total, _read(spec.get("overhead") or {}, f"{where}.overhead"))
    _add(total, _claimed(status or {}))
    result = {name: min(amount, MAX_UNITS) for name, amount in total.items() if amount}
    result[PODS] = 1
    return result


def container_requests(spec: Mapping[str, Any], *, where: str = "spec") -> Amounts:
    """Count what all containers of a pod request together, without ``spec.resources``.

    Raises
    ------
    InvalidInput
        A quantity cannot be read.
    """
    return _containers(spec, where, _InUse({}, {}, is_infeasible=False))


def is_resize_infeasible(status: Mapping[str, Any]) -> bool:
    """Return whether the kubelet says that the resized pod can never fit on its node."""
    return any(INFEASIBLE.items() <= one.items() for one in status.get("conditions") or ())


@dataclass(frozen=True, slots=True)
class _InUse:
    """What a running pod holds, by name of the container, and for the pod as a whole."""

    by_container: Mapping[str, Amounts]
    of_pod: Amounts
    is_infeasible: bool


def _containers(spec: Mapping[str, Any], where: str, in_use: _InUse) -> Amounts:
    total: Amounts = {}
    for number, container in enumerate(spec.get("containers") or ()):
        _add(total, _container(container, f"{where}.containers[{number}]", in_use))
    # The total contains all sidecars. So each step compares only its own resources, and the time
    # grows with the number of sidecars, and not with its square.
    sidecars: Amounts = {}
    peak: Amounts = {}
    for number, container in enumerate(spec.get("initContainers") or ()):
        own = _container(container, f"{where}.initContainers[{number}]", in_use)
        if container.get("restartPolicy") == "Always":
            # A sidecar runs beside every later init container and beside the main containers.
            _add(total, own)
            _add(sidecars, own)
        else:
            _raise_to(peak, {name: n + sidecars.get(name, 0) for name, n in own.items()})
    _raise_to(total, peak)
    return total


def _container(container: Mapping[str, Any], where: str, in_use: _InUse) -> Amounts:
    resources = container.get("resources") or {}
    held = in_use.by_container.get(container.get("name", ""), {})
    if held and in_use.is_infeasible:
        return dict(held)
    amounts = {
        **_read(resources.get("limits") or {}, f"{where}.resources.limits"),
        **_read(resources.get("requests") or {}, f"{where}.resources.requests"),
    }
    _raise_to(amounts, held)
    return amounts


def _amounts_in_use(status: Mapping[str, Any]) -> _InUse:
    by_container = {}
    for field in ("containerStatuses", "initContainerStatuses"):
        for number, entry in enumerate(status.get(field) or ()):
            if held := _held(entry, f"status.{field}[{number}]"):
                by_container[entry.get("name", "")] = held
    return _InUse(by_container, _held(status, "status"), is_resize_infeasible(status))


def _held(entry: Mapping[str, Any], where: str) -> Amounts:
    """Return the larger of what runs and what the kubelet has set aside."""
    requests = (entry.get("resources") or {}).get("requests") or {}
    held = _read(requests, f"{where}.resources.requests")
    allocated = entry.get("allocatedResources") or {}
    _raise_to(held, _read(allocated, f"{where}.allocatedResources"))
    return held


def _claimed(status: Mapping[str, Any]) -> Amounts:
    """Return what the claims of a bound pod take of its node (DRA, Kubernetes 1.37)."""
    total: Amounts = {}
    for claim in status.get(CLAIMED) or ():
        users = len(claim.get("containers") or ())
        for one in claim.get("mapping") or ():
            _add(total, _read({one["name"]: one["quantity"]}, f"status.{CLAIMED}"))
        for one in claim.get("overhead") or ():
            for field, times in (("perPod", 1), ("perContainer", users)):
                found = _read({one["name"]: one.get(field) or 0}, f"status.{CLAIMED}")
                _add(total, {name: amount * times for name, amount in found.items()})
    return total


def _override_by_pod_level(total: Amounts, resources: Mapping[str, Any], where: str) -> None:
    requests = _read(resources.get("requests") or {}, f"{where}.requests")
    limits = _read(resources.get("limits") or {}, f"{where}.limits")
    for name, amount in limits.items():
        if is_pod_level(name) and name not in total:
            total[name] = amount
    total.update({name: amount for name, amount in requests.items() if is_pod_level(name)})


def is_pod_level(name: str) -> bool:
    """Tell whether ``spec.resources`` of a pod may name this resource."""
    return name in {CPU, MEMORY} or name.startswith("hugepages-")


def _read(quantities: Mapping[str, Any], where: str) -> Amounts:
    return {
        name: to_base_units(name, value, where=f"{where}.{name}")
        for name, value in quantities.items()
    }


def _add(total: Amounts, more: Mapping[str, int]) -> None:
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def _raise_to(total: Amounts, floor: Mapping[str, int]) -> None:
    for name, amount in floor.items():
        total[name] = max(total.get(name, 0), amount)
