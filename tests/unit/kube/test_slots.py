"""Slots of a client: bounded, in turns by namespace, and little of them for the background."""

from __future__ import annotations

import asyncio

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.kube.slots import BACKGROUND_PART, Slots, lane_of


class _Requests:
    """Requests that stay open until the test ends them."""

    def __init__(self, number: int) -> None:
        self.slots, self.open, self.ends = Slots(number), list[str](), dict[str, asyncio.Event]()
        self.tasks: dict[str, asyncio.Task[None]] = {}

    async def _run(self, name: str, *, is_background: bool) -> None:
        async with self.slots.hold(name.partition("/")[0], is_background=is_background):
            self.open.append(name)
            try:
                await self.ends[name].wait()
            finally:
                self.open.remove(name)

    async def begin(self, name: str, *, is_background: bool = False) -> None:
        """Begin a request. The part of its name before the slash is its namespace."""
        self.ends[name] = asyncio.Event()
        self.tasks[name] = asyncio.create_task(self._run(name, is_background=is_background))
        await _settle()

    async def end(self, name: str) -> None:
        """End a request that is open."""
        self.ends[name].set()
        await _settle()

    async def cancel(self, name: str) -> None:
        """Cancel a request, open or not."""
        self.tasks[name].cancel()
        await _settle()


async def _settle() -> None:
    for _ in range(4):
        await asyncio.sleep(0)


async def test_the_next_namespace_waits_for_one_answer() -> None:
    requests = _Requests(2)
    for number in range(50):
        await requests.begin(f"many/{number}")
    await requests.begin("one/0")
    await requests.end("many/0")
    await requests.end("many/1")
    assert "one/0" in requests.open
    assert len(requests.open) == 2


async def test_the_background_leaves_slots_free_and_waits_for_all_others() -> None:
    requests = _Requests(8)
    for number in range(20):
        await requests.begin(f"a/{number}", is_background=True)
    assert len(requests.open) == 8 // BACKGROUND_PART
    await requests.begin("b/release")
    assert "b/release" in requests.open
    for number in range(10):
        await requests.begin(f"c/{number}")
    await requests.end("a/0")
    assert requests.open.count("a/2") == 0, "five of the others wait"


async def test_one_request_in_the_background_is_always_open() -> None:
    requests = _Requests(4)
    for number in range(9):
        await requests.begin(f"a/{number}")
    await requests.begin("b/0", is_background=True)
    await requests.begin("b/1", is_background=True)
    await requests.end("a/0")
    assert "b/0" in requests.open
    await requests.end("a/1")
    assert "b/1" not in requests.open
    await requests.end("b/0")
    assert "b/1" in requests.open


async def test_one_slot_serves_the_background_too() -> None:
    requests = _Requests(1)
    await requests.begin("a/0", is_background=True)
    assert requests.open == ["a/0"]


def test_the_namespace_of_a_path() -> None:
    assert lane_of("/apis/batch/v1/namespaces/team-a/jobs/x") == "team-a"
    assert lane_of("/api/v1/namespaces/team-a") == "team-a"
    assert lane_of("/api/v1/nodes/namespaces") == ""


_STEPS = st.lists(
    st.tuples(st.sampled_from(["begin", "background", "end", "cancel"]), st.integers(0, 40)),
    max_size=120,
)


@settings(deadline=None)
@given(number=st.integers(1, 9), steps=_STEPS)
def test_no_slot_is_lost_or_given_twice(number: int, steps: list[tuple[str, int]]) -> None:
    """Whichever request ends or gives up, at whichever moment."""
    asyncio.run(_play(number, steps))


async def _play(number: int, steps: list[tuple[str, int]]) -> None:
    requests = _Requests(number)
    for count, (step, pick) in enumerate(steps):
        if step in {"begin", "background"}:
            name = f"{'abc'[pick % 3]}/{count}"
            await requests.begin(name, is_background=step == "background")
        elif requests.tasks:
            name = sorted(requests.tasks)[pick % len(requests.tasks)]
            await (requests.end(name) if step == "end" else requests.cancel(name))
        assert len(requests.open) <= number
        waiting = [task for task in requests.tasks.values() if not task.done()]
        if len(waiting) > len(requests.open):
            assert requests.open, "a free slot is given to what waits"
    for event in requests.ends.values():
        event.set()
    await asyncio.wait_for(asyncio.gather(*requests.tasks.values(), return_exceptions=True), 5)
    for again in range(number):
        await requests.begin(f"again/{again}")
    assert len(requests.open) == number, "all slots are free again"
    for task in requests.tasks.values():
        task.cancel()
