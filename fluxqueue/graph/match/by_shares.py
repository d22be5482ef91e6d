"""Matching by shares: where a request fits the table of nodes x resources, and when.

``ByShares`` answers the jobspecs that ``shares.ask`` can read, for now, later and ever. ``Matcher``
calls it, and so does ``tell`` for reasons. It changes no booking. Pure: times are integer seconds
as arguments.
"""

from __future__ import annotations

from collections import Counter, OrderedDict
from collections.abc import Collection, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache

import numpy as np

from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.request import describe
from fluxqueue.graph.arrays import Mask, Matrix, Vector
from fluxqueue.graph.ledger.if_ended import WhatIf
from fluxqueue.graph.ledger.node_table import AllocationTable, Emptiness
from fluxqueue.graph.ledger.placement import FOREVER, PlacedSlot, Placement
from fluxqueue.graph.ledger.places import NOWHERE
from fluxqueue.graph.ledger.shares import Patch, ShareLedger
from fluxqueue.graph.match.policy import Policy
from fluxqueue.graph.match.shares.ask import (
    Ask,
    Group,
    Leaf,
    Part,
    UnitSlots,
    compile_ask,
    groups,
    set_apart,
)
from fluxqueue.graph.match.shares.choose import Choice, Chosen
from fluxqueue.graph.match.shares.filling import fill
from fluxqueue.graph.match.shares.later import LaterDemand, Steps, first_possible
from fluxqueue.graph.match.shares.offer import Offer, OfferView, PlaceScores
from fluxqueue.graph.match.shares.relief import Relief, relief
from fluxqueue.jobspec.bounds import Work
from fluxqueue.jobspec.demand import Bundle
from fluxqueue.jobspec.model import Jobspec
from fluxqueue.jobspec.shape import describe as describe_request

NOT_USABLE = "the nodes it needs are down, cordoned or used by others"

OFFERS_MAX = 128
"""Number of offers to cache. Each is as long as there are nodes.

The least recently used goes first.
"""

ASKS_MAX = 8192
SKIPS_MAX = 8
"""Number of reservations to check when start times before a full moment are skipped."""


class ByShares:
    """Answers questions about a ledger of shares.

    Parameters
    ----------
    policy : match policy of requests that name none.
    """

    def __init__(self, ledger: ShareLedger, policy: Policy) -> None:
        self.ledger, self.policy = ledger, policy
        self._asks: dict[int, tuple[object, Ask]] = {}
        self._equals: dict[Ask, Ask] = {}
        self._offers: OrderedDict[tuple[AllocationTable, Leaf, bool], Offer] = OrderedDict()
        self._steps: Steps | None = None
        self._planned: dict[Ask, Placement] = {}
        self._planned_of: object = None
        self.work: Work | None = None
        """Work that the present question may cost. None: it has no limit."""
        self._scores = PlaceScores(self.ledger.emptiness)
        self._scores_when_empty = PlaceScores(self.ledger.emptiness_when_empty)

    def spend(self, steps: int) -> None:
        """Subtract ``steps`` from the work left for the present question.

        Raises
        ------
        TooComplex
            No work is left.
        """
        if self.work is not None:
            self.work.spend(steps)

    @contextmanager
    def working(self, work: Work) -> Iterator[None]:
        """Limit all questions inside the context to ``work`` together.

        A nested context replaces the limit until it ends. It stays below the outer limit only
        if its ``work`` was made with the outer one as ``within``.
        """
        before, self.work = self.work, work
        try:
            yield
        finally:
            self.work = before

    # --- questions -----------------------------------------------------------------------------

    def match_now(self, request: Jobspec, now: int) -> Placement:
        """Place the whole request now, without delaying any reservation.

        Raises
        ------
        InsufficientResources
            Some slots do not fit now. Ask ``is_satisfiable`` whether they ever can.
        """
        ask = self.ask(request)
        if self.lacks_now(ask):
            raise InsufficientResources(why_busy(request))
        until = end_of(ask, now)
        patch = self.ledger.patch_now(now, until) if len(self.ledger.plan.rows) else None
        found = self._choose(ask, self.ledger.now, self._scores, patch)
        if found is None:
            raise InsufficientResources(why_busy(request))
        return self._placement(ask, *found, now, until)

    def match_later(self, request: Jobspec, now: int, *, not_before: int = 0) -> Placement:
        """Find the earliest start after ``now`` that the plan allows.

        It is not before ``not_before``, which must itself be a time at which something ends.

        Raises
        ------
        InsufficientResources
            Even when all running work has ended, the request does not fit: nodes are down,
            cordoned, or reserved without a known end.
        """
        ask = self.ask(request)
        self.ledger.look(now)
        known = self._planned_before(ask) if not_before == 0 else None
        if known is not None and known.starts_at > now:
            return known
        wanted = [
            LaterDemand(
                self._offer(self.ledger.now, leaf, ask), times * leaf.count, leaf.is_distinct
            )
            for times, leaf in ask.leaves()
        ]
        self.spend(len(wanted) * (50 + len(self.ledger.ends.times) // 20))
        # The totals leave few candidate times. Only these are matched exactly.
        times = self._steps_at(now).candidates(wanted, ask.duration_s).tolist()
        found = self._first_exact(ask, [at for at in times if at >= not_before])
        if found is not None:
            if not_before == 0 and not len(self.ledger.plan.rows):
                self._planned[ask] = found
            return found
        if self._fits_at_last(ask):
            raise InsufficientResources("no plan says when its nodes are free")
        raise InsufficientResources(NOT_USABLE)

    def _planned_before(self, ask: Ask) -> Placement | None:
        """Return what was planned for an equal request if nothing started, ended or moved since."""
        ledger = self.ledger
        of = ledger.version, ledger.ends.version, len(ledger.columns)
        if self._planned_of != of:
            self._planned_of = of
            self._planned.clear()
        return None if len(ledger.plan.rows) else self._planned.get(ask)

    def _steps_at(self, now: int) -> Steps:
        steps = self._steps
        if steps is None or steps.now != now or not steps.follow():
            steps = self._steps = Steps(self.ledger, now)
        return steps

    def is_satisfiable(self, request: Jobspec) -> bool:
        """Return whether the empty cluster could hold it. Down and cordoned nodes count."""
        ask = self.ask(request)
        return self._choose(ask, self.ledger.empty, self._scores_when_empty, None) is not None

    def fits_empty(
        self,
        request: Jobspec,
        *,
        beside_others: Matrix | None,
        on_all_nodes: bool,
    ) -> bool:
        """Return whether it would fit if no job of ours ran.

        Parameters
        ----------
        beside_others
            What unmanaged pods use (rows x columns, base units). None ignores them.
        on_all_nodes
            Count nodes that are down or cordoned too.
        """
        free = (
            self.ledger.capacity if beside_others is None else self.ledger.capacity - beside_others
        )
        usable = self.ledger.masks.present() if on_all_nodes else self.ledger.masks.usable()
        table = AllocationTable(free, self.ledger.capacity, usable)
        ask = self.ask(request)
        return self._choose(ask, table, PlaceScores(Emptiness(table)), None) is not None

    def match_more(
        self,
        request: Jobspec,
        nodes: Sequence[str],
        now: int,
        until: int,
        *,
        avoid: Collection[str] = (),
    ) -> Placement:
        """Place one more slot of the last kind, bound as its siblings on ``nodes`` are.

        The slot stands in the same places of each level. It gets a node of its own if each sibling
        has one. Nodes in ``avoid`` are used only if no other node fits.

        Raises
        ------
        InsufficientResources
            It does not fit now.
        """
        ask = self.ask(request)
        if not ask.grown:
            raise InsufficientResources("asks for no slots")
        level, leaf = last_leaf(ask)
        one = _one_slot(leaf)
        view = OfferView(self._offer(self.ledger.now, one, ask), self.ledger.patch_now(now, until))
        allowed = view.fit > 0
        if leaf.is_distinct:
            allowed &= self._open_to(leaf, nodes)
        if level is not None:
            allowed &= self._in_places_of(level, nodes)
        avoided = [self.ledger.rows[name] for name in avoid if name in self.ledger.rows]
        elsewhere = allowed.copy()
        elsewhere[avoided] = False
        rows = np.flatnonzero(elsewhere if elsewhere.any() else allowed)
        if not len(rows):
            raise InsufficientResources(why_busy(request))
        chosen = fill(view, 1, self.policy_of(ask), is_distinct=False, rows=rows)
        return self._placement(ask, [(one, chosen)], set(), now, until)

    def room_for_one_more(self, ask: Ask, leaf: Leaf, now: int, until: int) -> Mask:
        """Return the nodes with room for one more slot of a leaf, beside all reservations."""
        offer = self._offer(self.ledger.now, _one_slot(leaf), ask)
        return OfferView(offer, self.ledger.patch_now(now, until)).fit > 0

    def places_of(self, level: str | None) -> Vector:
        """Return the place of each row: equal numbers are one place. Without a level it is one."""
        if level is None:
            return np.zeros(len(self.ledger.names), dtype=np.int64)
        return self.ledger.topology.places(level, self.ledger.masks.facts).ids

    def _open_to(self, leaf: Leaf, nodes: Sequence[str]) -> Mask:
        """Return the nodes that may take a further slot of a leaf of distinct nodes."""
        counts = Counter(self.ledger.rows[name] for name in nodes if name in self.ledger.rows)
        # If all nodes of the leaf are in use and one lacks a slot, fill that one before adding a
        # node.
        is_full = len(counts) >= leaf.count and leaf.per_unit > 1
        there = [row for row, count in counts.items() if count < leaf.per_unit]
        found = np.full(len(self.ledger.names), not (is_full and there))
        found[list(counts)] = False
        found[there] = True
        return found

    def _in_places_of(self, level: str, nodes: Sequence[str]) -> Mask:
        """Return the nodes in the places of ``nodes``, or all nodes if no place is known."""
        places = self.places_of(level)
        rows = [self.ledger.rows[name] for name in nodes if name in self.ledger.rows]
        there = {int(places[row]) for row in rows} - {NOWHERE}
        if not there:
            return np.ones(len(self.ledger.names), dtype=np.bool_)
        return np.isin(places, list(there))

    def held_around(self, ask: Ask, nodes: Sequence[str]) -> tuple[str, ...]:
        """Return the nodes of the exclusive places in which ``nodes`` stand."""
        held: set[int] = set()
        for group in groups(ask.parts):
            if group.is_exclusive:
                is_in = self._in_places_of(group.level, nodes)
                held.update(np.flatnonzero(is_in & self.ledger.masks.present()).tolist())
        return tuple(self.ledger.names[row] for row in sorted(held))

    def places_with(self, ask: Ask, group: Group, *, now: bool = False) -> tuple[int, int]:
        """Return how many places of a level hold what each must hold, and how many places exist.

        This refers to the empty cluster, or with ``now`` to what is free now.
        """
        if now:
            choice = self._choice(ask, self.ledger.now, self._scores, None)
        else:
            choice = self._choice(ask, self.ledger.empty, self._scores_when_empty, None)
        return choice.count_good(group)

    def room_now(self, ask: Ask, leaf: Leaf) -> int:
        """Return how many units of ``leaf`` are free: nodes, or slots if they may share nodes."""
        offer = self._offer(self.ledger.now, leaf, ask)
        return offer.nodes if leaf.is_distinct else offer.total

    def lacks_now(self, ask: Ask) -> bool:
        """Return whether one kind of units is too much for what is free now.

        Reservations only take room, so they need no look then.
        """
        return ask.is_flat and any(self.room_now(ask, one) < one.count for _, one in ask.leaves())

    def room_during(self, ask: Ask, leaf: Leaf, now: int) -> tuple[int, int]:
        """Return the nodes with capacity for a unit of ``leaf``, and the units in all.

        Both hold from ``now`` until the end of the request, in addition to all reservations.
        """
        patch = self.ledger.patch_now(now, end_of(ask, now))
        view = OfferView(self._offer(self.ledger.now, leaf, ask), patch)
        return int(view.nodes), int(view.total)

    def relief(self, request: Jobspec, what_if: WhatIf) -> list[Relief]:
        """Return what each leaf of the request lacks now, and what the end of other jobs would add.

        The gain of a job is the most that its end could add.
        """
        ask = self.ask(request)
        return [
            relief(
                what_if,
                self._offer(self.ledger.now, leaf, ask),
                times * leaf.count,
                is_distinct=leaf.is_distinct,
            )
            for times, leaf in ask.leaves()
        ]

    def fits(self, leaf: Leaf, free: Matrix, usable: Mask, ask: Ask) -> np.ndarray:
        """Return how many units of ``leaf`` fit each node if ``free`` is free there (by row)."""
        offer = Offer(self.ledger, self.ledger.now, leaf, is_whole=self.is_whole(leaf, ask))
        allowed = usable & self.ledger.masks.matching(leaf.where)
        return offer.fits(free, self.ledger.capacity, allowed)

    # --- requests --------------------------------------------------------------------------------

    def ask(self, request: Jobspec) -> Ask:
        """Return the request as the table reads it. Cached while the object is in use."""
        known = self._asks.get(id(request))
        if known is not None:
            return known[1]
        ask = set_apart(compile_ask(request, self._level_names()), self.ledger.counts)
        if len(self._asks) >= ASKS_MAX:
            self._asks.clear()
            self._equals.clear()
        # Equal requests of many jobs share one object, which caches find at once.
        ask = self._equals.setdefault(ask, ask)
        # The request is stored too: while it exists, no other object can get its id.
        self._asks[id(request)] = request, ask
        return ask

    def policy_of(self, ask: Ask) -> Policy:
        """Return the request's own policy, or else the matcher's."""
        return ask.policy or self.policy

    def is_exclusive(self, request: Jobspec | Ask) -> bool:
        """Return whether the request takes every node that it uses whole."""
        ask = request if isinstance(request, Ask) else self.ask(request)
        return ask.is_exclusive or self.policy_of(ask).is_node_exclusive

    def is_whole(self, leaf: Leaf, ask: Ask) -> bool:
        """Return whether a unit of ``leaf`` takes its node whole."""
        return leaf.is_whole or self.is_exclusive(ask)

    def _offer(self, table: AllocationTable, leaf: Leaf, ask: Ask) -> Offer:
        nodes = len(self.ledger.names)
        self.spend(5 + nodes // 200)
        constraint = leaf.where.constraint
        if constraint is not None and not self.ledger.masks.knows(leaf.where):
            self.spend(constraint.parts * nodes // 4)
        is_whole = self.is_whole(leaf, ask)
        # Such a table is temporary, so caching its offers would only keep it alive.
        if table is not self.ledger.now and table is not self.ledger.empty:
            offer = Offer(self.ledger, table, leaf, is_whole=is_whole)
            offer.follow()
            return offer
        key = table, leaf, is_whole
        found = self._offers.get(key)
        if found is None:
            found = self._offers[key] = Offer(self.ledger, table, leaf, is_whole=is_whole)
            if len(self._offers) > OFFERS_MAX:
                self._offers.popitem(last=False)
        elif found.needs is None and self._knows(leaf):
            # A node with a resource that was unknown has joined, so the offer can be counted now.
            found = self._offers[key] = Offer(self.ledger, table, leaf, is_whole=is_whole)
        found.follow()
        return found

    def _knows(self, leaf: Leaf) -> bool:
        return all(name in self.ledger.columns for name, need in leaf.needs if need > 0)

    # --- answers ---------------------------------------------------------------------------------

    def _choose(
        self, ask: Ask, table: AllocationTable, scores: PlaceScores, patch: Patch | None
    ) -> tuple[list[Chosen], set[int]] | None:
        if ask.problem or ask.contested:
            return None
        for parts in ask.alternatives():
            choice = self._choice(ask, table, scores, patch)
            chosen = choice.choose(parts)
            if chosen is not None:
                return chosen, choice.held
        return None

    def _level_names(self) -> list[str]:
        return [level.name for level in self.ledger.topology.levels]

    def _choice(
        self, ask: Ask, table: AllocationTable, scores: PlaceScores, patch: Patch | None
    ) -> Choice:
        def offer(leaf: Leaf) -> Offer:
            return self._offer(table, leaf, ask)

        policy = self.policy_of(ask)
        return Choice(self.ledger, table, scores, offer, policy, patch, self.spend)

    def _fits_at_last(self, ask: Ask) -> bool:
        """Return whether it fits when all running work has ended, ignoring reservations."""
        return self._fits_at(ask, FOREVER, ask.parts)

    def _fits_at(self, ask: Ask, at: int, parts: Sequence[Part]) -> bool:
        patch = self.ledger.patch_at(at, at, beside_plan=False)
        return self._choice(ask, self.ledger.now, self._scores, patch).choose(parts) is not None

    def _first_exact(self, ask: Ask, times: list[int]) -> Placement | None:
        """Return the placement at the first of ``times`` from which the request fits."""
        start = 0
        if len(times) > SKIPS_MAX and not ask.is_flat:
            # Ignoring reservations, a request that fits once fits at all later times. So bisect.
            start = first_possible(times, lambda at: self._fits_at(ask, at, ask.parts))
        not_before = 0
        for at in times[start:]:
            if at < not_before:
                continue
            until = end_of(ask, at)
            patch = self.ledger.patch_at(at, until)
            found = self._choose(ask, self.ledger.now, self._scores, patch)
            if found is not None:
                return self._placement(ask, *found, at, until)
            not_before = self._full_between(ask, at, until)
        return None

    def _full_between(self, ask: Ask, start: int, until: int) -> int:
        """Return one past the last reservation start in the window at which the request cannot run.

        No start up to that reservation is possible, so they can be skipped. 0 means that there is
        none.
        """
        plan = self.ledger.plan
        starts = sorted(set(plan.starts[plan.within(start, until)].tolist()), reverse=True)
        for at in starts[:SKIPS_MAX]:
            patch = self.ledger.patch_at(at, at)
            if self._choice(ask, self.ledger.now, self._scores, patch).choose(ask.parts) is None:
                return int(at) + 1
        return 0

    def _placement(
        self, ask: Ask, chosen: list[Chosen], held: set[int], at: int, until: int
    ) -> Placement:
        is_exclusive = self.is_exclusive(ask)
        slots: list[PlacedSlot] = []
        whole = set(held)
        names = self.ledger.names
        for leaf, rows in chosen:
            numbers = rows.tolist()
            # Slots are numbered along the topology, so neighbours get neighbouring numbers.
            self.spend(1 + len(numbers))
            if len(numbers) > 1:
                numbers.sort(key=self.ledger.standing)
            if leaf.is_whole:
                whole.update(numbers)
            for row in numbers:
                name = names[row]
                for kind in leaf.kinds:
                    slot = PlacedSlot(name, self._needs_on(row, kind, leaf), kind.label)
                    slots += [slot] * kind.count if kind.count > 1 else [slot]
        if not whole:
            return Placement(tuple(slots), at, until, is_exclusive)
        with_slot = {slot.node for slot in slots}
        if {names[row] for row in whole} == with_slot:
            return Placement(tuple(slots), at, until, True)
        # Exclusive places may hold removed nodes, which cannot be held.
        present = [names[row] for row in sorted(whole) if self.ledger.masks.facts[row] is not None]
        return Placement(tuple(slots), at, until, is_exclusive, tuple(present))

    def _needs_on(self, row: int, kind: UnitSlots, leaf: Leaf) -> Bundle:
        """Return what a slot takes on one node: of pools taken whole, all that the node has."""
        if not leaf.whole_pools:
            return kind.takes
        found = dict(kind.takes)
        for name in leaf.whole_pools:
            found[name] = int(self.ledger.capacity[row, self.ledger.columns[name]])
        return tuple(sorted(found.items()))


def _one_slot(leaf: Leaf) -> Leaf:
    """Return the leaf of one slot of the last kind, wherever its siblings are."""
    kind = leaf.kinds[-1]
    return Leaf(
        1,
        (UnitSlots(kind.label, 1, kind.needs, apart=kind.apart),),
        leaf.where,
        is_whole=leaf.is_whole,
        whole_pools=leaf.whole_pools,
    )


def last_leaf(ask: Ask) -> tuple[str | None, Leaf]:
    """Return the last leaf of a request, and the lowest level above it."""
    level: str | None = None
    part = ask.grown[-1]
    while isinstance(part, Group):
        level, part = part.level, part.below[-1]
    return level, part


def end_of(ask: Ask, at: int) -> int:
    """Return when a request that started ``at`` would end."""
    return FOREVER if ask.duration_s is None else at + ask.duration_s


@lru_cache(maxsize=1024)
def why_busy(request: Jobspec) -> str:
    """Return what a request waits for, in words.

    The sentence depends only on the request. Otherwise every start and end would change the rows of
    a long queue. ``tell.busy`` says what is short now, for the first request only.
    """
    return f"waits for {describe_request(request)}"


def describe_ask(ask: Ask) -> str:
    """Return the kinds of slots in words: ``4 slots of 8 cpu and 1 slots of 2 cpu``."""
    return " and ".join(
        f"{times * leaf.count * kind.count} slots of {describe(dict(kind.needs))}"
        for times, leaf in ask.leaves()
        for kind in leaf.kinds
    )


def placement_on(
    table: ByShares, request: Jobspec, nodes: Sequence[str], starts_at: int
) -> Placement:
    """Return a stored placement. ``nodes`` are those of all slots, in slot order."""
    ask = table.ask(request)
    kinds = [
        (kind.takes, kind.label)
        for times, leaf in ask.leaves()
        for _ in range(times * leaf.count)
        for kind in leaf.kinds
        for _ in range(kind.count)
    ]
    slots = tuple(PlacedSlot(node, *kind) for node, kind in zip(nodes, kinds, strict=True))
    placement = Placement(slots, starts_at, end_of(ask, starts_at))
    held = table.held_around(ask, nodes)
    return replace(placement, is_exclusive=table.is_exclusive(ask), held=held)
