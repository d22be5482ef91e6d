"""Bounds how many writes of one user are under way, so that no user delays all others.

``routes`` uses it. A real API server has priority and fairness. Here one loop does all of the work,
so a hundred large objects of one user would delay the next request of every other user.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

AT_ONCE = 16
"""The most writes of one user that are under way. Its further writes wait in order."""


class Turns:
    """The writes under way, by user. Use it within one event loop."""

    def __init__(self, at_once: int = AT_ONCE) -> None:
        self._at_once = at_once
        self._of: dict[str, tuple[asyncio.Semaphore, int]] = {}

    @asynccontextmanager
    async def of(self, user: str) -> AsyncIterator[None]:
        """Wait for a turn of ``user``, and hold it in this context."""
        semaphore, number = self._of.get(user, (asyncio.Semaphore(self._at_once), 0))
        self._of[user] = semaphore, number + 1
        try:
            async with semaphore:
                yield
        finally:
            # The last one removes the entry: names of users never end.
            semaphore, number = self._of[user]
            if number > 1:
                self._of[user] = semaphore, number - 1
            else:
                del self._of[user]
