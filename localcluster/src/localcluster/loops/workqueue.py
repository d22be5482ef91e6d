"""A queue of keys: each key waits at most once and is never processed twice at a time.

Every controller here uses it. A key that is added while it is processed runs again afterwards.
Failed keys return with a growing delay. Other keys can be added with a delay too.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Awaitable, Callable, Hashable
from typing import Generic, TypeVar

from localcluster.errors import ClientError

logger = logging.getLogger(__name__)

Key = TypeVar("Key", bound=Hashable)

RETRY_BASE_S = 0.02
RETRY_CAP_S = 30.0


class WorkQueue(Generic[Key]):
    """Runs ``work(key)`` for added keys in ``workers`` tasks."""

    def __init__(
        self, name: str, work: Callable[[Key], Awaitable[None]], *, workers: int = 4
    ) -> None:
        self._name, self._work, self._workers = name, work, workers
        self._ready: asyncio.Queue[Key] = asyncio.Queue()
        self._waiting: set[Key] = set()
        self._working: set[Key] = set()
        self._again: set[Key] = set()
        self._timers: dict[Key, asyncio.TimerHandle] = {}
        self._failures: dict[Key, int] = {}
        self._tasks: list[asyncio.Task[None]] = []

    def add(self, key: Key) -> None:
        """Process ``key`` as soon as possible."""
        if key in self._working:
            self._again.add(key)
        elif key not in self._waiting:
            self._waiting.add(key)
            self._ready.put_nowait(key)

    def add_after(self, key: Key, delay_s: float) -> None:
        """Process ``key`` in ``delay_s`` seconds. An earlier time for the same key stays."""
        if delay_s <= 0:
            self.add(key)
            return
        loop = asyncio.get_running_loop()
        old = self._timers.get(key)
        if old is not None:
            if old.when() <= loop.time() + delay_s:
                return
            old.cancel()
        self._timers[key] = loop.call_later(delay_s, self._due, key)

    def _due(self, key: Key) -> None:
        self._timers.pop(key, None)
        self.add(key)

    def start(self) -> None:
        """Start the workers."""
        self._tasks = [
            asyncio.create_task(self._run(), name=f"{self._name} {number}")
            for number in range(self._workers)
        ]

    async def stop(self) -> None:
        """Stop at the next await. A restart would find everything that is dropped."""
        for timer in self._timers.values():
            timer.cancel()
        self._timers.clear()
        for task in self._tasks:
            task.cancel()
        await asyncio.gather(*self._tasks, return_exceptions=True)
        self._tasks = []

    async def _run(self) -> None:
        while True:
            key = await self._ready.get()
            self._waiting.discard(key)
            self._working.add(key)
            try:
                await self._work(key)
                self._failures.pop(key, None)
            except ClientError as error:
                self._retry(key, error)
            except Exception:
                logger.exception("controller failed action=sync name=%s key=%s", self._name, key)
                self._retry(key, None)
            finally:
                self._working.discard(key)
                if key in self._again:
                    self._again.discard(key)
                    self.add(key)

    def _retry(self, key: Key, error: ClientError | None) -> None:
        failures = self._failures.get(key, 0)
        self._failures[key] = failures + 1
        delay_s = min(RETRY_CAP_S, RETRY_BASE_S * (1 << min(failures, 20)))
        logger.debug(
            "controller retries action=sync name=%s key=%s delay_s=%.2f error=%s",
            self._name,
            key,
            delay_s,
            error,
        )
        self.add_after(key, delay_s)
