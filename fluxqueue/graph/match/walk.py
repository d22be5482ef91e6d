"""The reference walk: Fluxion's depth-first-and-up traversal, one vertex at a time.

Slow and plain on purpose: it is what the vectorised matcher is compared with, and what it asks
for the inside of a block. The steps carry the names of flux-sched's ``dfu_impl.cpp``: at a vertex,
``test`` says how the request applies, ``prune`` whether anything here can be used; the children
are explored; a vertex whose named children suffice *chooses* the best of them (marks), any other
hands its candidates up; the root chooses among all that came up.

Called by the matcher; changes nothing but the marks it returns.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fluxqueue.graph.ledger.state import GraphState
from fluxqueue.graph.match.child_order import ChildOrder
from fluxqueue.graph.match.policy import NODE_FACTOR, Policy
from fluxqueue.graph.match.request import Need, Request
from fluxqueue.graph.model.store import BlockClass

FACTOR_SHIFT = 44
"""A node's factor stands as 2^44 where it must not matter which node it is."""
TIES = 1 << 32
"""So many ids are told apart among equally full nodes."""

Edge = tuple[int, bool]
"""A vertex that a candidate would take, and whether exclusively."""


Share = tuple[int, int]
"""A consumable pool, and the units taken of it."""


class Candidate:
    """Something that can be taken as a whole: a vertex, or the vertices of one slot.

    A consumable pool counts what is left of it; ``shares`` is what a slot takes of pools.
    """

    __slots__ = ("count", "edges", "is_root", "score", "shares")

    def __init__(
        self,
        score: int,
        count: int,
        edges: tuple[Edge, ...],
        is_root: bool,
        shares: tuple[Share, ...] = (),
    ) -> None:
        self.score, self.count, self.edges, self.is_root = score, count, edges, is_root
        self.shares = shares


class Candidates:
    """Candidates of one type; ``chosen`` of them, from the front, were taken for ``wanted``."""

    __slots__ = ("chosen", "members", "total", "wanted")

    def __init__(self) -> None:
        self.members: list[Candidate] = []
        self.total = 0
        self.chosen = 0
        self.wanted = 0

    def add(self, candidate: Candidate) -> None:
        self.members.append(candidate)
        self.total += candidate.count

    def choose(self, count: int, is_high: bool) -> None:
        """Take whole candidates, best first, until ``count`` units are covered."""
        self.members.sort(key=_score, reverse=is_high)
        self.wanted = count
        taken = 0
        while count > 0:
            count -= self.members[taken].count
            taken += 1
        self.chosen = taken


def _score(candidate: Candidate) -> int:
    return candidate.score


def _units(candidates: Sequence[Candidate]) -> int:
    return sum(candidate.count for candidate in candidates)


Found = dict[int, Candidates]


class _Shares:
    """How many slots' shares of one type were found so far (flux-sched, ``share_tally_t``)."""

    __slots__ = ("collected", "is_pool", "per_share", "shares", "total")

    def __init__(self, per_share: int, *, is_pool: bool = False) -> None:
        self.per_share = per_share
        self.is_pool = is_pool
        self.total = self.collected = self.shares = 0

    def add(self, count: int) -> None:
        self.collected += count
        if not self.per_share:
            return
        if self.is_pool:
            self.shares = self.collected // self.per_share
        elif self.collected >= self.per_share:
            # What a share has too much is not carried over: slots take whole vertices.
            self.shares += 1
            self.collected = 0

    def satisfies(self, shares: int) -> bool:
        return not self.per_share or self.shares >= shares


@dataclass(frozen=True, slots=True)
class Window:
    """When, and how strictly. ``ignores_status`` counts down vertices as usable (satisfiability);
    ``is_now`` refuses vertices that an overrunning allocation still holds."""

    start: int
    end: int
    ignores_status: bool = False
    is_now: bool = False


class Walk:
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
        self.is_cluster = is_cluster
        self.state, self.graph, self.order = state, state.graph, order
        self.request, self.policy, self.window = request, policy, window
        self.constraint = constraint
        self.marks: dict[int, bool] = {}
        self.shares: dict[int, int] = {}
        self._pools = self.graph.consumable - request.exclusive_kinds
        self.has_conflict = False
        types = self.graph.type_number
        self._node = types["node"]
        self._constrained = {self._node, types["storage_node"]}
        self._slot = types["slot"]
        self._score = 0
        self._base = self._block = -1
        self._booked = self._touched = self._allocated = 0

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
        if slot is _AMBIGUOUS or not self._is_usable(v, needs, is_exclusive):
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
            _merge(into, found)
        return size, self._score_of(v, needs, found), is_exclusive

    def _score_of(self, v: int, needs: Sequence[Need], found: Found) -> int:
        """The vertex among its like: low is better, or high where the policy says so."""
        if self.is_cluster and v and self.graph.block_of[v] < 0:
            return self._place_score(v)
        if self.policy.occupancy and self.graph.type_of[v] == self._node:
            taken = [
                member
                for need in needs
                if need.kind == self._node
                for child in need.children
                if child.kind in found
                for member in found[child.kind].members[: found[child.kind].chosen]
            ]
            return self._emptiness_after(v, taken)
        return self._score + self.graph.id[v] + 2

    def _place_score(self, v: int) -> int:
        """On a cluster: the fullest places first (``spread``: the emptiest), then by number."""
        graph, window = self.graph, self.window
        free = 0
        for number in {graph.block_of[u] for u in graph.subtree(v)} - {-1}:
            base = graph.blocks[number].base
            if window.ignores_status or base not in graph.down:
                booked = self.state.block_masks(number, window.start, window.end)[0]
                free += self.state.free_share(number, booked, window.start, window.end)
        score = (-free if self.policy.occupancy < 0 else free) * TIES + graph.id[v]
        return -score if self.policy.is_high else score

    def _emptiness_after(self, v: int, taken: Sequence[Candidate]) -> int:
        """How empty the block of ``v`` is with these candidates in it, of equally empty ones the
        lower id first: what ``pack`` and ``spread`` sort nodes by."""
        graph, window = self.graph, self.window
        number = graph.block_of[v]
        if number < 0:
            return 0
        block = graph.blocks[number]
        booked = self.state.block_masks(number, window.start, window.end)[0]
        shares: list[tuple[int, int]] = []
        for candidate in taken:
            for u, is_exclusive in candidate.edges:
                if is_exclusive and graph.type_of[u] not in self._pools:
                    booked |= self._held_bits(u, block.base, block.shape)
            shares += [(u - block.base, units) for u, units in candidate.shares]
        free = self.state.free_share(number, booked, window.start, window.end, shares)
        return self.policy.occupancy * free * TIES + min(max(graph.id[block.base], 0), TIES - 1)

    def _is_wanted_exclusively(self, v: int, needs: Sequence[Need]) -> bool:
        kind = self.graph.type_of[v]
        return any(need.is_exclusive is True and need.kind == kind for need in needs)

    def _test(self, v: int, needs: tuple[Need, ...]) -> tuple[Need | None, Need | None]:
        """The slot that applies to the children of ``v``, and the need that ``v`` matches."""
        kind = self.graph.type_of[v]
        slot = match = None
        for need in needs:
            if need.kind == kind or need.is_slot:
                if slot is not None or match is not None:
                    return _AMBIGUOUS, None
                if need.kind == kind:
                    match, slot = need, need.slot
                else:
                    slot = need
        if slot is not None and not self._has_parts(v, slot):
            slot = None
        return slot, match

    def _has_parts(self, v: int, slot: Need) -> bool:
        kinds = self.graph.type_of
        below = {kinds[c] for c in self.graph.children.get(v, ())}
        return all(part.kind in below for part in slot.children)

    def _factor(self, v: int) -> int:
        """What a node adds to the scores below it (``score_factor_t::calc_factor``)."""
        if self.policy.occupancy:
            return 1 << FACTOR_SHIFT  # which node it is, is chosen by its emptiness
        tie = abs(self.graph.uniq_id[v] % NODE_FACTOR - 1)
        return (self.graph.id[v] + 2) * NODE_FACTOR + tie

    def _held_bits(self, u: int, base: int, shape: BlockClass, *, is_own: bool = True) -> int:
        """What taking ``u`` holds: itself and what was chosen below, or all if its type is."""
        if self.graph.type_of[u] in self.request.exclusive_kinds:
            return shape.below(u - base)
        bits = 1 << (u - base) if is_own else 0
        for child in self.graph.children.get(u, ()):
            if child in self.marks:
                bits |= self._held_bits(child, base, shape, is_own=self.marks[child])
        return bits

    def _is_usable(self, v: int, needs: Sequence[Need], is_exclusive: bool) -> bool:
        """Fluxion's ``prune``: status, constraint, own planner, exclusivity."""
        graph, window = self.graph, self.window
        kind = graph.type_of[v]
        if not window.ignores_status and self._is_down(v):
            return False
        if self.constraint is not None and kind in self._constrained and not self.constraint(v):
            return False
        is_held, is_touched, is_allocated = self._occupation(v)
        if is_held:
            return False
        if kind == self._node and self.policy.is_node_exclusive and is_touched:
            return False
        for need in needs:
            if need.kind != kind or need.is_slot:
                continue
            if is_exclusive and need.is_exclusive is False:
                self.has_conflict = True
                return False
            if kind in self._pools:
                continue
            if (is_exclusive or need.is_exclusive) and (
                is_touched or (window.is_now and is_allocated)
            ):
                return False
        return True

    def _is_down(self, v: int) -> bool:
        return v in self.graph.down

    def _units_used(self, v: int) -> int:
        window = self.window
        used = self.state.units_used(v, window.start, window.end, is_now=window.is_now)
        return used if window.ignores_status else used + self.graph.foreign.get(v, 0)

    def _occupation(self, v: int) -> tuple[bool, bool, bool]:
        """Whether ``v`` is held, touched, and held by an allocation of any time."""
        number = self.graph.block_of[v]
        if number < 0:
            state, start, end = self.state, self.window.start, self.window.end
            return (
                state.top_is_held(v, start, end),
                state.top_is_touched(v, start, end),
                state.top_is_allocated(v),
            )
        self._enter(number)
        bit = v - self._base
        return (
            bool(self._booked >> bit & 1),
            bool(self._touched >> bit & 1),
            bool(self._allocated >> bit & 1),
        )

    def _enter(self, number: int) -> None:
        if number != self._block:
            self._block = number
            self._base = self.graph.blocks[number].base
            self._booked, self._touched, self._allocated = self.state.block_masks(
                number, self.window.start, self.window.end
            )

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
            need.kind: _Shares(need.per_share, is_pool=need.kind in self._pools) for need in needs
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
            candidates.members.sort(key=_score, reverse=self.policy.is_high)
        counts = {part.kind: self._per_slot(part, parts) for part in slot.children}
        number = min(self._slots_of(kind, count, parts) for kind, count in counts.items())
        position = dict.fromkeys(counts, 0)
        pools = {
            kind: _PoolTaker(parts[kind].members)
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
        tally = _Shares(count, is_pool=kind in self._pools)
        for member in parts[kind].members:
            tally.add(member.count)
        return tally.shares

    # -- choosing ---------------------------------------------------------------------------

    def _choose(self, needs: Sequence[Need], found: Found) -> bool:
        """Choose the best for every need; False if one cannot be met."""
        for need in needs:
            candidates = found.get(need.kind)
            count = need.count.largest_within(candidates.total if candidates else 0)
            if not count or candidates is None:
                return False
            if self.policy.occupancy and need.kind != self._node:
                self._choose_by_occupancy(candidates, count)
            else:
                candidates.choose(count, self.policy.is_high)
        return True

    def _choose_by_occupancy(self, candidates: Candidates, wanted: int) -> None:
        """Slots, or what else lies in nodes, node by node. ``pack``: the fullest node that holds
        the rest, else the roomiest one; ``spread``: one to each node, the emptiest first, in
        rounds."""
        block_of = self.graph.block_of
        places = [{block_of[v] for v, _ in one.edges} for one in candidates.members]
        if any(len(blocks) != 1 or -1 in blocks for blocks in places):
            candidates.choose(wanted, self.policy.is_high)  # racks, or slots of several nodes
            return
        by_block: dict[int, list[Candidate]] = {}
        for member in candidates.members:
            by_block.setdefault(block_of[member.edges[0][0]], []).append(member)
        left = sorted(
            (sorted(members, key=_score) for members in by_block.values()),
            key=lambda members: self._emptiness_after(members[0].edges[0][0], members[:1]),
        )
        chosen: list[Candidate] = []
        rest = wanted
        if self.policy.occupancy < 0:
            rounds = max(map(len, left))
            in_turn = [one[i] for i in range(rounds) for one in left if i < len(one)]
            left = [in_turn]
        while rest > 0:
            fitting = next((one for one in left if _units(one) >= rest), None)
            # max keeps the first of equals: the fullest among the roomiest.
            members = max(left, key=_units) if fitting is None else fitting
            left.remove(members)
            for member in members:
                if rest > 0:
                    chosen.append(member)
                    rest -= member.count
        taken = set(map(id, chosen))
        rest_of_them = [one for one in candidates.members if id(one) not in taken]
        candidates.members = [*chosen, *rest_of_them]
        candidates.wanted, candidates.chosen = wanted, len(chosen)

    def _mark(self, chooser: int, found: Found) -> None:
        parent = self.graph.parent
        for kind in sorted(found):
            candidates = found[kind]
            self._take_shares(kind, candidates)
            for candidate in candidates.members[: candidates.chosen]:
                for v, is_exclusive in candidate.edges:
                    self.marks[v] = is_exclusive and kind not in self._pools
                    # A slot may lie one unnamed level lower (node -> slot -> core on a graph with
                    # sockets). Fluxion finds it there and then cannot book it; here it is shared.
                    above = parent[v]
                    while above != chooser:
                        self.marks.setdefault(above, False)
                        above = parent[above]

    def _take_shares(self, kind: int, candidates: Candidates) -> None:
        """Note what the chosen candidates take of consumable pools."""
        if not self._pools:
            return
        left = candidates.wanted
        for candidate in candidates.members[: candidates.chosen]:
            for v, units in candidate.shares:
                self.shares[v] = self.shares.get(v, 0) + units
            if kind in self._pools:
                v, is_exclusive = candidate.edges[0]
                if is_exclusive:
                    self.shares[v] = self.shares.get(v, 0) + min(left, candidate.count)
                left -= candidate.count

    def _choose_at_top(self, found: Found, root_count: int) -> bool:
        needs = self.request.needs
        if not self._choose(needs, found):
            return False
        kinds, parent = self.graph.type_of, self.graph.parent
        for need in needs:
            if need.kind == kinds[0] and not need.count.largest_within(root_count):
                return False
        # Levels that the request passed through are shared, up to the root.
        for kind in sorted(found):
            candidates = found[kind]
            self._take_shares(kind, candidates)
            for candidate in candidates.members[: candidates.chosen]:
                if candidate.is_root:
                    continue
                for v, is_exclusive in candidate.edges:
                    self.marks[v] = is_exclusive and kind not in self._pools
                    above = parent[v]
                    while above > 0 and above not in self.marks:
                        same = found.get(kinds[above])
                        if same is not None and not same.chosen:
                            self.marks[above] = False
                        above = parent[above]
        return True


class _PoolTaker:
    """Takes one slot's share after another out of pools, the best pool first."""

    def __init__(self, members: list[Candidate]) -> None:
        self._members = members
        self._position = 0
        self._left = members[0].count if members else 0

    def take(self, count: int, edges: list[Edge], shares: list[Share]) -> int:
        """Take ``count`` units that are known to be there; returns the first pool's score, so
        that a slot that needs two pools is not worth twice."""
        while not self._left:
            self._next()
        score = self._members[self._position].score
        while count:
            if not self._left:
                self._next()
            units = min(count, self._left)
            v = self._members[self._position].edges[0][0]
            edges.append((v, False))
            shares.append((v, units))
            self._left -= units
            count -= units
        return score

    def _next(self) -> None:
        self._position += 1
        self._left = self._members[self._position].count


def _merge(into: Found, found: Found) -> None:
    for kind, candidates in found.items():
        known = into.get(kind)
        if known is None:
            into[kind] = candidates
        else:
            known.members.extend(candidates.members)
            known.total += candidates.total


_AMBIGUOUS = Need.__new__(Need)
"""Two needs of one type, or two slots, on one level: Fluxion's simple traverser has no answer."""
