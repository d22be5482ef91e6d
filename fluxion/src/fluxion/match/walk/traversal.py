"""The reference walk: Fluxion's depth-first-and-up traversal, one vertex at a time.

It is slow and plain on purpose. The vectorised matcher is compared with it, and uses it for the
inside of a block. The steps have the names of flux-sched's ``dfu_impl.cpp``. At a vertex, ``test``
says how the request applies, and ``prune`` whether anything here can be used. Then the children are
explored. A vertex *chooses* (marks) the best of its named children if they suffice. Otherwise it
passes its candidates up. The root chooses among all that reach it.

Fluxion's traverser has no answer for several kinds of slots side by side. Here, one kind is placed
after another, each in addition to those before it, as in the table of shares
(``graph.match.orders``).

The matcher calls it. It changes nothing but the marks that it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import TypeAlias

from fluxion.ledger.booking import Booking, merged
from fluxion.ledger.vertices import VertexLedger
from fluxion.match.child_order import ChildOrder
from fluxion.match.collect import Collector
from fluxion.match.compiled_request import (
    Need,
    WalkRequest,
    are_several_kinds,
    exclusive_kinds,
    has_several_kinds,
)
from fluxion.match.walk.candidates import (
    Candidates,
    Edge,
    Found,
    PoolTaker,
    Share,
    ShareTally,
    WalkCandidate,
    merge,
    score_of,
)
from fluxion.match.walk.choosing import Choosing
from fluxion.match.walk.vertex_check import AMBIGUOUS, Window
from fluxion.model.shapes import iterate_bits
from fluxqueue.graph.match.orders import place_all
from fluxqueue.graph.match.policy import Policy

Allowed: TypeAlias = Callable[[int], bool]
"""A test for the nodes that a constraint allows."""


class Walk(Choosing):
    """One traversal for one request in one window.

    Parameters
    ----------
    constraint : the nodes that may be used, None for all.
    constraint_of
        The same for slots of some labels, used to place several kinds of slots. None answers such
        requests as Fluxion does, which has no answer.
    """

    def __init__(
        self,
        state: VertexLedger,
        order: ChildOrder,
        request: WalkRequest,
        policy: Policy,
        window: Window,
        constraint: Allowed | None = None,
        *,
        constraint_of: Callable[[frozenset[str]], Allowed | None] | None = None,
        is_cluster: bool = False,
    ) -> None:
        super().__init__(state, request, policy, window, constraint, is_cluster=is_cluster)
        self.order = order
        self._constraint_of = constraint_of
        self._distinct_below: dict[int, set[int]] = {}

    # -- entry points -----------------------------------------------------------------------

    def select(self) -> bool:
        """Walk the whole graph and choose. Return False if the request cannot be met."""
        needs = self.request.needs
        if self._are_kinds(needs):
            return self._place_kinds(0, needs, self._select_kind) is not None
        return self._select(needs)

    def _select_kind(self, need: Need) -> Found | None:
        return {} if self._select((need,)) else None

    def _select(self, needs: tuple[Need, ...]) -> bool:
        found: Found = {}
        result = self.visit(0, needs, True, self._is_wanted_exclusively(0, needs), found)
        if result is None:
            return False
        count, score, is_exclusive = result
        root = WalkCandidate(score, count, ((0, is_exclusive),), True)
        found.setdefault(self.graph.type_of[0], Candidates()).add(root)
        return self._choose_at_top(needs, found, count)

    def visit_block(
        self, number: int, needs: tuple[Need, ...], is_pristine: bool, found: Found
    ) -> tuple[int, int, bool] | None:
        """Walk one block as if the levels above had passed the request through, or matched."""
        return self.visit(self.graph.blocks[number].base, needs, is_pristine, False, found)

    # -- one vertex -------------------------------------------------------------------------

    def visit(
        self, v: int, needs: tuple[Need, ...], is_pristine: bool, is_exclusive: bool, into: Found
    ) -> tuple[int, int, bool] | None:
        """Explore ``v``. Candidates go ``into`` the parent's unless a choice is made here.

        Returns units, score and exclusivity of ``v`` itself as a candidate, or None.
        """
        is_exclusive = is_exclusive or self._is_wanted_exclusively(v, needs)
        slot, match = self._test(v, needs)
        is_passed = self.is_cluster and self.graph.block_of[v] < 0
        if slot is None and match is None and not is_pristine and not is_passed:
            return None
        if slot is AMBIGUOUS or not self._is_usable(v, needs, is_exclusive):
            return None
        is_node = self.graph.type_of[v] == self._node and self.policy.is_node_centric
        factor = self._factor(v) if is_node else 0
        self._score += factor
        found: Found = {}
        if match is not None and self._are_kinds(match.children):
            chosen = self._place_kinds(v, match.children, lambda need: self._place_kind(v, need))
            self._score -= factor
            if chosen is None:
                return None
            return self.graph.size[v], self._score_of(v, needs, chosen), is_exclusive
        if slot is not None:
            self._find_slots(v, slot, found)
        elif match is not None:
            self._explore(v, match.children, False, is_exclusive, 1, found)
        else:
            self._explore(v, needs, is_pristine, is_exclusive, 1, found)
        self._score -= factor
        size = self.graph.size[v]
        if self.graph.type_of[v] in self._pools:
            size -= self._units_used(v)
            if size <= 0:
                return None
        is_chosen = False
        for need in needs:
            if need.kind == self.graph.type_of[v]:
                if not self._choose(need.children, found):
                    return None
                is_chosen = is_chosen or bool(need.children)
        if is_chosen:
            self._mark(v, found)
        else:
            merge(into, found)
        return size, self._score_of(v, needs, found), is_exclusive

    # -- several kinds of slots side by side --------------------------------------------------

    def _are_kinds(self, needs: tuple[Need, ...]) -> bool:
        return self._constraint_of is not None and are_several_kinds(needs)

    def _place_kinds(
        self, v: int, needs: tuple[Need, ...], place: Callable[[Need], Found | None]
    ) -> Found | None:
        """Call ``place`` for one need after another at or below ``v``.

        Each is placed in addition to those before it. Returns what was chosen, and makes its marks.
        None means that one of them does not fit.
        """
        assert self._constraint_of is not None
        constraint_of = self._constraint_of
        kept = self.marks, self.shares, self._beside, self._distinct, self.constraint
        kinds = self._exclusive_kinds
        taken, distinct = Booking(0, 0, 0), set(self._distinct)

        def place_one(need: Need) -> Found | None:
            nonlocal taken, distinct
            self.marks, self.shares = {}, {}
            self._distinct = distinct
            self._set_beside(taken if kept[2] is None else merged(kept[2], taken))
            self.constraint = constraint_of(need.labels)
            self._want_whole(exclusive_kinds((need,)))
            found = place(need)
            if found is None:
                return None
            for candidates in found.values():
                del candidates.members[candidates.chosen :]
            more = self._taken_below(v, need)
            distinct = distinct | self._distinct_nodes(need, more)
            taken = merged(taken, more)
            return found

        def start_again() -> None:
            nonlocal taken, distinct
            taken, distinct = Booking(0, 0, 0), set(kept[3])

        placed = None
        for tried in self._forms(v, needs):
            placed = place_all(tried, place_one, start_again)
            if placed is not None:
                break
        self.marks, self.shares, beside, self._distinct, self.constraint = kept
        self._set_beside(beside)
        self._want_whole(kinds)
        if placed is None:
            return None
        chosen: Found = {}
        for found in placed:
            merge(chosen, found)
        for candidates in chosen.values():
            candidates.chosen = len(candidates.members)
        self._mark_taken(v, taken)
        self._distinct_below[v] = distinct
        return chosen

    def _forms(self, v: int, needs: tuple[Need, ...]) -> Iterator[tuple[Need, ...]]:
        """Yield the forms of ``needs`` to try.

        Counts that are not fixed first take as many as fit. If that leaves too little for another
        kind, and always on one node, they take the minimum.
        """
        is_fixed = all(need.is_fixed for need in needs)
        if is_fixed or self.graph.type_of[v] != self._node:
            yield needs
        if not is_fixed:
            yield tuple(need.at_least() for need in needs)

    def _place_kind(self, v: int, need: Need) -> Found | None:
        """Place one of several needs below ``v``, which has itself been found usable."""
        found: Found = {}
        if need.is_slot and self._has_parts(v, need):
            self._find_slots(v, need, found)
        else:
            # The vertices above are taken by this request alone, so those below may be touched.
            self._explore(v, (need,), False, False, 1, found)
        if not self._choose((need,), found):
            return None
        self._mark(v, found)
        return found

    def _set_beside(self, beside: Booking | None) -> None:
        self._beside = beside
        self._block = -1  # what is cached of the block does not include ``beside``

    def _taken_below(self, v: int, need: Need) -> Booking:
        """Return what the marks of one need amount to. ``v`` is shared with the other needs."""
        kinds = exclusive_kinds((need,), is_here=True)
        if self.policy.is_node_exclusive:
            kinds.add(self._node)
        kinds.discard(self.graph.type_of[v])
        found = Booking(0, 0, 0)
        Collector(self.graph, self.marks, kinds, self.shares).fill(found, False, v)
        return found

    def _distinct_nodes(self, need: Need, taken: Booking) -> set[int]:
        """Return the nodes that ``need`` requested as nodes. No other need may take them."""
        blocks = self.graph.blocks
        found = {n for v in taken.tops for n in self._distinct_below.get(v, ())}
        if not need.is_slot and not has_several_kinds((need,)) and need.names(self._node):
            found.update(blocks[number].base for number in taken.blocks)
        return found

    def _mark_taken(self, v: int, taken: Booking) -> None:
        for number, (booked, touched) in taken.blocks.items():
            base = self.graph.blocks[number].base
            self.marks.update({base + i: bool(booked >> i & 1) for i in iterate_bits(touched)})
        self.marks.update(taken.tops)
        self.shares.update(taken.shares)
        self.marks.pop(v, None)

    # -- children ---------------------------------------------------------------------------

    def _explore(
        self,
        v: int,
        needs: tuple[Need, ...],
        is_pristine: bool,
        is_exclusive: bool,
        shares: int,
        found: Found,
    ) -> None:
        if not needs:
            return
        if self.is_cluster or not self.policy.stops_early:
            for child in self.graph.children.get(v, ()):
                self._take_child(child, needs, is_pristine, is_exclusive, found)
            return
        tallies = {
            need.kind: ShareTally(need.per_share, is_pool=need.kind in self._pools)
            for need in needs
        }
        satisfied: set[int] = set()
        kinds = self.graph.type_of
        for child in self.order.of(v):
            if kinds[child] in satisfied:
                continue
            if not self._take_child(child, needs, is_pristine, is_exclusive, found):
                continue
            for kind, tally in tallies.items():
                total = found[kind].total if kind in found else 0
                if total > tally.total:
                    tally.add(total - tally.total)
                    tally.total = total
                if tally.satisfies(shares):
                    satisfied.add(kind)
            if len(satisfied) == len(tallies):
                return

    def _take_child(
        self,
        child: int,
        needs: tuple[Need, ...],
        is_pristine: bool,
        is_exclusive: bool,
        found: Found,
    ) -> bool:
        result = self.visit(child, needs, is_pristine, is_exclusive, found)
        if result is None:
            return False
        count, score, is_taken_exclusively = result
        kind = self.graph.type_of[child]
        candidates = found.get(kind)
        if candidates is None:
            candidates = found[kind] = Candidates()
        candidates.add(WalkCandidate(score, count, ((child, is_taken_exclusively),), False))
        return True

    # -- slots ------------------------------------------------------------------------------

    def _find_slots(self, v: int, slot: Need, into: Found) -> None:
        """Build as many slots as fit below ``v``, best parts first, from whole vertices only."""
        parts: Found = {}
        self._explore(v, slot.children, False, True, slot.per_share, parts)
        for candidates in parts.values():
            candidates.members.sort(key=score_of, reverse=self.policy.is_high)
        counts = {part.kind: self._per_slot(part, parts) for part in slot.children}
        number = min(self._slots_of(kind, count, parts) for kind, count in counts.items())
        if all(_are_alike(parts[kind].members) for kind, count in counts.items() if count):
            # Best parts make best slots, so no choice takes one beyond these. With parts of several
            # sizes a later slot may need fewer of them, and have the better score.
            number = min(number, slot.count.largest)
        position = dict.fromkeys(counts, 0)
        pools = {
            kind: PoolTaker(parts[kind].members)
            for kind in counts
            if kind in self._pools and counts[kind]
        }
        for _ in range(number):
            edges: list[Edge] = []
            shares: list[Share] = []
            score = 1
            for part in slot.children:
                covered = 0
                if part.kind in pools:
                    score += pools[part.kind].take(counts[part.kind], edges, shares)
                    continue
                while covered < counts[part.kind]:
                    member = parts[part.kind].members[position[part.kind]]
                    position[part.kind] += 1
                    covered += member.count
                    score += member.score
                    edges.append((member.edges[0][0], True))
            into.setdefault(self._slot, Candidates()).add(
                WalkCandidate(score, 1, tuple(edges), False, tuple(shares))
            )

    def _per_slot(self, part: Need, parts: Found) -> int:
        candidates = parts.get(part.kind)
        return part.count.largest_within(candidates.total if candidates else 0)

    def _slots_of(self, kind: int, count: int, parts: Found) -> int:
        if not count:
            return 0
        tally = ShareTally(count, is_pool=kind in self._pools)
        for member in parts[kind].members:
            tally.add(member.count)
        return tally.shares


def _are_alike(members: Sequence[WalkCandidate]) -> bool:
    """Tell whether all candidates count the same."""
    return all(one.count == members[0].count for one in members)
