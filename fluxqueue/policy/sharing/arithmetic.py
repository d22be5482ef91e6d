"""The arithmetic of sharing policies: amounts by resource, in base units, and portions of them.

``policy.sharing.built_in`` calls it. No amount is ever below zero. What is kept for others is
rounded up, and what jobs get is rounded down, so that rounding never takes from others. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from fractions import Fraction
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.node import ForeignPod
from fluxqueue.fluxjob.request import describe_amount
from fluxqueue.workload.quantity import parse_quantity, to_base_units

Amounts = dict[str, int]
"""Resource name -> base units."""

PORTIONS_MAX = 64
"""The most resources that one policy names, as in the definition."""


@dataclass(frozen=True, slots=True)
class Portion:
    """A part of a node's resource: a fixed amount in base units, or a share of the capacity.

    ``share`` is from 0 to 1. Exactly one of both is given.
    """

    amount: int | None = None
    share: Fraction | None = None

    def rounded_up(self, capacity: int) -> int:
        """Return the portion of ``capacity`` in base units, at most all of it."""
        if self.share is None:
            return min(self.amount or 0, capacity)
        part = self.share * capacity
        return min(-(-part.numerator // part.denominator), capacity)

    def rounded_down(self, capacity: int) -> int:
        """Return the portion of ``capacity`` in base units, at most all of it."""
        if self.share is None:
            return min(self.amount or 0, capacity)
        part = self.share * capacity
        return min(part.numerator // part.denominator, capacity)

    def describe(self, resource: str) -> str:
        """Return the portion in words: ``50% of cpu`` or ``2 cpu``."""
        if self.share is None:
            return describe_amount(resource, self.amount or 0)
        return f"{float(self.share * 100):g}% of {resource}"


def read_portions(found: object, where: str) -> dict[str, Portion]:
    """Read portions by resource: quantities, or percentages such as ``12.5%``.

    Raises
    ------
    InvalidInput
        Something is neither, or nothing is given.
    """
    if not isinstance(found, Mapping) or not 0 < len(found) <= PORTIONS_MAX:
        hint = f"1 to {PORTIONS_MAX} resources, such as cpu: 2 or memory: 10%"
        raise InvalidInput("names no resources", where=where, value=found, hint=hint)
    return {
        str(name): _portion(str(name), value, f"{where}.{name}") for name, value in found.items()
    }


def _portion(name: str, value: Any, where: str) -> Portion:
    if not isinstance(value, str) or not value.endswith("%"):
        return Portion(amount=to_base_units(name, value, where=where))
    percent = parse_quantity(value[:-1], where=where)
    if percent > 100:
        raise InvalidInput(
            f"{value!r} is more than all", where=where, value=value, hint="0% to 100%"
        )
    return Portion(share=percent / 100)


def used_by(pods: Iterable[ForeignPod]) -> Amounts:
    """Return what pods use together."""
    used: Amounts = {}
    for pod in pods:
        for name, amount in pod.resources.items():
            used[name] = used.get(name, 0) + amount
    return used


def less(capacity: Mapping[str, int], *taken: Mapping[str, int]) -> Amounts:
    """Return what is left of ``capacity``, at least nothing."""
    return {
        name: max(0, amount - sum(one.get(name, 0) for one in taken))
        for name, amount in capacity.items()
    }


def at_most(amounts: Mapping[str, int], bounds: Mapping[str, int]) -> Amounts:
    """Return ``amounts``, each at most its bound if it has one."""
    return {name: min(amount, bounds.get(name, amount)) for name, amount in amounts.items()}


def kept(portions: Mapping[str, Portion], capacity: Mapping[str, int]) -> Amounts:
    """Return what is kept for others of the resources that a node has."""
    return {n: one.rounded_up(capacity[n]) for n, one in portions.items() if n in capacity}


def given(portions: Mapping[str, Portion], capacity: Mapping[str, int]) -> Amounts:
    """Return what jobs get of the resources that a node has."""
    return {n: one.rounded_down(capacity[n]) for n, one in portions.items() if n in capacity}


def describe_portions(portions: Mapping[str, Portion]) -> str:
    """Return portions in words: ``2 cpu, 10% of memory``."""
    return ", ".join(one.describe(name) for name, one in portions.items())
