"""``QueueExecutor``: a ``concurrent.futures.Executor`` that runs each call as a job.

``Client.executor`` makes it. All futures share the watch of their client. The answers of jobs that
have ended are read together, so a thousand futures cost some dozens of lists and no polling.
"""

from __future__ import annotations

import asyncio
import threading
from collections.abc import Callable
from concurrent.futures import Executor, Future
from contextlib import nullcontext, suppress
from typing import Any, ParamSpec, TypeVar

from fluxqueue.client.async_client import AsyncClient
from fluxqueue.client.batch.job_options import JobOptions
from fluxqueue.client.calls import message_of, read_value
from fluxqueue.client.fluxjob_lists import HOLDING
from fluxqueue.client.handles import AsyncJobHandle
from fluxqueue.client.loop_thread import LoopThread
from fluxqueue.client.submission import Body, body_of_calls, check_options
from fluxqueue.errors import FluxQueueError
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import PODS
from fluxqueue.workload.objects import Object

P = ParamSpec("P")
T = TypeVar("T")

TOGETHER_MAX = 100
"""How many jobs one list of pods asks for."""
TOGETHER_S = 0.1
"""How long an ended job waits for others."""
KEPT_S = 3600
"""How long an ended job is kept that its program did not delete."""
OF_JOB = "batch.kubernetes.io/job-name"


class QueueFuture(Future[T]):
    """The value of a call. ``cancel`` also ends a job that runs, and frees its resources.

    ``handle`` is the job, None until it is created.
    """

    def __init__(self) -> None:
        super().__init__()
        self.handle: AsyncJobHandle | None = None

    def running(self) -> bool:
        """Return whether its job has its nodes."""
        # For the base class it is pending until it ends, so that it can be cancelled all the time.
        handle = self.handle
        return not self.done() and handle is not None and handle.state in HOLDING


class QueueExecutor(Executor):
    """Runs each call as a job of one pod.

    Parameters
    ----------
    options : Of each job.
    max_workers : How many jobs are in the queue or run at the same time, None: all.
    owner : Kept as long as this: it closes ``client`` at its end.
    """

    def __init__(
        self,
        client: AsyncClient,
        thread: LoopThread,
        options: JobOptions,
        *,
        max_workers: int | None = None,
        owner: object = None,
    ) -> None:
        check_options(options)
        if max_workers is not None and max_workers < 1:
            raise ValueError("max_workers must be at least 1")
        self._client, self._thread, self._options = client, thread, options
        self._owner = owner
        self._slots = asyncio.Semaphore(max_workers) if max_workers else None
        self._answers = AnswerReader(client.connection, client.namespace)
        self._lock = threading.Lock()
        self._live: set[QueueFuture[Any]] = set()
        self._works: set[asyncio.Task[None]] = set()
        self._is_closed = False

    def submit(self, fn: Callable[P, T], /, *args: P.args, **kwargs: P.kwargs) -> QueueFuture[T]:
        """Call ``fn(*args, **kwargs)`` in a pod, and return the future of its value.

        Raises
        ------
        InvalidInput
            The call cannot be sent to a pod.
        RuntimeError
            The executor was shut down.
        """
        body = body_of_calls(fn, [(args, kwargs)], self._options)
        # Should this program die, the ended jobs go by themselves.
        body["spec"]["ttlSecondsAfterFinished"] = KEPT_S
        future: QueueFuture[T] = QueueFuture()
        with self._lock:
            if self._is_closed:
                raise RuntimeError("cannot schedule new futures after shutdown")
            self._live.add(future)
        future.add_done_callback(self._forget)
        self._thread.loop.call_soon_threadsafe(self._begin, future, body)
        return future

    def shutdown(self, wait: bool = True, *, cancel_futures: bool = False) -> None:
        """Take no more calls.

        Parameters
        ----------
        wait : Return when all jobs have ended and are deleted.
        cancel_futures : Cancel the jobs that have not ended, also those that run.
        """
        with self._lock:
            self._is_closed = True
            live = list(self._live)
        if cancel_futures:
            for one in live:
                one.cancel()
        if wait:
            self._thread.run(self._until_idle())

    async def _until_idle(self) -> None:
        while self._works:
            await asyncio.wait(self._works)

    def _forget(self, future: Future[Any]) -> None:
        with self._lock:
            self._live.discard(future)

    def _begin(self, future: QueueFuture[Any], body: Body) -> None:
        work = asyncio.create_task(self._run(future, body))
        self._works.add(work)
        work.add_done_callback(self._works.discard)
        loop = self._thread.loop

        def cancel(done: Future[Any]) -> None:
            if done.cancelled():
                loop.call_soon_threadsafe(work.cancel)

        future.add_done_callback(cancel)

    async def _run(self, future: QueueFuture[Any], body: Body) -> None:
        """Follow one call from its creation to its deletion."""
        try:
            async with self._slots or nullcontext():
                await self._call(future, body)
        except asyncio.CancelledError:
            future.cancel()
            # `wait` and `as_completed` see the end of a cancelled future by this call alone.
            future.set_running_or_notify_cancel()
            raise

    async def _call(self, future: QueueFuture[Any], body: Body) -> None:
        # A cancelled request may have been carried out: its answer is awaited in any case.
        making = asyncio.ensure_future(self._client.create(body))
        try:
            try:
                future.handle = await asyncio.shield(making)
                value = await self._value(await future.handle.wait())
            except Exception as error:  # noqa: BLE001  it is the caller's, also that of a function
                if future.set_running_or_notify_cancel():
                    future.set_exception(error)
            else:
                if future.set_running_or_notify_cancel():
                    future.set_result(value)
        finally:
            # Its pods go with it, so that nothing of a call stays in the cluster.
            with suppress(FluxQueueError):
                await (await making).delete()

    async def _value(self, handle: AsyncJobHandle) -> Any:
        pod = await self._answers.read(handle.name)
        if pod is not None and message_of(pod):
            return await read_value(self._client.connection, pod)
        raise handle.without_answer(pod)


class AnswerReader:
    """Reads the pods of jobs that have ended, those of many jobs by one list."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        self._asked: dict[str, asyncio.Future[Object | None]] = {}
        self._task: asyncio.Task[None] | None = None

    async def read(self, name: str) -> Object | None:
        """Return the pod of a Job: the one with the answer if there is one, None without pods."""
        asked: asyncio.Future[Object | None] = asyncio.get_running_loop().create_future()
        self._asked[name] = asked
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read_all())
        return await asked

    async def _read_all(self) -> None:
        while self._asked:
            await asyncio.sleep(TOGETHER_S)
            names = list(self._asked)[:TOGETHER_MAX]
            asked = {name: self._asked.pop(name) for name in names}
            try:
                found = await self._answers(names)
            except FluxQueueError as error:
                for one in asked.values():
                    if not one.done():
                        one.set_exception(error)
                continue
            for name, one in asked.items():
                if not one.done():
                    one.set_result(found.get(name))

    async def _answers(self, names: list[str]) -> dict[str, Object]:
        found = await self._client.list(
            PODS, self._namespace, label_selector=f"{OF_JOB} in ({','.join(names)})"
        )
        # A pod with an answer comes after the others of its Job, and takes their place.
        pods = sorted(found.items, key=lambda pod: bool(message_of(pod)))
        return {pod["metadata"]["labels"][OF_JOB]: pod for pod in pods}
