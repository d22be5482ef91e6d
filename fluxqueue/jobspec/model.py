"""The jobspec as data: a tree of resource requests, tasks and attributes.

Built by ``jobspec.parse`` or by ``workload`` from Kubernetes objects, written by
``jobspec.render``, read by the matcher. Frozen, so that a request can be a cache key and can be
shared between threads; its hash is computed once.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.fluxjob.request import MatchPolicy
from fluxqueue.jobspec.constraint import Constraint
from fluxqueue.jobspec.demand import ANYWHERE, NodeDemand

UNLIMITED = (1 << 32) - 1
"""No upper bound of a count; Fluxion's unsigned maximum, so that arithmetic agrees."""
AMOUNT_MAX = (1 << 63) - 1
"""Largest amount of a pool (bytes, millicores), which is a count with a unit."""
SLOT = "slot"
NODE = "node"
RFC14 = 9999
"""Version of a jobspec that needs RFC 14 as a whole: levels, pools and shares of them are beyond
version 1 (RFC 25)."""


@dataclass(frozen=True, slots=True)
class Count:
    """How many: ``minimum``, then ``minimum operator operand`` again and again up to ``maximum``.

    A plain number ``n`` is ``Count(n, n)``. The series is defined in RFC 14; the matcher always
    takes its largest member that fits (flux-sched, ``calc_count``).
    """

    minimum: int
    maximum: int
    operator: str = "+"
    operand: int = 1

    @property
    def is_fixed(self) -> bool:
        """Whether there is nothing to choose."""
        return self.minimum == self.maximum

    @property
    def largest(self) -> int:
        """The largest member of the series."""
        return self.largest_within(max(self.maximum, UNLIMITED))

    def largest_within(self, available: int) -> int:
        """The largest member of the series that is at most ``available``; 0 if there is none."""
        low, high = self.minimum, min(available, self.maximum)
        if low > self.maximum or low > available:
            return 0
        if low == self.maximum:
            return low
        if self.operator == "+":
            return high - (high - low) % self.operand
        best = low
        while True:
            following = best * self.operand if self.operator == "*" else best**self.operand
            if following > high or following <= best:
                return best
            best = following


@dataclass(frozen=True, slots=True)
class Resource:
    """One vertex of the request tree.

    ``is_exclusive`` is None when the jobspec does not say. ``unit`` and ``id`` are carried, never
    matched (as in Fluxion); ``label`` names a slot, or a vertex in the JGF output.
    """

    type: str
    count: Count
    with_: tuple[Resource, ...] = ()
    is_exclusive: bool | None = None
    label: str = ""
    unit: str = ""
    id: str = ""

    @property
    def is_slot(self) -> bool:
        return self.type == SLOT


@dataclass(frozen=True, slots=True)
class Task:
    """What runs in a slot. Nothing in it influences matching."""

    command: tuple[str, ...]
    slot: str
    count: Mapping[str, str] = field(default_factory=dict, hash=False)
    distribution: str = ""


@dataclass(frozen=True, slots=True)
class Jobspec:
    """A whole request. ``duration_s`` 0 means as long as the graph lives; fractions round up.

    ``match_policy`` None leaves the choice to the matcher. ``is_node_exclusive``: every node that
    is touched is taken whole, as by the policies ``...nodex``. ``prefer_within`` names a level: all
    slots below one vertex of it if that can be, else below one of the next level up, and so on.
    ``where`` is what every node of it must be like, ``slot_where`` what those of single slots must
    be like, by label. ``system`` is what else ``attributes.system`` says, kept and never matched.
    """

    version: int
    resources: tuple[Resource, ...]
    tasks: tuple[Task, ...] = ()
    duration_s: float = 0.0
    queue: str = ""
    where: NodeDemand = ANYWHERE
    slot_where: tuple[tuple[str, NodeDemand], ...] = ()
    match_policy: MatchPolicy | None = None
    is_node_exclusive: bool = False
    prefer_within: str = ""
    system: Mapping[str, Any] = field(default_factory=dict)
    user: Any = None
    size: int = field(default=0, init=False, repr=False, compare=False)
    """Number of slots (at least), which is the number of pods that run at once."""
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _slots(self.resources))
        parts = (self.version, self.resources, self.duration_s, self.queue, self.where)
        more = (self.slot_where, self.match_policy, self.is_node_exclusive, self.prefer_within)
        object.__setattr__(self, "_hash", hash((*parts, *more)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def constraint(self) -> Constraint | None:
        """The constraint (RFC 31) on all nodes."""
        return self.where.constraint

    def where_of(self, label: str) -> NodeDemand:
        """What the nodes of slots called ``label`` must be like."""
        for name, demand in self.slot_where:
            if name == label:
                return demand
        return self.where

    def types(self) -> frozenset[str]:
        """Every resource type that is asked for, slots left out."""
        found: set[str] = set()
        stack = list(self.resources)
        while stack:
            resource = stack.pop()
            stack.extend(resource.with_)
            if not resource.is_slot:
                found.add(resource.type)
        return frozenset(found)


def _slots(resources: tuple[Resource, ...]) -> int:
    return sum(
        resource.count.minimum * (1 if resource.is_slot else _slots(resource.with_))
        for resource in resources
    )
