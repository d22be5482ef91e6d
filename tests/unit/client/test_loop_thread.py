"""The event loop of programs without one: interrupts, ends and callbacks."""

from __future__ import annotations

import asyncio
import gc
import pickle
import signal
import threading
import time
import warnings
from collections.abc import AsyncGenerator, Iterator
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import pytest

from fluxqueue.client import Client
from fluxqueue.client.loop_thread import LoopThread, open_for
from fluxqueue.errors import InvalidInput
from tests.support.waiting import WAIT_S


@pytest.fixture
def thread() -> Iterator[LoopThread]:
    """A loop."""
    made = LoopThread()
    yield made
    made.close()


class Stream:
    """Yields one item and waits. Its end takes a moment, as that of a connection does."""

    def __init__(self) -> None:
        self.is_waiting, self.has_ended = threading.Event(), threading.Event()

    async def items(self) -> AsyncGenerator[int, None]:
        """Yield."""
        try:
            yield 1
            self.is_waiting.set()
            try:
                await asyncio.Event().wait()
            finally:
                for _ in range(10):
                    await asyncio.sleep(0)
        finally:
            self.has_ended.set()


@pytest.fixture
def interruptible() -> Iterator[None]:
    """A shell starts programs in its background with SIGINT ignored."""
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    yield
    signal.signal(signal.SIGINT, before)


@pytest.mark.timeout(2 * WAIT_S)
@pytest.mark.usefixtures("interruptible")
def test_an_interrupt_ends_an_iteration_as_an_interrupt(thread: LoopThread) -> None:
    """Ctrl-C while a log is followed."""
    stream = Stream()
    main = threading.main_thread().ident
    assert main is not None

    def interrupt() -> None:
        assert stream.is_waiting.wait(WAIT_S)
        signal.pthread_kill(main, signal.SIGINT)

    threading.Thread(target=interrupt).start()
    items = thread.iterate(stream.items())
    assert next(items) == 1
    with pytest.raises(KeyboardInterrupt):
        next(items)
    assert stream.has_ended.is_set()


def test_an_interrupt_before_the_wait_ends_an_iteration_too(
    thread: LoopThread, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The step has begun, and nothing waits for it yet."""
    stream, start = Stream(), thread.start
    items = thread.iterate(stream.items())
    assert next(items) == 1

    def interrupted(work: Any) -> Any:
        start(work)
        monkeypatch.undo()
        raise KeyboardInterrupt

    monkeypatch.setattr(thread, "start", interrupted)
    with pytest.raises(KeyboardInterrupt):
        next(items)
    assert stream.has_ended.is_set()


@pytest.mark.filterwarnings("error")
def test_an_iteration_that_is_left_ends_with_its_thread() -> None:
    """Its generator is collected later, and says nothing."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        gc.collect()  # what tests before this one have left
    thread, stream = LoopThread(), Stream()
    left = thread.iterate(stream.items())
    assert next(left) == 1
    thread.close()
    assert stream.has_ended.is_set()
    del left
    gc.collect()
    with pytest.raises(InvalidInput, match="Client: is closed"):
        next(thread.iterate(stream.items()))


def test_a_callback_of_a_future_does_not_wait_for_itself(thread: LoopThread) -> None:
    """It runs in the loop, so a request in it could never end."""
    said: Future[str] = Future()

    def callback(_: Future[None]) -> None:
        try:
            thread.run(asyncio.sleep(0))
        except InvalidInput as error:
            said.set_result(str(error))

    begun = threading.Event()

    async def work() -> None:
        while not begun.is_set():
            await asyncio.sleep(0)

    future = thread.start(work())
    future.add_done_callback(callback)
    begun.set()
    assert "Fix: start a thread in the callback" in said.result(WAIT_S)


class Owner:
    """What the collector finds."""


class Resource:
    """What is closed."""

    def __init__(self) -> None:
        self.is_closed = threading.Event()

    async def close(self) -> None:
        """Close."""
        self.is_closed.set()


def test_an_owner_that_is_collected_in_the_loop_is_closed() -> None:
    resource = Resource()

    async def make() -> Resource:
        return resource

    owner = [Owner()]
    thread, _, _ = open_for(owner[0], make())
    ends = threading.Thread(target=thread._thread.join)
    thread.loop.call_soon_threadsafe(owner.clear)
    assert resource.is_closed.wait(WAIT_S)
    ends.start()
    ends.join(WAIT_S)
    assert not ends.is_alive()


def test_a_client_says_that_it_is_not_sent_to_other_processes(tmp_path: Path) -> None:
    file = tmp_path / "config"
    file.write_text(
        "{apiVersion: v1, kind: Config, current-context: c,"
        " clusters: [{name: c, cluster: {server: 'http://127.0.0.1:1'}}],"
        " users: [{name: u, user: {token: t}}],"
        " contexts: [{name: c, context: {cluster: c, user: u}}]}",
        encoding="utf-8",
    )
    with (
        Client(kubeconfig=file) as client,
        pytest.raises(TypeError, match="Make a Client in each process"),
    ):
        pickle.dumps(client)
    # The thread ends with the client.
    end_s = time.monotonic() + WAIT_S
    while any(one.name == "fluxqueue client" for one in threading.enumerate()):
        assert time.monotonic() < end_s
