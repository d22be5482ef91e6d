"""The ledger of shares: nodes, their pools, and all bookings on them, now and later.

A cluster is a table of nodes x resources in integer base units (millicores, bytes, units). Every
node has a hidden pool of 2^30 shares of itself. Each slot takes one share, and an exclusive job
takes all of them (Fluxion's ``x_checker``, flux-sched, resource/schema/data_std.hpp).

What is free now is one matrix. What is free later follows from the ends of running work and from
the reservations of the plan. Nothing here scans all jobs: a change touches only its own rows. Rows
of removed nodes are reused. The matcher's verbs and the loading of the rows change it. Pure.
"""

from __future__ import annotations

import heapq
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace

import numpy as np

from fluxqueue.fluxjob.exclusive_use import ONE_POD_CLAIM, implied_capacity, is_exclusive
from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, Level
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.graph.ledger.node_masks import NodeMasks
from fluxqueue.graph.ledger.node_table import AllocationTable, Emptiness
from fluxqueue.graph.ledger.placement import FOREVER, Others, Placement
from fluxqueue.graph.ledger.places import Path, Topology
from fluxqueue.graph.ledger.timeline import Ends, Hold, Plan, widen
from fluxqueue.graph.model.arrays import Matrix, Vector
from fluxqueue.graph.model.builder import collection_paused
from fluxqueue.jobspec.demand import Bundle
from fluxqueue.prediction.durations import planned_end

SHARES = "node-shares"
SHARES_TOTAL = 1 << 30
ROWS_STEP = 64
VECTORS_MAX = 4096
PORTS_MAX = 256
"""Host ports that are counted. Each is a column, and a user may ask for any number of them.

kube-scheduler alone decides on further ones.
"""


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


class ShareLedger:
    """Bookings over time in a table of nodes x resources.

    Parameters
    ----------
    levels : the cluster's levels, top first.
    """

    def __init__(self, levels: Sequence[Level] = DEFAULT_LEVELS) -> None:
        self.columns: dict[str, int] = {SHARES: 0}
        self.names: list[str] = []
        self.rows: dict[str, int] = {}
        self.masks = NodeMasks()
        self.topology = Topology(levels)
        self.others: dict[str, Others] = {}
        """The unmanaged pods, by node."""
        self.autoscaler = ""
        """What adds nodes to the cluster. Empty: nothing is known to do so."""
        nothing = np.zeros((0, 1), dtype=np.int64)
        self.capacity: Matrix = nothing
        self.foreign: Matrix = nothing
        self.now = AllocationTable(nothing, nothing, self.masks.usable())
        self.empty = AllocationTable(nothing, nothing, self.masks.present())
        self.emptiness = Emptiness(self.now)
        self.emptiness_when_empty = Emptiness(self.empty)
        self.ends = Ends(1)
        self.plan = Plan(1)
        self.version = 0
        """Increases with every change of what is free now."""
        self._live: dict[str, Live] = {}
        self._standing: list[tuple[Path, int]] = []
        self._keys_on: list[dict[str, int]] = []
        self._vacant: list[int] = []
        self.claims: Counter[str] = Counter()
        """How often claims for one pod are in use, by jobs and by unmanaged pods."""
        self._are_claims_known = False
        self._ports: list[str] = []
        self._exclusive_on: dict[int, dict[str, int]] = {}
        self._vectors: dict[Bundle, Vector] = {}
        self._time = 0
        self._after: tuple[tuple[int, int], Matrix] | None = None

    # --- nodes and resources ---------------------------------------------------------------------

    def set_node(
        self, fact: NodeFact, foreign: Mapping[str, int], others: Others | None = None
    ) -> None:
        """Add or update one node.

        Parameters
        ----------
        fact
            The node's capacity, labels, taints and condition.
        foreign
            What unmanaged pods use on the node, in base units.
        others
            The namespaces of these pods and what the permanent ones use.
        """
        apart = {name: amount for name, amount in foreign.items() if is_exclusive(name)}
        for name in (*fact.capacity, *foreign):
            if name not in apart:
                self.column(name)
        row = self._row(fact.name)
        if apart or row in self._exclusive_on:
            self._note_exclusive(row, apart)
        self.others[fact.name] = others or Others()
        self.masks.set(row, fact)
        self.topology.set(row, fact)
        self._standing[row] = self.topology.path_of(fact.labels), row
        capacity = np.zeros(len(self.columns), dtype=np.int64)
        used = np.zeros(len(self.columns), dtype=np.int64)
        capacity[0] = SHARES_TOTAL
        for name, amount in fact.capacity.items():
            capacity[self.columns[name]] = amount
        for name in self._ports:
            capacity[self.columns[name]] = implied_capacity(name)
        for name, amount in foreign.items():
            if name in self.columns:
                used[self.columns[name]] = amount
        self._set_row(row, capacity, used)

    def _note_exclusive(self, row: int, used: dict[str, int]) -> None:
        """Note which ports and claims unmanaged pods use on a row.

        A port gets a column only if a job asks for it, so other jobs pay nothing for it.
        """
        before = self._exclusive_on.pop(row, {})
        if used:
            self._exclusive_on[row] = used
        self._count_claims((name for name in before if name.startswith(ONE_POD_CLAIM)), -1)
        self._count_claims((name for name in used if name.startswith(ONE_POD_CLAIM)), 1)

    def _count_claims(self, names: Iterable[str], sign: int) -> None:
        for name in names:
            self.claims[name] += sign
            if not self.claims[name]:
                del self.claims[name]

    def remove_node(self, name: str) -> None:
        """Remove a node. Bookings on it stay known until their allocations end."""
        row = self.rows.get(name)
        if row is None:
            return
        self.others.pop(name, None)
        self._note_exclusive(row, {})
        self.masks.clear(row)
        self.topology.set(row, None)
        nothing = np.zeros(len(self.columns), dtype=np.int64)
        self._set_row(row, nothing, nothing)
        self._vacate(row)

    def _set_row(self, row: int, capacity: Vector, foreign: Vector) -> None:
        # Add the difference: what is booked on the row stays subtracted.
        self.now.free[row] += (capacity - foreign) - (self.capacity[row] - self.foreign[row])
        self.capacity[row], self.foreign[row] = capacity, foreign
        self.have_changed([row])
        self.empty.log.append(row)
        self.empty.shorten()
        if len(self.plan.rows):
            self._plan_again()

    def _vacate(self, row: int) -> None:
        """Make a row reusable if it has neither a node nor bookings."""
        name = self.names[row]
        if self.masks.facts[row] is None and not self._keys_on[row] and name in self.rows:
            if len(self.plan.rows) and bool((self.plan.rows == row).any()):
                return  # clear_plan() calls this again for the row
            del self.rows[name]
            heapq.heappush(self._vacant, row)

    def add_rows(self, names: Sequence[str]) -> None:
        """Make rows for unknown nodes. Loading many at once enlarges the arrays only once."""
        new = [name for name in dict.fromkeys(names) if name not in self.rows]
        self._make_room(len(new))
        for name in new:
            self._row(name)

    def _row(self, name: str) -> int:
        row = self.rows.get(name)
        if row is None:
            self._make_room(1)
            row = heapq.heappop(self._vacant)
            self.names[row] = name
            self.rows[name] = row
        return row

    def _make_room(self, wanted: int) -> None:
        if len(self._vacant) >= wanted:
            return
        size = len(self.names)
        more = max(wanted - len(self._vacant), ROWS_STEP if size else 1, size // 8)
        for row in range(size, size + more):
            heapq.heappush(self._vacant, row)
        self.names += [""] * more
        self._standing += [((), row) for row in range(size, size + more)]
        self._keys_on += [{} for _ in range(more)]
        self.masks.grow(size + more)
        self.topology.grow(size + more)
        self._resize()

    def column(self, name: str) -> int:
        """Return the column of a resource. An unknown resource gets a new column."""
        column = self.columns.get(name)
        if column is None:
            column = self.columns[name] = len(self.columns)
            self._vectors.clear()
            self.ends.widen(len(self.columns))
            self.plan.widen(len(self.columns))
            self._resize()
            if implied := implied_capacity(name):
                self._open_port(name, column, implied)
        return column

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
        found._keys_on = [{} for _ in found.names]
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

    def counts(self, name: str) -> bool:
        """Return whether the amounts of a slot with this name are compared with those of nodes.

        A port gets its column here. Claims are counted for the cluster, and not by node.
        """
        if not is_exclusive(name):
            return True
        if name in self.columns:
            return True
        if not implied_capacity(name) or len(self._ports) >= PORTS_MAX:
            return False
        self.column(name)
        return True

    def _open_port(self, name: str, column: int, implied: int) -> None:
        """Give each node a port for which a job asks for the first time."""
        self._ports.append(name)
        self.capacity[self.masks.present(), column] = implied
        for row, used in self._exclusive_on.items():
            self.foreign[row, column] = used.get(name, 0)
        self.now.free[:, column] = self.capacity[:, column] - self.foreign[:, column]
        if len(self.plan.rows):
            self._plan_again()

    def _resize(self) -> None:
        shape = (len(self.names), len(self.columns))
        self.capacity, self.foreign = _enlarge(self.capacity, shape), _enlarge(self.foreign, shape)
        self.now.replace(_enlarge(self.now.free, shape), self.capacity, self.masks.usable())
        self.empty.replace(self.capacity, self.capacity, self.masks.present())
        self.version += 1

    def have_changed(self, rows: Sequence[int]) -> None:
        """Note that what is free on these rows has changed."""
        self.version += 1
        self.now.log.extend(rows)
        self.now.shorten()

    # --- running work ----------------------------------------------------------------------------

    def book(self, key: str, placement: Placement) -> None:
        """Book a live allocation under ``key``. It replaces what was booked there (idempotent)."""
        if key in self._live:
            self.cancel(key)
        self._live[key] = Live([], placement.until, placement.limit)
        self._book(key, placement)

    def book_all(self, given: Iterable[tuple[str, Placement]]) -> None:
        """Book many live allocations at once, as after a restart."""
        with collection_paused():
            self._book_all(given)

    def _book_all(self, given: Iterable[tuple[str, Placement]]) -> None:
        rows: list[Vector] = []
        takes: list[Matrix] = []
        for key, placement in given:
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
        if len(self.plan.rows):
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

    def standing(self, row: int) -> tuple[Path, int]:
        """Return the position of a row in the whole topology. Slots are numbered in this order."""
        return self._standing[row]

    def keys_on(self, row: int) -> Mapping[str, int]:
        """Return the keys that have bookings on a row, with counts.

        The caller must not change it.
        """
        return self._keys_on[row]

    # --- reservations ----------------------------------------------------------------------------

    def clear_plan(self) -> None:
        """Forget all reservations.

        Every cycle makes a new plan (flux-sched's qmanager does the same).
        """
        rows = set(self.plan.rows.tolist())
        self.plan = Plan(len(self.columns))
        for row in rows:
            self._vacate(row)

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

    # --- arrays ----------------------------------------------------------------------------------

    def vector(self, needs: Bundle) -> Vector:
        """Return what a slot takes as a row: one share of its node, and its resources."""
        known = self._vectors.get(needs)
        if known is not None:
            return known
        self._are_claims_known |= any(name.startswith(ONE_POD_CLAIM) for name, _ in needs)
        # New resources add columns, so this must come before the vector gets its size.
        wanted = {
            self.column(name): amount for name, amount in needs if amount and self.counts(name)
        }
        found = np.zeros(len(self.columns), dtype=np.int64)
        found[0] = 1
        found[list(wanted)] = list(wanted.values())
        if len(self._vectors) >= VECTORS_MAX:
            self._vectors.clear()
        self._vectors[needs] = found
        return found

    def compile(self, placement: Placement) -> Hold:
        """Return a placement as arrays."""
        # Most slots share one tuple, and identity is quicker to compare than contents.
        kinds = {id(slot.resources): slot.resources for slot in placement.slots}
        for needs in kinds.values():
            # New resources add columns, which must exist before anything is counted.
            self.vector(needs)
        rows, takes = self._compile(placement, is_one_kind=len(kinds) == 1)
        start = placement.starts_at if placement.kept_from is None else placement.kept_from
        hold = Hold(rows, takes, start, placement.until, limit=placement.limit)
        if not self._are_claims_known:
            return hold
        claims = tuple(
            dict.fromkeys(
                name
                for needs in kinds.values()
                for name, _ in needs
                if name.startswith(ONE_POD_CLAIM)
            )
        )
        return replace(hold, claims=claims) if claims else hold

    def _compile(self, placement: Placement, *, is_one_kind: bool) -> tuple[Vector, Matrix]:
        """Return the rows of a placement, and what it takes on each."""
        if len(placement.slots) == 1 and not placement.held:
            (one,) = placement.slots
            row = self._row(one.node)
            takes = self.vector(one.resources)[None, :]
            if placement.is_exclusive:
                takes = takes.copy()
                takes[0, 0] = SHARES_TOTAL
            return np.array((row,)), takes
        if is_one_kind and not placement.held:
            return self._compile_equal(placement)
        return self._compile_many(placement)

    def _compile_equal(self, placement: Placement) -> tuple[Vector, Matrix]:
        counts = Counter(slot.node for slot in placement.slots)
        self.add_rows([*counts])
        of_row = {self.rows[node]: count for node, count in counts.items()}
        index = np.array(sorted(of_row), dtype=np.int64)
        slots = np.array([of_row[row] for row in index.tolist()], dtype=np.int64)
        takes = slots[:, None] * self.vector(placement.slots[0].resources)
        if placement.is_exclusive:
            takes[:, 0] = SHARES_TOTAL
        return index, takes

    def _compile_many(self, placement: Placement) -> tuple[Vector, Matrix]:
        counts: dict[int, dict[Bundle, int]] = {}
        self.add_rows([*placement.nodes, *placement.held])
        for slot in placement.slots:
            kinds = counts.setdefault(self.rows[slot.node], {})
            kinds[slot.resources] = kinds.get(slot.resources, 0) + 1
        whole = {self.rows[name] for name in placement.held}
        if placement.is_exclusive:
            whole.update(counts)
        rows = sorted(counts.keys() | whole)
        takes = np.zeros((len(rows), len(self.columns)), dtype=np.int64)
        for at, row in enumerate(rows):
            for needs, count in counts.get(row, {}).items():
                takes[at] += self.vector(needs) * count
            if row in whole:
                takes[at, 0] = SHARES_TOTAL
        return np.array(rows, dtype=np.int64), takes


def _enlarge(matrix: Matrix, shape: tuple[int, int]) -> Matrix:
    """Return a larger matrix with contiguous columns, because counting goes column by column."""
    found = np.zeros(shape, dtype=np.int64, order="F")
    found[: matrix.shape[0], : matrix.shape[1]] = matrix
    return found
