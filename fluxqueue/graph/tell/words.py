"""Requests in words: what one unit takes, and what the request wants of each level.

``never`` and ``waiting`` share it.
"""

from __future__ import annotations

from collections.abc import Sequence

from fluxqueue.fluxjob.request import describe
from fluxqueue.graph.match.shares.ask import Ask, Group, Leaf, Part

LEVEL_LABEL_SEPARATOR = "/"


def units(leaf: Leaf, count: int, *, free: bool = False) -> str:
    """Return ``4 nodes with 8 cpu``, ``4 slots of 8 cpu`` or ``4 free nodes with 8 cpu``."""
    what, word = describe(dict(leaf.needs)), "free " if free else ""
    if leaf.is_distinct:
        return f"{count} {word}{'node' if count == 1 else 'nodes'} with {what}"
    return f"{count} {word}{'slot' if count == 1 else 'slots'} of {what}"


def level_word(level: str) -> str:
    """Return the common name of a level: the last part of a label."""
    return level.rpartition(LEVEL_LABEL_SEPARATOR)[2]


def several(level: str, count: int) -> str:
    """Return ``1 rack`` or ``3 racks``."""
    word = level_word(level)
    return f"{count} {word}" if count == 1 else f"{count} {word}s"


def contents(parts: Sequence[Part], *, free: bool = False) -> str:
    """Return what one vertex must hold, in words.

    Examples are ``4 nodes with 8 cpu`` and ``2 racks with 4 nodes with 8 cpu``.
    """
    return " and ".join(
        units(part, part.count, free=free)
        if isinstance(part, Leaf)
        else f"{several(part.level, part.count)} with {contents(part.below, free=free)}"
        for part in parts
    )


def too_few_places(group: Group, good: int, there: int, *, free: bool = False) -> str:
    """Return ``2 racks of 8 have 4 free nodes with 8 cpu; 3 are needed``."""
    what = contents(group.below, free=free)
    if not there:
        return f"no node says in which {level_word(group.level)} it stands"
    if not good:
        head = f"none of {several(group.level, there)} has {what}"
        return head if group.count == 1 else f"{head}; {group.count} are needed"
    have = "has" if good == 1 else "have"
    return f"{several(group.level, good)} of {there} {have} {what}; {group.count} are needed"


def only_level(ask: Ask) -> str | None:
    """Return the level of which one vertex must hold everything, or None."""
    level = None
    parts = ask.parts
    while len(parts) == 1 and isinstance(parts[0], Group) and parts[0].count == 1:
        level, parts = parts[0].level, parts[0].below
    return level
