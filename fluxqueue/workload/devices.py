"""Devices of dynamic resource allocation (DRA) as amounts of nodes: whole devices, by class.

``controller.observing.devices`` reads DeviceClasses, ResourceSlices and ResourceClaims, and adds
the amounts to the facts of nodes. A pod asks for devices as an extended resource: by the name that
a class gives, or by the class itself. What cannot be counted is never counted too low, so that no
job is wrongly unsatisfiable. kube-scheduler then decides. Pure.

Source: k8s.io/dynamic-resource-allocation, k8s.io/kubernetes/pkg/scheduler (1.36).
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence, Set
from dataclasses import dataclass, field
from typing import Any

IMPLICIT_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Followed by the name of a class: an extended resource that each class serves."""

EXTENDED_CLAIM = "resource.kubernetes.io/extended-resource-claim"
"""Annotation of claims that kube-scheduler makes for extended resources of a pod."""

SHARED_MAX = 1000
"""So often one device counts that several claims may share: its capacity is not counted."""

DeviceId = tuple[str, str, str]
"""Driver, pool and name."""

_TEXT = re.compile(r"""\"[^"\\]*"|'[^'\\]*'""")
_DRIVER = re.compile(r"""device\.driver\s*==\s*("[^"\\]*"|'[^'\\]*')""")
_ATTRIBUTE = re.compile(
    r"""device\.attributes\[("[^"\\]*"|'[^'\\]*')\]\.([A-Za-z_][A-Za-z0-9_]*)"""
    r"""(?:\s*==\s*("[^"\\]*"|'[^'\\]*'|-?[0-9]{1,18}|true|false))?"""
)


@dataclass(frozen=True, slots=True)
class Condition:
    """One equality of a selector. An empty ``domain`` means the driver."""

    domain: str
    name: str
    value: str | int | bool

    def holds(self, device: PublishedDevice) -> bool:
        """Return whether a device meets it. One without the attribute does not."""
        if not self.domain:
            return device.id[0] == self.value
        found = device.attributes.get(f"{self.domain}/{self.name}")
        return type(found) is type(self.value) and found == self.value


@dataclass(frozen=True, slots=True)
class PublishedDevice:
    """One device. ``attributes`` have qualified names, as in ``gpu.example.com/model``.

    ``is_tainted``: no new pod gets it. ``is_whole``: one claim takes all of it, and no other device
    shares its parts.
    """

    id: DeviceId
    attributes: Mapping[str, Any] = field(default_factory=dict)
    is_tainted: bool = False
    is_whole: bool = True
    times: int = 1


@dataclass(frozen=True, slots=True)
class DeviceSlice:
    """The devices of one ResourceSlice. ``node`` is None if several nodes can reach them."""

    pool: tuple[str, str]
    generation: int
    node: str | None
    devices: tuple[PublishedDevice, ...]


@dataclass(frozen=True, slots=True)
class DeviceClassFact:
    """A DeviceClass: the extended resources that it serves, and its conditions.

    ``doubt``: why its selectors cannot be decided here. Then each device counts for it that meets
    the conditions that can be.
    """

    name: str
    resources: tuple[str, ...]
    conditions: tuple[Condition, ...]
    doubt: str = ""

    @property
    def resource(self) -> str:
        """Return the name under which requests of claims count its devices."""
        return self.resources[-1]

    def may_have(self, device: PublishedDevice) -> bool:
        """Return whether a device is of the class, or may be."""
        return all(one.holds(device) for one in self.conditions)


@dataclass(frozen=True, slots=True)
class DeviceAmounts:
    """Extended resource -> devices: all, and those that new pods cannot get now."""

    capacity: Mapping[str, int] = field(default_factory=dict)
    unusable: Mapping[str, int] = field(default_factory=dict)


def read_class(found: Mapping[str, Any]) -> DeviceClassFact:
    """Read a DeviceClass."""
    name, spec = found["metadata"]["name"], found.get("spec") or {}
    own = spec.get("extendedResourceName")
    conditions: list[Condition] = []
    doubt = ""
    for selector in spec.get("selectors") or ():
        expression = str((selector.get("cel") or {}).get("expression") or "")
        known, is_whole = _read_expression(expression)
        conditions += known
        if not is_whole:
            doubt = f"its selector cannot be counted: {' '.join(expression.split())[:200]}"
    resources = (f"{IMPLICIT_PREFIX}{name}", *((str(own),) if own else ()))
    return DeviceClassFact(name, resources, tuple(conditions), doubt)


def _read_expression(expression: str) -> tuple[list[Condition], bool]:
    """Return the equalities that an expression demands, and whether these are all of it.

    Only a conjunction is read in parts. Of anything else, no part is known to be demanded.
    """
    if any(word in expression for word in ("||", "?", "!", "//")):
        return [], False
    if any("&&" in text for text in _TEXT.findall(expression)):
        return [], False
    found = [_read_part(part.strip()) for part in expression.split("&&")]
    return [one for one in found if one is not None], all(one is not None for one in found)


def _read_part(part: str) -> Condition | None:
    while part.startswith("(") and part.endswith(")"):
        part = part[1:-1].strip()
    driver = _DRIVER.fullmatch(part)
    if driver is not None:
        return Condition("", "driver", driver[1][1:-1])
    attribute = _ATTRIBUTE.fullmatch(part)
    if attribute is None:
        return None
    return Condition(attribute[1][1:-1], attribute[2], _value(attribute[3]))


def _value(text: str | None) -> str | int | bool:
    """Read a literal. An attribute that stands alone must be true."""
    if text is None or text in {"true", "false"}:
        return text != "false"
    return text[1:-1] if text[0] in "\"'" else int(text)


def read_slice(found: Mapping[str, Any]) -> DeviceSlice:
    """Read a ResourceSlice."""
    spec = found["spec"]
    driver, pool = spec["driver"], spec["pool"]
    node = None if spec.get("perDeviceNodeSelection") else spec.get("nodeName")
    devices = tuple(_device(driver, pool["name"], one) for one in spec.get("devices") or ())
    return DeviceSlice((driver, pool["name"]), int(pool.get("generation") or 0), node, devices)


def _device(driver: str, pool: str, found: Mapping[str, Any]) -> PublishedDevice:
    attributes = {
        name if "/" in name else f"{driver}/{name}": next(iter(value.values()), None)
        for name, value in (found.get("attributes") or {}).items()
    }
    effects = {taint.get("effect") for taint in found.get("taints") or ()}
    is_shared = found.get("allowMultipleAllocations") is True
    return PublishedDevice(
        (driver, pool, found["name"]),
        attributes,
        is_tainted=bool(effects & {"NoSchedule", "NoExecute"}),
        is_whole=not is_shared and not found.get("consumesCounters"),
        times=SHARED_MAX if is_shared else 1,
    )


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
) -> DeviceAmounts:
    """Count the devices that a node can reach.

    Parameters
    ----------
    devices
        The devices that pods on the node can have.
    taken
        The devices that claims hold. What pods with slots hold is left out: their slots count it.
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
        if len(of_name) == 1 and not of_name[0].doubt:
            gone = sum(_is_gone(device, taken) for device in served)
            if gone:
                unusable[name] = gone
    return DeviceAmounts(capacity, unusable)


def _is_gone(device: PublishedDevice, taken: Set[DeviceId]) -> bool:
    """Return whether no new pod can have a device. One that is shared is free for others still."""
    return device.is_whole and (device.is_tainted or device.id in taken)
