"""Kubernetes' words in a request: resources and their units, node requirements, taints.

A jobspec (``fluxqueue.jobspec``) describes the whole request of a workload, and is made of these.
Quantities are integers in base units: ``cpu`` in millicores, everything else in bytes or units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

from fluxqueue.fluxjob.exclusive_use import describe_exclusive, is_exclusive, is_partial

CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
PODS = "pods"
DEVICE_CLASS_PREFIX = "deviceclass.resource.kubernetes.io/"
"""Followed by the name of a DeviceClass: an extended resource that each class serves."""


class Operator(StrEnum):
    """The six operators of Kubernetes node affinity."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


def unit_of(name: str) -> str:
    """Return the base unit of a resource in a jobspec: ``m`` (millicores), ``B``, or empty."""
    if name == CPU:
        return "m"
    return "B" if name in {MEMORY, EPHEMERAL_STORAGE} or name.startswith("hugepages-") else ""


def describe_amount(name: str, amount: int) -> str:
    """Write one amount for people: ``2500`` of cpu as ``2.5 cpu``, bytes as ``Gi``."""
    if name == CPU:
        return f"{amount / 1000:g} cpu"
    if name in {MEMORY, EPHEMERAL_STORAGE}:
        return f"{amount / 2**30:.3g}Gi {name}"
    if is_exclusive(name):
        return describe_exclusive(name)
    return f"{amount} {name}"


def describe(needs: Mapping[str, int]) -> str:
    """Write the needs of a slot in words without its pod count: ``8 cpu, 16Gi memory``."""
    order = sorted(needs, key=lambda name: (name != CPU, name != MEMORY, name))
    said = (n for n in order if n != PODS and not is_partial(n, needs[n]))
    return ", ".join(describe_amount(n, needs[n]) for n in said) or "nothing"


class MatchPolicy(StrEnum):
    """The order in which nodes are filled: Fluxion's names, and two that Kubernetes users know.

    Slots take shares of nodes, so no core ids can be preferred. Only those Fluxion policies are
    here that choose by node. Fluxion's ``first`` is one: untouched nodes first, then the node with
    most free. ``...x`` takes whole nodes.
    """

    FIRST = "first"
    FIRSTNODEX = "firstnodex"
    LONODE = "lonode"
    HINODE = "hinode"
    LONODEX = "lonodex"
    HINODEX = "hinodex"
    PACK = "pack"
    SPREAD = "spread"

    @property
    def is_exclusive(self) -> bool:
        """Whether every node of an allocation is taken whole."""
        return self.value.endswith("nodex")


@dataclass(frozen=True, slots=True)
class NodeRequirement:
    """One expression on a node label, or on the node's name if ``key`` is ``metadata.name``."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def is_met_by(self, labels: Mapping[str, str]) -> bool:
        """Return whether ``labels`` (with ``metadata.name`` among them) satisfy the expression.

        It follows ``k8s.io/apimachinery/pkg/labels.Requirement.Matches``. NotIn holds for an absent
        key. Gt and Lt compare integers, and fail if one side is not an integer.
        """
        value = labels.get(self.key)
        match self.operator:
            case Operator.IN:
                return value is not None and value in self.values
            case Operator.NOT_IN:
                return value is None or value not in self.values
            case Operator.EXISTS:
                return value is not None
            case Operator.DOES_NOT_EXIST:
                return value is None
            case Operator.GT | Operator.LT:
                return _compare(value, self.operator, self.values)


def _compare(value: str | None, operator: Operator, bounds: tuple[str, ...]) -> bool:
    try:
        left, right = int(value or ""), int(bounds[0])
    except (ValueError, IndexError):
        return False
    return left > right if operator is Operator.GT else left < right


@dataclass(frozen=True, slots=True)
class Toleration:
    """A pod's toleration. An empty ``key`` with ``Exists`` tolerates everything.

    ``Gt`` and ``Lt`` compare the value of the taint with that of the toleration, as integers.
    """

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Return whether this toleration covers ``taint`` (``v1.Toleration.ToleratesTaint``)."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        if self.operator in {Operator.GT, Operator.LT}:
            return _compare(taint.value, Operator(self.operator), (self.value,))
        return bool(self.key) and self.value == taint.value


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint. Only NoSchedule and NoExecute keep pods away."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    @property
    def repels(self) -> bool:
        """Whether a pod without a toleration may not be placed there."""
        return self.effect in {"NoSchedule", "NoExecute"}
