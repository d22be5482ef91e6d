"""The verbs of the ledger: what is booked and promised, now and later.

A matcher has one state. Its books are kept in two parts, because what is given is of two sorts:
``shares`` keeps rows of nodes x resources with the ends of what runs, ``vertices`` spans of whole
vertices by block. A cluster's graph has both, of which the vertices lead and the rows follow
(docs/developer/matcher.md says why neither can be the other). Either is spoken to by these verbs.
Pure.
"""

from __future__ import annotations

from contextlib import AbstractContextManager
from typing import Protocol

from fluxqueue.graph.ledger.placement import Placement


class Ledger(Protocol):
    """What is booked under keys, and what is promised. Times are integer seconds."""

    def book(self, key: str, placement: Placement) -> None:
        """Book what runs under ``key``, in place of what was booked there."""
        ...

    def extend(self, key: str, placement: Placement) -> None:
        """Book more under ``key``, beside what is there; all lasts as long as the new part."""
        ...

    def cancel(self, key: str) -> bool:
        """Give back all that ``key`` has; tell whether there was anything."""
        ...

    def reserve(self, placement: Placement, now: int) -> None:
        """Promise ``placement``: nothing that is matched later will delay it."""
        ...

    def unreserve(self, placement: Placement) -> None:
        """Take a promise, the very object, back."""
        ...

    def clear_plan(self) -> None:
        """Take back all promises."""
        ...

    def trying(self) -> AbstractContextManager[None]:
        """Reserve and take back inside, and forget it at the end: the plan stays as it was."""
        ...

    def look(self, now: int) -> None:
        """The time has moved on: what has overrun its end is planned to end a little later."""
        ...
