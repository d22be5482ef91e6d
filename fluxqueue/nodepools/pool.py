"""One FluxNodePool as rules: the shape of its nodes, how many there may be, and what one costs.

The controller makes pools to check a spec before it is stored, and the worker makes them from rows.
A spec must fit the definition in ``chart/crds/fluxnodepools.yaml``. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from decimal import Decimal
from math import ceil
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.node import NAME_KEY, NodeFact
from fluxqueue.fluxjob.request import DEVICE_CLASS_PREFIX, Taint
from fluxqueue.policy.provision_rules import parse_price
from fluxqueue.policy.spec_fields import as_mapping, as_texts, as_whole
from fluxqueue.workload import labels
from fluxqueue.workload.annotations import MAX_INT32, parse_duration
from fluxqueue.workload.quantity import to_base_units

NODES_MAX = 10_000
"""The most nodes that one pool may have."""

DEVICES_MAX = 1000
"""The most devices of one class on a node."""

LEARNED_MIN, LEARNED_MAX = 3, 20
"""The measured times that replace the given one, and the most that are kept."""

LEARNED_SHARE = 0.8
"""The share of the measured times that the expected time covers."""

SCALE = "scale"
PROVISIONING_REQUEST = "provisioningRequest"
PROVIDERS = ("capacityBuffer", "placeholder", PROVISIONING_REQUEST, SCALE)
"""The fields of ``spec.provider``. A pool has one of them."""

REQUIRED = {
    SCALE: ("apiVersion", "resource", "name"),
    PROVISIONING_REQUEST: ("provisioningClassName",),
}
"""The texts that a provider cannot do without."""

NAME_MAX = 40
POOL_NAME = re.compile(r"[a-z0-9](?:[-a-z0-9]{0,38}[a-z0-9])?")
"""What the definition permits as the name of a pool. Longer names fit in no label."""

CHECK_CAPACITY = "check-capacity."
"""The classes of ProvisioningRequests that begin so add no nodes."""


@dataclass(frozen=True, slots=True)
class NodePool:
    """Nodes of one shape that a provider can bring.

    ``capacity`` is what jobs may have of a node, in base units. A node with all of ``labels``
    belongs to the pool. ``levels``: the nodes of one request share one place of each. ``least`` and
    ``most`` bound the number of its nodes. ``price`` is for one node and hour. ``idle_s``: an idle
    node is returned after this time, None if the provider decides. ``parameters`` are those of
    ``provider``, one of ``PROVIDERS``.
    """

    name: str
    capacity: Mapping[str, int]
    labels: Mapping[str, str]
    most: int
    provisioning_s: int
    provider: str
    taints: tuple[Taint, ...] = ()
    levels: tuple[str, ...] = ()
    least: int = 0
    price: Decimal = Decimal(0)
    priority: int = 0
    idle_s: int | None = None
    parameters: Mapping[str, Any] = field(default_factory=dict)

    def has(self, fact: NodeFact) -> bool:
        """Return whether a node belongs to the pool."""
        return all(fact.labels.get(key) == value for key, value in self.labels.items())

    def has_provider_of(self, other: NodePool) -> bool:
        """Return whether the provider of this pool can take back what ``other`` has asked for."""
        if self.provider != other.provider:
            return False
        # Other providers find their objects by the name of the pool.
        return self.provider != SCALE or self.parameters == other.parameters

    def node(self, number: int) -> NodeFact:
        """Return a node that the provider could bring, with a name that no real node can have.

        All such nodes of the pool share one new place of each level in ``levels``.
        """
        name = f"{self.name}/{number}"
        places = dict.fromkeys(self.levels, f"{self.name}/new")
        known = {NAME_KEY: name, labels.HOSTNAME: name}
        return NodeFact(
            name, f"new-{name}", self.capacity, {**places, **self.labels, **known}, self.taints
        )

    def expected_s(self, learned: Sequence[int]) -> int:
        """Return how long a node takes, in seconds, after the measured times ``learned``."""
        if len(learned) < LEARNED_MIN:
            return self.provisioning_s
        ordered = sorted(learned)
        return max(1, ordered[ceil(LEARNED_SHARE * len(ordered)) - 1])


def is_pool_name(text: str) -> bool:
    """Return whether a pool may have this name. Objects that bring nodes are named after it."""
    return POOL_NAME.fullmatch(text) is not None


def read_node_pool(name: str, spec: object) -> NodePool:
    """Read the spec of a FluxNodePool.

    Raises
    ------
    InvalidInput
        A field is not valid. ``where`` is its path.
    """
    if not is_pool_name(name):
        raise InvalidInput(
            "is no name of a pool",
            where="metadata.name",
            value=name,
            hint=f"use at most {NAME_MAX} lower-case letters, digits and hyphens",
        )
    found = as_mapping(spec, "spec")
    node = as_mapping(found.get("node"), "spec.node")
    most = as_whole(found.get("max"), "spec.max", 0, NODES_MAX)
    least = as_whole(found.get("min", 0), "spec.min", 0, NODES_MAX)
    if least > most:
        raise InvalidInput(f"{least} is more than spec.max ({most})", where="spec.min", value=least)
    provider, parameters = _provider(found.get("provider"))
    idle = found.get("idleTime")
    return NodePool(
        name=name,
        capacity={**_capacity(node.get("allocatable")), **_devices(node.get("devices"))},
        labels=_labels(node.get("labels")),
        most=most,
        provisioning_s=parse_duration(str(found.get("provisioningTime")), "spec.provisioningTime"),
        provider=provider,
        taints=_taints(node.get("taints")),
        levels=as_texts(node.get("levels"), "spec.node.levels"),
        least=least,
        price=parse_price(found.get("pricePerHour", "0"), "spec.pricePerHour"),
        priority=as_whole(found.get("priority", 0), "spec.priority", -MAX_INT32),
        idle_s=None if idle is None else parse_duration(str(idle), "spec.idleTime"),
        parameters=parameters,
    )


def _provider(value: object) -> tuple[str, Mapping[str, Any]]:
    found = as_mapping(value, "spec.provider")
    given = [name for name in PROVIDERS if found.get(name) is not None]
    if len(given) != 1:
        raise InvalidInput(
            f"names {len(given)} providers",
            where="spec.provider",
            value=value,
            hint=f"give one of {', '.join(PROVIDERS)}",
        )
    parameters = as_mapping(found[given[0]], f"spec.provider.{given[0]}")
    for key in REQUIRED.get(given[0], ()):
        if not isinstance(parameters.get(key), str) or not parameters[key]:
            where = f"spec.provider.{given[0]}.{key}"
            raise InvalidInput("is missing", where=where, value=parameters.get(key))
    if given[0] == PROVISIONING_REQUEST:
        _check_class(parameters["provisioningClassName"])
    return given[0], parameters


def _check_class(name: str) -> None:
    """Refuse the class that looks for present capacity only."""
    if name.startswith(CHECK_CAPACITY):
        raise InvalidInput(
            "adds no nodes",
            where="spec.provider.provisioningRequest.provisioningClassName",
            value=name,
            hint="give a class that adds nodes, such as"
            " best-effort-atomic-scale-up.autoscaling.x-k8s.io",
        )


def _capacity(value: object) -> Mapping[str, int]:
    where = "spec.node.allocatable"
    found = as_mapping(value, where)
    if not found:
        raise InvalidInput("is empty", where=where, value=value, hint="give at least cpu")
    return {
        name: to_base_units(name, amount, where=f"{where}.{name}") for name, amount in found.items()
    }


def _devices(value: object) -> Mapping[str, int]:
    """Read devices by class. Claims count them under the name that each class serves."""
    where = "spec.node.devices"
    return {
        f"{DEVICE_CLASS_PREFIX}{name}": as_whole(count, f"{where}.{name}", 1, DEVICES_MAX)
        for name, count in as_mapping(value, where).items()
    }


def _labels(value: object) -> Mapping[str, str]:
    where = "spec.node.labels"
    found = as_mapping(value, where)
    if not found or not all(isinstance(one, str) for one in found.values()):
        hint = "give the labels that tell the nodes of the pool from all others"
        raise InvalidInput(f"{value!r} is not usable", where=where, value=value, hint=hint)
    return dict(found)


def _taints(value: object) -> tuple[Taint, ...]:
    where = "spec.node.taints"
    if value is None:
        return ()
    if not isinstance(value, list):
        raise InvalidInput(f"{value!r} is no list", where=where, value=value)
    found = [as_mapping(one, where) for one in value]
    return tuple(
        Taint(str(one.get("key", "")), str(one.get("value") or ""), str(one.get("effect") or ""))
        for one in found
    )
