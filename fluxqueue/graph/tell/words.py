"""Requests in words: what a unit of one takes, and what it wants of each level.

Shared by ``never`` and ``waiting``.
"""

from __future__ import annotations

from collections.abc import Sequence

from fluxqueue.fluxjob.request import describe
from fluxqueue.graph.match.shares.ask import Ask, Group, Leaf, Part

LEVEL_LABEL_SEPARATOR = "/"


def units(leaf: Leaf, count: int) -> str:
    """``4 nodes with 8 cpu``, ``4 slots of 8 cpu``."""
    what = describe(dict(leaf.needs))
    if leaf.is_distinct:
        return f"{count} {'node' if count == 1 else 'nodes'} with {what}"
    return f"{count} slots of {what}"


def level_word(level: str) -> str:
    """A level as people call it: the last part of a label."""
    return level.rpartition(LEVEL_LABEL_SEPARATOR)[2]


def several(level: str, count: int) -> str:
    """``1 rack``, ``3 racks``."""
    word = level_word(level)
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def contents(parts: Sequence[Part]) -> str:
    """What one vertex must hold: ``4 nodes with 8 cpu``, ``2 racks with 4 nodes with 8 cpu``."""
    return " and ".join(
        units(part, part.count)
        if isinstance(part, Leaf)
        else f"{several(part.level, part.count)} with {contents(part.below)}"
        for part in parts
    )


def only_level(ask: Ask) -> str | None:
    """The level of which one vertex must hold everything; None where there is no such."""
    level = None
    parts = ask.parts
    while len(parts) == 1 and isinstance(parts[0], Group) and parts[0].count == 1:
        level, parts = parts[0].level, parts[0].below
    return level
