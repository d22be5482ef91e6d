"""What a pod requests of a node: its effective resource request. Pure.

It follows ``k8s.io/component-helpers/resource``. Containers run together. Init containers run one
after another. Sidecars (init containers that restart) run beside everything after them.
"""

from __future__ import annotations

from decimal import ROUND_CEILING

from localcluster.obj import Obj
from localcluster.types.quantity import value_of

Amounts = dict[str, int]
"""Amounts by resource name.

cpu is in millicores, everything else in whole units (bytes, devices, pods).
"""


def amounts_of(quantities: Obj | None) -> Amounts:
    """Return a ResourceList as integers, rounded up."""
    found: Amounts = {}
    for name, text in (quantities or {}).items():
        value = value_of(text) * (1000 if name == "cpu" else 1)
        found[name] = int(value.to_integral_value(rounding=ROUND_CEILING))
    return found


def add(total: Amounts, more: Amounts) -> None:
    """Compute ``total += more`` in place."""
    for name, amount in more.items():
        total[name] = total.get(name, 0) + amount


def subtract(total: Amounts, less: Amounts) -> None:
    """Compute ``total -= less`` in place."""
    for name, amount in less.items():
        total[name] = total.get(name, 0) - amount


def _raise_to(total: Amounts, floor: Amounts) -> None:
    for name, amount in floor.items():
        if amount > total.get(name, 0):
            total[name] = amount


def _container_requests(container: Obj) -> Amounts:
    resources = container.get("resources") or {}
    return amounts_of(resources.get("limits")) | amounts_of(resources.get("requests"))


def pod_requests(pod: Obj) -> Amounts:
    """Return the effective request of a pod, without the one pod it takes of the node's limit."""
    spec = pod["spec"]
    total = container_requests(spec)
    requests = amounts_of((spec.get("resources") or {}).get("requests"))
    total.update({name: amount for name, amount in requests.items() if is_pod_level(name)})
    add(total, amounts_of(spec.get("overhead")))
    return total


def is_pod_level(name: str) -> bool:
    """Return whether a pod as a whole can request the resource."""
    return name in {"cpu", "memory"} or name.startswith("hugepages-")


def container_requests(spec: Obj) -> Amounts:
    """Return what all containers request together, without ``spec.resources``."""
    total: Amounts = {}
    for container in spec.get("containers") or ():
        add(total, _container_requests(container))
    sidecars: Amounts = {}
    initial: Amounts = {}
    for container in spec.get("initContainers") or ():
        own = _container_requests(container)
        if container.get("restartPolicy") == "Always":
            add(sidecars, own)
            _raise_to(initial, sidecars)
        else:
            add(own, sidecars)
            _raise_to(initial, own)
    add(total, sidecars)
    _raise_to(total, initial)
    return total
