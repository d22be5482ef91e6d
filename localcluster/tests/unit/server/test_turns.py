"""Writes of one user wait for each other beyond a number, and never for those of another user."""

from __future__ import annotations

import asyncio

import pytest

from localcluster.server.turns import Turns


async def test_users_do_not_wait_for_each_other() -> None:
    turns, most, under_way = Turns(at_once=3), 0, 0
    may_end = asyncio.Event()

    async def write(user: str) -> None:
        nonlocal most, under_way
        async with turns.of(user):
            under_way += 1
            most = max(most, under_way)
            await may_end.wait()
            under_way -= 1

    many = [asyncio.create_task(write("mallory")) for _ in range(40)]
    await asyncio.sleep(0)
    async with asyncio.timeout(5), turns.of("vera"):
        assert under_way <= 3
    may_end.set()
    await asyncio.gather(*many)
    assert most == 3
    assert not turns._of, "nothing is kept of users without a write"


async def test_a_write_that_fails_or_is_given_up_ends_its_turn() -> None:
    turns = Turns(at_once=1)
    with pytest.raises(ZeroDivisionError):
        async with turns.of("a"):
            raise ZeroDivisionError
    async with turns.of("a"):
        waiting = asyncio.create_task(turns.of("a").__aenter__())
        await asyncio.sleep(0)
        waiting.cancel()
        await asyncio.gather(waiting, return_exceptions=True)
    async with asyncio.timeout(5), turns.of("a"):
        pass
    assert not turns._of
