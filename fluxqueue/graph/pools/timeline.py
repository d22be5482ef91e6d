"""When running work ends, and what is free then: the part of the future that plans start from.

Made by ``pools.PoolSet`` once per plan. What is free only grows as bookings end, so the first time
at which a request could possibly fit is found by bisection over a few snapshots; the walk through
reservations starts there instead of now.
"""

from __future__ import annotations

from bisect import bisect_left, bisect_right
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Matrix: TypeAlias = npt.NDArray[np.int64]
Vector: TypeAlias = npt.NDArray[np.int64]

SNAPSHOTS = 32
"""Matrices kept: more make the walks shorter and cost memory (nodes x resources each)."""


@dataclass(slots=True)
class Booking:
    """A placement compiled for the arrays: row of each slot and what it takes there."""

    rows: Vector
    takes: Matrix
    starts_at: int
    until: int


class Timeline:
    """Ends of bookings in order, with snapshots of what is free after some of them.

    Parameters
    ----------
    free : what is free now; not changed.
    ends : planned end (epoch seconds) and booking.
    """

    def __init__(self, free: Matrix, ends: Iterable[tuple[int, Booking]]) -> None:
        in_order = sorted(ends, key=lambda end: end[0])
        self._times = [at for at, _ in in_order]
        self._bookings = [booking for _, booking in in_order]
        self._positions = [0]
        self._free = [free]
        self._take_snapshots(free.copy())

    def _take_snapshots(self, free: Matrix) -> None:
        count = len(self._times)
        step = max(1, count // SNAPSHOTS)
        for position, booking in enumerate(self._bookings, start=1):
            np.add.at(free, booking.rows, booking.takes)
            is_last = position == count
            # Between two ends at the same time nothing can start.
            is_apart = is_last or self._times[position] != self._times[position - 1]
            if is_last or (is_apart and position - self._positions[-1] >= step):
                self._positions.append(position)
                self._free.append(free.copy())

    def last_without(self, has_room: Callable[[Matrix], bool]) -> tuple[int, Matrix] | None:
        """The last snapshot before the first that ``has_room``: its position and what is free.

        None where not even the last has room. ``has_room`` must not turn false as more gets free.
        """
        if not has_room(self._free[-1]):
            return None
        first = bisect_left(range(len(self._free)), True, key=lambda i: has_room(self._free[i]))
        start = max(0, first - 1)
        return self._positions[start], self._free[start]

    def time_of(self, position: int, now: int) -> int:
        """The time at which as many bookings as ``position`` have ended."""
        return self._times[position - 1] if position else now

    def ends_from(self, position: int) -> Iterator[tuple[int, Booking]]:
        """Ends after that position."""
        for index in range(position, len(self._times)):
            yield self._times[index], self._bookings[index]

    def free_at(self, at: int) -> Matrix:
        """What is free once all bookings with an end up to ``at`` have ended: a fresh copy."""
        wanted = bisect_right(self._times, at)
        start = bisect_right(self._positions, wanted) - 1
        free = self._free[start].copy()
        for booking in self._bookings[self._positions[start] : wanted]:
            np.add.at(free, booking.rows, booking.takes)
        return free
