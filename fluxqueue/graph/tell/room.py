"""Questions that matching does not need: what is in use, what has been lost.

The cycle, the forecast and the worker's plans call it. It changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fluxqueue.graph.arrays import Matrix
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.ledger.timeline import widen


@dataclass(frozen=True, slots=True)
class Room:
    """The capacity of each usable node for our jobs, whatever is booked. Names are by row."""

    names: tuple[str, ...]
    amounts: Matrix


def rows_in_use(ledger: ShareLedger, placement: Placement) -> list[int]:
    """Return the rows on which ``placement`` does not fit beside what is there now."""
    hold = ledger.compile(placement)
    free = ledger.now.free[hold.rows]
    is_short = ((free < hold.takes) & (hold.takes > 0)).any(axis=1)
    return [int(row) for row in hold.rows[is_short]]


def is_open(ledger: ShareLedger, placement: Placement, now: int) -> bool:
    """Return whether a start planned earlier is still possible with everything known now."""
    hold = ledger.compile(placement)
    if hold.starts_at < now or not ledger.masks.usable()[hold.rows].all():
        return False
    ledger.look(now)
    free = ledger.free_during(hold.rows, hold.starts_at, hold.until)
    return bool(((free >= hold.takes) | (hold.takes == 0)).all())


def room(ledger: ShareLedger) -> Room:
    """Return the capacity now."""
    amounts = (ledger.capacity - ledger.foreign) * ledger.masks.usable()[:, None]
    return Room(tuple(ledger.names), amounts)


def lost_room(ledger: ShareLedger, before: Room) -> list[str]:
    """Return the nodes with less capacity than they had ``before``."""
    now = room(ledger)
    size = len(before.names)
    less = now.amounts[:size] < widen(before.amounts, now.amounts.shape[1])
    is_other = np.array(
        [old != new for old, new in zip(before.names, now.names, strict=False)], dtype=np.bool_
    )
    had_any = (before.amounts > 0).any(axis=1)
    lost = less.any(axis=1) | (is_other & had_any)
    return [before.names[row] for row in np.flatnonzero(lost)]


def unusable(ledger: ShareLedger) -> list[str]:
    """Return the known nodes that are removed, down or cordoned."""
    usable = ledger.masks.usable()
    return [name for name, row in ledger.rows.items() if not usable[row]]


def permanent_use(ledger: ShareLedger) -> Matrix:
    """Return what unmanaged pods use that end only with their node.

    Waiting does not help against these.
    """
    used = np.zeros_like(ledger.foreign)
    for node, others in ledger.others.items():
        for name, amount in others.permanent.items():
            # A port that no job asks for has no column, and a claim has none at all.
            if name in ledger.columns:
                used[ledger.rows[node], ledger.columns[name]] = amount
    return used
