"""Send changes to followers: one reader of the history for all of them, while there are any.

``server`` calls it for ``/changes``. A follower that cannot keep up, or follows while the server
ends, is disconnected. It reconnects with the number of the last line that it has.
"""

from __future__ import annotations

import asyncio
import logging
from collections import Counter
from collections.abc import AsyncIterator, Sequence
from contextlib import asynccontextmanager, suppress

from fluxqueue.clock import Clock
from fluxqueue.db.reader import DatabaseReader
from fluxqueue.db.reading.changes import STEP, ChangeRow, Follower, last_line, lines_after
from fluxqueue.errors import DatabaseUnavailable

logger = logging.getLogger(__name__)

Lines = Sequence[ChangeRow]

EVERY_S = 1.0
"""Seconds between two reads of the history."""
FOLLOWERS_MAX = 200
FOLLOWERS_EACH = 20
"""Streams of one user, so that one user cannot take all of them."""
BATCHES_MAX = 60
"""Batches that a follower may be behind."""
CATCH_UP_MAX = 10 * STEP
"""Lines sent to a follower that reconnects. One that missed more reads the lists again."""


class TooManyFollowers(Exception):
    """No more followers can be served now. The message says why."""


class Feed:
    """The history as it is written. Batches are lists of lines, and None is the end."""

    def __init__(self, reader: DatabaseReader, clock: Clock, *, every_s: float = EVERY_S) -> None:
        self._reader, self._clock, self._every_s = reader, clock, every_s
        self._followers: set[asyncio.Queue[Lines | None]] = set()
        self._streams: Counter[str] = Counter()
        self._reading: asyncio.Task[None] | None = None
        self._begin = asyncio.Lock()
        self._is_over = False

    @property
    def followers(self) -> int:
        """The number of followers now."""
        return len(self._followers)

    @asynccontextmanager
    async def follow(self, user: str) -> AsyncIterator[asyncio.Queue[Lines | None]]:
        """Yield a queue of batches from now on, for ``user``.

        Raises
        ------
        TooManyFollowers
            The server or the user has as many streams as allowed.
        DatabaseUnavailable
            The database does not return the last line, so the start is unknown.
        """
        if self._is_over or len(self._followers) >= FOLLOWERS_MAX:
            raise TooManyFollowers("the server has as many streams as it can serve")
        if self._streams[user] >= FOLLOWERS_EACH:
            raise TooManyFollowers(
                f"{user} has {FOLLOWERS_EACH} streams already: end one of them first"
            )
        queue: asyncio.Queue[Lines | None] = asyncio.Queue(BATCHES_MAX + 1)
        # Join before the reading starts, or a line that is written in between is missed.
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
        """Return the lines after ``line``, and whether these are all."""
        found: list[ChangeRow] = []
        while len(found) < CATCH_UP_MAX:
            more = await lines_after(self._reader, found[-1].id if found else line)
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
                logger.info(
                    "the history cannot be read, tried again",
                    extra={"action": "follow", "error": str(error)},
                )
                continue
            except Exception:
                logger.exception("the history cannot be followed, tried again")
                continue
            if lines:
                self._tell(lines)

    def _tell(self, lines: Lines) -> None:
        """Give ``lines`` to all followers, and disconnect those that are too far behind."""
        for queue in list(self._followers):
            if queue.qsize() >= BATCHES_MAX:
                self._followers.discard(queue)
                queue.put_nowait(None)
            else:
                queue.put_nowait(lines)

    def end(self) -> None:
        """Disconnect all followers and accept no new ones."""
        self._is_over = True
        for queue in self._followers:
            with suppress(asyncio.QueueFull):
                queue.put_nowait(None)
