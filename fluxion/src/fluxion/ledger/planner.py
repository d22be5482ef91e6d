"""Planners: how much of each resource type is used over time.

A planner keeps usage at *scheduled points*, the times at which a span starts or ends. Between two
points nothing changes. ``ledger.vertices`` uses planners for the vertices above the nodes, as
Fluxion's pruning filter does (flux-sched, resource/planner). Times are integer seconds. Spans are
half-open ``[start, end)``. Pure.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Sequence

Span = tuple[int, int, tuple[int, ...]]


class MultiPlanner:
    """Usage of several resource types together.

    ``totals`` and the counts of every span are in the order of ``types``. No span is refused
    because it does not fit: the matcher checks that first.
    """

    __slots__ = ("points", "references", "spans", "totals", "types", "used")

    def __init__(self, types: Sequence[int], totals: Sequence[int]) -> None:
        self.types = tuple(types)
        self.totals = list(totals)
        self.points: list[int] = []
        self.references: list[int] = []
        self.used: list[list[int]] = [[] for _ in self.types]
        self.spans: dict[int, Span] = {}

    def add_span(self, job: int, start: int, end: int, counts: Sequence[int]) -> None:
        """Use ``counts`` during ``[start, end)`` for ``job``. Each job has at most one span."""
        self.spans[job] = (start, end, tuple(counts))
        # Hold the start first: inserting the later end cannot move the start's position.
        first, last = self._refer_to(start), self._refer_to(end)
        self._shift(first, last, counts, 1)

    def remove_span(self, job: int) -> bool:
        """Give back what ``job`` uses. Return False if it uses nothing."""
        span = self.spans.pop(job, None)
        if span is None:
            return False
        start, end, counts = span
        first, last = bisect_left(self.points, start), bisect_left(self.points, end)
        self._shift(first, last, counts, -1)
        # Release the later point first: deleting the start would move the end's position.
        self._release(last)
        self._release(first)
        return True

    def used_at(self, at: int, index: int) -> int:
        """Return the units of the type at ``index`` that are in use at the instant ``at``."""
        position = bisect_right(self.points, at) - 1
        return self.used[index][position] if position >= 0 else 0

    def free_during(self, start: int, end: int, index: int) -> int:
        """Return the least that is free of the type at ``index`` during ``[start, end)``."""
        # Usage at the start is that of the last point at or before it.
        first = max(bisect_right(self.points, start) - 1, 0)
        last = bisect_left(self.points, end)
        window = self.used[index][first:last]
        return self.totals[index] - (max(window) if window else 0)

    def fits_during(self, start: int, end: int, needs: Sequence[int]) -> bool:
        """Return whether ``needs`` are free throughout ``[start, end)``."""
        return all(
            need == 0 or need <= self.free_during(start, end, index)
            for index, need in enumerate(needs)
        )

    def fits_ever(self, needs: Sequence[int]) -> bool:
        """Return whether ``needs`` fit if nothing is used."""
        return all(need <= total for need, total in zip(needs, self.totals, strict=True))

    def candidate_times(self, after: int, duration: int, needs: Sequence[int]) -> Iterator[int]:
        """Yield the scheduled points from ``after`` on at which ``needs`` fit, ascending.

        The caller must not change the planner while it iterates.
        """
        for at in self.points[bisect_left(self.points, after) :]:
            if self.fits_during(at, at + duration, needs):
                yield at

    def _refer_to(self, at: int) -> int:
        position = bisect_left(self.points, at)
        if position < len(self.points) and self.points[position] == at:
            self.references[position] += 1
            return position
        self.points.insert(position, at)
        self.references.insert(position, 1)
        for column in self.used:
            # Until the next point, the usage is that of the point before.
            column.insert(position, column[position - 1] if position else 0)
        return position

    def _release(self, position: int) -> None:
        self.references[position] -= 1
        if self.references[position] == 0:
            del self.points[position], self.references[position]
            for column in self.used:
                del column[position]

    def _shift(self, first: int, last: int, counts: Sequence[int], sign: int) -> None:
        for column, count in zip(self.used, counts, strict=True):
            if count:
                amount = sign * count
                column[first:last] = [units + amount for units in column[first:last]]
