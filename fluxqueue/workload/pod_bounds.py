"""What binds the pods of a workload beside their own spec, as far as the matcher can judge it.

``surroundings`` finds it and attaches it to the spec of each pod. ``constraints`` and ``shape``
read it from there. A spec from the API server has no such field, because it is no JSON. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fluxqueue.jobspec.constraint import Constraint
from fluxqueue.jobspec.model import NODE

KEY = "fluxqueueBounds"

AFFINITY, ANTI_AFFINITY = "pod affinity", "pod anti-affinity"
SPREAD = "topology spread constraints"
VOLUMES, PORTS = "volumes that are bound to places", "host ports"
SHARED_VOLUMES = "the number of volumes of a node"
"""Names of what can be left to kube-scheduler, for users."""


class RuleKind(StrEnum):
    """How equal pods are divided among the places of a level, or among nodes."""

    TOGETHER = "together"
    """All in one place."""
    APART = "apart"
    """At most one in each place."""
    EVEN = "even"
    """As many in each place, or one more."""


@dataclass(frozen=True, slots=True)
class Rule:
    """A rule for the places of ``level``. ``domains`` is their number, for an even division."""

    level: str
    kind: RuleKind
    domains: int = 0


@dataclass(frozen=True, slots=True)
class PodBounds:
    """What binds equal pods.

    ``where``: constraints on their nodes. ``rules``: how they are divided among places and nodes,
    the highest level first. ``pools``: resources of nodes that their spec does not name, such as
    volumes (units of each pod). ``is_scattered``: they should use many nodes, if nothing else
    decides. ``left`` names what is left to kube-scheduler.
    """

    where: tuple[Constraint, ...] = ()
    rules: tuple[Rule, ...] = ()
    pools: tuple[tuple[str, int], ...] = ()
    is_scattered: bool = False
    left: tuple[str, ...] = ()


def bounds_of(spec: Mapping[str, Any]) -> PodBounds | None:
    """Return what is attached to the spec of a pod, None if nothing was judged."""
    found = spec.get(KEY)
    return found if isinstance(found, PodBounds) else None


@dataclass(frozen=True, slots=True)
class PodShare:
    """A part of the pods: ``count`` vertices of ``level`` with equal shares of pods in each.

    ``each`` is the number of pods in one of them. ``below`` divides these further.
    """

    level: str
    count: int
    each: int
    below: tuple[PodShare, ...] = ()


def share_out(count: int, rules: Sequence[Rule]) -> tuple[PodShare, ...]:
    """Return how ``count`` pods are divided by rules, the highest level first."""
    return _shares(count, exact_rules(rules, count)) if count else ()


def exact_rules(rules: Sequence[Rule], count: int) -> list[Rule]:
    """Return the rules without those that have no exact shape below another rule."""
    found: list[Rule] = []
    for rule in rules:
        # A place above has only some of these domains, and how many is not known.
        is_inexact = found and rule.kind is RuleKind.EVEN and count > rule.domains
        # Pods that are divided above cannot be together below.
        is_split = rule.kind is RuleKind.TOGETHER and any(
            one.kind is not RuleKind.TOGETHER for one in found
        )
        if not is_inexact and not is_split:
            found.append(rule)
    return found


def _shares(count: int, rules: Sequence[Rule]) -> tuple[PodShare, ...]:
    if not rules:
        return ()
    rule, *rest = rules
    if rule.kind is RuleKind.TOGETHER:
        return (PodShare(rule.level, 1, count, _shares(count, rest)),)
    if rule.kind is RuleKind.APART or count <= rule.domains:
        return (PodShare(rule.level, count, 1, _shares(1, rest)),)
    each, more = divmod(count, rule.domains)
    if rule.level == NODE:
        # All nodes of a request are different ones.
        parts = [(rule.domains - more, each), (more, each + 1)]
    else:
        # Places of several parts may be the same ones: some get one more.
        parts = [(rule.domains, each), (more, 1)]
    return tuple(PodShare(rule.level, n, size, _shares(size, rest)) for n, size in parts if n)
