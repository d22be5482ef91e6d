"""The clock: a loop that waits by it can always be ended."""

from __future__ import annotations

import asyncio

import pytest

from fluxqueue.clock import SystemClock


async def test_a_loop_ends_although_its_cancellation_was_turned_into_an_error() -> None:
    """As procrastinate does when it is cancelled while the database is away."""
    rounds = 0

    async def body() -> None:
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            raise RuntimeError("could not say goodbye") from None

    async def loop() -> None:
        nonlocal rounds
        while True:
            rounds += 1
            try:
                await body()
            except RuntimeError:
                await SystemClock().sleep(0)

    task = asyncio.create_task(loop())
    await asyncio.sleep(0)
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await asyncio.wait_for(task, 60)
    assert rounds == 1
