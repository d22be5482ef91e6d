"""One vertex during a walk: whether the request names it, and whether it can be used.

This is the first part of the walk (``VertexCheck``, ``Scoring``, ``Choosing``, ``Walk``), each a
subclass of the one before. It implements ``test`` and ``prune`` of flux-sched's ``dfu_impl.cpp``.
Pure.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass

from fluxion.ledger.booking import Booking
from fluxion.ledger.vertices import VertexLedger
from fluxion.match.compiled_request import Need, WalkRequest
from fluxqueue.graph.match.policy import Policy

AMBIGUOUS = Need.__new__(Need)
"""Two needs of one type, or two slots, on one level.

Fluxion's simple traverser has no answer for this.
"""


@dataclass(frozen=True, slots=True)
class Window:
    """A time window, and how strictly it is checked.

    ``ignores_status`` counts down vertices as usable (satisfiability). ``is_now`` refuses vertices
    that an overrunning allocation still holds.
    """

    start: int
    end: int
    ignores_status: bool = False
    is_now: bool = False


class VertexCheck:
    """A request in a window, and what is booked of each vertex during it."""

    def __init__(
        self,
        state: VertexLedger,
        request: WalkRequest,
        policy: Policy,
        window: Window,
        constraint: Callable[[int], bool] | None = None,
        *,
        is_cluster: bool = False,
    ) -> None:
        self.is_cluster = is_cluster
        self.state, self.graph = state, state.graph
        self.request, self.policy, self.window = request, policy, window
        self.constraint = constraint
        self.marks: dict[int, bool] = {}
        self.shares: dict[int, int] = {}
        self._beside: Booking | None = None
        self._distinct: set[int] = set()
        self._want_whole(request.exclusive_kinds)
        self.has_conflict = False
        types = self.graph.type_number
        self._node = types["node"]
        self._constrained = {self._node, types["storage_node"]}
        self._slot = types["slot"]
        self._score = 0
        self._base = self._block = -1
        self._booked = self._touched = self._allocated = 0

    def _want_whole(self, kinds: set[int]) -> None:
        """Take these types whole from now on. Shares are taken of the other pools."""
        self._exclusive_kinds = kinds
        self._pools = self.graph.consumable - kinds
        self._whole_pools = self.graph.consumable & kinds

    def _is_wanted_exclusively(self, v: int, needs: Sequence[Need]) -> bool:
        kind = self.graph.type_of[v]
        return any(need.is_exclusive is True and need.kind == kind for need in needs)

    def _test(self, v: int, needs: tuple[Need, ...]) -> tuple[Need | None, Need | None]:
        """Return the slot that applies to the children of ``v``, and the need for ``v``."""
        kind = self.graph.type_of[v]
        slot = match = None
        for need in needs:
            if need.kind == kind or need.is_slot:
                if slot is not None or match is not None:
                    return AMBIGUOUS, None
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

    def _is_usable(self, v: int, needs: Sequence[Need], is_exclusive: bool) -> bool:
        """Return whether ``v`` can be used, as Fluxion's ``prune`` does.

        It checks status, constraint, the vertex's own planner, and exclusivity.
        """
        graph, window = self.graph, self.window
        kind = graph.type_of[v]
        if not window.ignores_status and self._is_down(v):
            return False
        if self.constraint is not None and kind in self._constrained and not self.constraint(v):
            return False
        is_held, is_touched, is_allocated = self._occupation(v)
        if is_held or self._is_taken_by_another_kind(v, needs):
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

    def _is_taken_by_another_kind(self, v: int, needs: Sequence[Need]) -> bool:
        """Return whether another kind of slots has this node. Kinds get different nodes."""
        return v in self._distinct and any(need.kind == self._node for need in needs)

    def _is_down(self, v: int) -> bool:
        """Return whether ``v`` is down.

        A pool that is wanted whole counts as down if unmanaged pods use any of it.
        """
        graph = self.graph
        return v in graph.down or (graph.type_of[v] in self._whole_pools and v in graph.foreign)

    def _units_used(self, v: int) -> int:
        window = self.window
        used = self.state.units_used(v, window.start, window.end, is_now=window.is_now)
        if self._beside is not None:
            used += self._beside.shares.get(v, 0)
        return used if window.ignores_status else used + self.graph.foreign.get(v, 0)

    def _occupation(self, v: int) -> tuple[bool, bool, bool]:
        """Return whether ``v`` is held, touched, and held by an allocation at any time."""
        number = self.graph.block_of[v]
        if number < 0:
            state, start, end = self.state, self.window.start, self.window.end
            tops = {} if self._beside is None else self._beside.tops
            return (
                tops.get(v, False) or state.top_is_held(v, start, end),
                v in tops or state.top_is_touched(v, start, end),
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
            if self._beside is not None:
                mine, shared = self._beside.blocks.get(number, (0, 0))
                self._booked |= mine
                self._touched |= shared
