"""The clock: a loop that waits by it can always be ended."""

from __future__ import annotations

import asyncio

import pytest

from fluxqueue.clock import SystemClock
from fluxqueue.fluxjob.times import LAST_S, to_rfc3339


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


def test_a_time_beyond_all_dates_is_the_last_one() -> None:
    assert to_rfc3339(2**53) == to_rfc3339(LAST_S) == "9999-12-31T00:00:00Z"
