"""Room for large requests: bounded, in turns, and given back however a request ends."""

from __future__ import annotations

import asyncio
from contextlib import AsyncExitStack

import pytest

from fluxqueue_webhook.bounded import TooLong
from fluxqueue_webhook.fair_queue import Lane
from fluxqueue_webhook.large_bodies import LargeBodies


def of(namespace: str, peer: str = "p") -> Lane:
    """The lane of a namespace."""
    return Lane(peer, namespace, "x")


class Holder:
    """Requests that hold room until the test ends them, in the order in which they got it."""

    def __init__(self, bodies: LargeBodies) -> None:
        self.bodies = bodies
        self.order: list[str] = []
        self.ends: dict[str, asyncio.Event] = {}
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def begin(self, name: str, size: int) -> None:
        """Ask for room. The namespace is the first letter of the name."""
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._hold(name, size))
        await settle()

    async def _hold(self, name: str, size: int) -> None:
        async with self.bodies.hold(of(name[0]), size):
            self.order.append(name)
            await self.ends[name].wait()

    async def end(self, name: str) -> None:
        """End a request that holds room."""
        self.ends[name].set()
        await self.tasks[name]
        await settle()


async def settle() -> None:
    """Run every task that can continue."""
    for _ in range(20):
        await asyncio.sleep(0)


async def test_a_namespace_with_many_waiting_requests_lets_others_have_their_turn() -> None:
    holder = Holder(LargeBodies(10))
    for number in range(6):
        await holder.begin(f"a{number}", 5)
    await holder.begin("b0", 5)
    assert holder.order == ["a0", "a1"]
    for _ in range(7):
        await holder.end(next(name for name in holder.order if not holder.ends[name].is_set()))
    assert sorted(holder.order) == ["a0", "a1", "a2", "a3", "a4", "a5", "b0"]
    assert holder.order.index("b0") <= 4, "behind what had its turn already"


async def test_a_large_one_is_not_overtaken_for_ever_by_small_ones() -> None:
    """And one that is larger than all of the room gets all of it."""
    holder = Holder(LargeBodies(10))
    await holder.begin("a0", 6)
    await holder.begin("b0", 99)
    await holder.begin("c0", 1)
    assert holder.order == ["a0"]
    await holder.end("a0")
    assert holder.order == ["a0", "b0"]
    await holder.end("b0")
    assert holder.order == ["a0", "b0", "c0"]
    await holder.end("c0")


async def test_what_waits_too_long_or_leaves_keeps_no_room() -> None:
    bodies = LargeBodies(10, wait_max_s=0.05)
    holder = Holder(bodies)
    await holder.begin("a0", 10)
    with pytest.raises(TooLong):
        async with bodies.hold(of("b"), 10):
            raise AssertionError("there is no room")
    await holder.begin("b0", 10)
    await holder.begin("c0", 4)
    holder.tasks["b0"].cancel()
    await settle()
    holder.tasks["a0"].cancel()  # a client that has gone
    await settle()
    assert holder.order == ["a0", "c0"]
    await holder.end("c0")
    async with AsyncExitStack() as stack:
        for _ in range(2):
            await stack.enter_async_context(bodies.hold(of("d"), 5))


async def test_only_so_many_wait() -> None:
    bodies = LargeBodies(1, waiting_max=(2, 2, 2))
    holder = Holder(bodies)
    for name in ("a0", "a1", "a2"):
        await holder.begin(name, 1)
    with pytest.raises(TooLong):
        async with bodies.hold(of("b"), 1):
            raise AssertionError("too many wait")
    for name in ("a0", "a1", "a2"):
        await holder.end(name)


async def test_one_tenant_cannot_take_all_waiting_places() -> None:
    """Neither a namespace, nor a peer that names many."""
    bodies = LargeBodies(1, waiting_max=(9, 6, 3))

    async def wait(lane: Lane) -> None:
        async with bodies.hold(lane, 1):
            pass

    async with bodies.hold(of("first"), 1):
        waits = [asyncio.create_task(wait(of("a"))) for _ in range(9)]
        waits += [asyncio.create_task(wait(of(f"n{number}"))) for number in range(9)]
        other = asyncio.create_task(wait(of("a", "another")))
        await settle()
        refused = [one for one in waits if one.done()]
        assert [one.exception().__class__ for one in refused] == [TooLong] * 12
        assert not other.done()
    await asyncio.gather(other, *(one for one in waits if one not in refused))
