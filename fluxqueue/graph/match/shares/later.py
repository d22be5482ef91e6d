"""The earliest start after now: which times are worth an exact match, all judged at once.

Total units over the cluster are a step function of time. The steps are the ends of running work and
the reservations. A start is possible only if the total is enough from then until the end. So one
pass over arrays leaves few times for an exact match. flux-sched (dfu.cpp :200-216) asks its planner
the same question. The matcher calls this. Hot path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np

from fluxqueue.graph.arrays import Mask, Matrix, Vector
from fluxqueue.graph.ledger.placement import FOREVER
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.ledger.timeline import sort_keys
from fluxqueue.graph.match.shares.offer import Offer


@dataclass(frozen=True, slots=True)
class LaterDemand:
    """A number of units of an offer (nodes, if ``is_distinct``) needed over the whole cluster."""

    offer: Offer
    count: int
    is_distinct: bool


class Steps:
    """Changes of the free resources over time.

    Ends on rows without reservations are looked up. All changes on rows with reservations are
    simulated. The object is reused as long as nothing starts or ends: a new reservation changes
    only its own rows.
    """

    def __init__(self, ledger: ShareLedger, now: int) -> None:
        self.ledger, self.now = ledger, now
        ledger.look(now)
        self._plan, self._key = ledger.plan, self._what_it_is_of()
        self._reserved = 0
        self._plain = ledger.ends.order()
        self._rows: Vector = np.zeros(0, dtype=np.int64)
        self._times: Vector = np.zeros(0, dtype=np.int64)
        self._free: Matrix = np.zeros((0, len(ledger.columns)), dtype=np.int64)
        self._is_release: Mask = np.zeros(0, dtype=np.bool_)
        self._plain_changes: dict[tuple[int, bool], tuple[Offer, Vector]] = {}
        self.times: Vector = self._times
        self.has_release: Mask = self._is_release
        self._take_in()

    def _what_it_is_of(self) -> tuple[object, ...]:
        ledger = self.ledger
        return ledger.version, ledger.ends.version, ledger.plan.removed, len(ledger.columns)

    def follow(self) -> bool:
        """Add the reservations made since. Return False if anything else has changed."""
        if self._plan is not self.ledger.plan or self._key != self._what_it_is_of():
            return False
        if self._reserved < len(self.ledger.plan.rows):
            self._take_in()
        return True

    def _take_in(self) -> None:
        ends, plan = self.ledger.ends, self.ledger.plan
        is_new = np.zeros(len(self.ledger.names), dtype=np.bool_)
        is_new[plan.rows[self._reserved :]] = True
        self._reserved = len(plan.rows)
        # A row with a new reservation is simulated again, from its first change on.
        kept = ~is_new[self._rows]
        rows, times, free, is_release = self._simulate(is_new)
        self._rows = np.concatenate([self._rows[kept], rows])
        self._times = np.concatenate([self._times[kept], times])
        self._free = np.concatenate([self._free[kept], free])
        self._is_release = np.concatenate([self._is_release[kept], is_release])
        self._plain = self._plain[~is_new[ends.rows[self._plain]]]
        self._put_in_order()

    def _simulate(self, is_new: Mask) -> tuple[Vector, Vector, Matrix, Mask]:
        """Return all changes of some rows, by row and time, and what is free after each."""
        ends, plan = self.ledger.ends, self.ledger.plan
        inside = np.flatnonzero(is_new[ends.rows])
        starts = np.flatnonzero(is_new[plan.rows])
        finite = starts[plan.untils[starts] < FOREVER]
        rows = np.concatenate([ends.rows[inside], plan.rows[starts], plan.rows[finite]])
        times = np.concatenate([ends.times[inside], plan.starts[starts], plan.untils[finite]])
        takes = plan.takes
        deltas = np.concatenate([ends.deltas[:, inside].T, -takes[starts], takes[finite]])
        is_release = np.ones(len(rows), dtype=np.bool_)
        is_release[len(inside) : len(inside) + len(starts)] = False
        order = np.argsort(sort_keys(rows, times), kind="stable")
        rows, times, deltas = rows[order], times[order], deltas[order]
        sums = np.cumsum(deltas, axis=0)
        first = first_of_each(rows)
        # Sums start at the first change of a row, so subtract what earlier rows summed up.
        before = sums[first] - deltas[first] - self.ledger.now.free[rows[first]]
        sizes = np.diff(np.append(first, len(rows)))
        return rows, times, sums - np.repeat(before, sizes, axis=0), is_release[order]

    def _put_in_order(self) -> None:
        """Merge all changes by time. Of several at one time, the last says what is free then."""
        both = np.concatenate([self.ledger.ends.times[self._plain], self._times])
        self._merge = np.argsort(both, kind="stable")
        times = both[self._merge]
        is_plain = np.ones(len(self._plain), dtype=np.bool_)
        is_release = np.concatenate([is_plain, self._is_release])[self._merge]
        if not len(times):
            self._last, self.times, self.has_release = times, times, is_release
            return
        self._last = np.flatnonzero(np.append(times[1:] != times[:-1], True))
        self.times = times[self._last]
        firsts = np.append(0, self._last[:-1] + 1)
        self.has_release = np.logical_or.reduceat(is_release, firsts)

    def totals(self, wanted: LaterDemand) -> Vector:
        """Return the units over the cluster after each of ``times``."""
        offer = wanted.offer
        allowed = offer.allowed()
        now = np.minimum(offer.fit, 1) if wanted.is_distinct else offer.fit
        key = id(offer), wanted.is_distinct
        known = self._plain_changes.get(key)
        if known is None:
            ledger = self.ledger
            plain = self._changes(wanted, ledger.ends.rows, ledger.ends_after().T, now, allowed)
            known = self._plain_changes[key] = offer, plain
        inside = self._changes(wanted, self._rows, self._free, now, allowed)
        changes = np.concatenate([known[1][self._plain], inside])[self._merge]
        found: Vector = int(now.sum()) + np.cumsum(changes)[self._last]
        return found

    def _changes(
        self, wanted: LaterDemand, rows: Vector, free: Matrix, now: Vector, allowed: Mask
    ) -> Vector:
        """Return the change of a row's units at each step, in order of row and time."""
        units = wanted.offer.fits(free, self.ledger.capacity[rows], allowed[rows])
        if wanted.is_distinct:
            units = np.minimum(units, 1)
        before = np.empty_like(units)
        before[1:] = units[:-1]
        first = first_of_each(rows)
        before[first] = now[rows[first]]
        return units - before

    def candidates(self, wanted: Sequence[LaterDemand], duration_s: int | None) -> Vector:
        """Return the times after now at which something ends and from which the total is enough."""
        times = self.times
        if not len(times):
            return times
        good = np.ones(len(times), dtype=np.bool_)
        for one in wanted:
            good &= self.totals(one) >= one.count
        # The next time at which a total is too low, seen from each time.
        bad_from = np.where(good, FOREVER, times)
        next_bad = np.minimum.accumulate(bad_from[::-1])[::-1]
        until = np.full_like(times, FOREVER) if duration_s is None else times + duration_s
        is_planned = (times > self.now) & (times < FOREVER)
        return times[good & self.has_release & is_planned & (next_bad >= until)]


def first_of_each(rows: Vector) -> Vector:
    """Return the index at which each row begins. Equal rows must stand together."""
    return np.flatnonzero(np.append(True, rows[1:] != rows[:-1])[: len(rows)])


def first_possible(times: Sequence[int], is_possible: Callable[[int], bool]) -> int:
    """Return the index of the first possible time, or the number of times if none is possible.

    All times after a possible one must be possible too.
    """
    low, high = 0, len(times)
    while low < high:
        middle = (low + high) // 2
        if is_possible(times[middle]):
            high = middle
        else:
            low = middle + 1
    return low
