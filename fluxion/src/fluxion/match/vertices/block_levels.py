"""Requests that name levels above the nodes, such as ``rack[1] -> node[4] -> slot``.

Tables answer them. The rows of ``block_table`` say how many units the nodes of a rack offer, for
the part of the request below the last level. The same rows answer requests for nodes alone. Among
racks the choice is that of the reference walk: those that hold enough, by their own id, or in the
order of exploration for the ``first`` policies. ``FastSelector`` calls it. Pure.
"""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

from fluxion.ledger.booking import Booking
from fluxion.match.compiled_request import Need
from fluxion.match.vertices.block_table import BlockTable, Pick
from fluxion.model.store import ResourceGraph

Members = npt.NDArray[np.int64]


def levels_of(graph: ResourceGraph, needs: tuple[Need, ...]) -> tuple[Need, ...] | None:
    """Return the levels above the nodes that a request names, from the top.

    None means that the tables cannot answer. This is so for exclusive levels, several things on one
    level, levels nested in each other, and levels with nodes and further levels side by side.
    """
    kinds = {graph.type_of[v] for v in graph.tops}
    found: list[Need] = []
    while len(needs) == 1 and needs[0].kind in kinds:
        if needs[0].is_exclusive is not None:
            return None
        found.append(needs[0])
        needs = needs[0].children
    if not found or len(needs) != 1:
        return None
    named = [need.kind for need in found]
    if len(set(named)) < len(named) or not _is_layered(graph, set(named), named[-1]):
        return None
    return tuple(found)


def _is_layered(graph: ResourceGraph, named: set[int], last: int) -> bool:
    kinds, parent, block_of = graph.type_of, graph.parent, graph.block_of
    for v in graph.tops:
        if kinds[v] not in named:
            continue
        if kinds[v] == last and any(block_of[c] < 0 for c in graph.children.get(v, ())):
            return False
        above = parent[v]
        while above >= 0:
            if kinds[above] == kinds[v]:
                return False
            above = parent[above]
    return True


class LevelMap:
    """The places of the levels in one version of a graph, kept between matches."""

    def __init__(self, graph: ResourceGraph, levels: tuple[Need, ...]) -> None:
        self.graph, self.levels = graph, levels
        self.version = graph.version
        self.first = self._vertices_of(levels[0].kind)
        self._members: dict[int, Members] = {}

    def _vertices_of(self, kind: int) -> list[int]:
        """Return the topmost vertices of a type, in the order of a walk."""
        graph = self.graph
        found: list[int] = []
        stack = [0]
        while stack:
            v = stack.pop()
            if graph.type_of[v] == kind:
                found.append(v)
            elif graph.block_of[v] < 0:
                stack.extend(reversed(graph.children.get(v, ())))
        return found

    def members(self, v: int) -> Members:
        """Return the blocks directly below ``v``, ascending."""
        found = self._members.get(v)
        if found is None:
            block_of = self.graph.block_of
            below = [block_of[c] for c in self.graph.children.get(v, ())]
            found = self._members[v] = np.asarray(below, dtype=np.int64)
        return found


class LevelChoice:
    """One choice: the vertices of each level, then the blocks below the last level."""

    def __init__(self, table: BlockTable, level_map: LevelMap) -> None:
        self.table, self.map = table, level_map
        self.graph, self.levels = table.graph, level_map.levels
        self.policy = table.plan.policy
        self._holds: dict[int, bool] = {}

    def choose(self) -> Booking | None:
        """Return the booking without job and time, or None if the first level does not suffice."""
        need = self.levels[0]
        candidates: list[int] = []
        if self.policy.stops_early:
            root = self.graph.type_of[0] == need.kind
            if root:
                candidates = [0] if self._is_enough(0, 0) else []
            else:
                self._explore(0, 0, need, candidates)
        else:
            candidates = [v for v in self.map.first if self._is_enough(v, 0)]
        picks = self._choose_among(candidates, 0)
        return None if picks is None else self.table.book(picks)

    def _explore(self, v: int, depth: int, need: Need, found: list[int]) -> int:
        """Collect vertices in order of free resources until there is enough. Return their units.

        The ``first`` policies look in this way.
        """
        graph, total = self.graph, 0
        for child in self.table.order.of(v):
            if graph.block_of[child] >= 0:
                continue
            if graph.type_of[child] == need.kind:
                if not self._is_enough(child, depth):
                    continue
                found.append(child)
                total += graph.size[child]
            elif depth == 0:
                total += self._explore(child, depth, need, found)
            if total >= need.per_share:
                break
        return total

    def _is_enough(self, v: int, depth: int) -> bool:
        """Return whether ``v`` holds what the request wants below it."""
        known = self._holds.get(v)
        if known is None:
            units = self.table.units_below[v]
            if not units:
                known = False
            elif depth + 1 == len(self.levels):
                known = bool(self.table.plan.top.count.largest_within(units))
            else:
                total = sum(self.graph.size[c] for c in self._next(v, depth))
                known = bool(self.levels[depth + 1].count.largest_within(total))
            self._holds[v] = known
        return known

    def _next(self, v: int, depth: int) -> list[int]:
        """Return the vertices of the next level below ``v`` that suffice."""
        graph, kind = self.graph, self.levels[depth + 1].kind
        return [
            c
            for c in graph.children.get(v, ())
            if graph.type_of[c] == kind and self._is_enough(c, depth + 1)
        ]

    def _choose_among(self, candidates: list[int], depth: int) -> list[Pick] | None:
        graph = self.graph
        total = sum(graph.size[v] for v in candidates)
        wanted = self.levels[depth].count.largest_within(total)
        if not wanted:
            return None
        picks: list[Pick] = []
        for v in sorted(candidates, key=graph.id.__getitem__, reverse=self.policy.is_high):
            below = self._choose_below(v, depth)
            if below is None:
                return None
            picks += below
            wanted -= graph.size[v]
            if wanted <= 0:
                break
        return picks

    def _choose_below(self, v: int, depth: int) -> list[Pick] | None:
        if depth + 1 == len(self.levels):
            return self.table.choose_below(v, self.map.members(v))
        if not self.policy.stops_early:
            return self._choose_among(self._next(v, depth), depth + 1)
        found: list[int] = []
        self._explore(v, depth + 1, self.levels[depth + 1], found)
        return self._choose_among(found, depth + 1)
