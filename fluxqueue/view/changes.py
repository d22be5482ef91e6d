"""Tells followers what happens: one reader of the history for all of them, while there are any.

Called by ``server`` for ``/changes``. Who cannot keep up, or follows while the server ends, is sent
away and comes again with the number of the last line that he has.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Mapping, Sequence
from contextlib import asynccontextmanager, suppress
from typing import Any

from fluxqueue.clock import Clock
from fluxqueue.db.reader import Reader
from fluxqueue.db.reading.changes import STEP, Follower, last_line, lines_after
from fluxqueue.errors import DatabaseUnavailable

logger = logging.getLogger(__name__)

Lines = Sequence[Mapping[str, Any]]

EVERY_S = 1.0
"""How often the history is looked at."""
FOLLOWERS_MAX = 200
FOLLOWERS_EACH = 20
"""Streams of one user: nobody can take all of them."""
BATCHES_MAX = 60
"""Batches that a follower may be behind."""
CATCH_UP_MAX = 10 * STEP
"""Lines that are told to who comes again; who has missed more reads the lists anew."""


class TooManyFollowers(Exception):
    """No more can be served now; the message says why."""


class Feed:
    """The history as it is written. Batches come as lists of lines; None is the end."""

    def __init__(self, reader: Reader, clock: Clock, *, every_s: float = EVERY_S) -> None:
        self._reader, self._clock, self._every_s = reader, clock, every_s
        self._followers: set[asyncio.Queue[Lines | None]] = set()
        self._streams: Counter[str] = Counter()
        self._reading: asyncio.Task[None] | None = None
        self._begin = asyncio.Lock()
        self._is_over = False

    @property
    def followers(self) -> int:
        """How many follow now."""
        return len(self._followers)

    @asynccontextmanager
    async def follow(self, user: str) -> AsyncIterator[asyncio.Queue[Lines | None]]:
        """Batches from now on, for ``user``.

        Raises
        ------
        TooManyFollowers
            There are as many as can be served, or the user has as many as one user may have.
        DatabaseUnavailable
            It cannot be said where now is.
        """
        if self._is_over or len(self._followers) >= FOLLOWERS_MAX:
            raise TooManyFollowers("as many follow as can be served")
        if self._streams[user] >= FOLLOWERS_EACH:
            raise TooManyFollowers(f"{user} has {FOLLOWERS_EACH} streams: end one of them first")
        queue: asyncio.Queue[Lines | None] = asyncio.Queue(BATCHES_MAX + 1)
        self._followers.add(queue)
        self._streams[user] += 1
        try:
            async with self._begin:
                if self._reading is None:
                    follower = Follower(self._reader, await last_line(self._reader))
                    self._reading = asyncio.create_task(self._read(follower))
            yield queue
        finally:
            self._streams[user] -= 1
            if not self._streams[user]:
                del self._streams[user]
            self._followers.discard(queue)
            if not self._followers:
                await self._end_reading()

    async def _end_reading(self) -> None:
        reading, self._reading = self._reading, None
        if reading is not None:
            reading.cancel()
            with suppress(asyncio.CancelledError):
                await reading

    async def since(self, line: int) -> tuple[Lines, bool]:
        """Lines behind one that somebody knows, and whether those are all."""
        found: list[Mapping[str, Any]] = []
        while len(found) < CATCH_UP_MAX:
            more = await lines_after(self._reader, found[-1]["id"] if found else line)
            found += more
            if len(more) < STEP:
                return found, True
        return [], False

    async def _read(self, follower: Follower) -> None:
        while True:
            await self._clock.sleep(self._every_s)
            try:
                lines = await follower.read(self._clock.monotonic_s())
            except DatabaseUnavailable as error:
                logger.info("follows on later", extra={"action": "follow", "error": str(error)})
                continue
            except Exception:
                logger.exception("the history cannot be followed; tried again")
                continue
            if lines:
                self._tell(lines)

    def _tell(self, lines: Lines) -> None:
        for queue in list(self._followers):
            if queue.qsize() >= BATCHES_MAX:
                self._followers.discard(queue)
                queue.put_nowait(None)
            else:
                queue.put_nowait(lines)

    def end(self) -> None:
        """Send everybody away, and take nobody more."""
        self._is_over = True
        for queue in self._followers:
            with suppress(asyncio.QueueFull):
                queue.put_nowait(None)
