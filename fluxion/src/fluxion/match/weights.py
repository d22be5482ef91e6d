"""Weights of the policies ``first``: what is free below each vertex that a booking touches.

Fluxion orders children by them. Recorded outputs depend on weights that a cancel leaves behind. If
these need not be copied, the weights are computed again when something is given back.
``by_vertices`` calls it. Pure.
"""

from __future__ import annotations

from fluxion.ledger.booking import Booking
from fluxion.ledger.vertices import VertexLedger
from fluxion.match.child_order import ChildOrder
from fluxion.model.shapes import Block, iterate_bits

MAX_REMEMBERED = 256


class Weights:
    """Weights in ``order``, updated with bookings.

    ``unweighed`` are jobs that other policies have placed since the last request for ``first``.
    """

    def __init__(
        self,
        state: VertexLedger,
        order: ChildOrder,
        unweighed: set[int],
        *,
        answers_as_fluxion: bool,
    ) -> None:
        self.state, self.order, self.graph = state, order, state.graph
        self.unweighed = unweighed
        self.answers_as_fluxion = answers_as_fluxion
        self._weighed_at = 0
        self._inside: dict[tuple[int, int, int], list[tuple[int, int]]] = {}

    def update(self, booking: Booking, now: int) -> None:
        """Set the weights of the vertices of a new booking from what is free below them."""
        graph, state = self.graph, self.state
        self._weighed_at = now
        self._weigh_tops(booking, now)
        for number, (_, touched) in booking.blocks.items():
            block = graph.blocks[number]
            held = state.held_at(number, now)
            for i, weight in self._weights_inside(block, touched, held, now):
                self.order.set_weight(block.base + i, weight)

    def weigh_the_rest(self, now: int) -> None:
        """Weigh the jobs that other policies have placed since the last request for ``first``."""
        for job in self.unweighed:
            booking = self.state.bookings.get(job)
            if booking is not None:
                self.update(booking, now)
        self.unweighed.clear()

    def follow(self, booking: Booking) -> None:
        """Update the weights after ``booking`` was given back.

        A vertex that no other job uses counts as untouched again.
        """
        order, blocks = self.order, self.graph.blocks
        if self.answers_as_fluxion or not order.weights:
            return
        self._weigh_tops(booking, self._weighed_at)
        for number, (_, touched) in booking.blocks.items():
            block = blocks[number]
            if self.state.block_spans[number] or block.shape.inner:
                self.follow_block(number, touched)
            else:
                order.forget_weight(block.base)

    def _weigh_tops(self, booking: Booking, now: int) -> None:
        state = self.state
        for v in booking.tops:
            planner = state.planners.get(v)
            if v and planner is not None:
                if not planner.spans and not self.answers_as_fluxion:
                    self.order.forget_weight(v)
                    continue
                last = len(planner.types) - 1
                weight = planner.totals[last] - planner.used_at(now, last)
                if weight or planner.spans:
                    self.order.set_weight(v, weight)

    def follow_block(self, number: int, touched: int) -> None:
        """Compute the weights in a block from its bookings now. ``touched`` is the former mask."""
        block, weights = self.graph.blocks[number], self.order.weights
        if self.answers_as_fluxion or block.base not in weights:
            return
        spans = self.state.block_spans[number].values()
        still = 0
        for span in spans:
            still |= span[3]
        for i in (0, *block.shape.inner):
            if touched >> i & 1 and not still >> i & 1:
                self.order.forget_weight(block.base + i)
        if still:
            now = self._weighed_at
            held = self.state.held_at(number, now)
            for i, weight in self._weights_inside(block, still, held, now):
                self.order.set_weight(block.base + i, weight)

    def _weights_inside(
        self, block: Block, touched: int, held: int, now: int
    ) -> list[tuple[int, int]]:
        """Return the units free below the touched vertices of a block (root and inner ones)."""
        graph, state, shape = self.graph, self.state, block.shape
        # Blocks of the same shape with the same bookings have the same left, unless shares are
        # taken.
        key = (shape.number, touched, held)
        known = self._inside.get(key)
        if known is not None:
            return known
        tracked = state.tracked_mask(shape)
        found: list[tuple[int, int]] = []
        for i in (0, *shape.inner):
            types = state.filters.types_at(shape.types[i])
            if not types or not touched >> i & 1 or block.base + i == 0:
                continue
            inside = shape.below(i) & ~(1 << i)
            weight = shape.count(types[-1], inside & ~held)
            if types[-1] in graph.consumable:
                pools = shape.type_mask.get(types[-1], 0) & inside & ~held
                weight -= sum(
                    state.units_used(v, now, now + 1) + graph.foreign.get(v, 0)
                    for v in (block.base + p for p in iterate_bits(pools))
                )
            if weight or touched & inside & tracked:
                found.append((i, weight))
        if not (graph.consumable or block.base == 0):
            if len(self._inside) >= MAX_REMEMBERED:
                self._inside.clear()
            self._inside[key] = found
        return found
