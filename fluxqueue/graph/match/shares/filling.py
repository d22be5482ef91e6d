"""Which rows get the units of one leaf, by match policy.

A row may hold several units. Leaves of distinct nodes get one unit per row. Hot path.
"""

from __future__ import annotations

from bisect import bisect_right

import numpy as np

from fluxqueue.graph.arrays import Vector
from fluxqueue.graph.match.policy import Policy
from fluxqueue.graph.match.shares.offer import NO_ROOM, OfferView

FIRST = 0


def fill(
    view: OfferView, wanted: int, policy: Policy, *, is_distinct: bool, rows: Vector | None = None
) -> Vector:
    """Return the row of each of ``wanted`` units, which are known to fit.

    If ``rows`` (ascending) is given, only these may be used.
    """
    counts = view.fit if rows is None else view.fit[rows]
    if policy.occupancy:
        keys = _part(view.keys(policy.occupancy), rows)
        chosen = _by_occupancy(keys, counts, wanted, policy, is_distinct=is_distinct)
    elif policy.stops_early:
        chosen = _first(_part(view.keys(FIRST), rows), counts, wanted, is_distinct=is_distinct)
    elif policy.is_high:
        last = len(counts) - 1
        chosen = last - _lowest(counts[::-1], wanted, is_distinct=is_distinct)
    else:
        chosen = _lowest(counts, wanted, is_distinct=is_distinct)
    return chosen if rows is None else rows[chosen]


def _part(keys: Vector, rows: Vector | None) -> Vector:
    return keys if rows is None else keys[rows]


def _lowest(counts: Vector, wanted: int, *, is_distinct: bool) -> Vector:
    has_room = counts > 0
    if wanted == 1:
        return np.array((int(has_room.argmax()),))
    order = np.flatnonzero(has_room)[:wanted]
    return order if is_distinct else _in_order(order, counts[order], wanted)


def _in_order(order: Vector, counts: Vector, wanted: int) -> Vector:
    """Return the rows with each one filled up before the next."""
    running = np.cumsum(counts)
    last = int(np.searchsorted(running, wanted))
    taken = counts[: last + 1].copy()
    taken[-1] -= running[last] - wanted
    return np.repeat(order[: last + 1], taken)


def smallest(keys: Vector, count: int) -> Vector:
    """Return the indexes of the ``count`` smallest keys, in order.

    The lower index comes first among equal keys.
    """
    if count == 1:
        return np.array((int(keys.argmin()),))
    if count >= len(keys):
        order = np.argsort(keys, kind="stable")
    else:
        # Sorting all keys would cost more than selecting the few that are needed.
        limit = np.partition(keys, count - 1)[count - 1]
        less = np.flatnonzero(keys < limit)
        equal = np.flatnonzero(keys == limit)[: count - len(less)]
        order = np.concatenate([less[np.argsort(keys[less], kind="stable")], equal])
    found: Vector = order[keys[order] != NO_ROOM]
    return found


def _first(keys: Vector, counts: Vector, wanted: int, *, is_distinct: bool) -> Vector:
    """Choose as flux-sched does: look until there is enough, then take the highest ids seen."""
    order = smallest(keys, wanted)
    units = np.minimum(counts[order], 1) if is_distinct else counts[order]
    seen = int(np.searchsorted(np.cumsum(units), wanted)) + 1
    order = np.sort(order[:seen])[::-1]
    return order[:wanted] if is_distinct else _in_order(order, counts[order], wanted)


def _by_occupancy(
    keys: Vector, counts: Vector, wanted: int, policy: Policy, *, is_distinct: bool
) -> Vector:
    """Return the rows for ``pack`` and ``spread``. A key says how empty one unit leaves a row."""
    if is_distinct or wanted == 1:
        return smallest(keys, wanted)
    if policy.occupancy < 0:
        order = smallest(keys, wanted)
        return order if len(order) == wanted else _in_rounds(order, counts[order], wanted)
    roomy = counts >= wanted
    if roomy.any():  # The fullest node that holds all of them.
        return np.full(wanted, int(np.where(roomy, keys, NO_ROOM).argmin()))
    return _on_fewest(smallest(keys, len(keys)), counts, wanted)


def _in_rounds(order: Vector, counts: Vector, wanted: int) -> Vector:
    """Choose for ``spread``: one slot to each node in order, then a second one, and so on."""
    rounds = bisect_right(
        range(int(counts.max()) + 1), wanted, key=lambda r: int(np.minimum(counts, r).sum())
    )
    taken = np.minimum(counts, rounds - 1)
    more = np.flatnonzero(counts >= rounds)[: wanted - int(taken.sum())]
    taken[more] += 1
    return np.repeat(order, taken)


def _on_fewest(order: Vector, every: Vector, wanted: int) -> Vector:
    """Choose for ``pack``: use as few nodes as possible.

    The nodes with most capacity are filled until the rest fits one node. The fullest such node gets
    it.
    """
    counts = every[order]
    roomiest = np.argsort(-counts, kind="stable")
    rest = wanted - np.cumsum(counts[roomiest]) + counts[roomiest]
    whole = roomiest[: int(np.flatnonzero(counts[roomiest] >= rest)[0])]
    taken = np.zeros_like(counts)
    taken[whole] = counts[whole]
    left = wanted - int(taken.sum())
    fitting = (counts >= left) & (taken == 0)
    taken[int(fitting.argmax())] += left
    return np.repeat(order, taken)
