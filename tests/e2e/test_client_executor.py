"""``Client`` and its executor: many calls at once, in order, cancelled, cheap for the server."""

from __future__ import annotations

import asyncio
import gc
import re
import time
import tracemalloc
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from concurrent.futures import FIRST_COMPLETED, CancelledError, as_completed, wait

import pytest
import pytest_asyncio

from fluxqueue.client import Client, WorkFailed
from fluxqueue.kube.resources import JOBS, PODS
from fluxqueue.kube.transport import HttpTransport, Reply
from tests.support.e2e.health import assert_no_allocation
from tests.support.e2e.space import Space
from tests.support.host_programs import HOST, host_programs, keep_running
from tests.support.waiting import until

pytest.importorskip("cloudpickle")

THOUSAND = 1000
FUTURE_MAX_BYTES = 8_000
"""Of a future that is held with its value: its handle and the last state of its job."""
OURS = tracemalloc.Filter(True, "*/fluxqueue/*")
"""Buffers of connections are of a size of their own."""


@pytest_asyncio.fixture(loop_scope="session")
async def client(space: Space, monkeypatch: pytest.MonkeyPatch) -> AsyncIterator[Client]:
    """A client in the test's namespace, where programs of the image ``HOST`` run for real."""
    keep_running(monkeypatch)
    async with host_programs(space.client, space.name):
        made = Client(kubeconfig=space.world.kubeconfig, namespace=space.name)
        yield made
        await asyncio.to_thread(made.close)


def double(number: int) -> int:
    """The work of a call. A negative number is refused."""
    if number < 0:
        raise ValueError(f"{number} is negative")
    return 2 * number


async def test_calls_are_futures(client: Client, space: Space) -> None:
    """Values, errors and the functions of ``concurrent.futures``. Ended jobs are deleted."""

    def work() -> None:
        with client.executor(image=HOST, cpus="100m") as executor:
            assert list(executor.map(double, range(8))) == [2 * n for n in range(8)]
            good, bad = executor.submit(double, 4), executor.submit(double, -1)
            assert set(as_completed([good, bad], timeout=100)) == {good, bad}
            assert good.result() == 8
            with pytest.raises(ValueError, match="-1 is negative"):
                bad.result()
        with pytest.raises(RuntimeError, match="after shutdown"):
            executor.submit(double, 1)

    await asyncio.to_thread(work)
    assert (await space.client.list(JOBS, space.name)).items == []


async def test_a_handle_keeps_its_client_open(space: Space) -> None:
    """In one expression, nothing else refers to the client."""

    def work() -> str:
        client = Client(kubeconfig=space.world.kubeconfig, namespace=space.name)
        handle = client.submit(["sleep", "0"], image="busybox", cpus="100m")
        del client
        gc.collect()
        return handle.wait().state

    assert await asyncio.to_thread(work) == "Completed"


async def test_a_cancelled_future_frees_its_resources(client: Client, space: Space) -> None:
    """Whether its job runs or waits. Others are left alone, and ``wait`` hears of it."""

    def work() -> None:
        executor = client.executor(image=HOST, cpus=16, max_workers=20)
        futures = [executor.submit(time.sleep, 1000) for _ in range(8)]
        deadline = time.monotonic() + 100
        while not any(one.running() for one in futures):
            assert time.monotonic() < deadline
            time.sleep(0.05)
        running = next(one for one in futures if one.running())
        assert running.cancel()
        assert running.cancelled()
        done, _ = wait(futures, timeout=100, return_when=FIRST_COMPLETED)
        assert done == {running}
        with pytest.raises(CancelledError):
            running.result()
        executor.shutdown(cancel_futures=True)
        assert all(one.cancelled() for one in futures)

    await asyncio.to_thread(work)
    assert (await space.client.list(JOBS, space.name)).items == []

    await until(
        lambda: space.client.list(PODS, space.name), lambda found: not found.items, "no pods"
    )
    await assert_no_allocation(space)


async def test_a_job_that_is_cancelled_by_others_fails_its_future(
    client: Client, space: Space
) -> None:
    """The reason is said."""

    def work() -> None:
        with client.executor(image=HOST, cpus="100m") as executor:
            future = executor.submit(time.sleep, 1000)
            while future.handle is None:
                time.sleep(0.05)
            client.job(future.handle.name).cancel(wait=False)
            with pytest.raises(WorkFailed, match=r"Gone|Cancelled"):
                future.result(timeout=100)

    await asyncio.to_thread(work)


@pytest.mark.long("a thousand jobs pass through the queue, and each runs a program")
async def test_a_thousand_futures_have_one_watch(
    client: Client, space: Space, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Their values are in order, the requests are few, and memory is bounded."""
    requests: Counter[str] = Counter()
    sent, streamed = HttpTransport.send, HttpTransport.stream
    theirs = client._inner._connection._transport

    async def send(
        self: HttpTransport, method: str, target: str, headers: Mapping[str, str],
        body: bytes | None, timeout_s: float,
    ) -> Reply:  # fmt: skip
        if self is theirs:
            requests[f"{method} {kind(target)}"] += 1
        return await sent(self, method, target, headers, body, timeout_s)

    def stream(self: HttpTransport, target: str, headers: Mapping[str, str], idle_s: float):  # type: ignore[no-untyped-def]
        if self is theirs:
            requests[f"WATCH {kind(target)}"] += 1
        return streamed(self, target, headers, idle_s)

    monkeypatch.setattr(HttpTransport, "send", send)
    monkeypatch.setattr(HttpTransport, "stream", stream)

    def work() -> int:
        with client.executor(image=HOST, cpus="100m", memory="16Mi") as executor:
            list(executor.map(double, range(4)))
            gc.collect()
            tracemalloc.start()
            futures = [executor.submit(double, number) for number in range(THOUSAND)]
            cancelled = [one for one in futures[-100:] if one.cancel()]
            kept = [one for one in futures if one not in cancelled]
            assert [one.result(timeout=300) for one in kept] == [
                2 * number for number, one in enumerate(futures) if one not in cancelled
            ]
            gc.collect()
            held = tracemalloc.take_snapshot().filter_traces([OURS])
            tracemalloc.stop()
            return sum(one.size for one in held.statistics("filename"))

    used = await asyncio.to_thread(work)
    assert used < THOUSAND * FUTURE_MAX_BYTES
    print(f"\n{dict(requests)}, {used / 1e6:.1f} MB held")
    # The watch ends every five minutes, and is moved once, from one job to all.
    assert requests["WATCH fluxjobs"] <= 6
    assert requests["WATCH pods"] == 0
    # One for the pods that have ended at about the same time: more of them on a slower machine.
    assert requests["GET pods"] <= THOUSAND / 2
    assert requests["GET fluxjobs"] <= 3
    assert set(requests) <= {
        "WATCH fluxjobs", "GET pods", "GET fluxjobs", "POST jobs", "DELETE jobs"
    }  # fmt: skip
    assert (await space.client.list(JOBS, space.name)).items == []
    await assert_no_allocation(space)


def kind(target: str) -> str:
    """The resource of a path."""
    found = re.search(r"/namespaces/[^/]+/(\w+)", target)
    return found[1] if found else target
