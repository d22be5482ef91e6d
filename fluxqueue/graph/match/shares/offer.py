"""Offers: how many units of one leaf fit every node, counted once and then corrected.

An ``Offer`` follows the table row by row. A ``OfferView`` is an offer during one window, in which
some rows have less or more free than now (``Patch``). Hot path: arrays by hand.
"""

from __future__ import annotations

import numpy as np

from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.arrays import FULL_SHARE, Mask, Matrix, Vector
from fluxqueue.graph.ledger.node_table import AllocationTable, Emptiness, TableFollower, emptiness
from fluxqueue.graph.ledger.places import NOWHERE, Places
from fluxqueue.graph.ledger.share_table import SHARES_TOTAL
from fluxqueue.graph.ledger.shares import Patch, ShareLedger
from fluxqueue.graph.match.shares.ask import Leaf
from fluxqueue.jobspec.demand import NodeDemand

NO_ROOM = np.iinfo(np.int64).max
"""The key of a row without capacity: it sorts after all others."""

FEW = 4
"""Up to this many rows are corrected one by one. For more rows, arrays are quicker."""

TOUCHED = 1 << 61
CPU_BITS, ROW_BITS = 36, 24


class Offer(TableFollower):
    """Units of a leaf by row. ``total`` is their sum, ``nodes`` the number of rows with any."""

    __slots__ = ("_keys", "_ledger", "_sums", "fit", "is_whole", "more", "needs", "nodes",
                 "per_slot", "take", "total", "where", "whole")  # fmt: skip

    def __init__(
        self, ledger: ShareLedger, table: AllocationTable, leaf: Leaf, *, is_whole: bool
    ) -> None:
        super().__init__(table)
        self._ledger = ledger
        self.where: NodeDemand = leaf.where
        self.is_whole = is_whole
        self.needs: list[tuple[int, int]] | None = []
        for name, need in leaf.needs:
            column = ledger.columns.get(name)
            if need > 0 and self.needs is not None:
                self.needs = None if column is None else [*self.needs, (column, need)]
        self.take: Vector = np.zeros(0, dtype=np.int64)
        self.whole = [ledger.columns[name] for name in leaf.whole_pools if self.needs]
        kind = leaf.kinds[-1]
        self.more = kind.up_to if self.needs else None
        """The series of slots that a node with capacity for a unit gets. None: a fixed number."""
        self.per_slot: Vector = np.zeros(0, dtype=np.int64)
        if self.needs is not None:
            self.take = np.zeros(len(ledger.columns), dtype=np.int64)
            self.take[0] = max(1, leaf.per_unit)
            for column, need in self.needs:
                self.take[column] = need
            # A leaf that needs nothing still takes one share of its node per slot.
            if not self.needs:
                self.needs = [(0, int(self.take[0]))]
            if self.more is not None:
                self.per_slot = self.take // kind.count
        self.fit: Vector = np.zeros(0, dtype=np.int64)
        self.total = self.nodes = 0
        self._keys: dict[int, Vector] = {}
        self._sums: dict[tuple[Places, bool], tuple[int, Vector]] = {}

    # --- counting ------------------------------------------------------------------------------

    def fits(self, free: Matrix, capacity: Matrix, allowed: Mask) -> Vector:
        """Return the units that fit each row of ``free``. Rows outside ``allowed`` get 0.

        ``capacity`` is the whole capacity of these rows.
        """
        if self.needs is None:
            return np.zeros(len(free), dtype=np.int64)
        if self.is_whole:
            allowed = allowed & (free[:, 0] == SHARES_TOTAL)
        else:
            allowed = allowed & (free[:, 0] > 0)
        fit: Vector | None = None
        for column, need in self.needs:
            units = free[:, column] // need
            fit = units if fit is None else np.minimum(fit, units, out=fit)
        assert fit is not None
        np.maximum(fit, 0, out=fit)
        for column in self.whole:
            np.minimum(fit, free[:, column] == capacity[:, column], out=fit)
        fit *= allowed
        return fit

    def allowed(self) -> Mask:
        """Return the rows with nodes that may be used."""
        return self.table.usable & self._ledger.masks.matching(self.where)

    def _count_all(self) -> None:
        self._keys.clear()
        self._sums.clear()
        if self.needs is not None and len(self.take) < len(self._ledger.columns):
            later = (0, len(self._ledger.columns) - len(self.take))
            self.take, self.per_slot = np.pad(self.take, later), np.pad(self.per_slot, later)
        self.fit = self.fits(self.table.free, self.table.capacity, self.allowed())
        self.total = int(self.fit.sum())
        self.nodes = int(np.count_nonzero(self.fit))

    def _correct(self, rows: list[int]) -> None:
        if self.needs is None:
            return
        if len(rows) > FEW:
            self._correct_many(rows)
            return
        mask = self._ledger.masks.matching(self.where)
        for row in rows:
            old = int(self.fit[row])
            new = self._fit_of(row) if self.table.usable[row] and mask[row] else 0
            for order, keys in self._keys.items():
                keys[row] = self._key_of(order, row) if new else NO_ROOM
            if old == new:
                continue
            self.fit[row] = new
            self.total += new - old
            self.nodes += (new > 0) - (old > 0)
            for (places, is_distinct), (version, sums) in self._sums.items():
                if version == places.version and places.ids[row] != NOWHERE:
                    change = (new > 0) - (old > 0) if is_distinct else new - old
                    sums[places.ids[row]] += change

    def _fit_of(self, row: int) -> int:
        free = self.table.free[row].tolist()
        if free[0] != SHARES_TOTAL if self.is_whole else free[0] <= 0:
            return 0
        assert self.needs is not None
        fit = int(max(0, min(free[column] // need for column, need in self.needs)))
        if self.whole:
            is_free = all(free[i] == self.table.capacity[row, i] for i in self.whole)
            return min(fit, int(is_free))
        return fit

    def _correct_many(self, rows: list[int]) -> None:
        index = np.array(rows, dtype=np.int64)
        free = self.table.free[index]
        allowed = self.table.usable[index] & self._ledger.masks.matching(self.where)[index]
        new, old = self.fits(free, self.table.capacity[index], allowed), self.fit[index]
        self.fit[index] = new
        self.total += int(new.sum() - old.sum())
        more = (new > 0).astype(np.int64) - (old > 0)
        self.nodes += int(more.sum())
        for order, keys in self._keys.items():
            keys[index] = np.where(new > 0, self.keys_on(order, index, free), NO_ROOM)
        for (places, is_distinct), (version, sums) in self._sums.items():
            if version == places.version:
                places.add_at(sums, index, more if is_distinct else new - old)

    def slots_on(self, free: Matrix) -> Vector:
        """Return how many slots fit rows with this much ``free``, each of which fits one unit."""
        assert self.more is not None
        needed = np.flatnonzero(self.per_slot)
        room = (free[:, needed] // self.per_slot[needed]).min(axis=1)
        found = [self.more.largest_within(most) for most in room.tolist()]
        return np.array(found, dtype=np.int64)

    def taken(self, free: Matrix) -> Matrix | Vector:
        """Return what one unit takes of rows with this much ``free``, without whole pools."""
        return self.take if self.more is None else self.slots_on(free)[:, None] * self.per_slot

    def take_of(self, row: int, free: Vector) -> Vector:
        """Return what one unit takes of a row with this much ``free``."""
        if self.more is not None:
            return self.per_slot * int(self.slots_on(free[None, :])[0])
        if not self.whole:
            return self.take
        take = self.take.copy()
        take[self.whole] = self.table.capacity[row, self.whole]
        return take

    # --- derived values --------------------------------------------------------------------------

    def sums(self, places: Places, *, is_distinct: bool) -> Vector:
        """Return the units by place (nodes with any, if ``is_distinct``).

        The caller must not change the array.
        """
        known = self._sums.get((places, is_distinct))
        if known is None or known[0] != places.version:
            units = np.minimum(self.fit, 1) if is_distinct else self.fit
            known = places.version, places.sums(units)
            self._sums[places, is_distinct] = known
        return known[1]

    def keys(self, order: int) -> Vector:
        """Return the keys by which a policy sorts rows, the smallest first.

        The caller must not change the array.
        """
        known = self._keys.get(order)
        if known is None:
            rows = np.arange(len(self.fit))
            keys = self.keys_on(order, rows, self.table.free)
            known = self._keys[order] = np.where(self.fit > 0, keys, NO_ROOM)
        return known

    def keys_on(self, order: int, rows: Vector, free: Matrix) -> Vector:
        """Return the keys of ``rows`` with ``free`` on them, for one order.

        Order 0 is *first*. 1 prefers the fullest and -1 the emptiest row, after one unit is placed.
        """
        if not order:
            # flux-sched orders children for ``first`` like this: untouched ones before others, then
            # by most free cores, then by highest id.
            is_touched = free[:, 0] != SHARES_TOTAL
            cpu = free[:, self._ledger.columns.get(CPU, 0)].clip(0, (1 << CPU_BITS) - 1)
            after = (((1 << CPU_BITS) - cpu) << ROW_BITS) + TOUCHED
            return np.where(is_touched, after, 0) + (1 << ROW_BITS) - rows
        left = np.maximum(free - self.taken(free), 0)
        left[:, self.whole] = 0
        return order * emptiness(left, self.table.capacity[rows])

    def _key_of(self, order: int, row: int) -> int:
        """Return the key of one row as it is now. For so few numbers arrays would be slower.

        The result must equal that of ``keys_on``.
        """
        if order and self.more is not None:
            return int(self.keys_on(order, np.array((row,)), self.table.free[[row]])[0])
        free = self.table.free[row].tolist()
        if not order:
            key = (1 << ROW_BITS) - row
            if free[0] != SHARES_TOTAL:
                cpu = min(max(free[self._ledger.columns.get(CPU, 0)], 0), (1 << CPU_BITS) - 1)
                key += (((1 << CPU_BITS) - cpu) << ROW_BITS) + TOUCHED
            return int(key)
        capacity, take = self.table.capacity[row].tolist(), self.take.tolist()
        for column in self.whole:
            take[column] = free[column]
        return order * sum(
            int(max(free[i] - take[i], 0) / max(capacity[i], 1) * FULL_SHARE)
            for i in range(1, len(free))
        )


class OfferView:
    """An offer during a window. Without a patch it equals the offer."""

    __slots__ = ("_free", "_offer", "_rows", "fit", "nodes", "total")

    def __init__(self, offer: Offer, patch: Patch | None) -> None:
        self._offer = offer
        self._rows: Vector | None = None
        self.fit, self.total, self.nodes = offer.fit, offer.total, offer.nodes
        if patch is None or not len(patch.rows):
            return
        rows, free = patch.rows, patch.free
        allowed = offer.table.usable[rows] & offer._ledger.masks.matching(offer.where)[rows]
        new, old = offer.fits(free, offer.table.capacity[rows], allowed), offer.fit[rows]
        self._rows, self._free = rows, free
        self.fit = offer.fit.copy()
        self.fit[rows] = new
        self.total += int(new.sum() - old.sum())
        self.nodes += int(np.count_nonzero(new) - np.count_nonzero(old))

    @property
    def is_moldable(self) -> bool:
        """Return whether nodes get as many slots as fit."""
        return self._offer.more is not None

    def slots_on(self, rows: Vector) -> Vector:
        """Return how many slots each of ``rows`` gets."""
        return self._offer.slots_on(np.array([self._free_on(row) for row in rows.tolist()]))

    def take_of(self, row: int) -> Vector:
        """Return what one unit takes of a row."""
        return self._offer.take_of(row, self._free_on(row))

    def _free_on(self, row: int) -> Vector:
        if self._rows is not None:
            at = int(np.searchsorted(self._rows, row))
            if at < len(self._rows) and self._rows[at] == row:
                return np.asarray(self._free[at])
        return np.asarray(self._offer.table.free[row])

    def sums(self, places: Places, *, is_distinct: bool) -> Vector:
        """Return the units by place."""
        sums = self._offer.sums(places, is_distinct=is_distinct)
        if self._rows is None:
            return sums
        new, old = self.fit[self._rows], self._offer.fit[self._rows]
        if is_distinct:
            new, old = np.minimum(new, 1), np.minimum(old, 1)
        sums = sums.copy()
        places.add_at(sums, self._rows, new - old)
        return sums

    def keys(self, order: int) -> Vector:
        """Return the keys by which a policy sorts rows."""
        keys = self._offer.keys(order)
        if self._rows is None:
            return keys
        keys = keys.copy()
        fresh = self._offer.keys_on(order, self._rows, self._free)
        keys[self._rows] = np.where(self.fit[self._rows] > 0, fresh, NO_ROOM)
        return keys


class PlaceScores:
    """How empty places are, updated with the emptiness of their nodes."""

    def __init__(self, values: Emptiness) -> None:
        self._values = values

    def of(self, places: Places, numbers: Vector, patch: Patch | None) -> Vector:
        """Return how empty some places (by number) are during the window of ``patch``."""
        self._values.follow()
        sums = self._values.sums(places)
        if patch is not None and len(patch.rows):
            sums = sums.copy()
            fresh = self._values.of(patch.rows, patch.free)
            places.add_at(sums, patch.rows, fresh - self._values.values[patch.rows])
        return sums[numbers]
