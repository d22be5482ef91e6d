"""Tables: what may be taken of each resource on each node, and which rows have changed.

A table is followed by whatever is derived from it (counts of slots, how empty nodes are): each
follower remembers how far it has read the log of changed rows and corrects those only. Hot path:
arrays by hand, no graph library.
"""

from __future__ import annotations

import numpy as np

from fluxqueue.graph.ledger.places import Places
from fluxqueue.graph.model.arrays import Mask, Matrix, Vector
from fluxqueue.graph.model.shapes import FULL_SHARE

LOG_MAX = 1 << 16
"""A longer log is forgotten: followers then count all rows once."""


class Table:
    """``free`` (rows x columns, base units; column 0 are shares of the node itself) and which rows
    are ``usable``. ``log`` lists rows that changed; a new ``epoch`` means all of them."""

    __slots__ = ("capacity", "epoch", "free", "log", "usable")

    def __init__(self, free: Matrix, capacity: Matrix, usable: Mask) -> None:
        self.free, self.capacity, self.usable = free, capacity, usable
        self.log: list[int] = []
        self.epoch = 0

    def replace(self, free: Matrix, capacity: Matrix, usable: Mask) -> None:
        """The arrays are others: larger ones."""
        self.free, self.capacity, self.usable = free, capacity, usable
        self.forget()

    def forget(self) -> None:
        """Everything may have changed."""
        self.epoch += 1
        self.log.clear()

    def shorten(self) -> None:
        """Keep the log from growing without end."""
        if len(self.log) > LOG_MAX:
            self.forget()


class Follower:
    """Something derived from a table, row by row."""

    __slots__ = ("_epoch", "_position", "table")

    def __init__(self, table: Table) -> None:
        self.table = table
        self._epoch = -1
        self._position = 0

    def follow(self) -> None:
        """Catch up with the table."""
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
    """How empty each row is: the free share of every resource in parts of ``FULL_SHARE``, summed
    up, so that bytes and millicores weigh alike."""
    share = np.maximum(free[:, 1:], 0) / np.maximum(capacity[:, 1:], 1)
    found: Vector = (share * FULL_SHARE).astype(np.int64).sum(axis=1)
    return found


class Emptiness(Follower):
    """How empty the usable nodes are, by row; and the places that they stand in."""

    __slots__ = ("_sums", "values")

    def __init__(self, table: Table) -> None:
        super().__init__(table)
        self.values: Vector = np.zeros(0, dtype=np.int64)
        self._sums: dict[Places, tuple[int, Vector]] = {}

    def sums(self, places: Places) -> Vector:
        """How empty each place is; not to be changed."""
        known = self._sums.get(places)
        if known is None or known[0] != places.version:
            known = self._sums[places] = places.version, places.sums(self.values)
        return known[1]

    def of(self, rows: Vector, free: Matrix) -> Vector:
        """The same for ``rows`` with ``free`` in place of what the table says."""
        # Of a node that is held whole nothing is free, whatever its slots take.
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
