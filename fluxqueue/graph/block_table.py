"""One row per block for one request: how many candidates, and the sort key of the best.

Called by ``FastSelector``. Rows follow the bookings through ``GraphState.log`` and the passing of
time through ``GraphState.blocks_changing``; choosing is a minimum over the keys. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable

import numpy as np
import numpy.typing as npt

from fluxqueue.graph.block_walk import Offer, Plan
from fluxqueue.graph.child_order import ChildOrder
from fluxqueue.graph.match_policy import NODE_FACTOR
from fluxqueue.graph.state import Booking, GraphState, Masks
from fluxqueue.graph.store import Block
from fluxqueue.graph.walk import Window

NOTHING: Masks = (0, 0, 0)
NO_KEY = np.iinfo(np.int64).max
Keys = npt.NDArray[np.int64]


class BlockTable:
    """Offers of all blocks in one window, and the choice among them.

    ``keys[b]`` orders blocks by their best candidate, lower first, ties in graph order;
    ``units[b]`` is what the block offers in all; ``total`` their sum.
    """

    def __init__(
        self,
        state: GraphState,
        order: ChildOrder,
        plan: Plan,
        window: Window,
        constraint: Callable[[int], bool] | None,
    ) -> None:
        self.state, self.graph, self.order, self.plan = state, state.graph, order, plan
        self.window = window
        graph = self.graph
        count = len(graph.blocks)
        self.keys: Keys = np.full(count, NO_KEY, dtype=np.int64)
        self.offers: list[Offer | None] = [None] * count
        self.total = 0
        self.units_below: dict[int, int] = dict.fromkeys(graph.tops, 0)
        node = graph.type_number["node"]
        self.is_allowed = [
            constraint is None or graph.type_of[b.base] != node or constraint(b.base)
            for b in graph.blocks
        ]
        self.factors = [self._factor(block) for block in graph.blocks]
        self.position = len(state.log)
        self._fill()

    def _factor(self, block: Block) -> int:
        if not self.plan.policy.is_node_centric:
            return 0
        v = block.base
        tie = abs(self.graph.uniq_id[v] % NODE_FACTOR - 1)
        return (self.graph.id[v] + 2) * NODE_FACTOR + tie

    # -- following the state ------------------------------------------------------------------

    def follow(self, window: Window) -> None:
        """Bring the rows up to date: bookings since the last call, and a new window."""
        old = self.window
        if window != old:
            self.window = window
            changed: set[int] = set()
            for before, after in ((old.start, window.start), (old.end, window.end)):
                if before != after:
                    low, high = min(before, after), max(before, after)
                    changed |= self.state.blocks_changing(low - 1, high)
            self._refresh(changed)
        self.catch_up()

    def catch_up(self) -> None:
        """Bring the rows up to date with the bookings since the last call."""
        log = self.state.log
        if self.position < len(log):
            changed = log[self.position :]
            self.position = len(log)
            self._refresh(changed if len(changed) == 1 else set(changed))

    def _fill(self) -> None:
        """All rows at once: blocks of one shape that are untouched have the same offer."""
        graph, state = self.graph, self.state
        is_plain = not state.down_tops and not state.exclusive_tops and not self.order.weights
        by_shape: dict[int, list[int]] = {}
        special: list[int] = []
        for number, spans in enumerate(state.block_spans):
            if spans or not is_plain or number in state.down_masks:
                special.append(number)
            elif self.is_allowed[number]:
                by_shape.setdefault(graph.blocks[number].shape.number, []).append(number)
        for numbers in by_shape.values():
            offer = self._offer(numbers[0], NOTHING, 0)
            if offer is None:
                continue
            for number in numbers:
                self.offers[number] = offer
                self.keys[number] = self._key(number, offer, 0)
                self._count(number, offer.units)
        self._refresh(special)

    def _refresh(self, numbers: Iterable[int]) -> None:
        start, end = self.window.start, self.window.end
        state, ignores_status = self.state, self.window.ignores_status
        for number in numbers:
            offer: Offer | None = None
            if self.is_allowed[number] and self._is_open(number):
                masks = state.block_masks(number, start, end)
                down = 0 if ignores_status else state.down_masks.get(number, 0)
                offer = self._offer(number, masks, down)
            before = self.offers[number]
            if offer is before:
                continue
            self.offers[number] = offer
            self.keys[number] = NO_KEY if offer is None else self._key(number, offer, 0)
            change = (offer.units if offer else 0) - (before.units if before else 0)
            if change:
                self._count(number, change)

    def _offer(self, number: int, masks: Masks, down: int) -> Offer | None:
        return self.plan.offer(self.state, self.order, number, self.window, masks, down)

    def _count(self, number: int, change: int) -> None:
        self.total += change
        parent, below = self.graph.parent, self.units_below
        above = parent[self.graph.blocks[number].base]
        while above >= 0:
            below[above] += change
            above = parent[above]

    def _is_open(self, number: int) -> bool:
        """Whether nothing above the block, nor its root, is down or held."""
        state, graph, window = self.state, self.graph, self.window
        down_tops: set[int] = set()
        if not window.ignores_status:
            if state.down_masks.get(number, 0) & 1:
                return False
            down_tops = state.down_tops
        if down_tops or state.exclusive_tops:
            above = graph.parent[graph.blocks[number].base]
            while above >= 0:
                if above in down_tops or state.top_is_held(above, window.start, window.end):
                    return False
                above = graph.parent[above]
        return True

    def _score(self, number: int, offer: Offer, index: int) -> int:
        score = offer.bases[index] + offer.multiples[index] * self.factors[number]
        if self.plan.is_for_nodes:
            score += self.graph.id[self.graph.blocks[number].base]
        return score

    def _key(self, number: int, offer: Offer, index: int) -> int:
        policy = self.plan.policy
        if policy.occupancy:
            return policy.occupancy * self._free(number)
        score = self._score(number, offer, index)
        return -score if policy.is_high else score

    def _free(self, number: int) -> int:
        shape = self.graph.blocks[number].shape
        booked = self.state.block_masks(number, self.window.start, self.window.end)[0]
        return (shape.full & ~booked).bit_count()

    # -- choosing -----------------------------------------------------------------------------

    def choose(self) -> Booking | None:
        """The best candidates as a booking without job and time; None if there are too few."""
        top = self.plan.top
        wanted = top.count.largest_within(self.total)
        if not wanted:
            return None
        policy = self.plan.policy
        if policy.stops_early:
            return self._choose_early(wanted)
        if wanted == 1:
            number = int(self.keys.argmin())
            return self._book([(number, 0)])
        if policy.occupancy and not self.plan.is_for_nodes:
            return self._book(self._choose_by_occupancy(wanted))
        return self._book(self._choose_best(wanted))

    def _choose_best(self, wanted: int) -> list[tuple[int, int]]:
        """Merge the best blocks' candidates in order; at most ``wanted`` blocks can contribute."""
        keys = self.keys
        if wanted < len(keys):
            # Of blocks with equal keys the first ones count, which a partition alone ignores.
            limit = np.partition(keys, wanted - 1)[wanted - 1]
            better = np.flatnonzero(keys < limit)
            equal = np.flatnonzero(keys == limit)[: wanted - len(better)]
            blocks = [*better.tolist(), *equal.tolist()]
        else:
            blocks = list(range(len(keys)))
        offers = self.offers
        heap = [(int(keys[b]), b, 0) for b in blocks if offers[b] is not None]
        heapq.heapify(heap)
        chosen: list[tuple[int, int]] = []
        while wanted > 0:
            _, number, index = heap[0]
            offer = offers[number]
            assert offer is not None
            chosen.append((number, index))
            wanted -= offer.counts[index]
            if index + 1 < len(offer.counts):
                following = (self._key(number, offer, index + 1), number, index + 1)
                heapq.heapreplace(heap, following)
            else:
                heapq.heappop(heap)
        return chosen

    def _choose_by_occupancy(self, wanted: int) -> list[tuple[int, int]]:
        """pack: the fullest node that holds the rest, else the roomiest one; spread: in rounds."""
        ranked = sorted(
            (int(self.keys[b]), b) for b, offer in enumerate(self.offers) if offer is not None
        )
        chosen: list[tuple[int, int]] = []
        if self.plan.policy.occupancy < 0:
            index = 0
            while wanted > 0:
                for _, number in ranked:
                    offer = self.offers[number]
                    if offer is not None and index < len(offer.counts) and wanted > 0:
                        chosen.append((number, index))
                        wanted -= offer.counts[index]
                index += 1
            return chosen
        left = [(number, offer) for _, number in ranked if (offer := self.offers[number])]
        while wanted > 0:
            fitting = next((pair for pair in left if pair[1].units >= wanted), None)
            if fitting is None:
                # max keeps the first of equals: the fullest among the roomiest.
                fitting = max(left, key=lambda pair: pair[1].units)
                left.remove(fitting)
            number, offer = fitting
            for index, count in enumerate(offer.counts):
                if wanted > 0:
                    chosen.append((number, index))
                    wanted -= count
        return chosen

    def _choose_early(self, wanted: int) -> Booking | None:
        """The ``first`` policies: explore by free resources, stop at enough, take the best."""
        found: list[tuple[int, int, int]] = []
        per_share = self.plan.top.per_share
        total = self._gather(0, per_share, found)
        wanted = self.plan.top.count.largest_within(total)
        if not wanted:
            return None
        found.sort(key=lambda entry: entry[0], reverse=self.plan.policy.is_high)
        chosen: list[tuple[int, int]] = []
        for _, number, index in found:
            offer = self.offers[number]
            assert offer is not None
            chosen.append((number, index))
            wanted -= offer.counts[index]
            if wanted <= 0:
                break
        return self._book(chosen)

    def _gather(self, v: int, enough: int, found: list[tuple[int, int, int]]) -> int:
        """Collect candidates below ``v`` until there are ``enough``; returns their units."""
        total = 0
        block_of, below, offers = self.graph.block_of, self.units_below, self.offers
        for child in self.order.of(v):
            number = block_of[child]
            if number < 0:
                if not below[child]:
                    continue
                total += self._gather(child, enough, found)
            else:
                offer = offers[number]
                if offer is None:
                    continue
                found.extend(
                    (self._score(number, offer, index), number, index)
                    for index in range(len(offer.counts))
                )
                total += offer.units
            if total >= enough:
                break
        return total

    def _book(self, chosen: list[tuple[int, int]]) -> Booking:
        booking = Booking(0, 0, 0)
        graph, blocks, tops = self.graph, booking.blocks, booking.tops
        for number, index in chosen:
            offer = self.offers[number]
            assert offer is not None
            booked, touched = offer.booked[index], offer.touched[index]
            if not booked:
                continue
            known = blocks.get(number)
            if known is None:
                blocks[number] = booked, touched
                above = graph.parent[graph.blocks[number].base]
                while above >= 0 and above not in tops:
                    tops[above] = False
                    above = graph.parent[above]
            else:
                blocks[number] = known[0] | booked, known[1] | touched
        return booking
