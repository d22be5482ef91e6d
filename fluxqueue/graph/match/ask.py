"""A jobspec as the table of shares reads it: levels, then nodes or slots, then what a slot takes.

``compile_ask`` says no (None) to what the table has no answer for: counts that are not fixed, pools
taken whole, vertices below a node. Those requests take the walk. Pure.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import TypeAlias

from fluxqueue.errors import InvalidJobspec
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import NodeConstraint
from fluxqueue.graph.ledger.node_masks import admits
from fluxqueue.graph.match_policy import MatchPolicy, parse_policy
from fluxqueue.jobspec.constraint import Constraint
from fluxqueue.jobspec.model import Jobspec, Resource

Needs: TypeAlias = tuple[tuple[str, int], ...]

NODE = "node"
CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class Where:
    """Which nodes may be used: Kubernetes' constraints (all of them), and the jobspec's own."""

    nodes: tuple[NodeConstraint, ...]
    constraint: Constraint | None = None
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_hash", hash((self.nodes, self.constraint)))

    def __hash__(self) -> int:
        """Reckoned once: what is remembered goes by it in every match."""
        return self._hash

    def admits(self, fact: NodeFact) -> bool:
        """Tell whether a slot may go to this node (readiness apart); labels are properties."""
        if not all(admits(fact, one) for one in self.nodes):
            return False
        return self.constraint is None or self.constraint.matches(fact.name, -1, fact.properties())


@dataclass(frozen=True, slots=True)
class SlotKind:
    """``count`` equal slots on one unit of a leaf."""

    label: str
    count: int
    needs: Needs


@dataclass(frozen=True, slots=True)
class Leaf:
    """The lowest part of a request: ``count`` slots that may share nodes, or (``is_distinct``) so
    many nodes with the slots of ``kinds`` on each. ``is_whole``: its nodes are taken whole.
    """

    count: int
    kinds: tuple[SlotKind, ...]
    where: Where
    is_distinct: bool = False
    is_whole: bool = False
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        of = self.count, self.kinds, self.where, self.is_distinct, self.is_whole
        object.__setattr__(self, "_hash", hash(of))

    def __hash__(self) -> int:
        """Reckoned once: what is remembered goes by it in every match."""
        return self._hash

    @property
    def needs(self) -> Needs:
        """What one unit takes of one node."""
        if len(self.kinds) == 1 and self.kinds[0].count == 1:
            return self.kinds[0].needs
        total: dict[str, int] = {}
        for kind in self.kinds:
            for name, amount in kind.needs:
                total[name] = total.get(name, 0) + kind.count * amount
        return tuple(sorted(total.items()))

    @property
    def per_unit(self) -> int:
        """Slots on one unit."""
        return sum(kind.count for kind in self.kinds)


@dataclass(frozen=True, slots=True)
class Group:
    """``count`` vertices of a level, each with all that is ``below``."""

    level: str
    count: int
    below: tuple[Part, ...]
    is_exclusive: bool = False


Part: TypeAlias = Leaf | Group


@dataclass(frozen=True, slots=True)
class Ask:
    """A whole request. ``duration_s`` None is unlimited; ``policy`` None is the matcher's."""

    parts: tuple[Part, ...]
    duration_s: int | None
    policy: MatchPolicy | None
    is_exclusive: bool
    prefer: tuple[str, ...]
    is_ranked: bool
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        of = self.parts, self.duration_s, self.policy, self.is_exclusive, self.prefer
        object.__setattr__(self, "_hash", hash(of))

    def __hash__(self) -> int:
        """Reckoned once: what is remembered goes by it in every match."""
        return self._hash

    @property
    def is_flat(self) -> bool:
        """Whether it asks for one kind of unit anywhere: then totals over the cluster decide."""
        return len(self.parts) == 1 and isinstance(self.parts[0], Leaf) and not self.prefer

    @property
    def size(self) -> int:
        """Number of slots."""
        return sum(times * leaf.count * leaf.per_unit for times, leaf in self.leaves())

    def leaves(self) -> Iterator[tuple[int, Leaf]]:
        """Every leaf in slot order, and how often it is asked for."""
        yield from _leaves(self.parts, 1)

    def alternatives(self) -> Iterator[tuple[Part, ...]]:
        """What to try in order: all within one vertex of each preferred level, then anywhere."""
        for level in self.prefer:
            yield (Group(level, 1, self.parts),)
        yield self.parts


def _leaves(parts: Sequence[Part], times: int) -> Iterator[tuple[int, Leaf]]:
    for part in parts:
        if isinstance(part, Leaf):
            yield times, part
        else:
            yield from _leaves(part.below, times * part.count)


class _Unanswerable(Exception):
    """The table has no answer for this."""


def compile_ask(jobspec: Jobspec) -> Ask | None:
    """Read ``jobspec`` for the table; None where only the walk can answer it.

    Raises
    ------
    InvalidJobspec
        A match policy that is none.
    """
    policy = parse_policy(jobspec.place.policy) if jobspec.place.policy else None
    try:
        parts = _parts(jobspec.resources, jobspec, "resources")
    except _Unanswerable:
        return None
    return Ask(
        parts=parts,
        duration_s=math.ceil(jobspec.duration_s) or None,
        policy=policy,
        is_exclusive=jobspec.place.is_exclusive,
        prefer=jobspec.place.prefer,
        is_ranked=jobspec.place.is_ranked,
    )


def _parts(resources: Sequence[Resource], jobspec: Jobspec, where: str) -> tuple[Part, ...]:
    found: list[Part] = []
    for i, resource in enumerate(resources):
        here = f"{where}[{i}]"
        count = _fixed(resource)
        if not count:
            continue
        if resource.type == CLUSTER and count == 1 and resource.is_exclusive is not True:
            found += _parts(resource.with_, jobspec, f"{here}.with")
        elif resource.is_slot:
            found.append(_slots(resource, count, jobspec))
        elif resource.type == NODE:
            found.append(_nodes(resource, count, jobspec))
        elif not resource.with_:
            raise _Unanswerable
        else:
            below = _parts(resource.with_, jobspec, f"{here}.with")
            if not below:
                raise InvalidJobspec("holds nothing", where=f"{here}.with")
            found.append(Group(resource.type, count, below, resource.is_exclusive is True))
    return tuple(found)


def _slots(slot: Resource, count: int, jobspec: Jobspec) -> Leaf:
    """Slots that may share nodes; a slot that contains a node takes it whole."""
    if len(slot.with_) == 1 and slot.with_[0].type == NODE and _fixed(slot.with_[0]) == 1:
        kind = SlotKind(slot.label, 1, _pools(slot.with_[0].with_))
        where = _where(jobspec, [slot.label])
        return Leaf(count, (kind,), where, is_distinct=True, is_whole=True)
    kind = SlotKind(slot.label, 1, _pools(slot.with_))
    return Leaf(count, (kind,), _where(jobspec, [slot.label]))


def _nodes(node: Resource, count: int, jobspec: Jobspec) -> Leaf:
    if not node.with_ or not all(one.is_slot for one in node.with_):
        raise _Unanswerable
    kinds = tuple(SlotKind(s.label, _fixed(s), _pools(s.with_)) for s in node.with_)
    where = _where(jobspec, [kind.label for kind in kinds])
    return Leaf(count, kinds, where, is_distinct=True, is_whole=node.is_exclusive is True)


def _pools(resources: Sequence[Resource]) -> Needs:
    total: dict[str, int] = {}
    for one in resources:
        if one.with_ or one.is_slot or one.is_exclusive is True:
            raise _Unanswerable
        total[one.type] = total.get(one.type, 0) + _fixed(one)
    return tuple(sorted(total.items()))


def _fixed(resource: Resource) -> int:
    if resource.count.minimum != resource.count.maximum:
        raise _Unanswerable
    return resource.count.minimum


def _where(jobspec: Jobspec, labels: Sequence[str]) -> Where:
    found = [nodes for label, nodes in jobspec.slot_nodes if not label or label in labels]
    return Where(tuple(dict.fromkeys(found)) or (NodeConstraint(),), jobspec.constraint)
