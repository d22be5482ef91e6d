"""``Client``: the queue of a cluster for programs without asyncio, and for notebooks.

It runs an ``AsyncClient`` in a thread. Its methods are those of ``AsyncClient`` and
``AsyncJobHandle``, with their parameters and texts. Each waits for its answer.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, Callable, Coroutine, Iterable, Iterator
from functools import wraps
from pathlib import Path
from typing import Any, Concatenate, Generic, ParamSpec, Self, TypeVar, Unpack

from fluxqueue.client.async_client import AsyncCallArray, AsyncClient
from fluxqueue.client.batch.job_options import JobOptions
from fluxqueue.client.executor import QueueExecutor
from fluxqueue.client.handles import AsyncJobHandle
from fluxqueue.client.job_view import JobView
from fluxqueue.client.loop_thread import LoopThread, open_for
from fluxqueue.kube.transport import Transport

P = ParamSpec("P")
T = TypeVar("T")


class _Blocking:
    """Something whose methods run those of ``_inner`` in the thread."""

    _inner: Any
    _thread: LoopThread

    def __getstate__(self) -> Any:
        raise TypeError(
            f"a {type(self).__name__} cannot be pickled. Make a Client in each process, and find "
            "jobs by their names"
        )


def _run(
    method: Callable[Concatenate[Any, P], Coroutine[Any, Any, T]],
) -> Callable[Concatenate[Any, P], T]:
    """Return ``method`` as a call that waits for its result."""

    @wraps(method)
    def run(self: _Blocking, /, *args: P.args, **kwargs: P.kwargs) -> T:
        return self._thread.run(method(self._inner, *args, **kwargs))

    return run


def _iterate(
    method: Callable[Concatenate[Any, P], AsyncGenerator[T, None]],
) -> Callable[Concatenate[Any, P], Iterator[T]]:
    """Return ``method`` as a call that waits for each item."""

    @wraps(method)
    def iterate(self: _Blocking, /, *args: P.args, **kwargs: P.kwargs) -> Iterator[T]:
        yield from self._thread.iterate(method(self._inner, *args, **kwargs))

    return iterate


def _find(
    method: Callable[Concatenate[AsyncClient, P], Coroutine[Any, Any, AsyncJobHandle]],
) -> Callable[Concatenate[Client, P], JobHandle]:
    """Return ``method`` of the client, which gives a handle."""

    @wraps(method)
    def find(self: Client, /, *args: P.args, **kwargs: P.kwargs) -> JobHandle:
        return JobHandle(self, self._thread.run(method(self._inner, *args, **kwargs)))

    return find


class Client(_Blocking):
    """The queue of one cluster, as one user sees it. ``with`` closes its connections.

    Parameters
    ----------
    kubeconfig : Default: KUBECONFIG, then ``~/.kube/config``, or the service account of this pod.
    context : Context of the kubeconfig.
    namespace : Default: that of the context.
    impersonate : Act as this user, as ``--as`` does.
    view_url, view_token : View server and token for ``history`` and ``accounting``. Default: the
        variables FLUXQUEUE_VIEW and FLUXQUEUE_VIEW_TOKEN, then those of the cluster.
    transport : Replaces HTTP, for tests.

    Raises
    ------
    InvalidSettings
        There is no usable kubeconfig.
    """

    def __init__(
        self,
        *,
        kubeconfig: str | Path | None = None,
        context: str | None = None,
        namespace: str | None = None,
        impersonate: str = "",
        view_url: str = "",
        view_token: str = "",
        transport: Transport | None = None,
    ) -> None:
        async def make() -> AsyncClient:
            return AsyncClient(
                kubeconfig=kubeconfig, context=context, namespace=namespace,
                impersonate=impersonate, view_url=view_url, view_token=view_token,
                transport=transport,
            )  # fmt: skip

        self._inner: AsyncClient
        self._thread, self._inner, self._close = open_for(self, make())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """End the watches and close the connections. Jobs continue. Harmless if it is closed."""
        self._close()

    @property
    def namespace(self) -> str:
        """The namespace of submissions and lists."""
        return self._inner.namespace

    submit = _find(AsyncClient.submit)
    job = _find(AsyncClient.job)
    check = _run(AsyncClient.check)
    jobs = _run(AsyncClient.jobs)
    queues = _run(AsyncClient.queues)
    nodes = _run(AsyncClient.nodes)
    history = _run(AsyncClient.history)
    runs = _run(AsyncClient.runs)
    accounting = _run(AsyncClient.accounting)

    def map(
        self,
        function: Callable[..., T],
        *iterables: Iterable[Any],
        at_once: int = 0,
        **options: Unpack[JobOptions],
    ) -> CallArray[T]:
        """Call a function in one pod for each item, as the tasks of one array.

        Iteration yields the values in the order of the items. See ``AsyncClient.map``.
        """
        made = self._inner.map(function, *iterables, at_once=at_once, **options)
        return CallArray(self, self._thread.run(made))

    def executor(
        self, *, max_workers: int | None = None, **options: Unpack[JobOptions]
    ) -> QueueExecutor:
        """Return a ``concurrent.futures.Executor`` that runs each call as a job of its own.

        Parameters
        ----------
        max_workers : How many jobs are in the queue or run at the same time, None: all.
        options : Of each job.
        """
        return QueueExecutor(
            self._inner, self._thread, options, max_workers=max_workers, owner=self
        )


class JobHandle(JobView, _Blocking):
    """One job that can be waited for and steered."""

    def __init__(self, client: Client, handle: AsyncJobHandle) -> None:
        super().__init__(
            handle._followed, namespace=handle.namespace, kind=handle.kind, name=handle.name,
            uid=handle.uid,
        )  # fmt: skip
        # The handle keeps its client open: ``Client().submit(...).wait()``.
        self._client, self._thread, self._inner = client, client._thread, handle

    def wait(
        self, *, queued_timeout: float | None = None, running_timeout: float | None = None
    ) -> Self:
        """Wait until it has ended, in whatever way. See ``AsyncJobHandle.wait``."""
        self._thread.run(
            self._inner.wait(queued_timeout=queued_timeout, running_timeout=running_timeout)
        )
        return self

    def close(self) -> None:
        """Follow it no longer. Its properties stay as they are, and the job continues."""

        async def close() -> None:
            self._inner.close()

        self._thread.run(close())

    changes = _iterate(AsyncJobHandle.changes)
    result = _run(AsyncJobHandle.result)
    pods = _run(AsyncJobHandle.pods)
    logs = _iterate(AsyncJobHandle.logs)
    explain = _run(AsyncJobHandle.explain)
    hold = _run(AsyncJobHandle.hold)
    release = _run(AsyncJobHandle.release)
    requeue = _run(AsyncJobHandle.requeue)
    priority = _run(AsyncJobHandle.priority)
    move = _run(AsyncJobHandle.move)
    cancel = _run(AsyncJobHandle.cancel)
    delete = _run(AsyncJobHandle.delete)


class CallArray(Generic[T]):
    """The calls of a ``map``: iteration yields their values in order.

    ``handle`` is the job of the whole array, with its state, logs and ``cancel``.
    """

    def __init__(self, client: Client, array: AsyncCallArray[T]) -> None:
        self._thread, self._array = client._thread, array
        self.handle = JobHandle(client, array.handle)

    def __len__(self) -> int:
        return len(self._array)

    def __iter__(self) -> Iterator[T]:
        yield from self._thread.iterate(aiter(self._array))

    def results(self) -> list[T]:
        """Wait for all values. Raises the error of the first task that has one."""
        return list(self)
