"""Turns: keys that wait, where each tenant has its turn.

The controller (``dirty_set``, ``fluxjob_creator``) and the client of the API server
(``kube.slots``) take from it what is next. If one namespace has thousands of keys, the first key of
another one is still among the next. The webhook (``fair_queue``, ``large_bodies``) has the turns
of peers above those of namespaces. A plan for new nodes (``nodepools.plan``) has those of users.
Not safe between threads. It knows nothing of what a key is.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Callable, Iterable, Sequence
from typing import Any, Generic, Protocol, TypeVar


class Sortable(Protocol):
    """What the order within a namespace is read from."""

    def __lt__(self, other: Any, /) -> bool: ...


Order = TypeVar("Order", bound=Sortable)
Item = TypeVar("Item")


Lane = tuple[str, ...]
"""The tenant of a key, from the outermost level, such as namespace and user."""
_Lanes = OrderedDict[str, Any]


class Turns(Generic[Order]):
    """Each key once, with its place in the order of its lane."""

    def __init__(self) -> None:
        self._lanes: _Lanes = OrderedDict()
        self._keys: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def lanes(self) -> Iterable[str]:
        """Return the outermost lanes with keys."""
        return self._lanes.keys()

    def put(self, key: str, lane: str | Lane, order: Order) -> None:
        """Add a key to its lane, which has as many levels as all others.

        A key that waits already keeps its place.
        """
        if key in self._keys:
            return
        self._keys.add(key)
        *above, last = (lane,) if isinstance(lane, str) else lane
        lanes = self._lanes
        for name in above:
            lanes = lanes.setdefault(name, OrderedDict())
        # A heap, because very many may come at once.
        heapq.heappush(lanes.setdefault(last, []), (order, key))

    def take(self, limit: int) -> list[str]:
        """Remove up to ``limit`` keys, one of each lane in turn. Return them in their order."""
        taken: list[tuple[Order, str]] = []
        while self._lanes and len(taken) < limit:
            taken.append(_next(self._lanes))
        keys = [key for _, key in sorted(taken)]
        self._keys.difference_update(keys)
        return keys

    def take_next(self, may: Callable[[Lane], bool]) -> str | None:
        """Remove the key whose turn it is among the lanes that ``may`` accepts, on each level."""
        found = _next(self._lanes, may)
        if found is None:
            return None
        self._keys.discard(found[1])
        return str(found[1])


def first_in_turn(items: Sequence[Item], lane_of: Callable[[Item], str], most: int) -> list[Item]:
    """Return up to ``most`` items, one of each lane in turn, in the order of ``items``."""
    if len(items) <= most:
        return list(items)
    turns = Turns[int]()
    for place, one in enumerate(items):
        turns.put(str(place), lane_of(one), place)
    return [items[int(key)] for key in turns.take(most)]


def _next(lanes: _Lanes, may: Callable[[Lane], bool] | None = None, at: Lane = ()) -> Any:
    """Remove and return what is next in these lanes, with its order. None: no lane may."""
    for name, below in lanes.items():
        path = (*at, name)
        if may is not None and not may(path):
            continue
        found = heapq.heappop(below) if isinstance(below, list) else _next(below, may, path)
        if found is None:
            continue
        # To the end: the other lanes come first the next time.
        if below:
            lanes.move_to_end(name)
        else:
            del lanes[name]
        return found
    return None
