"""Nodes in the tree that the levels make: which places there are, and who stands where.

For whoever shows a cluster's levels (``fluxqueue graph``, the FluxQueues' status). Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TypeAlias

from fluxqueue.fluxjob.levels import Level, path_of
from fluxqueue.fluxjob.node import NodeFact


@dataclass(frozen=True, slots=True)
class LevelCount:
    """One level of a cluster: its places (a name counts once below each place above), the nodes
    that stand in one, those that the level's labels do not place.
    """

    level: Level
    places: int
    nodes: int
    unknown: int

    def to_json(self) -> dict[str, object]:
        """As objects and rows show it."""
        return {
            "name": self.level.name,
            "labels": list(self.level.labels),
            "places": self.places,
            "nodes": self.nodes,
            "unknownNodes": self.unknown,
        }


Path: TypeAlias = tuple[str | None, ...]
"""A place in each level, top first; None where it is not known."""


def count_levels(levels: Sequence[Level], nodes: Sequence[NodeFact]) -> list[LevelCount]:
    """Count, for every configured level, top first."""
    return count_paths(levels, Counter(path_of(levels, node.labels) for node in nodes))


def count_paths(levels: Sequence[Level], nodes: Mapping[Path, int]) -> list[LevelCount]:
    """The same of the number of nodes at each path."""
    total = sum(nodes.values())
    found = []
    for depth, level in enumerate(levels):
        known = {path: count for path, count in nodes.items() if path[depth] is not None}
        places = {path[: depth + 1] for path in known}
        there = sum(known.values())
        found.append(LevelCount(level, len(places), there, total - there))
    return found
