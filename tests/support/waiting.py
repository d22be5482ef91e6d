"""Waiting for conditions. Tests never sleep for a fixed time and hope."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable
from typing import Self, TypeVar

Answer = TypeVar("Answer")

WAIT_S = 240.0
"""Long enough for a machine many times slower, and for the garbage collector of Kubernetes, which
looks for new kinds every 30 seconds. A gang of a thousand pods took half of it once."""

_TICK_S = 0.01


async def eventually(
    look: Callable[[], Awaitable[Answer] | Answer],
    what: str,
    *,
    timeout_s: float = WAIT_S,
    every_s: float = 0.1,
) -> Answer:
    """Give the first truthy answer of ``look``. AssertionError naming ``what`` when time is up."""
    deadline = time.monotonic() + timeout_s
    while not (answer := await _answer(look())):
        assert time.monotonic() < deadline, f"not within {timeout_s}s: {what}"
        await asyncio.sleep(every_s)
    return answer


async def _answer(given: Awaitable[Answer] | Answer) -> Answer:
    return await given if isinstance(given, Awaitable) else given


async def until(
    read: Callable[[], Awaitable[Answer]],
    accept: Callable[[Answer], object],
    what: str,
    *,
    timeout_s: float = WAIT_S,
) -> Answer:
    """Give the first answer of ``read`` that is accepted. AssertionError has the last one."""
    last: list[Answer] = []

    async def look() -> object:
        last[:] = [await read()]
        return accept(last[0])

    try:
        await eventually(look, what, timeout_s=timeout_s)
    except AssertionError as error:
        raise AssertionError(f"{error}; it is {last[0] if last else 'unknown'}") from error
    return last[0]


class Pauses:
    """The longest time that this process could not do anything, because the machine was busy.

    For judgements of how soon something happens: so much later it may be, and no more.
    """

    def __init__(self) -> None:
        self.longest_s = 0.0
        self._task: asyncio.Task[None] | None = None

    async def __aenter__(self) -> Self:
        self._task = asyncio.create_task(self._watch())
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._task is not None
        self._task.cancel()
        await asyncio.gather(self._task, return_exceptions=True)

    async def _watch(self) -> None:
        while True:
            before = time.monotonic()
            await asyncio.sleep(_TICK_S)
            self.longest_s = max(self.longest_s, time.monotonic() - before - _TICK_S)
