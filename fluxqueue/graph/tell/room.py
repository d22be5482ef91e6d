"""Questions that matching does not need: what is in use, what has been lost.

Called by the cycle, the forecast and the worker's plans; changes nothing.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.ledger.timeline import widen
from fluxqueue.graph.model.arrays import Matrix


@dataclass(frozen=True, slots=True)
class Room:
    """What each usable node has for us in all, whatever of it is booked; names by row."""

    names: tuple[str, ...]
    amounts: Matrix


def rows_in_use(ledger: ShareLedger, placement: Placement) -> list[int]:
    """Rows on which ``placement`` does not fit beside what is there now."""
    hold = ledger.compile(placement)
    free = ledger.now.free[hold.rows]
    is_short = ((free < hold.takes) & (hold.takes > 0)).any(axis=1)
    return [int(row) for row in hold.rows[is_short]]


def is_open(ledger: ShareLedger, placement: Placement, now: int) -> bool:
    """Tell whether a start planned earlier is still possible beside everything known now."""
    hold = ledger.compile(placement)
    if placement.starts_at < now or not ledger.masks.usable()[hold.rows].all():
        return False
    ledger.look(now)
    free = ledger.free_during(hold.rows, placement.starts_at, placement.until)
    return bool(((free >= hold.takes) | (hold.takes == 0)).all())


def room(ledger: ShareLedger) -> Room:
    """What there is now."""
    amounts = (ledger.capacity - ledger.foreign) * ledger.masks.usable()[:, None]
    return Room(tuple(ledger.names), amounts)


def lost_room(ledger: ShareLedger, before: Room) -> list[str]:
    """Nodes with less room than they had ``before``."""
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
    """Nodes that are gone, down or cordoned, as far as anything is known of them."""
    usable = ledger.masks.usable()
    return [name for name, row in ledger.rows.items() if not usable[row]]


def permanent_use(ledger: ShareLedger) -> Matrix:
    """What pods of others use that end with their node only: no waiting helps against them."""
    used = np.zeros_like(ledger.foreign)
    for node, others in ledger.others.items():
        for name, amount in others.permanent.items():
            used[ledger.rows[node], ledger.columns[name]] = amount
    return used
