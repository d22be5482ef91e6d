"""Scores of a walk: which of several vertices a policy prefers.

Low scores are better, or high ones if the policy says so. ``pack`` and ``spread`` compare how empty
nodes are with the request on them. On a cluster's graph, places are compared by how empty they are.
Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

from fluxion.match.compiled_request import Need
from fluxion.match.walk.candidates import Found, Share, WalkCandidate
from fluxion.match.walk.vertex_check import VertexCheck
from fluxion.model.shapes import BlockClass
from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.match.policy import NODE_FACTOR

FACTOR_SHIFT = 44
"""A node's factor is 2^44 if the result must not depend on the node."""
TIES = 1 << 32
"""Number of ids that can be distinguished among equally full nodes."""


class Scoring(VertexCheck):
    """The scores of what has been found. ``marks`` are the vertices chosen so far."""

    def _score_of(self, v: int, needs: Sequence[Need], found: Found) -> int:
        """Return the score of a vertex among others of its type.

        Low is better, or high if the policy says so.
        """
        if self.is_cluster and v and self.graph.block_of[v] < 0:
            return self._place_score(v)
        if self.policy.occupancy and self.graph.type_of[v] == self._node:
            named = {c.kind for need in needs if need.kind == self._node for c in need.children}
            taken = [
                member
                for kind in named
                if kind in found
                for member in found[kind].members[: found[kind].chosen]
            ]
            return self._emptiness_after(v, taken)
        return self._score + self.graph.id[v] + 2

    def _place_score(self, v: int) -> int:
        """Return the score of a cluster's place.

        The fullest places come first (``spread``: the emptiest), then those with the lowest number.
        """
        graph, window = self.graph, self.window
        free = 0
        for number in {graph.block_of[u] for u in graph.subtree(v)} - {-1}:
            base = graph.blocks[number].base
            if window.ignores_status or base not in graph.down:
                booked = self.state.block_masks(number, window.start, window.end)[0]
                free += self._free_share(number, booked)
        score = (-free if self.policy.occupancy < 0 else free) * TIES + graph.id[v]
        return -score if self.policy.is_high else score

    def _emptiness_after(self, v: int, taken: Sequence[WalkCandidate]) -> int:
        """Return how empty the block of ``v`` is with these candidates in it.

        Equally empty blocks are ordered by id, the lower first. ``pack`` and ``spread`` sort nodes
        by it.
        """
        graph, window = self.graph, self.window
        number = graph.block_of[v]
        if number < 0:
            return 0
        block = graph.blocks[number]
        booked = self.state.block_masks(number, window.start, window.end)[0]
        shares: list[tuple[int, int]] = []
        if self._beside is not None:
            booked |= self._beside.blocks.get(number, (0, 0))[0]
            there = range(block.base, graph.end[block.base])
            shares += [(u - block.base, n) for u, n in self._beside.shares.items() if u in there]
        for candidate in taken:
            for u, is_exclusive in candidate.edges:
                if is_exclusive and graph.type_of[u] not in self._pools:
                    booked |= self._held_bits(u, block.base, block.shape)
            shares += [(u - block.base, units) for u, units in candidate.shares]
        free = self._free_share(number, booked, shares)
        return self.policy.occupancy * free * TIES + min(max(graph.id[block.base], 0), TIES - 1)

    def _first_key(self, v: int) -> tuple[bool, int, int]:
        """Return the key by which ``first`` sorts a cluster's nodes.

        Unused nodes come first, then those with the most free cpu, then those with the highest id.
        """
        graph = self.graph
        base = graph.blocks[graph.block_of[v]].base
        is_touched = self._occupation(base)[1]
        cpu = graph.type_number.get(CPU)
        free = 0
        for u in range(base + 1, graph.end[base]) if is_touched else ():
            if graph.type_of[u] == cpu:
                free += max(0, graph.size[u] - self._units_used(u))
        return is_touched, -free, -graph.id[base]

    def _free_share(self, number: int, booked: int, taken: Sequence[Share] = ()) -> int:
        window = self.window
        return self.state.free_share(
            number, booked, window.start, window.end, taken, is_alone=window.ignores_status
        )

    def _factor(self, v: int) -> int:
        """Return what a node adds to the scores below it (``score_factor_t::calc_factor``)."""
        if self.policy.occupancy:
            return 1 << FACTOR_SHIFT  # A node is chosen by how empty it is.
        tie = abs(self.graph.uniq_id[v] % NODE_FACTOR - 1)
        return (self.graph.id[v] + 2) * NODE_FACTOR + tie

    def _held_bits(self, u: int, base: int, shape: BlockClass, *, is_own: bool = True) -> int:
        """Return the bits that taking ``u`` holds.

        They are itself and what was chosen below, or all below if its type is exclusive.
        """
        if self.graph.type_of[u] in self._exclusive_kinds:
            return shape.below(u - base)
        bits = 1 << (u - base) if is_own else 0
        for child in self.graph.children.get(u, ()):
            if child in self.marks:
                bits |= self._held_bits(child, base, shape, is_own=self.marks[child])
        return bits
