"""Questions that matching does not need: what is in use, what has been lost.

Called by the cycle, the forecast and the worker's plans; changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.ledger.table import Matrix
from fluxqueue.graph.ledger.timeline import widen
from fluxqueue.graph.match.shares.shares_matcher import SharesMatcher


@dataclass(frozen=True, slots=True)
class Room:
    """What each usable node has for us in all, whatever of it is booked; names by row."""

    names: tuple[str, ...]
    amounts: Matrix


def rows_in_use(matcher: SharesMatcher, placement: Placement) -> list[int]:
    """Rows on which ``placement`` does not fit beside what is there now."""
    hold = matcher.compile(placement)
    free = matcher.now.free[hold.rows]
    is_short = ((free < hold.takes) & (hold.takes > 0)).any(axis=1)
    return [int(row) for row in hold.rows[is_short]]


def is_open(matcher: SharesMatcher, placement: Placement, now: int) -> bool:
    """Tell whether a start planned earlier is still possible beside everything known now."""
    hold = matcher.compile(placement)
    if placement.starts_at < now or not matcher.masks.usable()[hold.rows].all():
        return False
    matcher.look(now)
    free = matcher.free_during(hold.rows, placement.starts_at, placement.until)
    return bool(((free >= hold.takes) | (hold.takes == 0)).all())


def room(matcher: SharesMatcher) -> Room:
    """What there is now."""
    amounts = (matcher.capacity - matcher.foreign) * matcher.masks.usable()[:, None]
    return Room(tuple(matcher.names), amounts)


def lost_room(matcher: SharesMatcher, before: Room) -> list[str]:
    """Nodes with less room than they had ``before``."""
    now = room(matcher)
    size = len(before.names)
    less = now.amounts[:size] < widen(before.amounts, now.amounts.shape[1])
    is_other = np.array(
        [old != new for old, new in zip(before.names, now.names, strict=False)], dtype=np.bool_
    )
    had_any = (before.amounts > 0).any(axis=1)
    lost = less.any(axis=1) | (is_other & had_any)
    return [before.names[row] for row in np.flatnonzero(lost)]


def unusable(matcher: SharesMatcher) -> list[str]:
    """Nodes that are gone, down or cordoned, as far as anything is known of them."""
    usable = matcher.masks.usable()
    return [name for name, row in matcher.rows.items() if not usable[row]]


def permanent_use(matcher: SharesMatcher) -> Matrix:
    """What pods of others use that end with their node only: no waiting helps against them."""
    used = np.zeros_like(matcher.foreign)
    for node, others in matcher.others.items():
        for name, amount in others.permanent.items():
            used[matcher.rows[node], matcher.columns[name]] = amount
    return used
