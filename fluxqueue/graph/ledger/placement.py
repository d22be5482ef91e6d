"""Placements: which slots of a request lie on which nodes, and when.

The cycle decides them, rows store them, and the ledger books them. Times are integer epoch seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

FOREVER = 1 << 62
"""End of what no plan ends, such as an allocation that cannot be read. Nothing starts after it.

A job never has it: a job that states no duration is planned with the one of its queue.
"""


@dataclass(frozen=True, slots=True)
class PlacedSlot:
    """One slot of a placement: its node, what it books there, and its label in the request."""

    node: str
    resources: tuple[tuple[str, int], ...]
    kind: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Placement:
    """All slots of one request, in slot order, over ``[starts_at, until)``.

    If ``is_exclusive`` is set, the nodes of all slots are held whole. ``held`` are further nodes
    that are held whole, with or without a slot: those of an exclusive rack.

    ``is_firm``: its time rests on limits that are enforced. This is the end of an allocation, and
    the start of a reservation. Otherwise that time is only planned.

    ``ends_by``: when a limit ends an allocation that is planned to end earlier. ``kept_from``: when
    the nodes of a reservation must be free by plan, if its start is promised for a later time.
    """

    slots: tuple[PlacedSlot, ...]
    starts_at: int
    until: int
    is_exclusive: bool = False
    held: tuple[str, ...] = ()
    is_firm: bool = True
    ends_by: int | None = None
    kept_from: int | None = None
    vertices: Any = field(default=None, repr=False, compare=False)
    """What it holds of a graph of vertices (``fluxion.ledger.booking``). The queue has none."""

    @property
    def nodes(self) -> tuple[str, ...]:
        """Return the node of each slot, in slot order."""
        return tuple(slot.node for slot in self.slots)

    @property
    def planned_start(self) -> int:
        """Return when it starts by plan, which may be before the start that is promised."""
        return self.starts_at if self.kept_from is None else self.kept_from

    @property
    def limit(self) -> int:
        """Return when a limit ends the allocation, ``FOREVER`` if none does."""
        if not self.is_firm:
            return FOREVER
        return self.until if self.ends_by is None else self.ends_by


@dataclass(frozen=True, slots=True)
class Closure:
    """Nodes that take no work over ``[starts_at, until)``, and by which reservation."""

    name: str
    nodes: tuple[str, ...]
    starts_at: int
    until: int

    @property
    def placement(self) -> Placement:
        """Return it as a reservation of whole nodes, without slots."""
        return Placement((), self.starts_at, self.until, held=self.nodes)


@dataclass(frozen=True, slots=True)
class PolicyOnNode:
    """The sharing policy of a node: its name and its words, and what the node really has."""

    name: str
    why: str
    capacity: Mapping[str, int]

    def describe(self) -> str:
        """Return it in words: ``sharing policy half (gives jobs 50% of cpu)``."""
        return f"sharing policy {self.name}" + (f" ({self.why})" if self.why else "")


@dataclass(frozen=True, slots=True)
class Others:
    """The unmanaged pods on a node, and the policy by which jobs share the node with them.

    ``namespaces`` are their namespaces. ``permanent`` is what the permanent pods among them use
    there (base units). Without a policy, jobs may have what the pods leave.
    """

    namespaces: tuple[str, ...] = ()
    permanent: Mapping[str, int] = field(default_factory=dict)
    policy: PolicyOnNode | None = None
