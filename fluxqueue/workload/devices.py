"""Devices of dynamic resource allocation (DRA) as amounts of nodes: whole devices, by class.

``controller.observing.device_watch`` reads DeviceClasses, ResourceSlices and ResourceClaims, and
adds the amounts to the facts of nodes. A pod asks for devices as an extended resource: by the name
that a class gives, or by the class itself. What cannot be counted is never counted too low, so that
no job is wrongly unsatisfiable. kube-scheduler then decides. Pure.

Source: k8s.io/dynamic-resource-allocation, k8s.io/kubernetes/pkg/scheduler (1.37).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

import orjson

from fluxqueue.fluxjob.request import DEVICE_CLASS_PREFIX, Taint, Toleration
from fluxqueue.workload.device_selectors import (
    DeviceSelector,
    as_amount,
    by_domain,
    read_selector,
)
from fluxqueue.workload.quantity import to_base_units

EXTENDED_CLAIM = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of claims that kube-scheduler makes for extended resources of a pod."""

SHARED_MAX = 1000
"""So often one device counts that several claims may share: its capacity is not counted."""

DeviceId = tuple[str, str, str]
"""Driver, pool and name."""


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """One device. ``facts`` is what selectors know as ``device``, as JSON.

    ``taints`` keep new pods away. ``is_whole``: one claim takes all of it, and no other device
    shares its parts. ``takes``: what one claim for it takes of the cpu and memory of its node
    (Kubernetes 1.37). None if that depends on the claim.
    """

    id: DeviceId
    facts: bytes = b"{}"
    taints: tuple[Taint, ...] = ()
    is_whole: bool = True
    times: int = 1
    takes: tuple[tuple[str, int], ...] | None = ()


@dataclass(frozen=True, slots=True)
class DeviceTaintRule:
    """A DeviceTaintRule: the devices of a driver, a pool or a name get a taint. None: of any."""

    driver: str | None
    pool: str | None
    device: str | None
    taint: Taint

    def reaches(self, pool: tuple[str, str]) -> bool:
        """Return whether devices of a pool (driver and name) may be meant."""
        return self.driver in {None, pool[0]} and self.pool in {None, pool[1]}

    def meets(self, device: DeviceId) -> bool:
        """Return whether a device gets the taint."""
        return self.reaches(device[:2]) and self.device in {None, device[2]}


@dataclass(frozen=True, slots=True)
class DeviceSlice:
    """The devices of one ResourceSlice. ``node`` is None if several nodes can reach them."""

    pool: tuple[str, str]
    generation: int
    node: str | None
    devices: tuple[PublishedDevice, ...]


@dataclass(frozen=True, slots=True)
class DeviceClassFact:
    """A DeviceClass: the extended resources that it serves, and its selectors.

    A selector that cannot be decided here leaves no device out.
    """

    name: str
    resources: tuple[str, ...]
    selectors: tuple[DeviceSelector, ...]

    @property
    def doubt(self) -> str:
        """Return why a selector cannot be decided for any device, empty if all can be."""
        return next((one.doubt for one in self.selectors if one.doubt), "")

    @property
    def resource(self) -> str:
        """Return the name under which requests of claims count its devices."""
        return self.resources[-1]

    def has(self, device: PublishedDevice) -> bool | None:
        """Return whether a device is of the class, None if that cannot be said."""
        found = [one.meets(device.facts) for one in self.selectors]
        if False in found:
            return False
        return None if None in found else True

    def may_have(self, device: PublishedDevice) -> bool:
        """Return whether a device is of the class, or may be."""
        return self.has(device) is not False


@dataclass(frozen=True, slots=True)
class DeviceAmounts:
    """Extended resource -> devices: all, and those that new pods cannot get now."""

    capacity: Mapping[str, int] = field(default_factory=dict)
    unusable: Mapping[str, int] = field(default_factory=dict)


def read_class(found: Mapping[str, Any]) -> DeviceClassFact:
    """Read a DeviceClass."""
    name, spec = found["metadata"]["name"], found.get("spec") or {}
    own = spec.get("extendedResourceName")
    expressions = [
        str((one.get("cel") or {}).get("expression") or "") for one in spec.get("selectors") or ()
    ]
    resources = (f"{DEVICE_CLASS_PREFIX}{name}", *((str(own),) if own else ()))
    return DeviceClassFact(name, resources, tuple(map(read_selector, expressions)))


def read_taint_rule(found: Mapping[str, Any]) -> DeviceTaintRule | None:
    """Read a DeviceTaintRule. None if it keeps no pod away, or selects by what is not read here."""
    spec = found.get("spec") or {}
    selector, taint = spec.get("deviceSelector"), _taint(spec.get("taint") or {})
    # Without a selector it selects none. Older versions could select by class and expression.
    if selector is None or not taint.repels or selector.keys() & {"deviceClassName", "selectors"}:
        return None
    return DeviceTaintRule(
        selector.get("driver"), selector.get("pool"), selector.get("device"), taint
    )


def _taint(found: Mapping[str, Any]) -> Taint:
    return Taint(
        str(found.get("key") or ""), str(found.get("value") or ""), str(found.get("effect") or "")
    )


def read_tolerations(request: Mapping[str, Any]) -> tuple[Toleration, ...]:
    """Return the taints of devices that a request of a claim tolerates."""
    exactly = request.get("exactly") or {}
    return tuple(
        Toleration(
            key=one.get("key") or "",
            operator=one.get("operator") or "Equal",
            value=one.get("value") or "",
            effect=one.get("effect") or "",
        )
        for one in exactly.get("tolerations") or ()
    )


def read_slice(found: Mapping[str, Any]) -> DeviceSlice:
    """Read a ResourceSlice."""
    spec = found["spec"]
    driver, pool = spec["driver"], spec["pool"]
    node = None if spec.get("perDeviceNodeSelection") else spec.get("nodeName")
    devices = tuple(_device(driver, pool["name"], one) for one in spec.get("devices") or ())
    return DeviceSlice((driver, pool["name"]), int(pool.get("generation") or 0), node, devices)


def _device(driver: str, pool: str, found: Mapping[str, Any]) -> PublishedDevice:
    is_shared = found.get("allowMultipleAllocations") is True
    facts = {
        "driver": driver,
        "allowMultipleAllocations": is_shared,
        "attributes": by_domain(
            {
                _qualified(name, driver): next(iter(value.values()), None)
                for name, value in (found.get("attributes") or {}).items()
            }
        ),
        "capacity": by_domain(
            {
                _qualified(name, driver): as_amount(str(value.get("value")))
                for name, value in (found.get("capacity") or {}).items()
            }
        ),
    }
    taints = map(_taint, found.get("taints") or ())
    return PublishedDevice(
        (driver, pool, found["name"]),
        orjson.dumps(facts, option=orjson.OPT_SORT_KEYS),
        taints=tuple(taint for taint in taints if taint.repels),
        is_whole=not is_shared and not found.get("consumesCounters"),
        times=SHARED_MAX if is_shared else 1,
        takes=_takes(found.get("nodeAllocatableResources") or {}),
    )


def _takes(found: Mapping[str, Any]) -> tuple[tuple[str, int], ...] | None:
    """Return what one claim for a device takes of its node. One container uses the claim."""
    takes: dict[str, int] = {}
    for name, one in sorted(found.items()):
        mapping, overhead = one.get("mapping") or {}, one.get("overhead") or {}
        if mapping.get("capacityKey"):
            return None
        said = mapping.get("deviceMultiplier"), overhead.get("perPod"), overhead.get("perContainer")
        where = f"nodeAllocatableResources[{name}]"
        takes[name] = sum(to_base_units(name, part, where=where) for part in said if part)
    return tuple(takes.items())


def _qualified(name: str, driver: str) -> str:
    return name if "/" in name else f"{driver}/{name}"


def allocated_devices(claim: Mapping[str, Any]) -> list[DeviceId]:
    """Return the devices that a ResourceClaim holds.

    Those of an extended resource are left out: the pod's own request counts them. Those for
    administrators are, too: they take nothing from others.
    """
    notes = (claim.get("metadata") or {}).get("annotations") or {}
    if notes.get(EXTENDED_CLAIM) == "true":
        return []
    allocation = (claim.get("status") or {}).get("allocation") or {}
    results = (allocation.get("devices") or {}).get("results") or ()
    return [
        (one["driver"], one["pool"], one["device"]) for one in results if not one.get("adminAccess")
    ]


def newest(
    slices: Iterable[DeviceSlice], generations: Mapping[tuple[str, str], int]
) -> Iterator[PublishedDevice]:
    """Return the devices of slices of the newest generation of their pools."""
    for one in slices:
        if one.generation >= generations.get(one.pool, 0):
            yield from one.devices


def count_devices(
    classes: Sequence[DeviceClassFact],
    devices: Sequence[PublishedDevice],
    taken: Set[DeviceId],
    tainted: Set[DeviceId] = frozenset(),
) -> DeviceAmounts:
    """Count the devices that a node can reach.

    Parameters
    ----------
    devices
        The devices that pods on the node can have.
    taken
        The devices that claims hold. What pods with slots hold is left out: their slots count it.
    tainted
        The devices that have a taint by a rule, beside their own taints.
    """
    serving: dict[str, list[DeviceClassFact]] = {}
    for one in classes:
        for name in one.resources:
            serving.setdefault(name, []).append(one)
    capacity: dict[str, int] = {}
    unusable: dict[str, int] = {}
    for name, of_name in serving.items():
        # Of several classes that serve one name, kube-scheduler takes one. Which is not known here.
        served = [device for device in devices if any(one.may_have(device) for one in of_name)]
        if not served:
            continue
        capacity[name] = sum(device.times for device in served)
        if len(of_name) == 1 and all(of_name[0].has(device) for device in served):
            gone = sum(_gone(device, taken, tainted) for device in served)
            if gone:
                unusable[name] = gone
    return DeviceAmounts(capacity, unusable)


def _gone(device: PublishedDevice, taken: Set[DeviceId], tainted: Set[DeviceId]) -> int:
    """Return how often no new pod can have a device. One that is shared is free for others still.

    A request that tolerates a taint is not counted at all (``device_claims``).
    """
    if device.taints or device.id in tainted:
        return device.times
    return int(device.is_whole and device.id in taken)
