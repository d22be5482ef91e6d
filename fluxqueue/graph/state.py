"""What is booked on a graph, over time: the one place that changes when a match is committed.

A *booking* is what one job holds during ``[start, end)``. Inside a block (a node and all below it)
it is two integers whose bits are vertices: ``booked`` (held exclusively) and ``touched`` (those,
and the shared vertices above them). Above the blocks it is a set of vertices, and the amounts
below each of them in a planner. Called by the matcher; pure.
"""

from __future__ import annotations

from bisect import bisect_left, insort
from dataclasses import dataclass, field

from fluxqueue.graph.filters import PruningFilters
from fluxqueue.graph.planner import MultiPlanner
from fluxqueue.graph.store import ResourceGraph


@dataclass(slots=True)
class Booking:
    """What a job holds.

    ``blocks`` maps a block to (booked, touched); ``tops`` maps a vertex above the blocks to
    whether it is held exclusively. ``at`` and ``end`` are seconds, the end excluded.
    """

    job: int
    at: int
    end: int
    is_reservation: bool = False
    blocks: dict[int, tuple[int, int]] = field(default_factory=dict)
    tops: dict[int, bool] = field(default_factory=dict)

    def overlaps(self, start: int, end: int) -> bool:
        return self.at < end and start < self.end


BlockSpan = tuple[int, int, int, int, bool, int]
"""start, end, booked, touched, is_reservation, job"""
Masks = tuple[int, int, int]
"""booked and touched during a window, and held by an allocation at any time"""


class GraphState:
    """All bookings on ``graph``; ``log`` lists the blocks that changed, for caches to follow."""

    def __init__(self, graph: ResourceGraph, filters: PruningFilters) -> None:
        self.graph = graph
        self.filters = filters
        self.bookings: dict[int, Booking] = {}
        self.block_spans: list[dict[int, BlockSpan]] = [{} for _ in graph.blocks]
        self.top_jobs: dict[int, dict[int, Booking]] = {}
        self.exclusive_tops = 0
        self.planners: dict[int, MultiPlanner] = {}
        self.log: list[int] = []
        self.events: dict[int, dict[int, int]] = {}
        self.event_times: list[int] = []
        self.down_masks: dict[int, int] = {}
        self.down_tops: set[int] = set()
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
        """What is booked and touched in a block at some time in ``[start, end)``."""
        booked = touched = allocated = 0
        for begin, stop, mine, shared, is_reservation, _ in self.block_spans[number].values():
            if begin < end and start < stop:
                booked |= mine
                touched |= shared
            if not is_reservation:
                allocated |= mine
        return booked, touched, allocated

    def amounts(self, booking: Booking) -> dict[int, dict[int, int]]:
        """Units held exclusively strictly below each vertex above the blocks, by type."""
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
        for v in sorted(booking.tops, reverse=True):
            above = graph.parent[v]
            if above >= 0:
                _add(found[above], found[v])
                kind = graph.type_of[v]
                if booking.tops[v] and kind in tracked:
                    _add(found[above], {kind: graph.size[v]})
        return found

    def book(self, booking: Booking) -> None:
        """Commit ``booking``; its job must hold nothing yet, and what it takes must be free."""
        job, at, end = booking.job, booking.at, booking.end
        self.bookings[job] = booking
        is_reservation = booking.is_reservation
        for number, (booked, touched) in booking.blocks.items():
            span = (at, end, booked, touched, is_reservation, job)
            self.block_spans[number][job] = span
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
        """Give back all that ``job`` holds; KeyError if it holds nothing."""
        booking = self.bookings.pop(job)
        for number in booking.blocks:
            del self.block_spans[number][job]
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

    def note_status(self, v: int, *, is_up: bool) -> None:
        """Follow a change of ``graph.down``: masks of the blocks, vertices above them."""
        number = self.graph.block_of[v]
        if number < 0:
            (self.down_tops.discard if is_up else self.down_tops.add)(v)
            block_of = self.graph.block_of
            self.log.extend({block_of[u] for u in range(v, self.graph.end[v])} - {-1})
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
        self.log.extend({block_of[u] for u in range(v, self.graph.end[v])} - {-1})

    def top_is_held(self, v: int, start: int, end: int) -> bool:
        """Whether a vertex above the blocks is held exclusively at some time in the window."""
        jobs = self.top_jobs.get(v)
        return jobs is not None and any(b.tops[v] and b.overlaps(start, end) for b in jobs.values())

    def top_is_touched(self, v: int, start: int, end: int) -> bool:
        """Whether any job holds a vertex above the blocks, or something below it."""
        jobs = self.top_jobs.get(v)
        return jobs is not None and any(b.overlaps(start, end) for b in jobs.values())

    def top_is_allocated(self, v: int) -> bool:
        """Whether an allocation, even one past its end, holds the vertex exclusively."""
        jobs = self.top_jobs.get(v)
        return jobs is not None and any(b.tops[v] and not b.is_reservation for b in jobs.values())

    def jobs_at(self, v: int) -> dict[int, tuple[bool, Booking]]:
        """Jobs at or below a vertex: whether they hold the vertex itself, and their booking."""
        number = self.graph.block_of[v]
        if number < 0:
            return {j: (b.tops[v], b) for j, b in self.top_jobs.get(v, {}).items()}
        bit = 1 << (v - self.graph.blocks[number].base)
        return {
            job: (bool(span[2] & bit), self.bookings[job])
            for job, span in self.block_spans[number].items()
            if span[3] & bit
        }

    def blocks_changing(self, low: int, high: int) -> set[int]:
        """Blocks in which a span starts or ends at a time in ``(low, high]``."""
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
