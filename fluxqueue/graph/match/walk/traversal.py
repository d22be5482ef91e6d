"""The reference walk: Fluxion's depth-first-and-up traversal, one vertex at a time.

Slow and plain on purpose: it is what the vectorised matcher is compared with, and what it asks
for the inside of a block. The steps carry the names of flux-sched's ``dfu_impl.cpp``: at a vertex,
``test`` says how the request applies, ``prune`` whether anything here can be used; the children
are explored; a vertex whose named children suffice *chooses* the best of them (marks), any other
hands its candidates up; the root chooses among all that came up.

Called by the matcher; changes nothing but the marks it returns.
"""

from __future__ import annotations

from collections.abc import Callable

from fluxqueue.graph.ledger.state import GraphState
from fluxqueue.graph.match.child_order import ChildOrder
from fluxqueue.graph.match.policy import Policy
from fluxqueue.graph.match.request import Need, Request
from fluxqueue.graph.match.walk.candidates import (
    Candidate,
    Candidates,
    Edge,
    Found,
    PoolTaker,
    Share,
    ShareTally,
    merge,
    score_of,
)
from fluxqueue.graph.match.walk.choosing import Choosing
from fluxqueue.graph.match.walk.looking import AMBIGUOUS, Window


class Walk(Choosing):
    """One traversal for one request in one window."""

    def __init__(
        self,
        state: GraphState,
        order: ChildOrder,
        request: Request,
        policy: Policy,
        window: Window,
        constraint: Callable[[int], bool] | None = None,
        *,
        is_cluster: bool = False,
    ) -> None:
        super().__init__(state, request, policy, window, constraint, is_cluster=is_cluster)
        self.order = order

    # -- the two entrances ------------------------------------------------------------------

    def select(self) -> bool:
        """Walk the whole graph and choose; False if the request cannot be met."""
        needs = self.request.needs
        found: Found = {}
        result = self.visit(0, needs, True, self._is_wanted_exclusively(0, needs), found)
        if result is None:
            return False
        count, score, is_exclusive = result
        root = Candidate(score, count, ((0, is_exclusive),), True)
        found.setdefault(self.graph.type_of[0], Candidates()).add(root)
        return self._choose_at_top(found, count)

    def visit_block(
        self, number: int, needs: tuple[Need, ...], is_pristine: bool, found: Found
    ) -> tuple[int, int, bool] | None:
        """Walk one block as if the levels above had passed the request through, or matched."""
        return self.visit(self.graph.blocks[number].base, needs, is_pristine, False, found)

    # -- one vertex -------------------------------------------------------------------------

    def visit(
        self, v: int, needs: tuple[Need, ...], is_pristine: bool, is_exclusive: bool, into: Found
    ) -> tuple[int, int, bool] | None:
        """Explore ``v``; candidates go ``into`` the parent's unless a choice is made here.

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
        if not self.policy.stops_early:
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
        candidates.add(Candidate(score, count, ((child, is_taken_exclusively),), False))
        return True

    # -- slots ------------------------------------------------------------------------------

    def _find_slots(self, v: int, slot: Need, into: Found) -> None:
        """Build as many slots as fit below ``v``, the best parts first, whole vertices only."""
        parts: Found = {}
        self._explore(v, slot.children, False, True, slot.per_share, parts)
        for candidates in parts.values():
            candidates.members.sort(key=score_of, reverse=self.policy.is_high)
        counts = {part.kind: self._per_slot(part, parts) for part in slot.children}
        number = min(self._slots_of(kind, count, parts) for kind, count in counts.items())
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
                Candidate(score, 1, tuple(edges), False, tuple(shares))
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
