"""Run admissions in their own threads, each with a bound on its processor time.

Called by ``fluxqueue_webhook.server``. The event loop continues to answer health checks meanwhile.
Every computation on a request has its own bound, so no known request reaches this one. It protects
the other requests from unknown cases. A thread that overruns is interrupted between two steps of
Python, and its request is refused at once. Peers, namespaces and users take turns (``fair_queue``).
"""

from __future__ import annotations

import asyncio
import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from fluxqueue_webhook.fair_queue import NO_LANE, FairQueue, Lane

CPU_MAX_S = 0.5
"""Processor time of one admission (seconds)."""
THREADS = 4
PEER_WAITING_MAX, WAITING_MAX = 1000, 200
"""The most requests of one peer, and of one namespace, that wait for a thread. Further requests are
refused."""
WAIT_MAX_S = 3.0
"""The longest wait for a thread. An API server gives up after five seconds, without a reason."""
_LOOK_EVERY_S = 0.05


class TooLong(Exception):
    """Report that an admission has used its processor time, or that too many wait."""


class _Stop(BaseException):
    """End an admission that overran. It is raised in the thread of that admission."""


@dataclass(eq=False)
class _Task:
    call: Callable[[], Any]
    answer: asyncio.Future[Any]
    began_s: float = 0.0
    clock: int | None = None
    thread: int = 0
    is_over: bool = False
    is_stopped: bool = False
    lock: threading.Lock = field(default_factory=threading.Lock)

    def used_s(self) -> float:
        """Return the processor time of its thread so far, or 0 while it waits for one."""
        if self.clock is None or not self.began_s or self.is_over:
            return 0.0
        return time.clock_gettime(self.clock) - self.began_s


class BoundedThreads:
    """Run calls in a few threads, one call each. Create it on the event loop that asks."""

    def __init__(self, cpu_max_s: float = CPU_MAX_S, threads: int = THREADS) -> None:
        self._cpu_max_s = cpu_max_s
        # One thread is there at once for other peers, and half of them for other namespaces.
        self._waiting = FairQueue[_Task](
            at_once=(max(1, threads - 1), max(1, threads // 2)),
            waiting_max=(PEER_WAITING_MAX, WAITING_MAX),
        )
        for number in range(threads):
            threading.Thread(target=self._work, name=f"admit-{number}", daemon=True).start()

    def close(self) -> None:
        """Let the threads end when they have done the waiting calls."""
        self._waiting.close()

    async def run(
        self, call: Callable[[], Any], lane: Lane = NO_LANE, *, waited_s: float = 0.0
    ) -> Any:
        """Return what ``call`` returns, or raise what it raises.

        Parameters
        ----------
        lane : The tenant that the call is for.
        waited_s : How long its request has waited before (seconds). All waits have one bound.

        Raises
        ------
        TooLong
            It has used its processor time, or waits too long because many others wait.
        """
        task = _Task(call, asyncio.get_running_loop().create_future())
        if not self._waiting.put(lane, task):
            raise TooLong
        give_up_s = time.monotonic() + WAIT_MAX_S - waited_s
        try:
            while True:
                done, _ = await asyncio.wait({task.answer}, timeout=_LOOK_EVERY_S)
                if done:
                    return task.answer.result()
                is_late = not task.thread and time.monotonic() > give_up_s
                if is_late or task.used_s() > self._cpu_max_s:
                    raise TooLong
        finally:
            # Also if the caller has gone: nothing else would end the call.
            _interrupt(task)

    def _work(self) -> None:
        lane: Lane | None = None
        while (taken := self._waiting.take(done=lane)) is not None:
            lane, task = taken
            _run(task)


def _run(task: _Task) -> None:
    loop = task.answer.get_loop()
    found: Any = None
    error: BaseException | None = None
    try:
        with task.lock:
            if task.is_stopped:
                return  # the caller has gone
            task.thread = threading.get_ident()
        try:
            task.clock = _clock_of(task.thread)
            task.began_s = time.clock_gettime(task.clock)
            found = task.call()
        except Exception as failure:  # noqa: BLE001  the calling loop raises it
            error = failure
        with task.lock:
            task.is_over = True
        # Race: the interruption may still be under way, and must not reach the next task.
        while task.is_stopped:
            time.sleep(0.001)
    except _Stop:
        task.is_over = True
        return
    loop.call_soon_threadsafe(_settle, task.answer, found, error)


def _clock_of(thread: int) -> int:
    """Return the clock of a thread's processor time, or CLOCK_MONOTONIC if there is none."""
    if hasattr(time, "pthread_getcpuclockid"):
        return time.pthread_getcpuclockid(thread)
    return time.CLOCK_MONOTONIC


def _settle(answer: asyncio.Future[Any], found: Any, error: BaseException | None) -> None:
    if answer.done():
        return
    if error is None:
        answer.set_result(found)
    else:
        answer.set_exception(error)


def _interrupt(task: _Task) -> None:
    """Raise ``_Stop`` in the thread of the task, unless it has ended or has not begun."""
    # Under the lock: otherwise the task could end in between, and the next one be interrupted.
    with task.lock:
        if task.is_over:
            return
        task.is_stopped = True
        if not task.thread:
            return
        ctypes.pythonapi.PyThreadState_SetAsyncExc(
            ctypes.c_ulong(task.thread), ctypes.py_object(_Stop)
        )
