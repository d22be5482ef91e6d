"""What a slot demands of its node: constraint, tolerated taints, NUMA zones.

It is part of a jobspec. The matcher evaluates it node by node and caches the result as a mask, so
equal demands must be equal keys. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import Toleration
from fluxqueue.jobspec.constraint import Constraint

Bundle: TypeAlias = tuple[tuple[str, int], ...]
"""Resource names and base units that belong together."""


@dataclass(frozen=True, slots=True)
class NodeDemand:
    """The nodes that a slot may use.

    ``tolerations`` work as in Kubernetes: a taint that repels keeps the slot away unless one of
    them tolerates it. So a jobspec without tolerations stays off tainted nodes. ``numa`` are
    bundles that must each fit one NUMA zone (on some nodes: all together), if the node's kubelet
    insists on that.
    """

    constraint: Constraint | None = None
    tolerations: tuple[Toleration, ...] = ()
    numa: tuple[Bundle, ...] = ()
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.constraint, self.tolerations, self.numa)))

    def __hash__(self) -> int:
        return self._hash

    def admits(self, fact: NodeFact, rank: int = -1) -> bool:
        """Return whether a slot may use this node, apart from its readiness and free capacity."""
        if self.constraint is not None and not self.constraint.matches(
            fact.name, rank, fact.labels
        ):
            return False
        if not all(
            any(toleration.tolerates(taint) for toleration in self.tolerations)
            for taint in fact.taints
            if taint.repels
        ):
            return False
        return self.fits_zones(fact)

    def anywhere_in_nodes(self) -> NodeDemand:
        """Return the demand for nodes that do not insist on zones."""
        return replace(self, numa=())

    def fits_zones(self, fact: NodeFact) -> bool:
        """Return whether the node's NUMA zones, if it insists on them, are large enough."""
        return not fact.numa_zones or all(
            any(_fits(bundle, zone) for zone in fact.numa_zones)
            for bundle in self.bundles_for(fact)
        )

    def bundles_for(self, fact: NodeFact) -> tuple[Bundle, ...]:
        """Return what must fit one zone of this node: each container, or the whole pod."""
        return (_together(self.numa),) if fact.is_numa_for_pods else self.numa


ANYWHERE = NodeDemand()
"""Any node without a taint that repels."""


def _together(bundles: tuple[Bundle, ...]) -> Bundle:
    if len(bundles) == 1:
        return bundles[0]
    total: dict[str, int] = {}
    for name, amount in (pair for bundle in bundles for pair in bundle):
        total[name] = total.get(name, 0) + amount
    return tuple(sorted(total.items()))


def _fits(bundle: Bundle, zone: Mapping[str, int]) -> bool:
    """Return whether a bundle fits a zone.

    Only resources that zones are divided by are compared: zones have no pods and no storage.
    """
    return all(zone[name] >= amount for name, amount in bundle if name in zone)
