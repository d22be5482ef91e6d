"""The operations of a ledger: what is booked and reserved, now and later.

There are two ledgers because requests are served in two ways. ``shares`` keeps rows of nodes x
resources with the ends of running work. ``fluxion.ledger.vertices`` keeps spans of whole vertices
by block. The queue has the rows alone. In Fluxion's matcher, a cluster's graph has both: the
vertices lead and the rows follow. docs/developer/matcher.md says why neither can replace the other.
Both ledgers have these operations. Pure.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from fluxqueue.graph.ledger.placement import Placement


class Ledger(Protocol):
    """What is booked under keys, and what is reserved. Times are integer seconds."""

    def book(self, key: str, placement: Placement) -> None:
        """Book running work under ``key``, in place of what was booked there."""
        ...

    def extend(self, key: str, placement: Placement) -> None:
        """Book more under ``key``. All of it then lasts as long as the new part."""
        ...

    def cancel(self, key: str) -> bool:
        """Give back all that ``key`` has. Return False if it had nothing."""
        ...

    def reserve(self, placement: Placement, now: int) -> None:
        """Reserve ``placement``: later matches cannot delay it."""
        ...

    def unreserve(self, placement: Placement) -> None:
        """Remove a reservation. It must be the very object that was reserved."""
        ...

    def clear_plan(self) -> None:
        """Remove all reservations."""
        ...

    def trying(self) -> AbstractContextManager[None]:
        """Allow reservations inside the context and forget them afterwards."""
        ...

    def look(self, now: int) -> None:
        """Move the time on. Work past its end is planned to end later, in growing steps."""
        ...
