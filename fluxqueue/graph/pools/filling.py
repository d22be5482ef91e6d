"""How many slots go to each node, given an order of nodes and the room on each.

Used by ``pools`` for the policies that do more than fill one node after the other.
"""

from __future__ import annotations

from bisect import bisect_right
from typing import TypeAlias

import numpy as np
import numpy.typing as npt

Vector: TypeAlias = npt.NDArray[np.int64]


def in_rounds(order: Vector, counts: Vector, wanted: int) -> Vector:
    """``spread``: one slot to each node in order, then a second one to each, ..."""
    rounds = bisect_right(
        range(int(counts.max()) + 1), wanted, key=lambda r: int(np.minimum(counts, r).sum())
    )
    taken = np.minimum(counts, rounds - 1)
    more = np.flatnonzero(counts >= rounds)[: wanted - int(taken.sum())]
    taken[more] += 1
    return np.repeat(order, taken)


def on_fewest(order: Vector, counts: Vector, wanted: int) -> Vector:
    """``pack``: the fullest node that holds the rest, else the roomiest one, and so on."""
    roomiest = np.argsort(-counts, kind="stable")
    rest = wanted - np.cumsum(counts[roomiest]) + counts[roomiest]
    whole = roomiest[: int(np.flatnonzero(counts[roomiest] >= rest)[0])]
    taken = np.zeros_like(counts)
    taken[whole] = counts[whole]
    left = wanted - int(taken.sum())
    fitting = (counts >= left) & (taken == 0)
    taken[int(fitting.argmax())] += left
    return np.repeat(order, taken)
