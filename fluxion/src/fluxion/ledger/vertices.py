"""The bookings on a graph of vertices over time. A committed match changes only this.

A *booking* is what one job holds during ``[start, end)``:

- Inside a block (a node with all vertices below it) it is two integers with vertices as bits.
  ``booked`` are the vertices held exclusively. ``touched`` are those and the shared vertices above
  them.
- Above the blocks it is a set of vertices, and the amounts below each of them in a planner.
- Of a consumable pool it is a number of units. The pool itself is touched, not booked.

Called by the matcher. Pure.
"""

from __future__ import annotations

import heapq
from bisect import bisect_left, insort
from collections.abc import Sequence

from fluxion.ledger.booking import Booking
from fluxion.ledger.planner import MultiPlanner
from fluxion.model.pruning import PruningFilters
from fluxion.model.shapes import BlockClass, iterate_bits
from fluxion.model.store import ResourceGraph
from fluxqueue.graph.arrays import FULL_SHARE
from fluxqueue.prediction.durations import planned_end

ENDS_SPARE = 1024
"""This many ends of removed allocations may stay in the heap until it is cleaned."""

BlockSpan = tuple[int, int, int, int, bool, int]
"""start, end, booked, touched, is_reservation, job"""
Masks = tuple[int, int, int]
"""booked and touched during a window, and held by an allocation at any time"""


class VertexLedger:
    """All bookings on ``graph``.

    ``log`` lists the blocks that changed, so that caches can follow.
    """

    def __init__(self, graph: ResourceGraph, filters: PruningFilters) -> None:
        self.graph = graph
        self.filters = filters
        self.bookings: dict[int, Booking] = {}
        self.block_spans: list[dict[int, BlockSpan]] = [{} for _ in graph.blocks]
        self.top_jobs: dict[int, dict[int, Booking]] = {}
        self.pool_jobs: dict[int, dict[int, Booking]] = {}
        self.exclusive_tops = 0
        self.planners: dict[int, MultiPlanner] = {}
        self.log: list[int] = []
        self.events: dict[int, dict[int, int]] = {}
        self.event_times: list[int] = []
        self.time = -1
        self._ends: list[tuple[int, int]] = []
        self._late: set[int] = set()
        self.down_masks: dict[int, int] = {}
        self.down_tops: set[int] = set()
        self._tracked_masks: dict[int, int] = {}
        for v in graph.down:
            self.note_status(v, is_up=False)
        self._prime()

    def _prime(self) -> None:
        """Sum up the totals of the planners above the blocks."""
        graph, tracked = self.graph, self.filters.tracked
        totals: dict[int, dict[int, int]] = {v: {} for v in graph.tops}
        amounts: dict[int, dict[int, int]] = {}
        for block in graph.blocks:
            own = amounts.get(block.shape.number)
            if own is None:
                full = block.shape.full
                own = {k: n for k in tracked if (n := block.shape.count(k, full))}
                amounts[block.shape.number] = own
            above = graph.parent[block.base]
            if above >= 0:
                _add(totals[above], own)
        for v in reversed(graph.tops):
            above = graph.parent[v]
            if above >= 0:
                _add(totals[above], totals[v])
                kind = graph.type_of[v]
                if kind in tracked:
                    _add(totals[above], {kind: graph.size[v]})
        for v in graph.tops:
            types = self.filters.types_at(graph.type_of[v])
            if v in graph.children and types:
                self.planners[v] = MultiPlanner(types, [totals[v].get(k, 0) for k in types])

    def block_masks(self, number: int, start: int, end: int) -> Masks:
        """Return what is booked and touched in a block at any time in ``[start, end)``."""
        spans = self.block_spans[number]
        booked = touched = allocated = 0
        if not spans:
            return booked, touched, allocated
        for begin, stop, mine, shared, is_reservation, _ in spans.values():
            if begin < end and start < stop:
                booked |= mine
                touched |= shared
            if not is_reservation:
                allocated |= mine
        return booked, touched, allocated

    def held_at(self, number: int, now: int) -> int:
        """Return what is booked in a block at the instant ``now``."""
        held = 0
        for start, end, booked, _, _, _ in self.block_spans[number].values():
            if start <= now < end:
                held |= booked
        return held

    def units_used(self, v: int, start: int, end: int, *, is_now: bool = False) -> int:
        """Return the most units of a pool that are taken at any one time in ``[start, end)``.

        With ``is_now``, an allocation past its end still counts.
        """
        jobs = self.pool_jobs.get(v)
        if not jobs:
            return 0
        used = 0
        changes: list[tuple[int, int]] = []
        for booking in jobs.values():
            at, until = booking.at, booking.end
            units = booking.shares[v]
            if is_now and until <= start and not booking.is_reservation:
                used += units
            elif at < end and start < until:
                if at <= start:
                    used += units
                else:
                    changes.append((at, units))
                if until < end:
                    changes.append((until, -units))
        if not changes:
            return used
        # At equal times the negative entries sort first: ends give back before starts take.
        changes.sort()
        most = used
        for _, units in changes:
            used += units
            most = max(most, used)
        return most

    def tracked_mask(self, shape: BlockClass) -> int:
        """Return the vertices of a shape that the filters sum up."""
        found = self._tracked_masks.get(shape.number)
        if found is None:
            found = sum(shape.type_mask.get(kind, 0) for kind in self.filters.tracked)
            self._tracked_masks[shape.number] = found
        return found

    def free_share(
        self,
        number: int,
        booked: int,
        start: int,
        end: int,
        taken: Sequence[tuple[int, int]] = (),
        *,
        is_alone: bool = False,
    ) -> int:
        """Return how empty a block is, for ``pack`` and ``spread``.

        For each type below the root, this is the free share of its units in parts of
        ``FULL_SHARE``. The result is the sum over the types. ``graph.ledger.node_table`` gives the
        same figure.

        Parameters
        ----------
        taken
            Shares (vertex of the block, units) that count as taken too.
        is_alone
            Leave out what unmanaged pods use.
        """
        graph = self.graph
        block = graph.blocks[number]
        shape = block.shape
        left = shape.full & ~booked
        found = 0
        for kind, total in shape.units_below():
            free = shape.count(kind, left & ~1)
            if kind in graph.consumable:
                for i in iterate_bits(shape.type_mask[kind] & left):
                    v = block.base + i
                    free -= self.units_used(v, start, end)
                    free -= 0 if is_alone else graph.foreign.get(v, 0)
                free -= sum(units for i, units in taken if shape.types[i] == kind)
            # Use floats as the arrays of ``graph.ledger.node_table`` do, so that both round
            # equally.
            found += int(max(free, 0) / total * FULL_SHARE)
        return found

    def amounts(self, booking: Booking) -> dict[int, dict[int, int]]:
        """Return the units held exclusively strictly below each vertex above the blocks.

        The amounts are by type.
        """
        graph, tracked = self.graph, self.filters.tracked
        found: dict[int, dict[int, int]] = {v: {} for v in booking.tops}
        counted: dict[tuple[int, int], dict[int, int]] = {}
        for number, (booked, _) in booking.blocks.items():
            block = graph.blocks[number]
            key = (block.shape.number, booked)
            own = counted.get(key)
            if own is None:
                own = {k: n for k in tracked if (n := block.shape.count(k, booked))}
                counted[key] = own
            above = graph.parent[block.base]
            if above >= 0:
                _add(found[above], own)
        for v, units in booking.shares.items():
            kind = graph.type_of[v]
            if kind in tracked:
                number = graph.block_of[v]
                above = graph.parent[v if number < 0 else graph.blocks[number].base]
                if above >= 0:
                    _add(found[above], {kind: units})
        for v in sorted(booking.tops, reverse=True):
            above = graph.parent[v]
            if above >= 0:
                _add(found[above], found[v])
                kind = graph.type_of[v]
                if booking.tops[v] and kind in tracked:
                    _add(found[above], {kind: graph.size[v]})
        return found

    def book(self, booking: Booking) -> None:
        """Commit ``booking``. Its job must hold nothing yet, and what it takes must be free."""
        self.bookings[booking.job] = booking
        if not booking.is_reservation:
            self._plan_end(booking)
        job, at, end = booking.job, booking.at, booking.end
        is_reservation = booking.is_reservation
        for number, (booked, touched) in booking.blocks.items():
            span = (at, end, booked, touched, is_reservation, job)
            self.block_spans[number][job] = span
        for v in booking.shares:
            self.pool_jobs.setdefault(v, {})[job] = booking
        self._note_events(booking, 1)
        self.log.extend(booking.blocks)
        for v, is_exclusive in booking.tops.items():
            self.top_jobs.setdefault(v, {})[job] = booking
            if is_exclusive:
                self._log_below(v, 1)
        for v, amounts in self.amounts(booking).items():
            planner = self.planners.get(v)
            if planner is not None:
                planner.add_span(job, at, end, [amounts.get(k, 0) for k in planner.types])

    def cancel(self, job: int) -> Booking:
        """Give back all that ``job`` holds, and return it.

        Raises
        ------
        KeyError
            The job holds nothing.
        """
        booking = self.bookings.pop(job)
        self._late.discard(job)
        for number in booking.blocks:
            del self.block_spans[number][job]
        for v in booking.shares:
            del self.pool_jobs[v][job]
        self._note_events(booking, -1)
        self.log.extend(booking.blocks)
        for v, is_exclusive in booking.tops.items():
            del self.top_jobs[v][job]
            if is_exclusive:
                self._log_below(v, -1)
            planner = self.planners.get(v)
            if planner is not None:
                planner.remove_span(job)
        return booking

    def look(self, now: int) -> None:
        """Move the time on. Allocations past their end are planned to end a little later.

        Fluxion's verbs never call this: there, an allocation past its end no longer counts.
        """
        if now == self.time:
            return
        self.time = now
        ends = self._ends
        while ends and ends[0][0] <= now:
            until, job = heapq.heappop(ends)
            booking = self.bookings.get(job)
            if booking is not None and booking.until == until and not booking.is_reservation:
                self._late.add(job)
        for job in sorted(self._late):
            # Booking again computes the new planned end and corrects the planners.
            self.book(self.cancel(job))

    def _plan_end(self, booking: Booking) -> None:
        until = booking.until
        booking.end = planned_end(until, self.time, until)
        booking.given_end = None if booking.end == until else until
        if until <= self.time:
            self._late.add(booking.job)
            return
        heapq.heappush(self._ends, (until, booking.job))
        if len(self._ends) > ENDS_SPARE + 2 * len(self.bookings):
            # Entries of allocations that were cancelled early stay in the heap until now.
            running = (one for one in self.bookings.values() if not one.is_reservation)
            self._ends = [(one.until, one.job) for one in running if one.job not in self._late]
            heapq.heapify(self._ends)

    def add_block(self, number: int) -> None:
        """Add the totals and status of a node that has joined the graph."""
        self.block_spans.append({})
        self._change_totals(number, self.graph.blocks[number].shape, 1)
        base = self.graph.blocks[number].base
        for v in range(base, self.graph.end[base]):
            if v in self.graph.down:
                self.note_status(v, is_up=False)
        self.log.append(number)

    def remove_block(self, number: int) -> None:
        """Remove a node. Nothing may be booked in it."""
        self._change_totals(number, self.graph.blocks[number].shape, -1)
        self.down_masks.pop(number, None)
        self.log.append(number)

    def reshape_block(self, number: int, shape: BlockClass) -> None:
        """Change the sizes of a node's pools. Bookings stay."""
        block = self.graph.blocks[number]
        self._change_totals(number, block.shape, -1)
        block.shape = shape
        self._change_totals(number, shape, 1)
        self.log.append(number)

    def _change_totals(self, number: int, shape: BlockClass, sign: int) -> None:
        parent = self.graph.parent
        above = parent[self.graph.blocks[number].base]
        while above >= 0:
            planner = self.planners.get(above)
            if planner is not None:
                for index, kind in enumerate(planner.types):
                    planner.totals[index] += sign * shape.count(kind, shape.full)
            above = parent[above]

    def note_status(self, v: int, *, is_up: bool) -> None:
        """Update the masks of blocks and vertices after ``graph.down`` changed."""
        number = self.graph.block_of[v]
        if number < 0:
            (self.down_tops.discard if is_up else self.down_tops.add)(v)
            block_of = self.graph.block_of
            self.log.extend({block_of[u] for u in self.graph.subtree(v)} - {-1})
            return
        bit = 1 << (v - self.graph.blocks[number].base)
        mask = self.down_masks.get(number, 0)
        mask = mask & ~bit if is_up else mask | bit
        if mask:
            self.down_masks[number] = mask
        else:
            self.down_masks.pop(number, None)
        self.log.append(number)

    def _log_below(self, v: int, sign: int) -> None:
        self.exclusive_tops += sign
        block_of = self.graph.block_of
        self.log.extend({block_of[u] for u in self.graph.subtree(v)} - {-1})

    def top_is_held(self, v: int, start: int, end: int) -> bool:
        """Return whether a vertex above the blocks is held exclusively in the window."""
        jobs = self.top_jobs.get(v)
        return jobs is not None and any(b.tops[v] and b.overlaps(start, end) for b in jobs.values())

    def top_is_touched(self, v: int, start: int, end: int) -> bool:
        """Return whether any job holds a vertex above the blocks, or something below it."""
        jobs = self.top_jobs.get(v)
        return jobs is not None and any(b.overlaps(start, end) for b in jobs.values())

    def top_is_allocated(self, v: int) -> bool:
        """Return whether an allocation, even one past its end, holds the vertex exclusively."""
        jobs = self.top_jobs.get(v)
        return jobs is not None and any(b.tops[v] and not b.is_reservation for b in jobs.values())

    def jobs_at(self, v: int) -> dict[int, tuple[bool, Booking]]:
        """Return the jobs at or below a vertex.

        The values are whether the job holds the vertex itself, and its booking.
        """
        number = self.graph.block_of[v]
        if number < 0:
            jobs = self.top_jobs.get(v, {})
            return {j: (b.tops[v] or v in b.shares, b) for j, b in jobs.items()}
        bit = 1 << (v - self.graph.blocks[number].base)
        return {
            job: (bool(span[2] & bit) or v in self.bookings[job].shares, self.bookings[job])
            for job, span in self.block_spans[number].items()
            if span[3] & bit
        }

    def blocks_changing(self, low: int, high: int) -> set[int]:
        """Return the blocks in which a span starts or ends at a time in ``(low, high]``."""
        first = bisect_left(self.event_times, low + 1)
        last = bisect_left(self.event_times, high + 1)
        found: set[int] = set()
        for time in self.event_times[first:last]:
            found.update(self.events[time])
        return found

    def _note_events(self, booking: Booking, sign: int) -> None:
        for time in (booking.at, booking.end):
            blocks = self.events.get(time)
            if blocks is None:
                blocks = self.events[time] = {}
                insort(self.event_times, time)
            for number in booking.blocks:
                count = blocks.get(number, 0) + sign
                if count:
                    blocks[number] = count
                else:
                    blocks.pop(number, None)
            if not blocks:
                del self.events[time]
                del self.event_times[bisect_left(self.event_times, time)]


def _add(into: dict[int, int], more: dict[int, int]) -> None:
    for kind, amount in more.items():
        into[kind] = into.get(kind, 0) + amount
