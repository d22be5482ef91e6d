"""Constraints on nodes: the operators of RFC 31 and one of our own.

Those of RFC 31 are properties, hostlist, ranks, and, or, not. ``fluxqueue/matchExpressions`` takes
Kubernetes' node selector requirements (key, operator, values), which must all hold. It expresses
node selectors and node affinity, with the meaning of the six operators. ``written_constraint``
reads them. The matcher evaluates them on vertices of type ``node``. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from fluxqueue.fluxjob.node import NAME_KEY
from fluxqueue.fluxjob.request import NodeRequirement

MATCH_EXPRESSIONS = "fluxqueue/matchExpressions"
"""Our operator: requirements on node labels (``metadata.name`` is the node's name)."""


@dataclass(frozen=True, slots=True)
class Constraint:
    """One operator and its operands. ``matches`` defines its meaning.

    ``operator`` is ``properties`` (names, ``^name`` means absent), ``hostlist``, ``ranks``,
    ``and``, ``or``, ``not`` (not all of them) or ``fluxqueue/matchExpressions`` (all of
    ``requirements``). Every node satisfies the operator ``""``.
    """

    operator: str = ""
    names: tuple[str, ...] = ()
    ranks: frozenset[int] = frozenset()
    hosts: frozenset[str] = frozenset()
    operands: tuple[Constraint, ...] = ()
    requirements: tuple[NodeRequirement, ...] = ()
    parts: int = field(default=0, init=False, repr=False, compare=False)
    """The number of parts evaluated per node: operators, names and values, with all operands."""
    depth: int = field(default=0, init=False, repr=False, compare=False)
    """The depth of constraints below this one."""
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        own = len(self.names) + sum(1 + len(one.values) for one in self.requirements)
        parts = 1 + own + sum(one.parts for one in self.operands)
        depth = 1 + max((one.depth for one in self.operands), default=-1)
        of = self.operator, self.names, self.ranks, self.hosts, self.operands, self.requirements
        for name, value in (("parts", parts), ("depth", depth), ("_hash", hash(of))):
            object.__setattr__(self, name, value)

    def __hash__(self) -> int:
        """Return the hash computed once: masks of nodes are cached by it, and it may be large."""
        return self._hash

    def matches(self, name: str, rank: int, properties: Mapping[str, str]) -> bool:
        """Return whether a node with this name and broker rank (-1: none) satisfies the constraint.

        ``properties`` are those of a Flux vertex, or the labels of a Kubernetes node.
        """
        match self.operator:
            case "properties":
                return all(
                    (n[1:] not in properties) if n.startswith("^") else (n in properties)
                    for n in self.names
                )
            case "hostlist":
                return name in self.hosts
            case "ranks":
                return rank in self.ranks
            case "and":
                return all(c.matches(name, rank, properties) for c in self.operands)
            case "or":
                return any(c.matches(name, rank, properties) for c in self.operands)
            case "not":
                return not all(c.matches(name, rank, properties) for c in self.operands)
            case "fluxqueue/matchExpressions":
                labels = {**properties, NAME_KEY: name}
                return all(one.is_met_by(labels) for one in self.requirements)
        return True


def all_of(parts: Sequence[Constraint]) -> Constraint | None:
    """Return all of ``parts`` together, or None if there are none."""
    if len(parts) < 2:
        return parts[0] if parts else None
    return Constraint("and", operands=tuple(parts))
