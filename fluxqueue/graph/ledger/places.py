"""Places: the racks, zones and so on that nodes stand in, kept up to date with the nodes.

A place of a configured level is known by its whole path. So racks of the same name in two zones are
two racks. A node without the level's label has no known place, so no job may rely on it sharing a
rack with another node. A node label that belongs to no configured level makes a flat level of its
own. The ledger uses places and changes them row by row.
"""

from __future__ import annotations

import heapq
from collections.abc import Mapping, Sequence
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

from fluxqueue.fluxjob.levels import Level
from fluxqueue.fluxjob.node import TOPOLOGY_PREFIX, NodeFact
from fluxqueue.graph.arrays import Vector

Path: TypeAlias = tuple[str, ...]

NOWHERE = -1
"""The place of a node without the level's label."""


class Places:
    """All places of one level.

    ``ids`` has the place of each row, or ``NOWHERE``. ``paths`` has the name of each place with
    those above it. None marks a number that is free for reuse. ``version`` changes with ``ids``.
    """

    def __init__(self, levels: Sequence[Level], size: int) -> None:
        self.levels = tuple(levels)
        self.ids: Vector = np.full(size, NOWHERE, dtype=np.int64)
        self.paths: list[Path | None] = []
        self.version = 0
        self._id_of: dict[Path, int] = {}
        self._members: list[set[int]] = []
        self._arrays: dict[int, Vector] = {}
        self._vacant: list[int] = []
        self._ranks: tuple[int, Vector] | None = None
        self._above: dict[Places, tuple[int, int, Vector]] = {}

    @property
    def name(self) -> str:
        return self.levels[-1].name

    def __len__(self) -> int:
        return len(self.paths)

    def path_of(self, fact: NodeFact) -> Path | None:
        """Return where a node stands: names from the top down, "" for an unknown one.

        None means that the node has no label of this level.
        """
        own = self.levels[-1].place(fact.labels)
        if own is None:
            return None
        above = tuple(level.place(fact.labels) or "" for level in self.levels[:-1])
        return (*above, own)

    def grow(self, size: int) -> None:
        """Make space for rows up to ``size``."""
        more = size - len(self.ids)
        self.ids = np.pad(self.ids, (0, more), constant_values=NOWHERE)
        self.version += 1

    def set(self, row: int, fact: NodeFact | None) -> None:
        """Set the node of ``row``, or None if the node was removed."""
        path = None if fact is None else self.path_of(fact)
        old = int(self.ids[row])
        new = NOWHERE if path is None else self._id_of.get(path, len(self.paths))
        if old == new:
            return
        self.version += 1
        if path is not None:
            new = self._add(path)
            self._members[new].add(row)
            self._arrays.pop(new, None)
        self.ids[row] = new
        if old != NOWHERE:
            self._leave(old, row)

    def _add(self, path: Path) -> int:
        known = self._id_of.get(path)
        if known is not None:
            return known
        if self._vacant:
            number = heapq.heappop(self._vacant)
            self.paths[number] = path
        else:
            number = len(self.paths)
            self.paths.append(path)
            self._members.append(set())
        self._id_of[path] = number
        return number

    def _leave(self, place: int, row: int) -> None:
        self._members[place].discard(row)
        self._arrays.pop(place, None)
        if not self._members[place]:
            path = self.paths[place]
            assert path is not None
            del self._id_of[path]
            self.paths[place] = None
            heapq.heappush(self._vacant, place)

    def members(self, place: int) -> Vector:
        """Return the rows of one place, ascending."""
        found = self._arrays.get(place)
        if found is None:
            found = np.array(sorted(self._members[place]), dtype=np.int64)
            self._arrays[place] = found
        return found

    def ranks(self) -> Vector:
        """Return the position of each place in the order of paths."""
        if self._ranks is None or self._ranks[0] != self.version:
            order = sorted(range(len(self.paths)), key=lambda i: self.paths[i] or ())
            ranks = np.empty(len(order), dtype=np.int64)
            ranks[order] = np.arange(len(order))
            self._ranks = self.version, ranks
        return self._ranks[1]

    def above(self, upper: Places) -> Vector:
        """Return the place of ``upper`` that each place lies in, or ``NOWHERE``."""
        known = self._above.get(upper)
        if known is None or known[:2] != (self.version, upper.version):
            depth = len(upper.levels)
            found = np.array(
                [
                    NOWHERE if path is None else upper._id_of.get(path[:depth], NOWHERE)
                    for path in self.paths
                ],
                dtype=np.int64,
            )
            known = self._above[upper] = self.version, upper.version, found
        return known[2]

    def sums(self, values: npt.NDArray[np.int64]) -> Vector:
        """Return ``values`` (by row) summed up by place. Rows without a place are left out."""
        counted = np.bincount(self.ids + 1, weights=values, minlength=len(self.paths) + 1)
        return counted[1:].astype(np.int64)

    def add_at(self, sums: Vector, rows: Vector, changes: Vector) -> None:
        """Correct ``sums`` for changes of some rows."""
        ids = self.ids[rows]
        known = ids != NOWHERE
        np.add.at(sums, ids[known], changes[known])


class Topology:
    """The places of every level that was asked for."""

    def __init__(self, levels: Sequence[Level]) -> None:
        self.levels = tuple(levels)
        self._by_name: dict[str, int] = {}
        for index, level in enumerate(self.levels):
            for word in (level.name, *level.labels):
                self._by_name.setdefault(word, index)
        self._places: dict[int | str, Places] = {}

    def depth(self, word: str) -> int | None:
        """Return which configured level ``word`` means, from the top, or None for a label."""
        return self._by_name.get(word)

    def places(self, word: str, facts: Sequence[NodeFact | None]) -> Places:
        """Return the places of the level called ``word``, or grouped by the node label ``word``."""
        depth = self.depth(word)
        key: int | str = word if depth is None else depth
        known = self._places.get(key)
        if known is None:
            labels = (word,) if "/" in word else (word, TOPOLOGY_PREFIX + word)
            chain = (Level(word, labels),) if depth is None else self.levels[: depth + 1]
            known = self._places[key] = Places(chain, len(facts))
            for row, fact in enumerate(facts):
                known.set(row, fact)
        return known

    def path_of(self, labels: Mapping[str, str]) -> Path:
        """Return a node's place in all configured levels."""
        return tuple(level.place(labels) or "" for level in self.levels)

    def grow(self, size: int) -> None:
        """Make space for rows up to ``size``."""
        for places in self._places.values():
            places.grow(size)

    def set(self, row: int, fact: NodeFact | None) -> None:
        """Set the node of ``row``, or None if the node was removed."""
        for places in self._places.values():
            places.set(row, fact)
