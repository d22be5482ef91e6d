"""The ledger of shares: all bookings on the nodes of a ``ShareTable``, now and later.

What is free now is one matrix. What is free later follows from the ends of running work and from
the reservations of the plan. Nothing here scans all jobs: a change touches only its own rows. The
matcher's verbs and the loading of the rows change it. Pure.
"""

from __future__ import annotations

import gc
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, Level
from fluxqueue.graph.arrays import Matrix, Vector
from fluxqueue.graph.ledger.placement import FOREVER, Closure, Others, Placement
from fluxqueue.graph.ledger.share_table import ShareTable
from fluxqueue.graph.ledger.timeline import Ends, Hold, Plan, widen
from fluxqueue.prediction.durations import planned_end


@contextmanager
def collection_paused() -> Iterator[None]:
    """Pause cyclic garbage collection while millions of small objects are made.

    This halves the time. When collection resumes, the new objects go to the oldest generation
    unvisited. Otherwise the collector would visit all of them at once. A process that has frozen
    objects keeps them frozen and pays for that visit.
    """
    was_enabled = gc.isenabled()
    gc.disable()
    try:
        yield
    finally:
        if was_enabled:
            if not gc.get_freeze_count():
                gc.freeze()
                gc.unfreeze()
            gc.enable()


@dataclass(frozen=True, slots=True)
class Patch:
    """What is free on some rows (distinct, ascending) during a window.

    On all other rows it is the same as now.
    """

    rows: Vector
    free: Matrix


@dataclass(slots=True)
class Live:
    """A live allocation: its placements (several after it was extended) and its planned end.

    ``limit`` is when a limit ends it, ``FOREVER`` if none does.
    """

    holds: list[tuple[int, Hold]]
    until: int
    limit: int

    @property
    def is_firm(self) -> bool:
        """Return whether a limit ends it."""
        return self.limit < FOREVER

    @property
    def bound(self) -> int:
        """Return when it ends by its limit, or by its plan if it has none."""
        return self.limit if self.is_firm else self.until


class ShareLedger(ShareTable):
    """Bookings over time in a table of nodes x resources.

    Parameters
    ----------
    levels : the cluster's levels, top first.
    """

    def __init__(self, levels: Sequence[Level] = DEFAULT_LEVELS) -> None:
        super().__init__(levels)
        self.autoscaler = ""
        """What adds nodes to the cluster. Empty: nothing is known to do so."""
        self.ends = Ends(1)
        self.plan = Plan(1)
        self.closures: tuple[Closure, ...] = ()
        """Times at which nodes take no work. They are in every plan."""
        self._closed: tuple[Placement, ...] = ()
        self._closed_from: dict[str, list[Closure]] = {}
        self._live: dict[str, Live] = {}
        self._keys_on: defaultdict[int, dict[str, int]] = defaultdict(dict)
        self._time = 0
        self._after: tuple[tuple[int, int], Matrix] | None = None

    def _is_in_use(self, row: int) -> bool:
        # ``clear_plan`` vacates the rows of the plan again.
        is_planned = len(self.plan.rows) and bool((self.plan.rows == row).any())
        return bool(self._keys_on.get(row) or is_planned)

    def _widen(self, columns: int) -> None:
        self.ends.widen(columns)
        self.plan.widen(columns)

    def left_over(self, rows: Vector, free: Matrix) -> ShareLedger:
        """Return a ledger of the nodes of ``rows`` on which ``free`` (rows x columns) is left.

        Nothing is booked in it: the rest counts as use by unmanaged pods. Its rows have the order
        of ``rows``. This is far cheaper than ``set_node`` for each node.
        """
        found = ShareLedger(self.topology.levels)
        for name in self.columns:
            found.column(name)
        found.names = [self.names[row] for row in rows.tolist()]
        found.rows = {name: row for row, name in enumerate(found.names)}
        found.others = {name: Others() for name in found.names}
        found.masks = self.masks.of(rows)
        found._standing = [
            (self._standing[source][0], row) for row, source in enumerate(rows.tolist())
        ]
        # Of ports that get their column later.
        found._exclusive_on = {
            row: self._exclusive_on[source]
            for row, source in enumerate(rows.tolist())
            if source in self._exclusive_on
        }
        found.capacity = self.capacity[rows]
        found.foreign = found.capacity - free
        found.now.replace(free.copy(), found.capacity, found.masks.usable())
        found.empty.replace(found.capacity, found.capacity, found.masks.present())
        return found

    # --- running work ----------------------------------------------------------------------------

    def book(self, key: str, placement: Placement) -> None:
        """Book a live allocation under ``key``. It replaces what was booked there (idempotent)."""
        if key in self._live:
            self.cancel(key)
        self._live[key] = Live([], placement.until, placement.limit)
        self._book(key, placement)

    def book_all(self, allocations: Iterable[tuple[str, Placement]]) -> None:
        """Book many live allocations at once, as after a restart."""
        with collection_paused():
            self._book_all(allocations)

    def _book_all(self, allocations: Iterable[tuple[str, Placement]]) -> None:
        rows: list[Vector] = []
        takes: list[Matrix] = []
        for key, placement in allocations:
            self.cancel(key)
            hold = self.compile(placement)
            holds = [(self.ends.add(hold), hold)]
            self._live[key] = Live(holds, placement.until, placement.limit)
            for row in hold.rows.tolist():
                self._keys_on[row][key] = 1
            if hold.claims:
                self._count_claims(hold.claims, 1)
            rows.append(hold.rows)
            takes.append(hold.takes)
        if not rows:
            return
        width = len(self.columns)
        index = np.concatenate(rows)
        # The first hold has the fewest columns, because columns are only added while compiling.
        every = np.concatenate(
            takes if takes[0].shape[1] == width else [widen(one, width) for one in takes]
        )
        # A row may occur several times, and ``free[index] -= every`` would subtract only once.
        np.subtract.at(self.now.free, index, every)
        self.version += 1
        self.now.forget()
        self._plan_again()

    def extend(self, key: str, placement: Placement) -> None:
        """Book further slots under ``key``, in addition to what is booked there.

        All slots of the key then end when the further slots end.
        """
        live = self._live.get(key)
        if live is None:
            self.book(key, placement)
            return
        # First give the earlier slots the new end, so that all holds of the key have the same one.
        self.end_at(key, placement.until)
        self._book(key, placement)

    def extend_apart(self, key: str, placement: Placement) -> None:
        """Book further slots under ``key`` that have an end of their own.

        What is booked there already ends as before. The key counts as ending with its last slot.
        """
        live = self._live.get(key)
        if live is None:
            self.book(key, placement)
            return
        live.until = max(live.until, placement.until)
        live.limit = max(live.limit, placement.limit)
        self._book(key, placement)

    def take_back(self, key: str, number: int) -> None:
        """Cancel the last ``number`` bookings of ``extend_apart`` under ``key``."""
        live = self._live.get(key)
        if live is None:
            return
        for serial, hold in live.holds[len(live.holds) - number :]:
            self.ends.remove(serial)
            self._take(hold, -1)
            for row in hold.rows.tolist():
                there = self._keys_on[row]
                there[key] -= 1
                if not there[key]:
                    del there[key]
        del live.holds[len(live.holds) - number :]
        if live.holds:
            live.until = max(hold.until for _, hold in live.holds)
            live.limit = max(hold.limit for _, hold in live.holds)
        else:
            del self._live[key]

    def end_at(self, key: str, until: int) -> int:
        """Plan the end of what ``key`` has booked at ``until``, and return the previous end."""
        live = self._live[key]
        before = live.until
        if before != until:
            if live.limit == before:  # it is planned up to its limit, so that moves as well
                live.limit = until
            live.until = until
            live.holds = [self._lasting(live, *known) for known in live.holds]
        return before

    @contextmanager
    def without(self, keys: Iterable[str]) -> Iterator[None]:
        """Inside the context, everything is as if these allocations had ended.

        Afterwards they have what they had. This answers what-if questions, so nothing may be booked
        inside.
        """
        gone = {key: self._live.pop(key) for key in keys if key in self._live}
        for live in gone.values():
            for serial, hold in live.holds:
                self.ends.remove(serial)
                self._take(hold, -1)
        try:
            yield
        finally:
            for live in gone.values():
                for _, hold in live.holds:
                    self._take(hold, 1)
                live.holds = [(self.ends.add(hold), hold) for _, hold in live.holds]
            self._live |= gone

    def _lasting(self, live: Live, serial: int, hold: Hold) -> tuple[int, Hold]:
        """Return the same hold with the ends of its allocation."""
        self.ends.remove(serial)
        self._take(hold, -1)
        hold = replace(hold, until=live.until, limit=live.limit)
        self._take(hold, 1)
        return self.ends.add(hold), hold

    def _book(self, key: str, placement: Placement) -> None:
        hold = self.compile(placement)
        self._take(hold, 1)
        self._live[key].holds.append((self.ends.add(hold), hold))
        for row in hold.rows.tolist():
            there = self._keys_on[row]
            there[key] = there.get(key, 0) + 1

    def cancel(self, key: str) -> bool:
        """Give back what ``key`` has booked. Return False if there was nothing."""
        live = self._live.pop(key, None)
        if live is None:
            return False
        for serial, hold in live.holds:
            self.ends.remove(serial)
            self._take(hold, -1)
            for row in hold.rows.tolist():
                self._keys_on[row].pop(key, None)
                if self.masks.facts[row] is None:
                    self._vacate(row)
        return True

    def _take(self, hold: Hold, sign: int) -> None:
        rows, takes = hold.rows, hold.takes
        width = takes.shape[1]
        if hold.claims:
            self._count_claims(hold.claims, sign)
        if len(rows) == 1:
            row = int(rows[0])
            self.now.free[row, :width] -= takes[0] if sign > 0 else -takes[0]
            self.have_changed((row,))
        elif len(rows):
            self.now.free[rows, :width] -= sign * takes
            self.have_changed(rows.tolist())
        if len(self.plan.rows):
            # What is left at the start of a reservation changes if it starts before this hold ends.
            end = planned_end(hold.until, self._time, hold.limit)
            self.plan.shift(rows, widen(takes, len(self.columns)), 0, end, -sign)

    @property
    def time(self) -> int:
        """Return the time from which plans are made (epoch seconds)."""
        return self._time

    @property
    def live(self) -> Mapping[str, Live]:
        """Return the live allocations by key. The caller must not change it."""
        return self._live

    @property
    def booked(self) -> Matrix:
        """Return what is booked now (rows x columns, base units)."""
        return self.capacity - self.foreign - self.now.free

    def keys_on(self, row: int) -> Mapping[str, int]:
        """Return the keys that have bookings on a row, with counts.

        The caller must not change it.
        """
        return self._keys_on.get(row, {})

    # --- reservations ----------------------------------------------------------------------------

    def clear_plan(self) -> None:
        """Forget all reservations.

        Every cycle makes a new plan (flux-sched's qmanager does the same).
        """
        rows = set(self.plan.rows.tolist())
        self.plan = Plan(len(self.columns))
        for row in rows:
            self._vacate(row)
        for closed in self._closed:
            self.reserve(closed, self._time)

    def close(self, closures: Sequence[Closure]) -> None:
        """Keep nodes free of work at these times, in place of earlier ones. Clears the plan.

        Work that runs there already goes on.
        """
        self.closures = tuple(sorted(closures, key=lambda one: one.starts_at))
        self._closed = tuple(one.placement for one in self.closures)
        self._closed_from = {}
        for closure in self.closures:
            for node in closure.nodes:
                self._closed_from.setdefault(node, []).append(closure)
        self.clear_plan()

    def first_closure(self, nodes: Iterable[str], start: int, until: int) -> Closure | None:
        """Return the first closure of one of ``nodes`` that work over this time would meet."""
        met = (
            one
            for node in nodes
            for one in self._closed_from.get(node, ())
            if one.starts_at < until and one.until > start
        )
        return min(met, key=lambda one: one.starts_at, default=None)

    def closing(self, start: int, until: int) -> tuple[str, ...]:
        """Return the nodes that work over this time must not use."""
        met = (one for one in self.closures if one.starts_at < until and one.until > start)
        return tuple(dict.fromkeys(node for one in met for node in one.nodes))

    @contextmanager
    def opened(self) -> Iterator[None]:
        """Inside the context, work is planned as if no node was closed. Nothing may be booked."""
        kept = self.plan
        self.plan = Plan(len(self.columns))
        closed = {id(one) for one in self._closed}
        for one in kept.placements:
            if id(one) not in closed:
                self.reserve(one, self._time)
        try:
            yield
        finally:
            self.plan = kept
            self.plan.widen(len(self.columns))  # new resources may have been added inside

    def reserve(self, placement: Placement, now: int) -> None:
        """Hold ``placement`` in the plan of this cycle, so that later matches cannot delay it."""
        # Merge the ends first: what is free at the start depends on them.
        self.look(now)
        hold = self.compile(placement)
        start = hold.starts_at
        self.plan.add(placement, hold, self._free_at(hold.rows, start))

    def unreserve(self, placement: Placement) -> None:
        """Remove a reservation from the plan. It must be the very object that was reserved."""
        self.plan.remove(placement, self.compile(placement))

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Allow reservations inside the context and forget them afterwards."""
        kept, self.plan = self.plan, self.plan.copy()
        try:
            yield
        finally:
            self.plan = kept
            self.plan.widen(len(self.columns))  # new resources may have been added inside

    def _plan_again(self) -> None:
        """Rebuild the plan after nodes have changed.

        What is left at each start is counted again.
        """
        if not len(self.plan.rows):
            return
        placements = self.plan.placements
        self.plan = Plan(len(self.columns))
        for placement in placements:
            self.reserve(placement, self._time)

    # --- free resources --------------------------------------------------------------------------

    def look(self, now: int) -> None:
        """Move the time on. Plans are made from ``now``."""
        self._time = now
        self.ends.look(now)

    def _free_at(self, rows: Vector, at: int) -> Matrix:
        return self.now.free[rows] + self.ends.given_back(rows, at) - self.plan.taken_at(rows, at)

    def free_during(self, rows: Vector, start: int, until: int) -> Matrix:
        """Return the least that is free on ``rows`` at any time of a window (rows x columns).

        ``rows`` are distinct and ascending. The least is at the start of the window or at the start
        of a reservation within it.
        """
        free = self._free_at(rows, start)
        self._dip(rows, free, start, until)
        return free

    def _dip(self, rows: Vector, free: Matrix, start: int, until: int) -> None:
        plan = self.plan
        if not len(plan.rows) or not len(rows):
            return
        # searchsorted gives len(rows) for rows after the last one.
        at = np.minimum(np.searchsorted(rows, plan.rows), len(rows) - 1)
        hit = (rows[at] == plan.rows) & plan.within(start, until)
        if hit.any():
            np.minimum.at(free, at[hit], plan.dips[hit])

    def patch_now(self, now: int, until: int) -> Patch | None:
        """Return the rows on which reservations up to ``until`` leave less than is free now.

        None means that no reservation starts before ``until``.
        """
        plan = self.plan
        if not len(plan.rows):
            return None
        begins = plan.starts < until
        if not begins.any():
            return None
        rows = self._distinct(plan.rows[begins])
        free = self.now.free[rows] - plan.taken_at(rows, now)
        self._dip(rows, free, now, until)
        return Patch(rows, free)

    def patch_at(self, at: int, until: int, *, beside_plan: bool = True) -> Patch:
        """Return the rows on which the free resources from ``at`` to ``until`` differ from now.

        With ``beside_plan=False`` reservations are ignored.
        """
        ends, plan = self.ends, self.plan
        last = ends.last_until(at)
        rows = ends.rows[last]
        free = self.ends_after()[:, last].T
        if beside_plan and len(plan.rows):
            touched = plan.active(at) | plan.within(at, until)
            every = self._distinct(rows, plan.rows[touched])
            if len(every) > len(rows):
                given, free = free, self.now.free[every]
                free[np.searchsorted(every, rows)] = given
                rows = every
            free = free - plan.taken_at(rows, at)
            self._dip(rows, free, at, until)
        return Patch(rows, free)

    def _distinct(self, *rows: Vector) -> Vector:
        """Return all these rows, each once, ascending."""
        is_one = np.zeros(len(self.names), dtype=np.bool_)
        for some in rows:
            is_one[some] = True
        return np.flatnonzero(is_one)

    def ends_after(self) -> Matrix:
        """Return what is free after each end (columns x ends). Cached until something changes."""
        key = self.version, self.ends.version
        if self._after is None or self._after[0] != key:
            self._after = key, self.ends.after(self.now.free)
        return self._after[1]
