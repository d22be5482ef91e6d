"""An event loop in a thread of its own, for programs without one.

``sync_client`` and ``psij_executor`` run the asynchronous client in it. A call from another thread
waits for its answer, and an interrupt (Ctrl-C) cancels the call.
"""

from __future__ import annotations

import asyncio
import threading
import weakref
from collections.abc import AsyncGenerator, Callable, Coroutine, Iterator
from concurrent.futures import Future
from typing import Any, Protocol, TypeVar

from fluxqueue.errors import InvalidInput

T = TypeVar("T")


class Closing(Protocol):
    """What lives in a loop and is closed there."""

    async def close(self) -> None:
        """End all of it."""


C = TypeVar("C", bound=Closing)


class LoopThread:
    """A running event loop. ``close`` ends it."""

    def __init__(self) -> None:
        self.loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._run, name="fluxqueue client", daemon=True)
        self._thread.start()

    def _run(self) -> None:
        asyncio.set_event_loop(self.loop)
        self.loop.run_forever()

    @property
    def is_closed(self) -> bool:
        """Whether it runs nothing any more. So it is in a process that was forked."""
        return self.loop.is_closed() or not self._thread.is_alive()

    @property
    def is_current(self) -> bool:
        """Whether this code runs in the loop."""
        return threading.current_thread() is self._thread

    def start(self, work: Coroutine[Any, Any, T]) -> Future[T]:
        """Begin ``work``, and return its future."""
        if self.is_closed:
            work.close()
            raise InvalidInput("is closed", where="Client", hint="open a new one")
        return asyncio.run_coroutine_threadsafe(work, self.loop)

    def run(self, work: Coroutine[Any, Any, T]) -> T:
        """Run ``work`` and return its result. An interrupt cancels it.

        Raises
        ------
        InvalidInput
            It is closed, or the caller would wait for itself.
        """
        if self.is_current:
            work.close()
            raise InvalidInput(
                "is used in a callback of a future, and its requests wait for that callback",
                where="Client",
                hint="start a thread in the callback",
            )
        future = self.start(work)
        try:
            return future.result()
        except BaseException:
            future.cancel()
            raise

    def iterate(self, items: AsyncGenerator[T, None]) -> Iterator[T]:
        """Yield the items of an asynchronous generator. ``close`` ends it, too."""
        steps: set[asyncio.Task[Any] | None] = set()

        async def step() -> T:
            steps.add(asyncio.current_task())
            return await anext(items)

        async def end() -> None:
            left = [one for one in steps if one is not None]
            for one in left:
                # An interrupt before ``run`` waits cancels nothing. Twice would disturb its end.
                if not one.cancelling():
                    one.cancel()
            await asyncio.gather(*left, return_exceptions=True)
            await items.aclose()

        try:
            while True:
                steps.clear()
                try:
                    yield self.run(step())
                except StopAsyncIteration:
                    return
        finally:
            if not self.is_closed:
                self.run(end())

    def close(self) -> None:
        """End all work and the thread. Harmless if it has ended."""
        if self.is_closed:
            return
        self.run(self._cancel_all())
        self.loop.call_soon_threadsafe(self.loop.stop)
        self._thread.join()
        self.loop.close()

    async def _cancel_all(self) -> None:
        tasks = asyncio.all_tasks(self.loop) - {asyncio.current_task(self.loop)}
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        # Streams that are read half.
        await self.loop.shutdown_asyncgens()


def open_for(
    owner: object, make: Coroutine[Any, Any, C]
) -> tuple[LoopThread, C, Callable[[], object]]:
    """Start a thread, and make an object in its loop.

    Returns
    -------
    Both, and a function that closes both and is harmless to repeat. It is called at the end of
    ``owner``, and of a program that forgets it, so connections end without complaints.
    """
    thread = LoopThread()
    try:
        made = thread.run(make)
    except BaseException:
        thread.close()
        raise
    return thread, made, weakref.finalize(owner, _close, thread, made)


def _close(thread: LoopThread, made: Closing) -> None:
    # The garbage collector may find the owner in the loop, which cannot wait for itself.
    if thread.is_current:
        threading.Thread(target=_close, args=(thread, made), name="close fluxqueue client").start()
        return
    # After a fork, all of it is in the other process.
    if not thread.is_closed:
        thread.run(made.close())
        thread.close()
