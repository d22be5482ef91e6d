"""What binds the pods of a workload beside their own spec, as far as the matcher can judge it.

``surroundings`` finds it and attaches it to the spec of each pod. ``constraints`` and ``shape``
read it from there. A spec from the API server has no such field, because it is no JSON. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

from fluxqueue.jobspec.constraint import Constraint

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
