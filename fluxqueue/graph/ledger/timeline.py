"""When running work ends, what is free afterwards, and which reservations lie in between.

``Ends`` keeps the ends of live allocations sorted by row and time. What is free after each end is
then a running sum, and one pass over the arrays answers for all times at once. Changes are
collected and merged the next time the future is needed.

``Plan`` keeps the reservations. For every row of a reservation it keeps what is left there when the
reservation starts, a *dip*. Between two dips, what is free on a row can only grow. So the least of
a window is at its start or at a dip. Hot path: arrays by hand.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fluxqueue.graph.arrays import Matrix, Vector
from fluxqueue.graph.ledger.placement import FOREVER, Placement
from fluxqueue.prediction.durations import OVERRUN_GRACE_S, PUT_OFF_S

TIME_BITS = 40
LAST_TIME = (1 << TIME_BITS) - 1
"""Later times are equal in the sort key. Only ``FOREVER`` is later."""


@dataclass(slots=True)
class Hold:
    """A compiled placement: distinct rows, and what it takes on each of them.

    ``takes`` is rows x columns, with as many columns as were known when it was compiled. ``claims``
    are the volume claims for one pod that it uses. ``limit`` is when a limit ends it, ``FOREVER``
    if none does.
    """

    rows: Vector
    takes: Matrix
    starts_at: int
    until: int
    claims: tuple[str, ...] = ()
    limit: int = FOREVER


def widen(matrix: Matrix, columns: int) -> Matrix:
    """Return the same matrix with zeros for columns that were added later."""
    more = columns - matrix.shape[1]
    return matrix if not more else np.pad(matrix, ((0, 0), (0, more)))


class Ends:
    """The ends of live allocations.

    Arrays are sorted by (row, time). ``deltas`` is columns x ends.
    """

    def __init__(self, columns: int) -> None:
        self._columns = columns
        self._now = 0
        self.version = 0
        self._new: dict[int, Hold] = {}
        self._gone: set[int] = set()
        self._serials = 0
        self._keys = np.zeros(0, dtype=np.int64)
        self._untils = np.zeros(0, dtype=np.int64)
        self._limits = np.zeros(0, dtype=np.int64)
        self._owners = np.zeros(0, dtype=np.int64)
        self.rows: Vector = np.zeros(0, dtype=np.int64)
        self.times: Vector = np.zeros(0, dtype=np.int64)
        self.deltas: Matrix = np.zeros((columns, 0), dtype=np.int64)
        self._order: Vector | None = None
        self._sums: Matrix | None = None

    def add(self, hold: Hold) -> int:
        """Add a live allocation and return the number with which to remove it."""
        self._serials += 1
        self._new[self._serials] = hold
        return self._serials

    def remove(self, serial: int) -> None:
        """Remove an allocation that has ended."""
        if self._new.pop(serial, None) is None:
            self._gone.add(serial)

    def widen(self, columns: int) -> None:
        """Make columns for resources that were added."""
        more = columns - self._columns
        self._columns = columns
        self.deltas = np.pad(self.deltas, ((0, more), (0, 0)))
        self._forget()

    def look(self, now: int) -> None:
        """Merge all changes into the arrays, as planned at ``now``."""
        if self._gone:
            self._take_out()
        if self._new:
            self._put_in(now)
        if now != self._now:
            self._move(now)

    def _take_out(self) -> None:
        # For a few allocations, comparing is quicker than isin.
        if len(self._gone) <= 8:
            keep = np.ones(len(self._owners), dtype=np.bool_)
            for serial in self._gone:
                keep &= self._owners != serial
        else:
            keep = ~np.isin(self._owners, np.fromiter(self._gone, np.int64, len(self._gone)))
        self._gone.clear()
        self._select(keep)

    def _put_in(self, now: int) -> None:
        holds = self._new
        sizes = [len(hold.rows) for hold in holds.values()]
        rows = np.concatenate([hold.rows for hold in holds.values()])
        untils = np.repeat(np.array([hold.until for hold in holds.values()], dtype=np.int64), sizes)
        limits = np.repeat(np.array([hold.limit for hold in holds.values()], dtype=np.int64), sizes)
        owners = np.repeat(np.array(list(holds), dtype=np.int64), sizes)
        takes = np.concatenate([widen(hold.takes, self._columns) for hold in holds.values()])
        holds.clear()
        times = _planned(untils, limits, now)
        keys = sort_keys(rows, times)
        order = np.argsort(keys, kind="stable")
        at = np.searchsorted(self._keys, keys[order])
        self._keys = np.insert(self._keys, at, keys[order])
        self._untils = np.insert(self._untils, at, untils[order])
        self._limits = np.insert(self._limits, at, limits[order])
        self._owners = np.insert(self._owners, at, owners[order])
        self.rows = np.insert(self.rows, at, rows[order])
        self.times = np.insert(self.times, at, times[order])
        self.deltas = np.insert(self.deltas, at, takes[order].T, axis=1)
        self._forget()

    def _move(self, now: int) -> None:
        """Put off the planned ends that have passed."""
        # Also those that were put off: the time may have gone back.
        self._now = now
        late = np.flatnonzero((self._untils <= now) | (self.times != self._untils))
        if not len(late):
            return
        times = _planned(self._untils[late], self._limits[late], now)
        moved = times != self.times[late]
        if not moved.any():
            return
        self.times[late] = times
        self._keys[late] = sort_keys(self.rows[late], times)
        self._select(np.argsort(self._keys, kind="stable"))

    def _select(self, which: npt.NDArray[np.bool_] | Vector) -> None:
        self._keys, self._untils = self._keys[which], self._untils[which]
        self._limits, self._owners = self._limits[which], self._owners[which]
        self.rows = self.rows[which]
        self.times, self.deltas = self.times[which], self.deltas[:, which]
        self._forget()

    def _forget(self) -> None:
        self.version += 1
        self._order = self._sums = None

    def order(self) -> Vector:
        """Return the indexes of the ends in order of time."""
        if self._order is None:
            self._order = np.argsort(self.times, kind="stable")
        return self._order

    def after(self, free: Matrix) -> Matrix:
        """Return what is free on its row after each end (columns x ends).

        ``free`` is what is free now (rows x columns).
        """
        return self._running() + free.T[:, self.rows]

    def _running(self) -> Matrix:
        """Return what all ends of a row up to each end give back (columns x ends)."""
        if self._sums is None:
            # Sum over all rows, then subtract what came before the first end of the same row.
            sums = np.cumsum(self.deltas, axis=1)
            starts = np.searchsorted(self.rows, self.rows)
            sums -= (sums - self.deltas)[:, starts]
            self._sums = sums
        return self._sums

    def is_first(self) -> npt.NDArray[np.bool_]:
        """Return which ends are the first on their row."""
        first = np.ones(len(self.rows), dtype=np.bool_)
        first[1:] = self.rows[1:] != self.rows[:-1]
        return first

    def last_until(self, at: int) -> Vector:
        """Return the indexes of the last end up to ``at`` on each row that has one."""
        ended = self.times <= at
        follows = np.zeros(len(ended), dtype=np.bool_)
        follows[:-1] = ended[1:] & (self.rows[1:] == self.rows[:-1])
        return np.flatnonzero(ended & ~follows)

    def given_back(self, rows: Vector, at: int) -> Matrix:
        """Return what the ends up to ``at`` give back on ``rows`` (rows x columns).

        ``rows`` are distinct and ascending.
        """
        found = np.zeros((len(rows), self._columns), dtype=np.int64)
        low = np.searchsorted(self._keys, rows << TIME_BITS)
        high = np.searchsorted(self._keys, (rows << TIME_BITS) + min(at, LAST_TIME), side="right")
        some = np.flatnonzero(high > low)
        found[some] = self._running()[:, high[some] - 1].T
        return found


_STEPS = np.array(PUT_OFF_S, dtype=np.int64)


def _planned(untils: Vector, limits: Vector, now: int) -> Vector:
    """Return ``planned_end`` of each."""
    late = np.flatnonzero(untils <= now)
    if not len(late):
        return untils
    found, ends = untils.copy(), limits[late]
    late_s = now - untils[late]
    steps = _STEPS[np.minimum(np.searchsorted(_STEPS, late_s, side="right"), len(_STEPS) - 1)]
    far = late_s >= _STEPS[-1]
    steps[far] = _STEPS[-1] << np.frexp(late_s[far] // _STEPS[-1])[1].astype(np.int64)
    over = np.frexp(np.maximum(0, now - ends) // OVERRUN_GRACE_S)[1].astype(np.int64)
    within = np.minimum(ends, untils[late] + steps)
    found[late] = np.where(now < ends, within, ends + (OVERRUN_GRACE_S << over))
    return found


def sort_keys(rows: Vector, times: Vector) -> Vector:
    """Return keys that sort changes by row, then by time."""
    return (rows << TIME_BITS) + np.minimum(times, LAST_TIME)


class Plan:
    """Reservations, one entry per row of each.

    The columns are ``rows``, ``starts``, ``untils``, ``takes`` and ``dips``. A dip is what is left
    on the row at the start, after this reservation and all others. ``removed`` counts the removed
    reservations: as long as it is the same, entries were only added.
    """

    __slots__ = ("dips", "owners", "placements", "removed", "rows", "starts", "takes", "untils")

    def __init__(self, columns: int) -> None:
        self.placements: list[Placement] = []
        self.removed = 0
        self.owners: Vector = np.zeros(0, dtype=np.int64)
        self.rows: Vector = np.zeros(0, dtype=np.int64)
        self.starts: Vector = np.zeros(0, dtype=np.int64)
        self.untils: Vector = np.zeros(0, dtype=np.int64)
        self.takes: Matrix = np.zeros((0, columns), dtype=np.int64)
        self.dips: Matrix = np.zeros((0, columns), dtype=np.int64)

    def copy(self) -> Plan:
        """Return a copy that can be changed alone."""
        other = Plan(self.takes.shape[1])
        other.placements = list(self.placements)
        for name in ("owners", "rows", "starts", "untils", "takes", "dips"):
            setattr(other, name, getattr(self, name).copy())
        return other

    def widen(self, columns: int) -> None:
        """Make columns for resources that were added."""
        self.takes, self.dips = widen(self.takes, columns), widen(self.dips, columns)

    def add(self, placement: Placement, hold: Hold, free: Matrix) -> None:
        """Add a reservation. ``free`` is what is free on the hold's rows at its start."""
        self.shift(hold.rows, hold.takes, hold.starts_at, hold.until, -1)
        self.placements.append(placement)
        size = len(hold.rows)
        self.owners = np.append(self.owners, np.full(size, id(placement)))
        self.rows = np.append(self.rows, hold.rows)
        self.starts = np.append(self.starts, np.full(size, hold.starts_at))
        self.untils = np.append(self.untils, np.full(size, hold.until))
        self.takes = np.concatenate([self.takes, hold.takes])
        self.dips = np.concatenate([self.dips, free - hold.takes])

    def remove(self, placement: Placement, hold: Hold) -> None:
        """Remove a reservation. It must be the very object that was added."""
        index = next(i for i, one in enumerate(self.placements) if one is placement)
        del self.placements[index]
        self.removed += 1
        keep = self.owners != id(placement)
        for name in ("owners", "rows", "starts", "untils", "takes", "dips"):
            setattr(self, name, getattr(self, name)[keep])
        self.shift(hold.rows, hold.takes, hold.starts_at, hold.until, 1)

    def shift(self, rows: Vector, takes: Matrix, start: int, until: int, sign: int) -> None:
        """Correct the dips for resources that are taken during a time, or given back.

        ``rows`` are distinct and ascending. ``sign`` is -1 for taken, 1 for given back.
        """
        if not len(self.rows) or not len(rows):
            return
        at = np.minimum(np.searchsorted(rows, self.rows), len(rows) - 1)
        hit = (rows[at] == self.rows) & (self.starts >= start) & (self.starts < until)
        if hit.any():
            self.dips[hit] += sign * takes[at[hit]]

    def active(self, at: int) -> npt.NDArray[np.bool_]:
        """Return which entries hold their row at ``at``."""
        found: npt.NDArray[np.bool_] = (self.starts <= at) & (at < self.untils)
        return found

    def within(self, start: int, until: int) -> npt.NDArray[np.bool_]:
        """Return which entries start after ``start`` and before ``until``."""
        found: npt.NDArray[np.bool_] = (self.starts > start) & (self.starts < until)
        return found

    def taken_at(self, rows: Vector, at: int) -> Matrix:
        """Return what is reserved at ``at`` on ``rows`` (rows x columns).

        ``rows`` are distinct and ascending.
        """
        found = np.zeros((len(rows), self.takes.shape[1]), dtype=np.int64)
        if len(self.rows) and len(rows):
            index = np.minimum(np.searchsorted(rows, self.rows), len(rows) - 1)
            hit = (rows[index] == self.rows) & self.active(at)
            np.add.at(found, index[hit], self.takes[hit])
        return found
