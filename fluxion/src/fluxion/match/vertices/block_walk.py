"""What a block offers to a request, computed by the reference walk and cached by shape.

``block_table`` calls it. A ``BlockOffer`` does not depend on *which* block it is. Vertices are bits
from the block's root. Scores are a base plus a multiple of the node's own factor. Pure.
"""

from __future__ import annotations

from fluxion.ledger.vertices import Masks, VertexLedger
from fluxion.match.child_order import ChildOrder
from fluxion.match.compiled_request import Need, WalkRequest
from fluxion.match.walk.candidates import Candidates, Found, Share, WalkCandidate
from fluxion.match.walk.scoring import FACTOR_SHIFT
from fluxion.match.walk.traversal import Walk
from fluxion.match.walk.vertex_check import Window
from fluxion.model.shapes import BlockClass
from fluxion.model.store import ResourceGraph
from fluxqueue.graph.match.policy import Policy

MAX_OFFERS = 2048


class BlockOffer:
    """Candidates of one block, best first, as parallel lists.

    The lists are units, score base, factor multiple, booked, touched, and shares of pools.
    ``asked`` is what the best candidate needs, except for taking a node whole.
    """

    __slots__ = ("asked", "bases", "booked", "counts", "multiples", "shares", "touched", "units")

    def __init__(self) -> None:
        self.units = 0
        self.asked: tuple[int, tuple[Share, ...]] = (0, ())
        self.counts: list[int] = []
        self.bases: list[int] = []
        self.multiples: list[int] = []
        self.booked: list[int] = []
        self.touched: list[int] = []
        self.shares: list[tuple[Share, ...]] = []


class BlockPlan:
    """A request under a policy on one graph, with all that is cached for it.

    ``levels`` are the levels above the nodes that it names. The tables answer for what is below.
    """

    def __init__(
        self,
        graph: ResourceGraph,
        request: WalkRequest,
        policy: Policy,
        levels: tuple[Need, ...] = (),
    ) -> None:
        self.graph, self.request, self.policy = graph, request, policy
        self.levels = levels
        self.needs = levels[-1].children if levels else request.needs
        self.top: Need = self.needs[0]
        self.exclusive_kinds = set(request.exclusive_kinds)
        if policy.is_node_exclusive:
            self.exclusive_kinds.add(graph.type_number["node"])
        self.is_for_nodes = self.top.kind == graph.type_number["node"]
        # Pools that the request does not ask for do not change what a block offers to it.
        asked = request.totals.keys() & graph.consumable
        self._pools = frozenset(asked - request.exclusive_kinds)
        self._whole_pools = frozenset(asked & request.exclusive_kinds)
        self.has_pools = bool(asked)
        self._pool_mask: dict[int, tuple[int, ...]] = {}
        self.offers: dict[object, BlockOffer | None] = {}

    def offer(
        self,
        state: VertexLedger,
        order: ChildOrder,
        number: int,
        window: Window,
        masks: Masks,
        down: int,
    ) -> BlockOffer | None:
        """Return what block ``number`` offers while ``masks`` are taken, or None for nothing.

        The caller checks the status and the constraint of the block's root.
        """
        shape = self.graph.blocks[number].shape
        allocated = masks[2] if window.is_now else 0
        inner: tuple[int, ...] = ()
        if self.policy.stops_early and shape.inner:
            inner = _inner_order(self.graph, order, number)
        used = self._used(state, number, window) if self._pools else ()
        if self._whole_pools and self.graph.foreign and not window.ignores_status:
            down |= self._used_by_others(number)
        # Unequal pools make the number of vertices per slot vary. The weight of the node's factor
        # against the ids then varies too, so an offer is valid for its own block only.
        owner = -1 if shape.has_equal_pools else number
        key = (shape.number, masks[0], masks[1], allocated, down, inner, owner, used)
        try:
            return self.offers[key]
        except KeyError:
            pass
        walk = BlockWalk(state, order, self.request, self.policy, window)
        walk.preset(number, (masks[0], masks[1], allocated), down, is_shared=owner < 0)
        walk.used = dict(zip(self._pools_of(shape), used, strict=False))
        offer = self._evaluate(walk, number, shape)
        if len(self.offers) >= MAX_OFFERS:
            self.offers.clear()
        self.offers[key] = offer
        return offer

    def _pools_of(self, shape: BlockClass) -> tuple[int, ...]:
        """Return the pools of a shape that the request takes shares of."""
        found = self._pool_mask.get(shape.number)
        if found is None:
            found = tuple(i for i, kind in enumerate(shape.types) if kind in self._pools)
            self._pool_mask[shape.number] = found
        return found

    def _used(self, state: VertexLedger, number: int, window: Window) -> tuple[int, ...]:
        """Return what is taken of each of those pools during the window, by any pods."""
        block = self.graph.blocks[number]
        foreign = {} if window.ignores_status else self.graph.foreign
        return tuple(
            state.units_used(v, window.start, window.end, is_now=window.is_now) + foreign.get(v, 0)
            for v in (block.base + i for i in self._pools_of(block.shape))
        )

    def _used_by_others(self, number: int) -> int:
        """Return the pools that are wanted whole but used by unmanaged pods. They count as down."""
        block, foreign = self.graph.blocks[number], self.graph.foreign
        return sum(
            1 << i
            for i, kind in enumerate(block.shape.types)
            if kind in self._whole_pools and block.base + i in foreign
        )

    def _evaluate(self, walk: BlockWalk, number: int, shape: BlockClass) -> BlockOffer | None:
        found: Found = {}
        result = walk.visit_block(number, self.needs, not self.levels, found)
        if result is None:
            return None
        base = self.graph.blocks[number].base
        candidates: Candidates | None
        if self.is_for_nodes:
            count, score, is_exclusive = result
            candidates = Candidates()
            own = score - self.graph.id[base]
            candidates.add(WalkCandidate(own, count, ((base, is_exclusive),), False))
        else:
            candidates = found.get(self.top.kind)
        if candidates is None or not candidates.total:
            return None
        offer = BlockOffer()
        offer.units = candidates.total
        candidates.members.sort(key=lambda c: c.score, reverse=self.policy.is_high)
        if self.policy.occupancy:
            best = _MaskMaker(shape, base, walk, set()).of(candidates.members[0])
            offer.asked = best[0], best[2]
        masks = _MaskMaker(shape, base, walk, self.exclusive_kinds)
        for member in candidates.members:
            booked, touched, shares = masks.of(member)
            offer.shares.append(shares)
            offer.counts.append(member.count)
            offer.bases.append(member.score & ((1 << FACTOR_SHIFT) - 1))
            offer.multiples.append(member.score >> FACTOR_SHIFT)
            offer.booked.append(booked)
            offer.touched.append(touched)
        return offer


def _inner_order(graph: ResourceGraph, order: ChildOrder, number: int) -> tuple[int, ...]:
    """Return the weights below a block's root, for policies that explore by weight."""
    weights = order.weights
    block = graph.blocks[number]
    return tuple(weights.get(block.base + i, -1) for i in block.shape.inner)


class _MaskMaker:
    """Turns chosen edges and the marks below them into booked and touched bits, and shares."""

    def __init__(
        self, shape: BlockClass, base: int, walk: BlockWalk, exclusive_kinds: set[int]
    ) -> None:
        self.shape, self.base, self.exclusive_kinds = shape, base, exclusive_kinds
        self.marked: dict[int, list[tuple[int, bool]]] = {}
        self.shares = {v - base: units for v, units in walk.shares.items()}
        for v, is_exclusive in walk.marks.items():
            i = v - base
            self.marked.setdefault(shape.parents[i], []).append((i, is_exclusive))

    def of(self, candidate: WalkCandidate) -> tuple[int, int, tuple[Share, ...]]:
        booked = touched = 0
        shape = self.shape
        units = {v - self.base: taken for v, taken in candidate.shares}
        for v, is_exclusive in candidate.edges:
            i = v - self.base
            mine, shared = self._below(i, is_exclusive, units)
            above = shape.parents[i]
            while above >= 0:
                shared |= 1 << above
                if shape.types[above] in self.exclusive_kinds:
                    mine |= shape.below(above)
                    shared |= shape.below(above)
                above = shape.parents[above]
            if mine or units:
                booked |= mine
                touched |= shared
        return booked, touched, tuple((i, n) for i, n in units.items() if not booked >> i & 1)

    def _below(self, i: int, is_exclusive: bool, units: dict[int, int]) -> tuple[int, int]:
        """Return the bits below ``i``. Shares found there are added to ``units``."""
        shape = self.shape
        if shape.types[i] in self.exclusive_kinds:
            return shape.below(i), shape.below(i)
        booked = touched = 1 << i if is_exclusive else 0
        if i in self.shares and not is_exclusive:
            units[i] = self.shares[i]
        if i in units:
            touched |= 1 << i
        for child, is_child_exclusive in self.marked.get(i, ()):
            mine, shared = self._below(child, is_child_exclusive, units)
            booked |= mine
            touched |= shared
        if touched:
            touched |= 1 << i
        return booked, touched


class BlockWalk(Walk):
    """The reference walk inside one block, with given masks and a shortcut for leaves."""

    def preset(self, number: int, masks: Masks, down: int, *, is_shared: bool) -> None:
        """Use ``masks`` instead of reading the state.

        ``is_shared``: the result must not depend on which block it is, so the node's factor becomes
        a power of two.
        """
        self._block = number
        self._base = self.graph.blocks[number].base
        self._booked, self._touched, self._allocated = masks
        self._down = down
        self._is_shared = is_shared
        self.used: dict[int, int] = {}

    def _factor(self, v: int) -> int:
        if v == self._base and self._is_shared:
            return 1 << FACTOR_SHIFT
        return super()._factor(v)

    def _units_used(self, v: int) -> int:
        return self.used.get(v - self._base, 0)

    def _is_down(self, v: int) -> bool:
        return bool(self._down >> (v - self._base) & 1)

    def _explore(
        self,
        v: int,
        needs: tuple[Need, ...],
        is_pristine: bool,
        is_exclusive: bool,
        shares: int,
        found: Found,
    ) -> None:
        if (
            is_pristine
            or len(needs) != 1
            or needs[0].children
            or needs[0].is_slot
            or needs[0].is_exclusive is False
        ):
            super()._explore(v, needs, is_pristine, is_exclusive, shares, found)
            return
        self._explore_leaves(v, needs[0], is_exclusive, shares, found)

    def _explore_leaves(
        self, v: int, need: Need, is_exclusive: bool, shares: int, found: Found
    ) -> None:
        """Explore children of one type that needs nothing below it. No visit is needed."""
        shape = self.graph.blocks[self._block].shape
        taken = self._booked | self._down
        is_exclusive = is_exclusive or need.is_exclusive is True
        is_pool = need.kind in self._pools
        if is_exclusive and not is_pool:
            taken |= self._touched | (self._allocated if self.window.is_now else 0)
        base, kind, score = self._base, need.kind, self._score + 2
        candidates = Candidates()
        children = (
            [c - base for c in self.order.of(v)]
            if self.policy.stops_early
            else shape.children[v - base]
        )
        wanted = shares if self.policy.stops_early and need.per_share else 0
        collected = complete = 0
        ids, sizes, types = shape.ids, shape.sizes, shape.types
        for i in children:
            if types[i] != kind or taken >> i & 1:
                continue
            size = sizes[i]
            if is_pool:
                size -= self.used.get(i, 0)
                if size <= 0:
                    continue
            candidates.members.append(
                WalkCandidate(score + ids[i], size, ((base + i, is_exclusive),), False)
            )
            candidates.total += size
            if wanted:
                collected += size
                if collected >= need.per_share:
                    more = collected // need.per_share if is_pool else 1
                    complete += more
                    collected = collected - more * need.per_share if is_pool else 0
                    if complete >= wanted:
                        break
        if candidates.members:
            found[kind] = candidates
