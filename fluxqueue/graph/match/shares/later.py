"""The earliest start after now: which times are worth a look, all of them judged at once.

Total units over the cluster are a step function of time, given by the ends of what runs and by the
reservations. A start is possible only if the total is enough from then until the end, so one pass
over arrays leaves few times for an exact look (flux-sched, dfu.cpp :200-216, asks its planner the
same). Called by the matcher. Hot path.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fluxqueue.graph.ledger.placement import FOREVER
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.ledger.timeline import sort_keys
from fluxqueue.graph.match.shares.offer import Offer

Vector: TypeAlias = npt.NDArray[np.int64]
Mask: TypeAlias = npt.NDArray[np.bool_]
Matrix: TypeAlias = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Wanted:
    """So many units (``is_distinct``: nodes) of an offer are needed over the whole cluster."""

    offer: Offer
    count: int
    is_distinct: bool


class Steps:
    """Changes of what is free, over time: ends of rows without reservations, which are looked up,
    and all changes of rows with them, which are simulated."""

    def __init__(self, ledger: ShareLedger, now: int) -> None:
        self.ledger, self.now = ledger, now
        ends, plan = ledger.ends, ledger.plan
        is_reserved = np.zeros(len(ledger.names), dtype=np.bool_)
        is_reserved[plan.rows] = True
        self._is_plain = ~is_reserved[ends.rows]
        inside = np.flatnonzero(~self._is_plain)
        finite = plan.untils < FOREVER
        rows = np.concatenate([ends.rows[inside], plan.rows, plan.rows[finite]])
        times = np.concatenate([ends.times[inside], plan.starts, plan.untils[finite]])
        takes = plan.takes.T
        deltas = np.concatenate([ends.deltas[:, inside], -takes, takes[:, finite]], axis=1)
        order = np.argsort(sort_keys(rows, times), kind="stable")
        self._rows, self._times = rows[order], times[order]
        deltas = deltas[:, order]
        sums = np.cumsum(deltas, axis=1)
        starts = first_of_each(self._rows)
        # Sums from the first change of a row on: what others summed up before is taken off.
        before = (sums - deltas)[:, starts]
        sizes = np.diff(np.append(starts, len(self._rows)))
        before -= ledger.now.free[self._rows[starts]].T
        self._free: Matrix = (sums - np.repeat(before, sizes, axis=1)).T
        by_time = ends.order()
        self._plain = by_time[self._is_plain[by_time]]
        releases = np.ones(len(rows), dtype=np.bool_)
        releases[len(inside) : len(inside) + len(plan.rows)] = False
        both = np.concatenate([ends.times[self._plain], self._times])
        self._merge = np.argsort(both, kind="stable")
        sorted_times = both[self._merge]
        is_release = np.concatenate([np.ones(len(self._plain), dtype=np.bool_), releases[order]])[
            self._merge
        ]
        # Of changes at one time the last tells what is free then.
        self._last = np.flatnonzero(np.append(sorted_times[1:] != sorted_times[:-1], True))
        if not len(sorted_times):
            self._last = self._last[:0]
        self.times: Vector = sorted_times[self._last]
        firsts = np.append(0, self._last[:-1] + 1) if len(self._last) else self._last
        self.has_release: Mask = (
            np.logical_or.reduceat(is_release, firsts) if len(firsts) else firsts.astype(np.bool_)
        )

    def totals(self, wanted: Wanted) -> Vector:
        """Units over the cluster after each of ``times``."""
        ledger, offer = self.ledger, wanted.offer
        allowed = offer.allowed()
        now = np.minimum(offer.fit, 1) if wanted.is_distinct else offer.fit
        plain = self._changes(wanted, ledger.ends.rows, ledger.ends_after().T, now, allowed)[
            self._plain
        ]
        inside = self._changes(wanted, self._rows, self._free, now, allowed)
        changes = np.concatenate([plain, inside])[self._merge]
        return int(now.sum()) + np.cumsum(changes)[self._last]

    def _changes(
        self, wanted: Wanted, rows: Vector, free: Matrix, now: Vector, allowed: Mask
    ) -> Vector:
        """By how much the units of its row change at each step; sorted by row, then time."""
        units = wanted.offer.fits(free, allowed[rows])
        if wanted.is_distinct:
            units = np.minimum(units, 1)
        before = np.empty_like(units)
        before[1:] = units[:-1]
        first = first_of_each(rows)
        before[first] = now[rows[first]]
        return units - before

    def candidates(self, wanted: Sequence[Wanted], duration_s: int | None) -> Vector:
        """Times later than now at which something ends, and from which the total is enough."""
        times = self.times
        if not len(times):
            return times
        good = np.ones(len(times), dtype=np.bool_)
        for one in wanted:
            good &= self.totals(one) >= one.count
        bad_from = np.where(good, FOREVER, times)
        next_bad = np.minimum.accumulate(bad_from[::-1])[::-1]
        until = np.full_like(times, FOREVER) if duration_s is None else times + duration_s
        return times[good & self.has_release & (times > self.now) & (next_bad >= until)]


def first_of_each(rows: Vector) -> Vector:
    """Where each row begins, in rows that are sorted."""
    return np.flatnonzero(np.append(True, rows[1:] != rows[:-1])[: len(rows)])


def first_possible(times: Sequence[int], is_possible: Callable[[int], bool]) -> int:
    """The index of the first time that is possible, where all later ones are possible too; the
    number of times if none is."""
    low, high = 0, len(times)
    while low < high:
        middle = (low + high) // 2
        if is_possible(times[middle]):
            high = middle
        else:
            low = middle + 1
    return low
