"""Placements: which slots of a request lie on which nodes, and when.

What the cycle decides, rows store and the ledger books. Times are integer epoch seconds.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from fluxqueue.graph.ledger.booking import Booking

FOREVER = 1 << 62
"""End of an allocation without a duration."""

UNKNOWN_END = 1 << 61
"""When an allocation without a duration is planned to end: after everything that is known.

So a FluxJob that waits for such allocations can still be given nodes to wait for, and whoever has
no known end either may not take those nodes before it: without this, work without durations would
starve every large FluxJob.
"""

OVERRUN_GRACE_S = 60
"""A job past its end is planned to end this much later; nothing is taken from it."""


@dataclass(frozen=True, slots=True)
class PlacedSlot:
    """One slot of a placement: its node, what it books there, and its label in the request."""

    node: str
    resources: tuple[tuple[str, int], ...]
    kind: str = field(default="", compare=False)


@dataclass(frozen=True, slots=True)
class Placement:
    """All slots of one request, in slot order, over ``[starts_at, until)``.

    ``is_exclusive``: every node of a slot is held whole. ``held`` are further nodes held whole,
    with or without a slot on them: those of an exclusive rack.
    """

    slots: tuple[PlacedSlot, ...]
    starts_at: int
    until: int
    is_exclusive: bool = False
    held: tuple[str, ...] = ()
    vertices: Booking | None = field(default=None, repr=False, compare=False)

    @property
    def nodes(self) -> tuple[str, ...]:
        """The node of each slot, in slot order."""
        return tuple(slot.node for slot in self.slots)


@dataclass(frozen=True, slots=True)
class Others:
    """Pods on a node that are not ours: their namespaces, and what the permanent ones use there
    (base units).
    """

    namespaces: tuple[str, ...] = ()
    permanent: Mapping[str, int] = field(default_factory=dict)


def planned_end(until: int, now: int) -> int:
    """When a live allocation is planned to end; one that overruns ends a little later than now."""
    if until >= FOREVER:
        return UNKNOWN_END
    return until if until > now else now + OVERRUN_GRACE_S
