"""Room for large requests: how many bytes of them are held at once, with turns for tenants.

``server`` takes room before it reads the rest of a large request, and gives it back after the
answer. Without it, a hundred requests of 3 MiB at once take more memory than the process may have:
a parsed object takes 10 to 24 times its text. Used within one event loop.
"""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager

from fluxqueue.fluxjob.turns import Turns
from fluxqueue_webhook.bounded import TooLong
from fluxqueue_webhook.fair_queue import Lane

ROOM_BYTES = 8 * 2**20
"""Bytes of large requests that are held at once.

Parsed, they take 200 MiB at most. The chart gives the webhook 768 MiB, because each connection has
buffers of up to 2 MiB."""
WAITING_MAX, PEER_WAITING_MAX, OF_EACH_MAX = 200, 150, 100
"""The most large requests that wait for room: all, those of one peer, and those of one namespace.
Each has a connection with its buffers."""
WAIT_MAX_S = 2.0
"""The longest wait for room (seconds). The wait for a thread follows, up to ``bounded.WAIT_MAX_S``
in all."""


class LargeBodies:
    """Hold room for requests. Peers take turns, and so do their namespaces.

    Parameters
    ----------
    room : bytes of all requests that are held at once.
    """

    def __init__(
        self,
        room: int = ROOM_BYTES,
        *,
        waiting_max: Sequence[int] = (WAITING_MAX, PEER_WAITING_MAX, OF_EACH_MAX),
        wait_max_s: float = WAIT_MAX_S,
    ) -> None:
        self._room = self._free = room
        self._waiting_max, self._wait_max_s = waiting_max, wait_max_s
        self._turns: Turns[int] = Turns()
        self._waiting: dict[str, tuple[int, asyncio.Future[None]]] = {}
        self._of_each: Counter[tuple[str, ...]] = Counter()
        self._next: str | None = None
        """The next request in turn. It waits until its room is free, and others after it."""
        self._numbers = itertools.count()

    @asynccontextmanager
    async def hold(self, lane: Lane, size: int) -> AsyncIterator[None]:
        """Wait for the room of a request, and hold it.

        Parameters
        ----------
        lane : The tenant of the request.
        size : Its bytes. A request that is larger than all of the room takes all of it.

        Raises
        ------
        TooLong
            It waits too long, or too many wait.
        """
        size = min(size, self._room)
        await self._wait(lane, size)
        try:
            yield
        finally:
            self._free += size
            self._give()

    async def _wait(self, lane: Lane, size: int) -> None:
        paths: list[tuple[str, ...]] = [(), lane[:1], lane[:2]]
        if any(
            self._of_each[path] >= most for path, most in zip(paths, self._waiting_max, strict=True)
        ):
            raise TooLong
        number = next(self._numbers)
        key, future = str(number), asyncio.get_running_loop().create_future()
        self._waiting[key] = size, future
        self._turns.put(key, lane[:2], number)
        self._of_each.update(paths)
        self._give()
        try:
            await asyncio.wait({future}, timeout=self._wait_max_s)
        except asyncio.CancelledError:
            self._leave(key, size, future)
            raise
        finally:
            self._of_each.subtract(paths)
            self._of_each = +self._of_each
        if not future.done():
            self._leave(key, size, future)
            raise TooLong

    def _leave(self, key: str, size: int, future: asyncio.Future[None]) -> None:
        """End a wait. Race: its room may have been given at the same moment."""
        if future.done():
            self._free += size
        self._waiting.pop(key, None)
        if self._next == key:
            self._next = None
        self._give()

    def _give(self) -> None:
        """Give free room to the requests whose turn it is, in their order."""
        while True:
            if self._next is None:
                self._next = next(iter(self._turns.take(1)), None)
            if self._next is None:
                return
            if self._next in self._waiting:  # otherwise its request has left
                size, future = self._waiting[self._next]
                if size > self._free:
                    return
                self._free -= size
                del self._waiting[self._next]
                future.set_result(None)
            self._next = None
