"""Kubernetes' words in a request: resources and their units, node requirements, taints.

What a workload asks for as a whole is a jobspec (``fluxqueue.jobspec``), which is made of these.
Quantities are integers in base units: ``cpu`` in millicores, everything else in bytes or whole
units.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum

CPU = "cpu"
MEMORY = "memory"
EPHEMERAL_STORAGE = "ephemeral-storage"
PODS = "pods"


class Operator(StrEnum):
    """The six operators of Kubernetes node affinity."""

    IN = "In"
    NOT_IN = "NotIn"
    EXISTS = "Exists"
    DOES_NOT_EXIST = "DoesNotExist"
    GT = "Gt"
    LT = "Lt"


def unit_of(name: str) -> str:
    """The base unit of a resource as a jobspec writes it: ``m`` (millicores), ``B``, or none."""
    if name == CPU:
        return "m"
    return "B" if name in {MEMORY, EPHEMERAL_STORAGE} or name.startswith("hugepages-") else ""


def describe_amount(name: str, amount: int) -> str:
    """Write one amount as people do: ``2500`` of cpu as ``2.5 cpu``, bytes as ``Gi``."""
    if name == CPU:
        return f"{amount / 1000:g} cpu"
    if name in {MEMORY, EPHEMERAL_STORAGE}:
        return f"{amount / 2**30:.3g}Gi {name}"
    return f"{amount} {name}"


def describe(needs: Mapping[str, int]) -> str:
    """Write a slot's needs in words, the pod count left out: ``8 cpu, 16Gi memory``."""
    order = sorted(needs, key=lambda name: (name != CPU, name != MEMORY, name))
    return ", ".join(describe_amount(n, needs[n]) for n in order if n != PODS) or "nothing"


class MatchPolicy(StrEnum):
    """In which order nodes are filled: Fluxion's names, and two that Kubernetes users expect.

    Slots take shares, so there are no core ids to prefer: of Fluxion's policies those that choose
    by node are here (fluxion's ``first`` is: untouched nodes first, then the one with most free).
    ``...x`` takes whole nodes.
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
        """Whether every node touched is taken whole."""
        return self.value.endswith("nodex")


@dataclass(frozen=True, slots=True)
class NodeRequirement:
    """One expression on a node label, or on the node's name where ``key`` is ``metadata.name``."""

    key: str
    operator: Operator
    values: tuple[str, ...] = ()

    def is_met_by(self, labels: Mapping[str, str]) -> bool:
        """Tell whether ``labels`` (with ``metadata.name`` among them) satisfy the expression.

        Follows ``k8s.io/apimachinery/pkg/labels.Requirement.Matches``: NotIn holds for an absent
        key, Gt and Lt compare integers and fail where either side is none.
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
    """A pod's toleration; empty ``key`` with ``Exists`` tolerates everything."""

    key: str = ""
    operator: str = "Equal"
    value: str = ""
    effect: str = ""

    def tolerates(self, taint: Taint) -> bool:
        """Tell whether this toleration covers ``taint`` (``v1.Toleration.ToleratesTaint``)."""
        if self.effect and self.effect != taint.effect:
            return False
        if self.key and self.key != taint.key:
            return False
        if self.operator == "Exists":
            return True
        return bool(self.key) and self.value == taint.value


@dataclass(frozen=True, slots=True)
class Taint:
    """A node's taint; only NoSchedule and NoExecute keep pods away."""

    key: str
    value: str = ""
    effect: str = "NoSchedule"

    @property
    def repels(self) -> bool:
        """Whether a pod without a toleration may not be placed there."""
        return self.effect in {"NoSchedule", "NoExecute"}
