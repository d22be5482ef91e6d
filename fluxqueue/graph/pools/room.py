"""Questions about a pool set that matching does not need: what is in use, what has been lost.

Called by the cycle, the forecast and the worker's plans; changes nothing.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fluxqueue.fluxjob.request import ResourceRequest
from fluxqueue.graph.pools.pool_set import Matrix, PlacedSlot, Placement, PoolSet, end_of


def rows_in_use(pools: PoolSet, placement: Placement) -> list[int]:
    """Rows on which ``placement`` does not fit beside what is there now."""
    needs = _needs(pools, placement)
    is_short = ((pools.free_now() < needs) & (needs > 0)).any(axis=1)
    return [int(row) for row in np.flatnonzero(is_short)]


def is_open(pools: PoolSet, placement: Placement, now: int) -> bool:
    """Tell whether a start planned earlier is still possible beside everything known now."""
    needs = _needs(pools, placement)
    is_used = needs.any(axis=1)
    if placement.starts_at < now or not pools.masks.usable()[is_used].all():
        return False
    free = pools.free_at(placement.starts_at, now)
    for point in pools.checkpoints:
        if placement.starts_at < point.at < placement.until:
            np.minimum(free, point.free, out=free)
    return bool(((free >= needs) | (needs == 0)).all())


def _needs(pools: PoolSet, placement: Placement) -> Matrix:
    booking = pools.compile(placement)
    needs = np.zeros_like(pools.capacity)
    np.add.at(needs, booking.rows, booking.takes)
    return needs


def room(pools: PoolSet) -> Matrix:
    """What each usable node has for us in all, whatever of it is booked."""
    usable: Matrix = (pools.capacity - pools.foreign) * pools.masks.usable()[:, None]
    return usable


def lost_room(pools: PoolSet, before: Matrix) -> list[str]:
    """Nodes with less ``room`` than they had ``before``."""
    now = room(pools)
    more = [(0, new - old) for new, old in zip(now.shape, before.shape, strict=True)]
    is_less = (now < np.pad(before, more)).any(axis=1)
    return [pools.names[row] for row in np.flatnonzero(is_less)]


def unusable(pools: PoolSet) -> list[str]:
    """Nodes that are gone, down or cordoned."""
    return [pools.names[row] for row in np.flatnonzero(~pools.masks.usable())]


def placement_on(
    pools: PoolSet, request: ResourceRequest, nodes: Sequence[str], starts_at: int
) -> Placement:
    """A placement read back: ``nodes`` of all slots in slot order."""
    needs = [slot.resources for slot in request.slots for _ in range(slot.count)]
    slots = tuple(PlacedSlot(*pair) for pair in zip(nodes, needs, strict=True))
    until = end_of(request, starts_at)
    return Placement(slots, starts_at, until, pools.is_exclusive(request))


def permanent_use(pools: PoolSet) -> Matrix:
    """What pods of others use that end with their node only: no waiting helps against them."""
    used = np.zeros_like(pools.foreign)
    for node, others in pools.others.items():
        for name, amount in others.permanent.items():
            used[pools.rows[node], pools.columns[name]] = amount
    return used
