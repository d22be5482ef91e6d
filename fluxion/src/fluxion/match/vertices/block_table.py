"""A table with one row per block for one request: candidates, and the sort key of the best.

``FastSelector`` calls it. Rows follow the bookings through ``VertexLedger.log``, and the passing of
time through ``VertexLedger.blocks_changing``. Choosing is a minimum over the keys. Pure.
"""

from __future__ import annotations

import heapq
from collections.abc import Callable, Iterable
from operator import itemgetter

import numpy as np
import numpy.typing as npt

from fluxion.ledger.booking import Booking
from fluxion.ledger.vertices import Masks, VertexLedger
from fluxion.match.child_order import ChildOrder
from fluxion.match.vertices.block_walk import BlockOffer, BlockPlan
from fluxion.match.walk.scoring import TIES
from fluxion.match.walk.vertex_check import Window
from fluxion.model.shapes import Block
from fluxqueue.graph.arrays import Vector
from fluxqueue.graph.match.policy import NODE_FACTOR

NOTHING: Masks = (0, 0, 0)
NO_KEY = np.iinfo(np.int64).max
Keys = npt.NDArray[np.int64]
Pick = tuple[int, int]
"""A block, and the index of one of its candidates."""
FEW = 8
"""Up to this many blocks are found by one minimum each. More are found by one partition."""


class BlockTable:
    """Offers of all blocks in one window, and the choice among them.

    ``keys[b]`` orders blocks by their best candidate, lower first, ties in graph order.
    ``units[b]`` is what the block offers in all. ``total`` is their sum.
    """

    def __init__(
        self,
        state: VertexLedger,
        order: ChildOrder,
        plan: BlockPlan,
        window: Window,
        constraint: Callable[[int], bool] | None,
    ) -> None:
        self.state, self.graph, self.order, self.plan = state, state.graph, order, plan
        self.window = window
        self.keys: Keys = np.zeros(0, dtype=np.int64)
        self.offers: list[BlockOffer | None] = []
        self.total = 0
        self.units_below: dict[int, int] = {}
        self.is_allowed: list[bool] = []
        self.factors: list[int] = []
        self.position = len(state.log)
        self._constraint = constraint
        self._untouched: dict[int, BlockOffer | None] = {}
        self._extend()

    def _extend(self) -> None:
        """Add rows for the blocks that the graph has got since the last call."""
        graph, first = self.graph, len(self.offers)
        new = graph.blocks[first:]
        for v in graph.tops:
            self.units_below.setdefault(v, 0)
        fresh = np.full(len(new), NO_KEY, dtype=np.int64)
        self.keys = np.concatenate([self.keys, fresh]) if first else fresh
        self.offers += [None] * len(new)
        node, constraint = graph.type_number["node"], self._constraint
        self.is_allowed += [
            constraint is None or graph.type_of[b.base] != node or constraint(b.base) for b in new
        ]
        self.factors += [self._factor(block) for block in new]
        self._refresh(range(first, len(graph.blocks)))

    def _factor(self, block: Block) -> int:
        if not self.plan.policy.is_node_centric:
            return 0
        v = block.base
        tie = abs(self.graph.uniq_id[v] % NODE_FACTOR - 1)
        return (self.graph.id[v] + 2) * NODE_FACTOR + tie

    # -- following the state ------------------------------------------------------------------

    def follow(self, window: Window) -> None:
        """Update the rows for the bookings since the last call, and for a new window."""
        old = self.window
        if window != old:
            self.window = window
            # Blocks that joined need rows first, because the new window may change these too.
            self._extend_if_grown()
            changed: set[int] = set()
            for before, after in ((old.start, window.start), (old.end, window.end)):
                if before != after:
                    low, high = min(before, after), max(before, after)
                    changed |= self.state.blocks_changing(low - 1, high)
            self._refresh(changed)
        self.catch_up()

    def catch_up(self) -> None:
        """Update the rows for the bookings since the last call, and for new blocks."""
        self._extend_if_grown()
        log = self.state.log
        if self.position < len(log):
            changed = log[self.position :]
            self.position = len(log)
            self._refresh(changed if len(changed) == 1 else set(changed))

    def _extend_if_grown(self) -> None:
        if len(self.offers) < len(self.graph.blocks):
            self._extend()

    def _refresh(self, numbers: Iterable[int]) -> None:
        state, graph, plan, window = self.state, self.graph, self.plan, self.window
        start, end = window.start, window.end
        spans_of, down_masks, offers = state.block_spans, state.down_masks, self.offers
        blocks, parent, keys, is_allowed = graph.blocks, graph.parent, self.keys, self.is_allowed
        is_all_open = not state.down_tops and not state.exclusive_tops
        follows_weights = plan.policy.stops_early
        # Weights outlive bookings, and use by unmanaged pods has no bookings. In both cases a block
        # without bookings may still be touched.
        has_plain_rows = is_all_open and not (plan.has_pools and graph.foreign)
        changes: dict[int, int] = {}
        for number in numbers:
            block = blocks[number]
            shape = block.shape
            offer: BlockOffer | None = None
            if not is_allowed[number] or number in graph.gone:
                pass
            elif (
                has_plain_rows
                and not spans_of[number]
                and number not in down_masks
                and shape.has_equal_pools
                and not (follows_weights and shape.inner)
            ):
                offer = self._untouched_offer(number, shape.number)
            elif is_all_open or self._is_open(number):
                masks = state.block_masks(number, start, end)
                down = 0 if window.ignores_status else down_masks.get(number, 0)
                # A block with a held or down root offers nothing.
                if not (masks[0] | down) & 1:
                    offer = plan.offer(state, self.order, number, window, masks, down)
            before = offers[number]
            if offer is before and (offer is None or not plan.policy.occupancy):
                continue
            offers[number] = offer
            keys[number] = NO_KEY if offer is None else self._key(number, offer, 0)
            change = (offer.units if offer else 0) - (before.units if before else 0)
            if change:
                above = parent[block.base]
                changes[above] = changes.get(above, 0) + change
        self._count(changes)

    def _untouched_offer(self, number: int, shape: int) -> BlockOffer | None:
        """Return what every block of a shape offers while nothing is booked in it."""
        try:
            return self._untouched[shape]
        except KeyError:
            offer = self.plan.offer(self.state, self.order, number, self.window, NOTHING, 0)
            self._untouched[shape] = offer
            return offer

    def _count(self, changes: dict[int, int]) -> None:
        """Add changes of units to the sums of all vertices above. Keys are the lowest of them."""
        parent, below = self.graph.parent, self.units_below
        for lowest, change in changes.items():
            self.total += change
            above = lowest
            while above >= 0:
                below[above] += change
                above = parent[above]

    def _is_open(self, number: int) -> bool:
        """Return whether the block's root and all vertices above it are up and not held."""
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

    def _score(self, number: int, offer: BlockOffer, index: int) -> int:
        score = offer.bases[index] + offer.multiples[index] * self.factors[number]
        if self.plan.is_for_nodes:
            score += self.graph.id[self.graph.blocks[number].base]
        return score

    def _key(self, number: int, offer: BlockOffer, index: int) -> int:
        policy = self.plan.policy
        if policy.occupancy:
            # Of equally full nodes take the lower id, in whatever rack it is.
            own = self.graph.id[self.graph.blocks[number].base]
            free = policy.occupancy * self._free_after(number, offer)
            return free * TIES + min(max(own, 0), TIES - 1)
        score = self._score(number, offer, index)
        return -score if policy.is_high else score

    def _free_after(self, number: int, offer: BlockOffer) -> int:
        """Return how empty the block would be after its best candidate.

        This gives best fit for candidates of any size.
        """
        start, end = self.window.start, self.window.end
        booked = self.state.block_masks(number, start, end)[0]
        asked, shares = offer.asked
        return self.state.free_share(number, booked | asked, start, end, shares)

    # -- choosing -----------------------------------------------------------------------------

    def choose(self) -> Booking | None:
        """Return the best candidates as a booking without job and time, or None if too few."""
        wanted = self.plan.top.count.largest_within(self.total)
        if not wanted:
            return None
        if self.plan.policy.stops_early:
            picks = self._choose_early(0, goes_deeper=True)
        else:
            picks = self._choose_sorted(wanted, self.graph.walk_order())
        return None if picks is None else self.book(picks)

    def choose_below(self, v: int, members: Vector) -> list[Pick] | None:
        """Choose among ``members`` only, the blocks directly below ``v``."""
        if self.plan.policy.stops_early:
            return self._choose_early(v, goes_deeper=False)
        wanted = self.plan.top.count.largest_within(self.units_below[v])
        return self._choose_sorted(wanted, members) if wanted else None

    def _choose_sorted(self, wanted: int, members: Vector | None) -> list[Pick]:
        if self.plan.policy.occupancy and not self.plan.is_for_nodes and wanted > 1:
            return self._choose_by_occupancy(wanted, members)
        if wanted <= FEW:
            return self._choose_few(wanted, members)
        return self._choose_best(wanted, members)

    def _choose_best(self, wanted: int, members: Vector | None) -> list[Pick]:
        """Merge the best blocks' candidates in order. At most ``wanted`` blocks can contribute."""
        keys = self.keys if members is None else self.keys[members]
        if wanted < len(keys):
            # Of blocks with equal keys the first ones count, which a partition alone would ignore.
            limit = np.partition(keys, wanted - 1)[wanted - 1]
            blocks = np.flatnonzero(keys <= limit)
        else:
            blocks = np.flatnonzero(keys < NO_KEY)
        found = keys[blocks]
        order = found.argsort(kind="stable")[:wanted]
        numbers = blocks[order] if members is None else members[blocks[order]]
        if self.plan.is_for_nodes:
            return self._take_in_order(numbers.tolist(), wanted)
        return self._merge(found[order].tolist(), numbers.tolist(), wanted)

    def _take_in_order(self, numbers: list[int], wanted: int) -> list[Pick]:
        """Choose among blocks that are one candidate each."""
        chosen: list[Pick] = []
        for number in numbers:
            offer = self.offers[number]
            assert offer is not None
            chosen.append((number, 0))
            wanted -= offer.counts[0]
            if wanted <= 0:
                break
        return chosen

    def _merge(self, keys: list[int], numbers: list[int], wanted: int) -> list[Pick]:
        offers = self.offers
        heap = [(key, b, 0) for key, b in zip(keys, numbers, strict=True) if offers[b] is not None]
        chosen: list[Pick] = []
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

    def _choose_few(self, wanted: int, members: Vector | None) -> list[Pick]:
        """Take one minimum after another. For a few this is cheaper than sorting."""
        keys, offers = (self.keys if members is None else self.keys[members]), self.offers
        chosen: list[Pick] = []
        next_index: dict[int, int] = {}
        saved: dict[int, int] = {}
        while wanted > 0:
            place = int(keys.argmin())
            number = place if members is None else int(members[place])
            offer = offers[number]
            assert offer is not None
            index = next_index.get(number, 0)
            chosen.append((number, index))
            wanted -= offer.counts[index]
            if wanted <= 0:
                break
            if not index:
                saved[place] = int(keys[place])
            next_index[number] = index = index + 1
            is_last = index >= len(offer.counts)
            keys[place] = NO_KEY if is_last else self._key(number, offer, index)
        # The keys were changed in place, so restore them for the next match.
        if members is None:
            for place, key in saved.items():
                keys[place] = key
        return chosen

    def _choose_by_occupancy(self, wanted: int, members: Vector | None) -> list[Pick]:
        """Choose for ``pack`` or ``spread``.

        ``pack``: the fullest node that holds the rest, else the one with most capacity. ``spread``:
        one to each node, in rounds.
        """
        numbers = range(len(self.offers)) if members is None else members.tolist()
        ranked = [(int(self.keys[b]), b) for b in numbers if self.offers[b] is not None]
        ranked.sort(key=lambda entry: entry[0])
        chosen: list[Pick] = []
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
                # max keeps the first of equals: the fullest of those with most capacity.
                fitting = max(left, key=lambda pair: pair[1].units)
                left.remove(fitting)
            number, offer = fitting
            for index, count in enumerate(offer.counts):
                if wanted > 0:
                    chosen.append((number, index))
                    wanted -= count
        return chosen

    def _choose_early(self, v: int, *, goes_deeper: bool) -> list[Pick] | None:
        """Choose for the ``first`` policies.

        Explore by free resources, stop at enough, and take the best.
        """
        found: list[tuple[int, int, int]] = []
        per_share = self.plan.top.per_share
        total = self._gather(v, per_share, found, goes_deeper=goes_deeper)
        wanted = self.plan.top.count.largest_within(total)
        if not wanted:
            return None
        found.sort(key=itemgetter(0), reverse=self.plan.policy.is_high)
        chosen: list[Pick] = []
        for _, number, index in found:
            offer = self.offers[number]
            assert offer is not None
            chosen.append((number, index))
            wanted -= offer.counts[index]
            if wanted <= 0:
                break
        return chosen

    def _gather(
        self, v: int, enough: int, found: list[tuple[int, int, int]], *, goes_deeper: bool
    ) -> int:
        """Collect candidates below ``v`` until there are ``enough``. Return their units."""
        total = 0
        block_of, below, offers = self.graph.block_of, self.units_below, self.offers
        is_high = self.plan.policy.is_high
        for child in self.order.of(v):
            number = block_of[child]
            if number < 0:
                if not goes_deeper or not below[child]:
                    continue
                total += self._gather(child, enough, found, goes_deeper=True)
            else:
                offer = offers[number]
                if offer is None:
                    continue
                if len(offer.counts) == 1:
                    key = int(self.keys[number])
                    found.append((-key if is_high else key, number, 0))
                else:
                    found.extend(
                        (self._score(number, offer, index), number, index)
                        for index in range(len(offer.counts))
                    )
                total += offer.units
            if total >= enough:
                break
        return total

    def book(self, chosen: list[Pick]) -> Booking:
        """Return a booking of these candidates, without job and time."""
        booking = Booking(0, 0, 0)
        graph, blocks, tops = self.graph, booking.blocks, booking.tops
        for number, index in chosen:
            offer = self.offers[number]
            assert offer is not None
            booked, touched = offer.booked[index], offer.touched[index]
            shares = offer.shares[index]
            if not booked and not shares:
                continue
            base = graph.blocks[number].base
            for i, units in shares:
                booking.shares[base + i] = booking.shares.get(base + i, 0) + units
            known = blocks.get(number)
            if known is None:
                blocks[number] = booked, touched
                above = graph.parent[base]
                while above >= 0 and above not in tops:
                    tops[above] = False
                    above = graph.parent[above]
            else:
                blocks[number] = known[0] | booked, known[1] | touched
        return booking
