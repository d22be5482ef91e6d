"""Consumable pools over nodes: the matcher of the scheduling cycle.

A cluster is a matrix of nodes x resources. A slot takes a share of its node's pools (millicores,
bytes, units); a match places all slots of a request or none. Beside *now* the pool set keeps the
future that is known: running allocations with an end, and reservations with a start. One match is
a handful of vector operations, whatever the number of cores (docs/matcher.md has the figures).

Called by ``scheduler.cycle`` (decisions) and ``db.decisions`` (loading); pure: times are integer
seconds handed in. Fluxion's two outcomes are two exceptions: ``InsufficientResources`` (EBUSY) and
``Unsatisfiable`` (ENODEV).

Exclusive use follows Fluxion's ``x_checker``: each node has a hidden pool of 2^30 shares; every
slot takes one, an exclusive slot takes all (flux-sched, resource/schema/data_std.hpp).
"""

from __future__ import annotations

import heapq
import itertools
from bisect import bisect_left, bisect_right
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from functools import cache
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import CPU, MatchPolicy, ResourceRequest, SlotRequest, describe
from fluxqueue.graph.pools.filling import in_rounds, on_fewest
from fluxqueue.graph.pools.node_masks import NodeMasks
from fluxqueue.graph.pools.timeline import Booking, Timeline
from fluxqueue.graph.store import FULL_SHARE

Matrix: TypeAlias = npt.NDArray[np.int64]
Vector: TypeAlias = npt.NDArray[np.int64]

SHARES = "node-shares"
SHARES_TOTAL = 1 << 30
FOREVER = 1 << 62
"""End of an allocation without a duration."""

UNKNOWN_END = 1 << 61
"""When an allocation without a duration is planned to end: after everything that is known.

So a FluxJob that waits for such allocations can still be given nodes to wait for, and whoever has
no known end either may not take those nodes before it: without this, work without durations would
starve every large FluxJob.
"""

NOT_USABLE = "the nodes it needs are down, cordoned or used by others"

OVERRUN_GRACE_S = 60
"""A job past its end is planned to end this much later; nothing is taken from it."""


@dataclass(frozen=True, slots=True)
class PlacedSlot:
    """One slot of a placement: its node and what it books there."""

    node: str
    resources: tuple[tuple[str, int], ...]


@dataclass(frozen=True, slots=True)
class Placement:
    """All slots of one request, in slot order, over ``[starts_at, until)``."""

    slots: tuple[PlacedSlot, ...]
    starts_at: int
    until: int
    is_exclusive: bool = False

    @property
    def nodes(self) -> tuple[str, ...]:
        """The node of each slot, in slot order."""
        return tuple(slot.node for slot in self.slots)


@dataclass(frozen=True, slots=True)
class Others:
    """Pods on a node that are not ours: their namespaces, and what the permanent ones use there
    (base units).
    """

    namespaces: tuple[str, ...] = ()
    permanent: Mapping[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class Checkpoint:
    """What is free at the start of a reservation, everything known at that time included."""

    at: int
    free: Matrix


class PoolSet:
    """Nodes, their pools, and all that is booked on them now and later."""

    def __init__(self, match_policy: MatchPolicy = MatchPolicy.LONODE) -> None:
        self.match_policy = match_policy
        self.columns: dict[str, int] = {SHARES: 0}
        self.names: list[str] = []
        self.rows: dict[str, int] = {}
        self.masks = NodeMasks()
        self.capacity: Matrix = np.zeros((0, 1), dtype=np.int64)
        self.foreign: Matrix = np.zeros((0, 1), dtype=np.int64)
        self.booked: Matrix = np.zeros((0, 1), dtype=np.int64)
        self._bookings: dict[str, Booking] = {}
        self._reserved: list[Booking] = []
        self._promises: list[Placement] = []
        self._checkpoints: list[Checkpoint] = []
        self.others: dict[str, Others] = {}
        """Who the pods of others are, by node."""
        self._timeline: tuple[int, Timeline] | None = None

    # --- the cluster as it changes -------------------------------------------------------------

    def set_node(
        self, fact: NodeFact, foreign: Mapping[str, int], others: Others | None = None
    ) -> None:
        """Add or update one node; ``foreign`` is what others use there, in base units, and
        ``others`` who they are.
        """
        self._timeline = None
        self.others[fact.name] = others or Others()
        self.add_rows([fact.name])
        for name in (*fact.capacity, *foreign):
            self._column(name)
        row = self.rows[fact.name]
        self.masks.set(row, fact)
        self.capacity[row] = 0
        self.foreign[row] = 0
        self.capacity[row, 0] = SHARES_TOTAL
        for name, amount in fact.capacity.items():
            self.capacity[row, self.columns[name]] = amount
        for name, amount in foreign.items():
            self.foreign[row, self.columns[name]] = amount

    def remove_node(self, name: str) -> None:
        """Take a node out; what is booked there stays known until its allocation ends."""
        self._timeline = None
        row = self.rows.get(name)
        if row is not None:
            self.masks.clear(row)
            self.capacity[row] = 0
            self.foreign[row] = 0

    def book(self, key: str, placement: Placement) -> None:
        """Book a live allocation under ``key``, replacing what was booked there (idempotent)."""
        self.cancel(key)
        self._timeline = None
        booking = self.compile(placement)
        np.add.at(self.booked, booking.rows, booking.takes)
        for point in self._checkpoints:
            if point.at < booking.until:
                np.subtract.at(point.free, booking.rows, booking.takes)
        self._bookings[key] = booking

    def extend(self, key: str, placement: Placement) -> None:
        """Book further slots under ``key``, beside what is booked there."""
        old = self._bookings.pop(key, None)
        self.book(key, placement)
        if old is not None:
            new = self._bookings[key]
            # New resources may have widened the matrix since ``old`` was compiled.
            takes = np.pad(old.takes, ((0, 0), (0, new.takes.shape[1] - old.takes.shape[1])))
            new.rows = np.concatenate([old.rows, new.rows])
            new.takes = np.concatenate([takes, new.takes])

    def cancel(self, key: str) -> bool:
        """Give back what ``key`` has booked; tell whether there was anything."""
        booking = self._bookings.pop(key, None)
        if booking is None:
            return False
        self._timeline = None
        np.subtract.at(self.booked, booking.rows, booking.takes)
        return True

    def clear_plan(self) -> None:
        """Forget all reservations; every cycle plans anew (flux-sched qmanager does the same)."""
        self._reserved.clear()
        self._checkpoints.clear()
        self._promises.clear()
        self._timeline = None

    @contextmanager
    def trying(self) -> Iterator[None]:
        """Reserve further inside, and forget it at the end: the plan stays as it was."""
        reserved, points, promises = self._reserved, self._checkpoints, self._promises
        self._reserved, self._promises = list(reserved), list(promises)
        self._checkpoints = [Checkpoint(point.at, point.free.copy()) for point in points]
        try:
            yield
        finally:
            self._reserved, self._checkpoints, self._promises = reserved, points, promises
            for point in points:  # what was tried may have brought new resources
                more = [
                    (0, new - old)
                    for new, old in zip(self.capacity.shape, point.free.shape, strict=True)
                ]
                point.free = np.pad(point.free, more)

    # --- questions -------------------------------------------------------------------------------

    @property
    def checkpoints(self) -> Sequence[Checkpoint]:
        """What is free at the start of each reservation; not to be changed."""
        return self._checkpoints

    @property
    def bookings(self) -> Mapping[str, Booking]:
        """Live allocations by key; not to be changed."""
        return self._bookings

    def free_now(self) -> Matrix:
        """What is free now, rows x columns; negative where others took more than was left."""
        return self.capacity - self.foreign - self.booked

    def match_now(self, request: ResourceRequest, now: int) -> Placement:
        """Place the whole request now, delaying no reservation.

        Raises
        ------
        InsufficientResources
            Not all slots fit now. Whether they ever can is ``satisfiability``'s question.
        """
        until = end_of(request, now)
        free = self.free_now()
        for point in self._checkpoints:
            if point.at < until:
                np.minimum(free, point.free, out=free)
        placement = self._place(request, free, now, until)
        if placement is None:
            raise InsufficientResources(why_busy(request))
        return placement

    def match_later(self, request: ResourceRequest, now: int, *, not_before: int = 0) -> Placement:
        """Find the earliest start after ``now`` that the plan makes possible, none before
        ``not_before`` (itself a time at which something ends).

        The start is ``UNKNOWN_END`` where it must wait for something without a known end.

        Candidate times are the ends of what is booked, as in flux-sched ``dfu.cpp`` :200-216.

        Raises
        ------
        InsufficientResources
            Not even the end of everything that runs makes room: nodes are down or cordoned, or
            promised without a known end.
        """
        usable = self.masks.usable()
        timeline = self._timeline_at(now)
        start = timeline.last_without(lambda free: self._has_room(request, free, usable))
        if start is None:
            raise InsufficientResources(NOT_USABLE)
        points = sorted(self._checkpoints, key=lambda point: point.at)
        times = [point.at for point in points]
        is_full = cache(lambda i: not self._has_room(request, points[i].free, usable))
        for at, free in self._future(timeline, *start, now):
            if at < not_before:
                continue
            until = end_of(request, at)
            inside = range(bisect_right(times, at), bisect_left(times, until))
            # The cheap and telling question first: most candidates end at a promise in the way,
            # and so does every start before it.
            full = next(filter(is_full, reversed(inside)), None)
            if full is not None:
                not_before = times[full]
                continue
            if not self._has_room(request, free, usable):
                continue
            window = free.copy()
            for index in inside:
                np.minimum(window, points[index].free, out=window)
            placement = self._place(request, window, at, until)
            if placement is not None:
                return placement
        if any(booking.until >= FOREVER for booking in self._reserved):
            raise InsufficientResources("jobs promised a start before it have no known end")
        raise InsufficientResources(NOT_USABLE)

    def _has_room(
        self, request: ResourceRequest, free: Matrix, usable: npt.NDArray[np.bool_]
    ) -> bool:
        """A cheap necessary condition: each slot group alone fits."""
        return all(
            int(self.counts(slot, free, usable, request).sum()) >= slot.count
            for slot in request.slots
        )

    def reserve(self, placement: Placement, now: int) -> None:
        """Hold ``placement`` in the plan of this cycle; later matches will not delay it."""
        booking = self.compile(placement)
        for point in self._checkpoints:
            if booking.starts_at <= point.at < booking.until:
                np.subtract.at(point.free, booking.rows, booking.takes)
        free = self.free_at(booking.starts_at, now)
        np.subtract.at(free, booking.rows, booking.takes)
        self._reserved.append(booking)
        self._checkpoints.append(Checkpoint(booking.starts_at, free))
        self._promises.append(placement)

    def unreserve(self, placement: Placement) -> None:
        """Take a reservation, the very object, out of the plan again."""
        index = next(i for i, one in enumerate(self._promises) if one is placement)
        del self._promises[index], self._checkpoints[index]
        booking = self._reserved.pop(index)
        for point in self._checkpoints:
            if booking.starts_at <= point.at < booking.until:
                np.add.at(point.free, booking.rows, booking.takes)

    def is_satisfiable(self, request: ResourceRequest) -> bool:
        """Tell whether the empty cluster could hold it: down and cordoned nodes count."""
        return self.fits_empty(request, beside_others=None, on_all_nodes=True)

    def fits_empty(
        self, request: ResourceRequest, *, beside_others: Matrix | None, on_all_nodes: bool
    ) -> bool:
        """Tell whether it would fit if nothing of ours ran: ``beside_others`` is what pods of
        others use, ``on_all_nodes`` counts nodes that are down or cordoned.
        """
        free = self.capacity if beside_others is None else self.capacity - beside_others
        usable = self.masks.present() if on_all_nodes else self.masks.usable()
        return self._choose(request, free, usable) is not None

    # --- placing ---------------------------------------------------------------------------------

    def _place(
        self, request: ResourceRequest, free: Matrix, at: int, until: int
    ) -> Placement | None:
        rows = self._choose(request, free, self.masks.usable())
        if rows is None:
            return None
        return Placement(
            slots=self._slots(request, rows),
            starts_at=at,
            until=until,
            is_exclusive=self.is_exclusive(request),
        )

    def _choose(
        self, request: ResourceRequest, free: Matrix, usable: npt.NDArray[np.bool_]
    ) -> list[Vector] | None:
        """Rows for each slot group, in one place where asked for; None when it does not fit."""
        if request.within is None:
            return self._fill(request, free, usable)
        return self._fill_within(request, free, usable, request.within)

    def _fill(
        self, request: ResourceRequest, free: Matrix, usable: npt.NDArray[np.bool_]
    ) -> list[Vector] | None:
        """Rows for each slot group, in order; None when one group does not fit."""
        chosen: list[Vector] = []
        several = len(request.slots) > 1
        left = free.copy() if several else free
        for slot in request.slots:
            counts = self.counts(slot, left, usable, request)
            rows = self._take(counts, slot, left, self._policy(request))
            if rows is None:
                return None
            chosen.append(rows)
            if several and len(rows):
                np.subtract.at(left, rows, self.vector(slot.needs)[None, :].repeat(len(rows), 0))
                if request.is_spread:
                    usable = usable.copy()
                    usable[rows] = False
        return chosen

    def _fill_within(
        self, request: ResourceRequest, free: Matrix, usable: npt.NDArray[np.bool_], level: str
    ) -> list[Vector] | None:
        """Fill below one vertex of ``level``: the one that is left fullest."""
        best: tuple[int, list[Vector]] | None = None
        for members in self.masks.groups(level):
            rows = self._fill(request, free, usable & members)
            if rows is not None:
                left = int(free[members & usable].clip(min=0)[:, 1:].sum())
                if best is None or left < best[0]:
                    best = (left, rows)
        return None if best is None else best[1]

    def counts(
        self,
        slot: SlotRequest,
        free: Matrix,
        usable: npt.NDArray[np.bool_],
        request: ResourceRequest,
    ) -> Vector:
        """How many such slots each node has room for."""
        mask = usable & self.masks.matching(slot.constraint)
        if self.is_exclusive(request):
            mask = mask & (free[:, 0] == SHARES_TOTAL)
        counts = np.where(mask & (free[:, 0] > 0), slot.count, 0).astype(np.int64)
        for name, need in slot.resources:
            if need <= 0:
                continue
            column = self.columns.get(name)
            if column is None:
                return np.zeros(len(self.names), dtype=np.int64)
            np.minimum(counts, free[:, column] // need, out=counts)
        np.minimum(counts, 1 if request.is_spread else slot.count, out=counts)
        np.maximum(counts, 0, out=counts)
        return counts

    def _take(
        self, counts: Vector, slot: SlotRequest, free: Matrix, policy: MatchPolicy
    ) -> Vector | None:
        """Choose rows for all slots in the policy's order; None when they do not fit."""
        wanted = slot.count
        if wanted == 0:
            return np.zeros(0, dtype=np.int64)
        candidates = np.flatnonzero(counts)
        if int(counts[candidates].sum()) < wanted:
            return None
        order = self._order(candidates, slot, free, policy)
        if policy is MatchPolicy.SPREAD:
            return in_rounds(order, counts[order], wanted)
        if policy is MatchPolicy.PACK:
            return on_fewest(order, counts[order], wanted)
        if policy in (MatchPolicy.FIRST, MatchPolicy.FIRSTNODEX):
            # flux-sched looks until there is enough, then takes the highest ids of what it saw.
            seen = int(np.searchsorted(np.cumsum(counts[order]), wanted)) + 1
            order = np.sort(order[:seen])[::-1]
        running = np.cumsum(counts[order])
        last = int(np.searchsorted(running, wanted))
        order = order[: last + 1]
        taken = counts[order]
        taken[-1] -= running[last] - wanted
        return np.repeat(order, taken)

    def _order(
        self, candidates: Vector, slot: SlotRequest, free: Matrix, policy: MatchPolicy
    ) -> Vector:
        match policy:
            case MatchPolicy.LONODE | MatchPolicy.LONODEX:
                return candidates
            case MatchPolicy.HINODE | MatchPolicy.HINODEX:
                return candidates[::-1]
            case MatchPolicy.FIRST | MatchPolicy.FIRSTNODEX:
                # As flux-sched orders children for ``first``: untouched ones before others, then
                # most free cores, then the highest id.
                is_touched = free[candidates, 0] != SHARES_TOTAL
                cpu = np.where(is_touched, free[candidates, self.columns.get(CPU, 0)], 0)
                return candidates[np.lexsort((-candidates, -cpu, is_touched))]
            case MatchPolicy.PACK | MatchPolicy.SPREAD:
                # What would be left free after one such slot, as a share of what there is.
                left = np.maximum(free[candidates, 1:] - self.vector(slot.needs)[1:], 0)
                share = left / np.maximum(self.capacity[candidates, 1:], 1)
                emptiness = (share * FULL_SHARE).astype(np.int64).sum(axis=1)
                if policy is MatchPolicy.SPREAD:
                    emptiness = -emptiness
                return candidates[np.argsort(emptiness, kind="stable")]

    def _policy(self, request: ResourceRequest) -> MatchPolicy:
        return request.match_policy or self.match_policy

    def is_exclusive(self, request: ResourceRequest) -> bool:
        """Whether it takes every node that it touches whole."""
        return request.is_exclusive or self._policy(request).is_exclusive

    def _slots(self, request: ResourceRequest, rows: list[Vector]) -> tuple[PlacedSlot, ...]:
        return tuple(
            PlacedSlot(self.names[row], slot.resources)
            for slot, group in zip(request.slots, rows, strict=True)
            for row in group.tolist()
        )

    # --- time ------------------------------------------------------------------------------------

    def _timeline_at(self, now: int) -> Timeline:
        if self._timeline is None or self._timeline[0] != now:
            ends = [(_planned_end(booking, now), booking) for booking in self._bookings.values()]
            self._timeline = now, Timeline(self.free_now(), ends)
        return self._timeline[1]

    def _future(
        self, timeline: Timeline, position: int, free: Matrix, now: int
    ) -> Iterator[tuple[int, Matrix]]:
        """Each known time after a position of the timeline at which something ends.

        Gives what is free then; the matrix is the same object, moved forward in time: copy what
        must last.
        """
        free, start = free.copy(), timeline.time_of(position, now)
        changes: list[tuple[int, bool, Booking]] = []
        for booking in self._reserved:
            if booking.starts_at > start:
                changes.append((booking.starts_at, False, booking))
            elif start < booking.until:
                np.subtract.at(free, booking.rows, booking.takes)
            if start < booking.until < FOREVER:
                changes.append((booking.until, True, booking))
        changes.sort(key=_time_of_change)
        ends = ((at, True, booking) for at, booking in timeline.ends_from(position))
        merged = heapq.merge(changes, ends, key=_time_of_change)
        for at, group in itertools.groupby(merged, key=_time_of_change):
            has_release = False
            for _, is_release, booking in group:
                step = np.add if is_release else np.subtract
                step.at(free, booking.rows, booking.takes)
                has_release |= is_release
            if has_release and at > now:
                yield at, free

    def free_at(self, at: int, now: int) -> Matrix:
        """What is free at ``at``: ended bookings given back, reservations running then taken."""
        free = self._timeline_at(now).free_at(at)
        for booking in self._reserved:
            if booking.starts_at <= at < booking.until:
                np.subtract.at(free, booking.rows, booking.takes)
        return free

    # --- arrays ----------------------------------------------------------------------------------

    def vector(self, needs: Mapping[str, int]) -> Vector:
        """A request as a row of the matrix: one share, and its resources."""
        wanted = {self._column(name): amount for name, amount in needs.items() if amount}
        row = np.zeros(len(self.columns), dtype=np.int64)
        row[0] = 1
        row[list(wanted)] = list(wanted.values())
        return row

    def compile(self, placement: Placement) -> Booking:
        """A placement as arrays."""
        for slot in placement.slots:
            for name, _ in slot.resources:
                self._column(name)
        self.add_rows(placement.nodes)
        rows = np.array([self.rows[s.node] for s in placement.slots], dtype=np.int64)
        takes = np.zeros((len(rows), len(self.columns)), dtype=np.int64)
        seen: set[str] = set()
        for i, slot in enumerate(placement.slots):
            whole = placement.is_exclusive
            takes[i, 0] = (0 if slot.node in seen else SHARES_TOTAL) if whole else 1
            seen.add(slot.node)
            for name, amount in slot.resources:
                takes[i, self.columns[name]] = amount
        return Booking(rows, takes, placement.starts_at, placement.until)

    def _column(self, name: str) -> int:
        column = self.columns.get(name)
        if column is not None:
            return column
        self._timeline = None
        column = self.columns[name] = len(self.columns)
        for matrix in ("capacity", "foreign", "booked"):
            setattr(self, matrix, np.pad(getattr(self, matrix), ((0, 0), (0, 1))))
        for point in self._checkpoints:
            point.free = np.pad(point.free, ((0, 0), (0, 1)))
        for booking in (*self._bookings.values(), *self._reserved):
            booking.takes = np.pad(booking.takes, ((0, 0), (0, 1)))
        return column

    def add_rows(self, names: Sequence[str]) -> None:
        """Make rows for nodes not known yet; loading many at once grows the arrays only once."""
        new = [name for name in dict.fromkeys(names) if name not in self.rows]
        if not new:
            return
        self._timeline = None
        for name in new:
            self.rows[name] = len(self.names)
            self.names.append(name)
        for matrix in ("capacity", "foreign", "booked"):
            setattr(self, matrix, np.pad(getattr(self, matrix), ((0, len(new)), (0, 0))))
        for point in self._checkpoints:
            point.free = np.pad(point.free, ((0, len(new)), (0, 0)))
        self.masks.grow(len(self.names))


def _time_of_change(change: tuple[int, bool, Booking]) -> int:
    return change[0]


def _planned_end(booking: Booking, now: int) -> int:
    """When a booking is planned to end; one that overruns ends a little later than now."""
    if booking.until >= FOREVER:
        return UNKNOWN_END
    return booking.until if booking.until > now else now + OVERRUN_GRACE_S


def why_busy(request: ResourceRequest) -> str:
    """Say in words what a request waits for.

    The sentence depends on the request alone, so that a long queue is not rewritten row by row
    whenever something starts or ends.
    """
    groups = [f"{slot.count} slots of {describe(slot.needs)}" for slot in request.slots]
    return f"waits for {' and '.join(groups)}".replace(" 1 slots", " 1 slot")


def end_of(request: ResourceRequest, at: int) -> int:
    """When a request started ``at`` would end."""
    return FOREVER if request.duration_s is None else at + request.duration_s
