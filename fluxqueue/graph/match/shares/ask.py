"""A jobspec as the table of shares reads it: levels, then nodes or slots, then resources.

Variable counts are stored as their minimum, with the whole series in ``up_to``. Some requests
cannot be answered from the table (vertices below a node). They have a ``problem`` and never fit.
Pure.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Iterator, Sequence, Set
from contextlib import suppress
from dataclasses import dataclass, field, replace
from operator import le
from typing import NamedTuple, TypeAlias

from fluxqueue.fluxjob.exclusive_use import ONE_POD_CLAIM
from fluxqueue.graph.match.policy import Policy, parse_policy
from fluxqueue.jobspec.bounds import SLOTS_MAX
from fluxqueue.jobspec.demand import Bundle, NodeDemand
from fluxqueue.jobspec.model import NODE, Count, Jobspec, Resource
from fluxqueue.jobspec.shape import bounded, relaxations

CLUSTER = "cluster"


@dataclass(frozen=True, slots=True)
class UnitSlots:
    """``count`` equal slots on one unit of a leaf.

    With ``up_to``, each node gets as many slots as fit, out of this series. ``apart`` is what a
    slot takes beside its needs, and what is not compared with the node: claims for one pod.
    """

    label: str
    count: int
    needs: Bundle
    up_to: Count | None = None
    apart: Bundle = ()

    @property
    def takes(self) -> Bundle:
        """Return all that is booked for one slot."""
        return tuple(sorted((*self.needs, *self.apart))) if self.apart else self.needs


@dataclass(frozen=True, slots=True)
class Leaf:
    """The lowest part of a request.

    Its units are ``count`` slots that may share nodes. If ``is_distinct`` is set, they are
    ``count`` nodes with the slots of ``kinds`` on each. With ``up_to`` there are as many units as
    fit, out of this series. With ``is_whole`` the nodes are taken whole. A slot takes all that its
    node has of the resources in ``whole_pools``.
    """

    count: int
    kinds: tuple[UnitSlots, ...]
    where: NodeDemand
    is_distinct: bool = False
    is_whole: bool = False
    whole_pools: tuple[str, ...] = ()
    up_to: Count | None = None
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        of = self.count, self.kinds, self.where, self.is_distinct, self.is_whole, self.whole_pools
        object.__setattr__(self, "_hash", hash((of, self.up_to)))

    def __hash__(self) -> int:
        """Return the hash computed once, because every match looks up caches by it."""
        return self._hash

    @property
    def needs(self) -> Bundle:
        """Return what one unit takes of one node."""
        if len(self.kinds) == 1 and self.kinds[0].count == 1:
            return self.kinds[0].needs
        total: dict[str, int] = {}
        for kind in self.kinds:
            for name, amount in kind.needs:
                total[name] = total.get(name, 0) + kind.count * amount
        return tuple(sorted(total.items()))

    @property
    def per_unit(self) -> int:
        """Return the number of slots on one unit."""
        return sum(kind.count for kind in self.kinds)


@dataclass(frozen=True, slots=True)
class Group:
    """``count`` vertices of a level, each with all that is ``below``.

    With ``up_to`` there are as many vertices as fit, out of this series.
    """

    level: str
    count: int
    below: tuple[Part, ...]
    is_exclusive: bool = False
    up_to: Count | None = None


Part: TypeAlias = Leaf | Group


class Extent(NamedTuple):
    """How much a request with one kind of units needs.

    Requests of the same ``kind`` can be compared: by the number of units, the duration, and what
    each unit takes.
    """

    kind: Hashable
    units: int
    duration_s: float
    amounts: tuple[int, ...]

    def is_within(self, other: Extent) -> bool:
        """Return whether ``other``, of the same kind, needs at least as much of everything."""
        return (
            self.units <= other.units
            and self.duration_s <= other.duration_s
            and all(map(le, self.amounts, other.amounts))
        )


@dataclass(frozen=True, slots=True)
class Ask:
    """A whole request.

    ``duration_s`` None means no limit. ``policy`` None means the matcher's policy. ``preferred``
    are narrower forms to try first: all slots below one vertex of a level. ``grown`` is the request
    with at least one slot, from which a job of no slots can grow. ``problem`` says in words why the
    table cannot answer it. ``claims`` are the volume claims for one pod that its pods use.
    ``contested`` is one of them that several pods would need at once, empty if there is none.
    """

    parts: tuple[Part, ...]
    duration_s: int | None
    policy: Policy | None
    is_exclusive: bool
    preferred: tuple[tuple[Part, ...], ...] = ()
    grown: tuple[Part, ...] = ()
    problem: str = ""
    claims: tuple[str, ...] = ()
    contested: str = ""
    extent: Extent | None = field(init=False, repr=False, compare=False)
    """None: it has several kinds of units, levels, or a number that is not fixed."""
    _hash: int = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        of = self.parts, self.duration_s, self.policy, self.is_exclusive, self.problem
        object.__setattr__(self, "_hash", hash((*of, self.preferred)))
        object.__setattr__(self, "extent", _extent_of(self))

    def __hash__(self) -> int:
        """Return the hash computed once, because every match looks up caches by it."""
        return self._hash

    @property
    def is_flat(self) -> bool:
        """Return whether it asks for one kind of unit anywhere.

        Then totals over the cluster decide.
        """
        is_one = len(self.parts) == 1 and isinstance(self.parts[0], Leaf)
        return is_one and not self.preferred

    @property
    def size(self) -> int:
        """Return the minimum number of slots."""
        return sum(times * leaf.count * leaf.per_unit for times, leaf in self.leaves())

    def leaves(self) -> Iterator[tuple[int, Leaf]]:
        """Yield every leaf in slot order, after the number of times that it is requested."""
        yield from _leaves(self.parts, 1)

    def alternatives(self) -> tuple[tuple[Part, ...], ...]:
        """Return what to try, in order: the preferred forms, then the request itself."""
        return (*self.preferred, self.parts)


def _extent_of(ask: Ask) -> Extent | None:
    leaf = ask.parts[0] if ask.is_flat else None
    if not isinstance(leaf, Leaf) or leaf.up_to is not None or ask.claims:
        return None
    if any(one.up_to is not None or one.apart for one in leaf.kinds):
        return None
    needs = [(name, amount) for name, amount in leaf.needs if amount > 0]
    if not needs:
        return None
    names = tuple(name for name, _ in needs)
    kind = (
        *(names, leaf.where, leaf.is_distinct, leaf.is_whole, leaf.whole_pools),
        *(ask.is_exclusive, ask.policy),
    )
    duration_s = math.inf if ask.duration_s is None else ask.duration_s
    return Extent(kind, leaf.count, duration_s, tuple(amount for _, amount in needs))


def groups(parts: Sequence[Part]) -> Iterator[Group]:
    """Yield all requested levels, the lowest of each chain first."""
    for part in parts:
        if isinstance(part, Group):
            yield from groups(part.below)
            yield part


def _leaves(parts: Sequence[Part], times: int) -> Iterator[tuple[int, Leaf]]:
    for part in parts:
        if isinstance(part, Leaf):
            yield times, part
        else:
            yield from _leaves(part.below, times * part.count)


class _Unanswerable(Exception):
    """The table cannot answer this request."""


def compile_ask(jobspec: Jobspec, levels: Sequence[str] = ()) -> Ask:
    """Return ``jobspec`` as the table reads it.

    ``levels`` are the names of the cluster's levels, top first.
    """
    policy = None if jobspec.match_policy is None else parse_policy(str(jobspec.match_policy))
    try:
        if jobspec.size > SLOTS_MAX:
            raise _Unanswerable(f"more than {SLOTS_MAX:,} slots")
        *narrower, plain = relaxations(jobspec, levels)
        parts = _parts(plain.resources, plain)
        grown = parts or _parts(tuple(map(_one_at_least, jobspec.resources)), jobspec)
    except _Unanswerable as problem:
        return Ask((), None, policy, is_exclusive=False, problem=str(problem))
    return Ask(
        parts=parts,
        duration_s=jobspec.held_s or None,
        policy=policy,
        is_exclusive=jobspec.is_node_exclusive,
        preferred=tuple(_answerable(narrower)),
        grown=grown,
    )


def _answerable(preferred: Sequence[Jobspec]) -> Iterator[tuple[Part, ...]]:
    """Yield the preferred forms that the table can answer.

    An impossible form is no reason to refuse the request: the next wider one is tried.
    """
    for one in preferred:
        with suppress(_Unanswerable):
            yield _parts(one.resources, one)


def _one_at_least(resource: Resource) -> Resource:
    below = tuple(map(_one_at_least, resource.with_)) if not resource.is_slot else resource.with_
    count = resource.count if resource.count.minimum else Count(1, 1)
    return replace(resource, count=count, with_=below)


def _parts(resources: Sequence[Resource], jobspec: Jobspec) -> tuple[Part, ...]:
    found: list[Part] = []
    for resource in resources:
        count = resource.count.minimum
        if not count:
            continue
        if resource.type == CLUSTER and count == 1 and resource.is_exclusive is not True:
            found += _parts(resource.with_, jobspec)
        elif resource.is_slot:
            found.append(_slots(resource, count, jobspec))
        elif resource.type == NODE:
            leaf = _nodes(resource, count, jobspec)
            if leaf.kinds:
                found.append(leaf)
        elif not resource.with_:
            raise _Unanswerable(f"{resource.type} outside of a slot")
        else:
            below = _parts(resource.with_, jobspec)
            if below:
                is_whole = resource.is_exclusive is True
                found.append(Group(resource.type, count, below, is_whole, _series(resource)))
    return tuple(found)


def _slots(slot: Resource, count: int, jobspec: Jobspec) -> Leaf:
    """Return slots that may share nodes. A slot that contains a node takes it whole."""
    if len(slot.with_) == 1 and slot.with_[0].type == NODE and _fixed(slot.with_[0]) == 1:
        kind = UnitSlots(slot.label, 1, _pools(slot.with_[0].with_))
        where = jobspec.where_of(slot.label)
        return Leaf(count, (kind,), where, is_distinct=True, is_whole=True, up_to=_series(slot))
    kind = UnitSlots(slot.label, 1, _pools(slot.with_))
    where, whole = jobspec.where_of(slot.label), _whole_pools(slot.with_)
    return Leaf(count, (kind,), where, whole_pools=whole, up_to=_series(slot))


def _nodes(node: Resource, count: int, jobspec: Jobspec) -> Leaf:
    if not node.with_ or not all(one.is_slot for one in node.with_):
        raise _Unanswerable("a node that holds anything but slots")
    slots = [slot for slot in node.with_ if slot.count.minimum]
    kinds = tuple(UnitSlots(s.label, s.count.minimum, _pools(s.with_)) for s in slots)
    demands = {jobspec.where_of(kind.label) for kind in kinds}
    if len(demands) > 1:
        raise _Unanswerable("slots on one node with different constraints")
    where = demands.pop() if demands else jobspec.where
    whole = tuple(name for slot in slots for name in _whole_pools(slot.with_))
    if whole and (len(kinds) > 1 or kinds[0].count > 1):
        raise _Unanswerable(f"all {whole[0]} of a node in several slots")
    # Only one slot of a node can take all of a pool, so it has no series.
    if len(kinds) == 1 and not whole:
        kinds = (replace(kinds[0], up_to=_series(slots[0])),)
    return Leaf(
        count,
        kinds,
        where,
        is_distinct=True,
        is_whole=node.is_exclusive is True,
        whole_pools=whole,
        up_to=_series(node),
    )


def _whole_pools(resources: Sequence[Resource]) -> tuple[str, ...]:
    return tuple(sorted(one.type for one in resources if one.is_exclusive is True))


def _pools(resources: Sequence[Resource]) -> Bundle:
    total: dict[str, int] = {}
    for one in resources:
        if one.with_ or one.is_slot:
            raise _Unanswerable(f"{one.type} in a slot that holds something")
        total[one.type] = total.get(one.type, 0) + _fixed(one)
    return tuple(sorted(total.items()))


def set_apart(ask: Ask, counts: Callable[[str], bool]) -> Ask:
    """Return the request with ``apart`` what ``counts`` does not compare with nodes."""
    left = {
        name
        for _, leaf in _leaves(ask.grown, 1)
        for kind in leaf.kinds
        for name, _ in kind.needs
        if not counts(name)
    }
    if not left:
        return ask

    claims = tuple(sorted(name for name in left if name.startswith(ONE_POD_CLAIM)))

    def changed(parts: tuple[Part, ...]) -> tuple[Part, ...]:
        found = (_set_apart(part, left) for part in parts)
        # More pods than the least would only wait for the claim.
        return tuple(map(at_least, found)) if claims else tuple(found)

    parts = changed(ask.parts)
    return replace(
        ask,
        parts=parts,
        preferred=tuple(map(changed, ask.preferred)),
        grown=changed(ask.grown),
        claims=claims,
        contested=next((name for name in claims if _users(parts, name) > 1), ""),
    )


def _users(parts: Sequence[Part], claim: str) -> int:
    """Return how many slots of a request use a claim for one pod."""
    return sum(
        times * leaf.count * kind.count
        for times, leaf in _leaves(parts, 1)
        for kind in leaf.kinds
        if claim in dict(kind.apart)
    )


def _set_apart(part: Part, left: Set[str]) -> Part:
    if isinstance(part, Group):
        return replace(part, below=tuple(_set_apart(one, left) for one in part.below))
    kinds = tuple(
        replace(
            kind,
            needs=tuple(pair for pair in kind.needs if pair[0] not in left),
            apart=tuple(pair for pair in kind.needs if pair[0] in left),
        )
        for kind in part.kinds
    )
    return replace(part, kinds=kinds)


def at_least(part: Part) -> Part:
    """Return the same part with all counts fixed at their minimum."""
    if isinstance(part, Group):
        return replace(part, below=tuple(map(at_least, part.below)), up_to=None)
    kinds = tuple(replace(kind, up_to=None) for kind in part.kinds)
    return replace(part, kinds=kinds, up_to=None)


def _series(resource: Resource) -> Count | None:
    if resource.count.is_fixed:
        return None
    return bounded(resource.count) if resource.is_slot else resource.count


def _fixed(resource: Resource) -> int:
    if resource.count.minimum != resource.count.maximum:
        raise _Unanswerable(f"a number of {resource.type} that is not fixed")
    return resource.count.minimum
