"""Turns: keys that wait, where each namespace has its turn.

The controller (``dirty_set``, ``fluxjob_creator``) and the client of the API server
(``kube.slots``) take from it what is next. If one namespace has thousands of keys, the first key of
another one is still among the next. The webhook has the same order for admissions
(``fluxqueue_webhook.fair_queue``). Used within one event loop. It knows nothing of what a key is.
"""

from __future__ import annotations

import heapq
from collections import OrderedDict
from collections.abc import Iterable
from typing import Any, Generic, Protocol, TypeVar


class Sortable(Protocol):
    """What the order within a namespace is read from."""

    def __lt__(self, other: Any, /) -> bool: ...


Order = TypeVar("Order", bound=Sortable)


class Turns(Generic[Order]):
    """Each key once, with its place in the order of its namespace."""

    def __init__(self) -> None:
        self._lanes: OrderedDict[str, list[tuple[Order, str]]] = OrderedDict()
        self._keys: set[str] = set()

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def __len__(self) -> int:
        return len(self._keys)

    @property
    def lanes(self) -> Iterable[str]:
        """Return the namespaces with keys."""
        return self._lanes.keys()

    def put(self, key: str, lane: str, order: Order) -> None:
        """Add a key to the lane of its namespace. One that waits already keeps its place."""
        if key not in self._keys:
            self._keys.add(key)
            # A heap, because very many may come at once.
            heapq.heappush(self._lanes.setdefault(lane, []), (order, key))

    def take(self, limit: int) -> list[str]:
        """Remove up to ``limit`` keys, one of each lane in turn. Return them in their order."""
        taken: list[tuple[Order, str]] = []
        while self._lanes and len(taken) < limit:
            lane, waiting = next(iter(self._lanes.items()))
            taken.append(heapq.heappop(waiting))
            if waiting:
                self._lanes.move_to_end(lane)
            else:
                del self._lanes[lane]
        keys = [key for _, key in sorted(taken)]
        self._keys.difference_update(keys)
        return keys
