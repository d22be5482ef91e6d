"""Tables: what can be taken of each resource on each node, and which rows have changed.

Derived data (counts of slots, how empty nodes are) follows a table. Each follower remembers how far
it has read the log of changed rows, and corrects only those. Hot path: arrays by hand, no graph
library.
"""

from __future__ import annotations

import numpy as np

from fluxqueue.graph.arrays import FULL_SHARE, Mask, Matrix, Vector
from fluxqueue.graph.ledger.places import Places

LOG_MAX = 1 << 16
"""A longer log is cleared. Followers then count all rows once."""


class AllocationTable:
    """What is free on each row, and which rows are usable.

    ``free`` is rows x columns in base units, and column 0 has the shares of the node itself.
    ``log`` lists the rows that changed. A new ``epoch`` means that all rows may have changed.
    """

    __slots__ = ("capacity", "epoch", "free", "log", "usable")

    def __init__(self, free: Matrix, capacity: Matrix, usable: Mask) -> None:
        self.free, self.capacity, self.usable = free, capacity, usable
        self.log: list[int] = []
        self.epoch = 0

    def replace(self, free: Matrix, capacity: Matrix, usable: Mask) -> None:
        """Replace the arrays, usually by larger ones."""
        self.free, self.capacity, self.usable = free, capacity, usable
        self.forget()

    def forget(self) -> None:
        """Mark all rows as changed."""
        self.epoch += 1
        self.log.clear()

    def shorten(self) -> None:
        """Limit the length of the log."""
        if len(self.log) > LOG_MAX:
            self.forget()


class TableFollower:
    """Data derived from a table row by row."""

    __slots__ = ("_epoch", "_position", "table")

    def __init__(self, table: AllocationTable) -> None:
        self.table = table
        self._epoch = -1
        self._position = 0

    def follow(self) -> None:
        """Apply the changes of the table since the last call."""
        table = self.table
        if self._epoch != table.epoch:
            self._epoch = table.epoch
            self._position = len(table.log)
            self._count_all()
        elif self._position < len(table.log):
            rows = list(set(table.log[self._position :]))
            self._position = len(table.log)
            self._correct(rows)

    def _count_all(self) -> None:
        raise NotImplementedError

    def _correct(self, rows: list[int]) -> None:
        raise NotImplementedError


def emptiness(free: Matrix, capacity: Matrix) -> Vector:
    """Return how empty each row is (rows).

    This is the sum over all resources of their free share, in parts of ``FULL_SHARE``. So bytes and
    millicores weigh alike.
    """
    share = np.maximum(free[:, 1:], 0) / np.maximum(capacity[:, 1:], 1)
    found: Vector = (share * FULL_SHARE).astype(np.int64).sum(axis=1)
    return found


class Emptiness(TableFollower):
    """How empty the usable nodes are, by row and by place."""

    __slots__ = ("_sums", "values")

    def __init__(self, table: AllocationTable) -> None:
        super().__init__(table)
        self.values: Vector = np.zeros(0, dtype=np.int64)
        self._sums: dict[Places, tuple[int, Vector]] = {}

    def sums(self, places: Places) -> Vector:
        """Return how empty each place is. The caller must not change it."""
        known = self._sums.get(places)
        if known is None or known[0] != places.version:
            known = self._sums[places] = places.version, places.sums(self.values)
        return known[1]

    def of(self, rows: Vector, free: Matrix) -> Vector:
        """Return how empty ``rows`` are if ``free`` replaces the values of the table."""
        # A node that is held whole has nothing free, whatever its slots take.
        is_open = self.table.usable[rows] & (free[:, 0] > 0)
        return np.where(is_open, emptiness(free, self.table.capacity[rows]), 0)

    def _count_all(self) -> None:
        table = self.table
        self._sums.clear()
        self.values = self.of(np.arange(len(table.free)), table.free)

    def _correct(self, rows: list[int]) -> None:
        index = np.array(rows, dtype=np.int64)
        new = self.of(index, self.table.free[index])
        for places, (version, sums) in self._sums.items():
            if version == places.version:
                places.add_at(sums, index, new - self.values[index])
        self.values[index] = new
