"""Marks: once for each key, all of a kind at once, and not before a caller waits."""

from __future__ import annotations

import asyncio

from fluxqueue.clock import ManualClock, SystemClock
from fluxqueue.controller.observing.dirty_set import DirtyKind, DirtySet
from fluxqueue.process.pacing import GATHER_S


def test_a_kind_is_taken_when_it_is_due() -> None:
    """What may come later goes with what is due of its kind, and not with another's."""
    clock = ManualClock()
    marks = DirtySet(clock)
    marks.mark(DirtyKind.WORKLOAD, "a", within_s=5)
    marks.mark(DirtyKind.FOREIGN, "f", within_s=5)
    assert marks.take(10, by_s=clock.monotonic_s()) == {}
    marks.mark(DirtyKind.WORKLOAD, "b")
    marks.mark(DirtyKind.WORKLOAD, "b")
    assert marks.take(10, by_s=clock.monotonic_s()) == {}, "those that come with it are gathered"
    clock.advance(GATHER_S)
    assert marks.take(10, by_s=clock.monotonic_s()) == {DirtyKind.WORKLOAD: ["a", "b"]}
    clock.advance(5 - GATHER_S)
    assert marks.take(10, by_s=clock.monotonic_s()) == {DirtyKind.FOREIGN: ["f"]}
    assert marks.take(10) == {}


def test_more_than_a_batch() -> None:
    """The rest stays due, and what was not written comes back."""
    marks = DirtySet(ManualClock())
    for key in "abc":
        marks.mark(DirtyKind.NODE, key)
    batch = marks.take(2)
    assert batch == {DirtyKind.NODE: ["a", "b"]}
    marks.put_back(batch)
    assert marks.take(9) == {DirtyKind.NODE: ["c", "a", "b"]}


async def test_waiting_ends_when_something_is_due_sooner() -> None:
    """Also if it waits for something much later."""
    marks = DirtySet(SystemClock())
    marks.mark(DirtyKind.FOREIGN, "f", within_s=3600)
    waiting = asyncio.create_task(marks.wait(float("inf")))
    await asyncio.sleep(0)
    assert not waiting.done()
    marks.mark(DirtyKind.WORKLOAD, "a")
    async with asyncio.timeout(60):
        await waiting
