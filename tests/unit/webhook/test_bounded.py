"""Admissions run in threads: one that does not end is cut off, and all others are answered."""

from __future__ import annotations

import asyncio

import pytest

from fluxqueue_webhook.bounded import WAITING_MAX, BoundedThreads, TooLong
from fluxqueue_webhook.fair_queue import Lane


@pytest.fixture
def threads() -> BoundedThreads:
    """One thread, and little processor time."""
    return BoundedThreads(cpu_max_s=0.1, threads=1)


def _spin() -> None:
    number = 0
    while True:
        number += 1


async def test_an_answer_and_an_error_come_back(threads: BoundedThreads) -> None:
    assert await threads.run(lambda: 7) == 7
    with pytest.raises(ZeroDivisionError):
        await threads.run(lambda: 1 // 0)
    threads.close()


async def test_one_that_does_not_end_is_cut_off(threads: BoundedThreads) -> None:
    """The loop goes on meanwhile, and the thread serves the next one."""
    turns = 0

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    for _ in range(3):
        with pytest.raises(TooLong):
            await threads.run(_spin)
        assert await threads.run(lambda: "next") == "next"
    counting.cancel()
    assert turns > 10
    threads.close()


async def test_a_call_that_catches_everything_is_cut_off_too(threads: BoundedThreads) -> None:
    """What cuts it off is no Exception."""

    def stubborn() -> None:
        while True:
            try:
                _spin()
            except Exception:  # noqa: BLE001  as careless code does
                continue

    with pytest.raises(TooLong):
        await threads.run(stubborn)
    threads.close()


async def test_more_than_may_wait_are_refused_at_once(threads: BoundedThreads) -> None:
    """Each waits for the one before it. None is kept for ever."""
    first = asyncio.create_task(threads.run(_spin))
    await asyncio.sleep(0)
    others = [asyncio.create_task(threads.run(lambda: "late")) for _ in range(WAITING_MAX + 20)]
    with pytest.raises(TooLong):
        await first
    found = await asyncio.gather(*others, return_exceptions=True)
    refused = sum(isinstance(one, TooLong) for one in found)
    assert 0 < refused <= 21
    assert found.count("late") == len(others) - refused
    threads.close()


@pytest.mark.parametrize(("most_s", "waited_s"), [(0.0, 0.0), (60.0, 60.0)])
async def test_one_that_waits_too_long_is_refused_before_the_caller_gives_up(
    monkeypatch: pytest.MonkeyPatch, most_s: float, waited_s: float
) -> None:
    """Also if it has waited elsewhere before."""
    monkeypatch.setattr("fluxqueue_webhook.bounded.WAIT_MAX_S", most_s)
    threads = BoundedThreads(cpu_max_s=0.3, threads=1)
    first = asyncio.create_task(threads.run(_spin))
    await asyncio.sleep(0)
    with pytest.raises(TooLong):
        await threads.run(lambda: "late", waited_s=waited_s)
    assert not first.done(), "refused while the first one still runs"
    with pytest.raises(TooLong):
        await first
    threads.close()


async def test_a_tenant_with_many_dear_requests_delays_no_other() -> None:
    """The other one waits for those that run, and for none of those that wait."""
    threads = BoundedThreads(cpu_max_s=0.05, threads=2)
    dear = [asyncio.create_task(threads.run(_spin, Lane("p", "a", f"u{n}"))) for n in range(40)]
    await asyncio.sleep(0)
    assert await threads.run(lambda: "cheap", Lane("p", "b", "y")) == "cheap"
    assert sum(one.done() for one in dear) <= 2
    for one in dear:
        one.cancel()
    await asyncio.gather(*dear, return_exceptions=True)
    # The threads are free: what runs ends with its caller, and what waits does not begin.
    assert await threads.run(lambda: "next", Lane("p", "a", "x")) == "next"
    threads.close()
