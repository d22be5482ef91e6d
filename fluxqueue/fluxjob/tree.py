"""The tree that levels make of the nodes: its places, and how many nodes each level places.

The displays of a cluster's levels call it: ``fluxqueue graph`` and the FluxQueues' status. Pure.
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
    """One level of a cluster in numbers.

    ``places`` counts a name once below each place above. ``nodes`` are those with a place in this
    level. ``unknown`` are those without a label for it.
    """

    level: Level
    places: int
    nodes: int
    unknown: int

    def to_json(self) -> dict[str, object]:
        """Return the form that objects and rows show."""
        return {
            "name": self.level.name,
            "labels": list(self.level.labels),
            "places": self.places,
            "nodes": self.nodes,
            "unknownNodes": self.unknown,
        }


Path: TypeAlias = tuple[str | None, ...]
"""A place in each level, top first. None: unknown."""


def count_levels(levels: Sequence[Level], nodes: Sequence[NodeFact]) -> list[LevelCount]:
    """Count places and nodes of every configured level, top first."""
    return count_paths(levels, Counter(path_of(levels, node.labels) for node in nodes))


def count_paths(levels: Sequence[Level], nodes: Mapping[Path, int]) -> list[LevelCount]:
    """Count places and nodes of every level, from the number of nodes at each path."""
    total = sum(nodes.values())
    found = []
    for depth, level in enumerate(levels):
        known = {path: count for path, count in nodes.items() if path[depth] is not None}
        places = {path[: depth + 1] for path in known}
        there = sum(known.values())
        found.append(LevelCount(level, len(places), there, total - there))
    return found
