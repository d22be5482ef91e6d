"""From marks to a booking: which vertices a job holds, and which it shares.

This is the second walk of a match, from the root along the marked vertices (flux-sched,
``upd_dfv``). A vertex of an exclusive type is held with its whole subtree. The matcher calls it.
Pure.
"""

from __future__ import annotations

from collections.abc import Mapping

from fluxion.ledger.booking import Booking
from fluxion.model.store import ResourceGraph


class Collector:
    """Fills a booking from marks (vertex -> is held exclusively) and shares of marked pools."""

    def __init__(
        self,
        graph: ResourceGraph,
        marks: Mapping[int, bool],
        exclusive_kinds: set[int],
        shares: Mapping[int, int] | None = None,
    ) -> None:
        self.graph, self.exclusive_kinds = graph, exclusive_kinds
        self.shares = shares or {}
        self.marks = marks
        self.marked: dict[int, list[int]] = {}
        for v in marks:
            self.marked.setdefault(graph.parent[v], []).append(v)

    def fill(self, booking: Booking, is_root_exclusive: bool, root: int = 0) -> bool:
        """Add all that is reached from ``root`` to ``booking``.

        Returns False if nothing is held exclusively.
        """
        return self._descend(root, is_root_exclusive, False, booking)

    def _descend(self, v: int, is_exclusive: bool, is_whole: bool, booking: Booking) -> bool:
        graph = self.graph
        is_whole = is_whole or graph.type_of[v] in self.exclusive_kinds
        is_exclusive = is_exclusive or is_whole
        number = graph.block_of[v]
        if number >= 0 and is_whole:
            bits = graph.blocks[number].shape.below(v - graph.blocks[number].base)
            _note_blocks(booking, number, bits, bits)
            return True
        is_used = is_exclusive
        if v in self.shares and not is_exclusive:
            booking.shares[v] = self.shares[v]
            is_used = True
        below = graph.children.get(v, ()) if is_whole else self.marked.get(v, ())
        for child in below:
            held = is_whole or self.marks[child]
            is_used = self._descend(child, held, is_whole, booking) or is_used
        if is_used:
            if number < 0:
                booking.tops[v] = is_exclusive
            else:
                bit = 1 << (v - graph.blocks[number].base)
                _note_blocks(booking, number, bit if is_exclusive else 0, bit)
        return is_used


def _note_blocks(booking: Booking, number: int, booked: int, touched: int) -> None:
    mine, shared = booking.blocks.get(number, (0, 0))
    booking.blocks[number] = (mine | booked, shared | touched)
