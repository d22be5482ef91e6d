"""What a node must be like to be given to a slot: constraint, tolerated taints, NUMA zones.

Part of a jobspec; asked by the matcher, node by node, and remembered there as a mask, so equal
demands must be equal keys. Pure.
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
    """Where a slot may go.

    ``tolerations`` is part of Kubernetes' side: a taint that repels and is tolerated by none of
    them keeps the slot away, so a jobspec without any stays off tainted nodes. ``numa`` are
    bundles each of which (on some nodes: all together) must fit one NUMA zone, where the node's
    kubelet insists on that.
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
        """Tell whether a slot may go to this node, its readiness and its room apart."""
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
        """The same of nodes that do not insist on zones."""
        return replace(self, numa=())

    def fits_zones(self, fact: NodeFact) -> bool:
        """Tell whether the node's NUMA zones, if it insists on them, are large enough."""
        return not fact.numa_zones or all(
            any(_fits(bundle, zone) for zone in fact.numa_zones)
            for bundle in self.bundles_for(fact)
        )

    def bundles_for(self, fact: NodeFact) -> tuple[Bundle, ...]:
        """What has to fit one zone of this node: each container, or the pod."""
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
    """A zone is asked only for what it is divided by: it has no pods and no storage."""
    return all(zone[name] >= amount for name, amount in bundle if name in zone)
