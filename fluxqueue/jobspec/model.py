"""The jobspec as data: a tree of resource requests, tasks and attributes.

Built by ``jobspec.parse`` (or by hand in ``workload``), read by the matcher. Frozen, so that a
request can be a cache key and can be shared between threads.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.jobspec.constraint import Constraint

UNLIMITED = (1 << 32) - 1
"""No upper bound of a count; Fluxion's unsigned maximum, so that arithmetic agrees."""
SLOT = "slot"


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
    count: Mapping[str, str] = field(default_factory=dict)
    distribution: str = ""


@dataclass(frozen=True, slots=True)
class Jobspec:
    """A whole request. ``duration_s`` 0 means as long as the graph lives; fractions round up."""

    version: int
    resources: tuple[Resource, ...]
    tasks: tuple[Task, ...] = ()
    duration_s: float = 0.0
    queue: str = ""
    constraint: Constraint | None = None
    system: Mapping[str, Any] = field(default_factory=dict)
    user: Any = None

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
