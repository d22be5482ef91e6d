"""How long a webhook has for its answer: the time of a loop that may stand still."""

from __future__ import annotations

import asyncio
import time

import pytest

from localcluster.kinds.webhook_call import patient

PATIENCE_S = 0.5


def _stand_still() -> None:
    """Keep the loop from doing anything for longer than the patience."""
    until_s = time.monotonic() + 2 * PATIENCE_S
    while time.monotonic() < until_s:
        pass


async def test_an_answer_in_time() -> None:
    """Is given, and an error of the call is raised."""

    async def answer() -> str:
        await asyncio.sleep(0)
        return "yes"

    async def fail() -> str:
        raise ValueError("no")

    assert await patient(answer(), PATIENCE_S) == "yes"
    with pytest.raises(ValueError, match="no"):
        await patient(fail(), PATIENCE_S)


async def test_no_answer() -> None:
    """The call ends with its patience."""
    ended = asyncio.Event()

    async def wait() -> None:
        try:
            await asyncio.Event().wait()
        finally:
            ended.set()

    with pytest.raises(TimeoutError):
        await patient(wait(), 0.01)
    await ended.wait()


async def test_an_answer_is_not_late_because_the_loop_stood_still() -> None:
    """It came meanwhile. Then the loop needs a few turns to read it."""
    came = asyncio.Event()

    async def read() -> str:
        await came.wait()
        for _ in range(20):  # from the socket to the caller
            await asyncio.sleep(0)
        return "yes"

    loop = asyncio.get_running_loop()
    loop.call_soon(_stand_still)
    loop.call_soon(came.set)
    assert await patient(read(), PATIENCE_S) == "yes"
