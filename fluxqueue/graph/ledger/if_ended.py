"""What would be free if some allocations had ended, answered many times for different sets.

The search for victims of preemption (``scheduler.preemption_plan``) uses it. The answers are
computed on arrays, because there are many questions. Inside the context only what is free now is
different. The ends of running work are as before, so nothing may be planned there. Pure.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager

import numpy as np

from fluxqueue.graph.arrays import Matrix, Vector
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.ledger.timeline import Hold, widen
from fluxqueue.prediction.durations import planned_end


class WhatIf:
    """What the jobs in ``keys`` have booked in a ledger, as one table.

    ``rows`` and ``takes`` (rows x columns) have one entry per row of a hold. ``owners`` has the
    number of its job in the order of ``keys``. All of ``keys`` must have a booking.
    """

    def __init__(self, ledger: ShareLedger, keys: Sequence[str]) -> None:
        self.ledger, self.count = ledger, len(keys)
        holds = [
            (number, hold)
            for number, key in enumerate(keys)
            for _, hold in ledger.live[key].holds
            if len(hold.rows)
        ]
        width = len(ledger.columns)
        self.owners: Vector = np.repeat(
            np.array([number for number, _ in holds], dtype=np.int64),
            [len(hold.rows) for _, hold in holds],
        )
        self.rows: Vector = np.concatenate(
            [np.zeros(0, dtype=np.int64), *(hold.rows for _, hold in holds)]
        )
        self.takes: Matrix = np.concatenate(
            [np.zeros((0, width), dtype=np.int64), *(widen(hold.takes, width) for _, hold in holds)]
        )
        # Only these holds change what is left at a reservation.
        planned = set(ledger.plan.rows.tolist())
        self._planned: list[tuple[int, Hold]] = [
            one for one in holds if planned and not planned.isdisjoint(one[1].rows.tolist())
        ]

    @contextmanager
    def without(self, numbers: Collection[int]) -> Iterator[None]:
        """Inside the context, what is free now is as if these jobs had ended."""
        is_gone = np.zeros(self.count, dtype=np.bool_)
        is_gone[list(numbers)] = True
        mask = is_gone[self.owners]
        rows, takes = self.rows[mask], self.takes[mask]
        planned = [hold for number, hold in self._planned if is_gone[number]]
        self._give(rows, takes, planned, 1)
        try:
            yield
        finally:
            self._give(rows, takes, planned, -1)

    def _give(self, rows: Vector, takes: Matrix, planned: Sequence[Hold], sign: int) -> None:
        ledger = self.ledger
        np.add.at(ledger.now.free, rows, sign * takes)
        for hold in planned:
            end = planned_end(hold.until, ledger.time, hold.limit)
            more = widen(hold.takes, len(ledger.columns))
            ledger.plan.shift(hold.rows, more, 0, end, sign)
        ledger.have_changed(np.unique(rows).tolist())

    def on(self, nodes: Collection[str], numbers: Sequence[int]) -> list[int]:
        """Return those of ``numbers`` that have something booked on ``nodes``."""
        is_there = np.zeros(len(self.ledger.names), dtype=np.bool_)
        is_there[[self.ledger.rows[name] for name in nodes]] = True
        found = set(self.owners[is_there[self.rows]].tolist())
        return [number for number in numbers if number in found]
