"""``Client``: the queue of a cluster for programs without asyncio, and for notebooks.

It runs an ``AsyncClient`` in a thread, and has the same methods.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from datetime import datetime, timedelta
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, Unpack

from fluxqueue.client.async_client import AsyncCallArray, AsyncClient
from fluxqueue.client.batch.job_options import JobOptions
from fluxqueue.client.executor import QueueExecutor
from fluxqueue.client.explanation import Explanation
from fluxqueue.client.handles import AsyncJobHandle
from fluxqueue.client.loop_thread import open_for
from fluxqueue.client.pod_logs import LogLine
from fluxqueue.client.records import Records
from fluxqueue.client.submission import Work
from fluxqueue.kube.transport import Transport

T = TypeVar("T")


class Client:
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

        self._thread, self._client, self._close = open_for(self, make())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __getstate__(self) -> Any:
        raise TypeError("a Client cannot be pickled. Make one in each process")

    def close(self) -> None:
        """End the watches and close the connections. Jobs continue. Harmless if it is closed."""
        self._close()

    @property
    def namespace(self) -> str:
        """The namespace of submissions and lists."""
        return self._client.namespace

    # -- submitting ------------------------------------------------------------------------------

    def submit(
        self,
        work: Work,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[JobOptions],
    ) -> JobHandle:
        """Submit a command, a script, a function, a manifest or a jobspec (see ``Work``).

        Parameters
        ----------
        args, kwargs : Of a function. ``args`` are also the words behind a script.
        options : See ``JobOptions``. They win over the lines of a script.

        Raises
        ------
        InvalidInput
            The work or an option is not valid.
        ApiError
            The API server refuses it, with the reason.
        """
        made = self._client.submit(work, args=args, kwargs=kwargs, **options)
        return JobHandle(self, self._thread.run(made))

    def map(
        self,
        function: Callable[..., T],
        *iterables: Iterable[Any],
        at_once: int = 0,
        **options: Unpack[JobOptions],
    ) -> CallArray[T]:
        """Call a function in one pod for each item, as the tasks of one array.

        Each task starts when there is room for it. Iteration yields the values in the order of the
        items.

        Parameters
        ----------
        at_once : How many tasks run at the same time at most, 0: no limit.
        """
        made = self._client.map(function, *iterables, at_once=at_once, **options)
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
            self._client, self._thread, options, max_workers=max_workers, owner=self
        )

    def check(
        self,
        work: Work,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[JobOptions],
    ) -> Explanation:
        """Return when a submission would start, and create nothing.

        Raises
        ------
        InvalidInput, ApiError
            It would be refused.
        """
        return self._thread.run(self._client.check(work, args=args, kwargs=kwargs, **options))

    # -- looking ---------------------------------------------------------------------------------

    def job(self, reference: str | int, *, namespace: str | None = None) -> JobHandle:
        """Return the handle of a job, by the name of its workload or FluxJob, or by its jobid.

        Raises
        ------
        InvalidInput
            There is none.
        """
        found = self._client.job(reference, namespace=namespace)
        return JobHandle(self, self._thread.run(found))

    def jobs(
        self, *, state: str = "live", queue: str = "", user: str = "", all_namespaces: bool = False
    ) -> Records:
        """Return jobs, the running ones first, then the waiting ones by turn.

        Parameters
        ----------
        state : States, or live, waiting, started, ended, all, separated by commas.
        """
        return self._thread.run(
            self._client.jobs(
                state=state, queue=queue, user=user, all_namespaces=all_namespaces
            )
        )  # fmt: skip

    def queues(self) -> Records:
        """Return the queues with their policy and the numbers of their jobs."""
        return self._thread.run(self._client.queues())

    def nodes(self) -> Records:
        """Return the nodes: state, levels, and the use of each resource in base units."""
        return self._thread.run(self._client.nodes())

    def history(self, job: str | int, *, namespace: str | None = None) -> Records:
        """Return what happened to a job, and which user or part did it. It may have ended."""
        return self._thread.run(self._client.history(job, namespace=namespace))

    def runs(
        self, *, all_namespaces: bool = False, since: str = "", until: str = "", user: str = "",
        queue: str = "", limit: int = 0,
    ) -> Records:  # fmt: skip
        """Return ended runs, one by one. ``since`` and ``until`` are "7d" or "2030-01-31"."""
        return self._thread.run(
            self._client.runs(
                all_namespaces=all_namespaces, since=since, until=until, user=user, queue=queue,
                limit=limit,
            )
        )  # fmt: skip

    def accounting(
        self, *, by: str = "user,queue,namespace", all_namespaces: bool = False, since: str = "",
        until: str = "", user: str = "", queue: str = "",
    ) -> Records:  # fmt: skip
        """Return sums of usage: runs, core-hours, GPU-hours, mean wait.

        Parameters
        ----------
        by : user, queue, namespace, result, day, month, separated by commas.
        """
        return self._thread.run(
            self._client.accounting(
                by=by, all_namespaces=all_namespaces, since=since, until=until, user=user,
                queue=queue,
            )
        )  # fmt: skip


class JobHandle:
    """One job. Its properties change while the client is open (see ``AsyncJobHandle``)."""

    def __init__(self, client: Client, handle: AsyncJobHandle) -> None:
        # The handle keeps its client open: ``Client().submit(...).wait()``.
        self._client, self._thread, self._handle = client, client._thread, handle

    def __getstate__(self) -> Any:
        raise TypeError("a JobHandle cannot be pickled. Send its name, and use Client().job(name)")

    @property
    def name(self) -> str:
        """Name of its workload."""
        return self._handle.name

    @property
    def namespace(self) -> str:
        """Its namespace."""
        return self._handle.namespace

    @property
    def fluxjob(self) -> str:
        """Name of its FluxJob."""
        return self._handle.fluxjob

    @property
    def state(self) -> str:
        """Pending, Reserved, Held, Running, Completed, ... (``FluxJobState``), or Gone."""
        return self._handle.state

    @property
    def reason(self) -> str:
        """What it waits for, or why it ended."""
        return self._handle.reason

    @property
    def jobid(self) -> int | None:
        """Number of the job, None until the queue has taken it."""
        return self._handle.jobid

    @property
    def queue(self) -> str:
        """Name of its queue, empty until it is known."""
        return self._handle.queue

    @property
    def position(self) -> int | None:
        """Its place in the queue while it waits. The next job has 1."""
        return self._handle.position

    @property
    def expected_start(self) -> datetime | None:
        """The expected start while it waits, if it is known."""
        return self._handle.expected_start

    @property
    def started(self) -> datetime | None:
        """The start of its present run, or of its last one."""
        return self._handle.started

    @property
    def ended(self) -> datetime | None:
        """When it ended and its last resources were returned."""
        return self._handle.ended

    @property
    def nodes(self) -> list[str]:
        """Names of its nodes."""
        return self._handle.nodes

    def done(self) -> bool:
        """Return whether it has ended, in whatever way."""
        return self._handle.done()

    def to_dict(self) -> dict[str, Any]:
        """Return what a line of ``fluxqueue jobs`` shows."""
        return self._handle.to_dict()

    def raise_for_state(self) -> Self:
        """Raise WorkFailed if it has failed, was cancelled or is gone. Return itself otherwise."""
        self._handle.raise_for_state()
        return self

    def close(self) -> None:
        """Follow it no longer. Its properties stay as they are, and the job continues."""

        async def close() -> None:
            self._handle.close()

        self._thread.run(close())

    def __repr__(self) -> str:
        return repr(self._handle).replace("AsyncJobHandle", type(self).__name__)

    def _repr_html_(self) -> str:
        """Return a table for notebooks."""
        return self._handle._repr_html_()

    def wait(
        self, *, queued_timeout: float | None = None, running_timeout: float | None = None
    ) -> Self:
        """Wait until it has ended, in whatever way (``raise_for_state`` tells).

        Parameters
        ----------
        queued_timeout : Longest time in the queue, in seconds from now, all of its waits together.
        running_timeout : Longest run, in seconds. A run after a requeue counts anew.

        Raises
        ------
        QueuedTimeout, RunningTimeout
            A time is up. The job continues.
        NotQueued
            The controller makes no FluxJob of it.
        """
        waiting = self._handle.wait(queued_timeout=queued_timeout, running_timeout=running_timeout)
        self._thread.run(waiting)
        return self

    def changes(self) -> Iterator[tuple[str, str]]:
        """Yield its state and reason, then again after each change, until it has ended."""
        yield from self._thread.iterate(self._handle.changes())

    def result(
        self, *, queued_timeout: float | None = None, running_timeout: float | None = None
    ) -> Any:
        """Wait, and return the value of its function. For a submitted callable.

        Raises
        ------
        WorkFailed
            It was cancelled, or ended without an answer.
        Exception
            The one that the function has raised.
        """
        return self._thread.run(
            self._handle.result(queued_timeout=queued_timeout, running_timeout=running_timeout)
        )

    def pods(self) -> Records:
        """Return the pods of its present start: name, index, node, phase."""
        return self._thread.run(self._handle.pods())

    def logs(self, *, follow: bool = False, container: str = "") -> Iterator[LogLine]:
        """Yield the lines of its pods. ``str(line)`` is the text.

        Parameters
        ----------
        follow : Yield lines as they are written, until the job has ended. The pods of a start after
            a requeue are followed, too.
        container : Default: the first one.
        """
        yield from self._thread.iterate(self._handle.logs(follow=follow, container=container))

    def explain(
        self,
        *,
        size: int | None = None,
        time: float | str | timedelta | None = None,
        queue: str = "",
        priority: int | None = None,
        within: str | None = None,
        requests: Mapping[str, str] | None = None,
    ) -> Explanation:
        """Ask when it starts, what is in the way, and what would start it earlier.

        The parameters suppose a change of its request.

        Parameters
        ----------
        size : Number of pods.
        time : Longest run: seconds, a timedelta, "90s", "2h30m". 0 is no limit.
        within : A level that all pods share. Empty is anywhere.
        requests : Amounts per pod by resource: {"cpu": "4"}.
        """
        question = self._handle.explain(
            size=size, time=time, queue=queue, priority=priority, within=within, requests=requests
        )  # fmt: skip
        return self._thread.run(question)

    def hold(self) -> None:
        """Keep it from starting until it is released."""
        self._thread.run(self._handle.hold())

    def release(self) -> None:
        """Return it to its place in the queue. Raises InvalidInput if something else holds it."""
        self._thread.run(self._handle.release())

    def requeue(self) -> None:
        """End its pods, and return it to its old place in the queue."""
        self._thread.run(self._handle.requeue())

    def priority(self, value: int | None) -> None:
        """Set its priority. None returns to that of its author."""
        self._thread.run(self._handle.priority(value))

    def move(self, queue: str) -> None:
        """Move it to another queue while it waits."""
        self._thread.run(self._handle.move(queue))

    def cancel(self, *, wait: bool = True) -> None:
        """Delete it, waiting or running.

        Parameters
        ----------
        wait : Return when its pods have ended, so that its resources are free.
        """
        self._thread.run(self._handle.cancel(wait=wait))

    def delete(self) -> None:
        """Delete the workload with its pods, also if it has ended. Its history stays."""
        self._thread.run(self._handle.delete())


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
