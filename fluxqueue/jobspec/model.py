"""The jobspec as data: a tree of resource requests, tasks and attributes.

``jobspec.parse`` builds it, or ``workload`` from Kubernetes objects. ``jobspec.render`` writes it
and the matcher reads it. It is frozen, so that a request can be a cache key and be shared between
threads. Its hash is computed once.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.fluxjob.request import MatchPolicy
from fluxqueue.jobspec.bounds import BUILT, Left
from fluxqueue.jobspec.constraint import Constraint
from fluxqueue.jobspec.demand import ANYWHERE, NodeDemand

UNLIMITED = (1 << 32) - 1
"""No upper bound of a count: Fluxion's unsigned maximum, so that arithmetic agrees."""
AMOUNT_MAX = (1 << 63) - 1
"""Largest amount of a pool (bytes, millicores), which is a count with a unit."""
SLOT = "slot"
NODE = "node"
LABEL = "task"
"""Label of slots without a name."""
RFC14 = 9999
"""Version of a jobspec that needs all of RFC 14.

Levels, pools and shares of pools are beyond version 1 (RFC 25).
"""


@dataclass(frozen=True, slots=True)
class Count:
    """A number, or a series of numbers.

    The series is ``minimum``, then ``minimum operator operand`` repeatedly up to ``maximum`` (RFC
    14). A plain number ``n`` is ``Count(n, n)``. The matcher always takes the largest member that
    fits (flux-sched, ``calc_count``).
    """

    minimum: int
    maximum: int
    operator: str = "+"
    operand: int = 1

    @property
    def is_fixed(self) -> bool:
        """Return whether it is a single number."""
        return self.minimum == self.maximum

    @property
    def largest(self) -> int:
        """Return the largest member of the series."""
        return self.largest_within(max(self.maximum, UNLIMITED))

    def largest_within(self, available: int) -> int:
        """Return the largest member of the series that is at most ``available``, or 0."""
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

    ``is_exclusive`` is None if the jobspec does not say. ``unit`` and ``id`` are kept but never
    matched (as in Fluxion). ``label`` names a slot, or a vertex in the JGF output.
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
    """What runs in a slot. It has no influence on matching."""

    command: tuple[str, ...]
    slot: str
    count: Mapping[str, str] = field(default_factory=dict, hash=False)
    distribution: str = ""


@dataclass(frozen=True, slots=True)
class Jobspec:
    """A whole request.

    ``duration_s`` 0 means as long as the graph lives. Fractions are rounded up. ``grace_s`` is how
    long its pods may take to end after that. ``match_policy`` None leaves the choice to the
    matcher. With ``is_node_exclusive`` every touched node is taken whole, as by the policies
    ``...nodex``. ``prefer_within`` names a level: all slots below one vertex of it if possible,
    else below one of the next level up, and so on. ``where`` is the demand on every node.
    ``slot_where`` has the demands of single slots, by label. ``system`` is the rest of
    ``attributes.system``, kept but never matched.
    """

    version: int
    resources: tuple[Resource, ...]
    tasks: tuple[Task, ...] = ()
    duration_s: float = 0.0
    grace_s: int = 0
    queue: str = ""
    where: NodeDemand = ANYWHERE
    slot_where: tuple[tuple[str, NodeDemand], ...] = ()
    match_policy: MatchPolicy | None = None
    is_node_exclusive: bool = False
    prefer_within: str = ""
    system: Mapping[str, Any] = field(default_factory=dict)
    user: Any = None
    size: int = field(default=0, init=False, repr=False, compare=False)
    """Minimum number of slots, which is the number of pods that run at once."""
    _hash: int = field(default=0, init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "size", _slots(self.resources))
        parts = (self.version, self.resources, self.duration_s, self.queue, self.where)
        more = (self.slot_where, self.match_policy, self.is_node_exclusive, self.prefer_within)
        object.__setattr__(self, "_hash", hash((*parts, *more, self.grace_s)))

    def __hash__(self) -> int:
        return self._hash

    @property
    def held_s(self) -> int:
        """Return how long it holds its resources, in whole seconds. 0: its end is unknown."""
        return math.ceil(self.duration_s) + self.grace_s if self.duration_s else 0

    @property
    def constraint(self) -> Constraint | None:
        """Return the constraint (RFC 31) on all nodes."""
        return self.where.constraint

    def where_of(self, label: str) -> NodeDemand:
        """Return the demand on nodes of slots called ``label``."""
        for name, demand in self.slot_where:
            if name == label:
                return demand
        return self.where

    def types(self) -> frozenset[str]:
        """Return every resource type that is asked for, without slots."""
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


def check_storable(jobspec: Jobspec) -> Jobspec:
    """Return a request that may be stored, because it is within ``bounds.BUILT``.

    This is called when a request is built, at admission and again by the controller.
    ``parse.read_stored`` can read back what passes, whatever its size.

    Raises
    ------
    InvalidJobspec
        It has too many kinds of slots, levels or constraints.
    """
    left = Left(BUILT)
    for resource in jobspec.resources:
        _check(resource, left, 0)
    for demand in {jobspec.where, *(where for _, where in jobspec.slot_where)}:
        left.take_parts(len(demand.tolerations) + len(demand.numa), "spec.tolerations")
        if demand.constraint is not None:
            left.check_depth(demand.constraint.depth, "constraints")
            left.take_parts(demand.constraint.parts, "constraints")
    return jobspec


def _check(resource: Resource, left: Left, depth: int) -> None:
    left.check_depth(depth, "resources")
    left.take_resource("resources")
    for below in resource.with_:
        _check(below, left, depth + 1)
