"""Slots: how many requests of one client are open at once, and which one is next.

``client`` holds a slot for each request, except for watches. Namespaces take turns (``turns``): a
thousand requests for one namespace delay the next request for another one by one answer. Requests
in the background have a part of the slots. They wait for all others, but one of them is always
open, so that nothing waits for ever.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fluxqueue.fluxjob.turns import Turns

BACKGROUND_PART = 4
"""Requests in the background hold at most the slots divided by this number.

An API server that is busy answers each request later, the more of them are open.
"""


class Slots:
    """Used within one event loop.

    Parameters
    ----------
    number : How many requests may be open at once.
    """

    def __init__(self, number: int) -> None:
        self._free = number
        self._background_free = self._background_max = max(1, number // BACKGROUND_PART)
        self._has_one_for_background = number > 1
        self._urgent: Turns[int] = Turns()
        self._background: Turns[int] = Turns()
        self._futures: dict[str, asyncio.Future[None]] = {}
        self._numbers = itertools.count()

    @asynccontextmanager
    async def hold(self, lane: str, *, is_background: bool = False) -> AsyncIterator[None]:
        """Wait for a slot, and hold it. ``lane``: the namespace of the request, or empty."""
        if self._free and (self._background_free or not is_background):
            self._take(is_background=is_background)
        else:
            await self._wait(lane, is_background=is_background)
        try:
            yield
        finally:
            self._give_back(is_background=is_background)

    async def _wait(self, lane: str, *, is_background: bool) -> None:
        number = next(self._numbers)
        future = self._futures[str(number)] = asyncio.get_running_loop().create_future()
        (self._background if is_background else self._urgent).put(str(number), lane, number)
        try:
            await future
        except asyncio.CancelledError:
            # Race: the slot may have been given at the same moment.
            if future.done() and not future.cancelled():
                self._give_back(is_background=is_background)
            raise

    def _take(self, *, is_background: bool) -> None:
        self._free -= 1
        self._background_free -= is_background

    def _give_back(self, *, is_background: bool) -> None:
        self._free += 1
        self._background_free += is_background
        while self._free and self._give_one():
            pass

    def _give_one(self) -> bool:
        """Give a free slot to the next request. Return False if none may have it."""
        is_none_open = self._background_free == self._background_max
        orders = [(self._urgent, False)]
        if self._background_free:
            first = self._has_one_for_background and is_none_open
            orders.insert(0 if first else 1, (self._background, True))
        for turns, is_background in orders:
            waiting = self._next(turns)
            if waiting is not None:
                # Taken for it before it runs, so that no request comes in between.
                self._take(is_background=is_background)
                waiting.set_result(None)
                return True
        return False

    def _next(self, turns: Turns[int]) -> asyncio.Future[None] | None:
        while key := next(iter(turns.take(1)), None):
            future = self._futures.pop(key)
            if not future.done():  # otherwise its request was cancelled
                return future
        return None


def lane_of(path: str) -> str:
    """Return the namespace in the path of a request, or an empty text."""
    _, _, rest = path.partition("/namespaces/")
    return rest.partition("/")[0]
