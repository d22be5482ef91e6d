"""``AsyncClient``: the queue of a cluster for asyncio programs.

``sync_client`` runs the same one in a thread. The command line uses its handles and functions.
Everything goes through the Kubernetes API with the rights of the user. ``history`` and
``accounting`` ask the view server.
"""

from __future__ import annotations

import os
from collections.abc import AsyncGenerator, Callable, Iterable, Mapping, Sequence
from contextlib import aclosing
from pathlib import Path
from typing import Any, Generic, Self, TypeVar, Unpack

from fluxqueue.client.batch.job_options import JobOptions
from fluxqueue.client.batch.pod_connections import create_job
from fluxqueue.client.explanation import Explanation, read_explanation
from fluxqueue.client.fluxjob_lists import find, parse_states, read_line, turn
from fluxqueue.client.follower import FluxJobFollower
from fluxqueue.client.handles import (
    EXPLAINED_WITHIN_S,
    AsyncJobHandle,
    HandleSurroundings,
    fluxjob_of,
    follow_handle,
    is_of_workload,
)
from fluxqueue.client.narrowed import Narrowed
from fluxqueue.client.node_use import node_record, read_nodes
from fluxqueue.client.records import Records, job_record, queue_record
from fluxqueue.client.refusals import in_words
from fluxqueue.client.submission import Work, body_of, body_of_calls, question_of
from fluxqueue.client.view_server import TOKEN_VARIABLE, URL_VARIABLE, open_view
from fluxqueue.errors import InvalidInput
from fluxqueue.kube import placement_reviews
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import load_config
from fluxqueue.kube.resources import FLUXQUEUES, JOBS
from fluxqueue.kube.steer import FIELD_MANAGER
from fluxqueue.kube.transport import Transport
from fluxqueue.kube.workload_resource import resource_of

T = TypeVar("T")

TIMEOUT_S = 30.0
CONCURRENCY = 20
"""Requests at the same time. Each needs a connection of its own."""


class AsyncClient:
    """The queue of one cluster, as one user sees it. ``async with`` closes its connections.

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
        config = load_config(str(kubeconfig) if kubeconfig else None, context)
        self._connection = KubeClient(
            config, timeout_s=TIMEOUT_S, concurrency=CONCURRENCY, transport=transport
        )
        self._client = self._connection.acting_as(impersonate) if impersonate else self._connection
        self._impersonated = impersonate
        self._view = (
            view_url or os.environ.get(URL_VARIABLE, ""),
            view_token or os.environ.get(TOKEN_VARIABLE, ""),
        )
        self.namespace = namespace or config.namespace
        self._followers: dict[str, FluxJobFollower] = {}

    @property
    def connection(self) -> KubeClient:
        """The connection to the API server, as the user of this client."""
        return self._client

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(self, *_: object) -> None:
        await self.close()

    async def close(self) -> None:
        """End the watches and close the connections. Jobs continue."""
        for one in self._followers.values():
            await one.close()
        await self._connection.close()

    # -- submitting ------------------------------------------------------------------------------

    async def submit(
        self,
        work: Work,
        *,
        args: Sequence[Any] = (),
        kwargs: Mapping[str, Any] | None = None,
        **options: Unpack[JobOptions],
    ) -> AsyncJobHandle:
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
        return await self.create(body_of(work, args, kwargs or {}, options))

    async def map(
        self,
        function: Callable[..., T],
        *iterables: Iterable[Any],
        at_once: int = 0,
        **options: Unpack[JobOptions],
    ) -> AsyncCallArray[T]:
        """Call a function in one pod for each item, as the tasks of one array.

        Each task starts when there is room for it. ``async for value in array`` yields the values
        in the order of the items.

        Parameters
        ----------
        at_once : How many tasks run at the same time at most, 0: no limit.
        """
        calls: list[tuple[tuple[Any, ...], dict[str, Any]]] = [
            (items, {}) for items in zip(*iterables, strict=False)
        ]
        if not calls:
            raise InvalidInput("is empty", where="iterables", hint="give one item at least")
        body = body_of_calls(function, calls, options, is_array=True, at_once=at_once)
        return AsyncCallArray(await self.create(body), len(calls))

    async def check(
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
        body = body_of(work, args, kwargs or {}, options)
        with in_words():
            await self._create(self.namespace, body, dry_run=True)
            return await self._ask(question_of(body))

    async def create(self, body: Mapping[str, Any]) -> AsyncJobHandle:
        """Create an object that the queue takes, and return its handle. See ``submit``."""
        named = dict(body["metadata"])
        if "name" not in named:
            named["name"] = f"{named.pop('generateName', 'job-')}{os.urandom(3).hex()}"
        namespace = named.setdefault("namespace", self.namespace)
        follower = self._follower(namespace)
        with in_words():
            fluxjob, is_group = fluxjob_of({**body, "metadata": named})
            # The FluxJob can come before the answer does.
            followed = await follower.follow(fluxjob)
            try:
                made = await self._create(namespace, {**body, "metadata": named})
            except BaseException:
                follower.forget(followed)
                raise
        followed.mean(is_of_workload(made, is_group=is_group))
        return AsyncJobHandle(
            HandleSurroundings(self._client, follower), followed, namespace=namespace,
            kind=body["kind"], name=named["name"], uid=made["metadata"]["uid"],
        )  # fmt: skip

    async def _create(
        self, namespace: str, body: dict[str, Any], *, dry_run: bool = False
    ) -> dict[str, Any]:
        if body["kind"] == JOBS.kind:
            return await create_job(
                self._client, namespace, body, field_manager=FIELD_MANAGER, dry_run=dry_run
            )
        return await self._client.create(
            resource_of(body["kind"]), namespace, body, field_manager=FIELD_MANAGER, dry_run=dry_run
        )

    # -- looking ---------------------------------------------------------------------------------

    async def job(self, reference: str | int, *, namespace: str | None = None) -> AsyncJobHandle:
        """Return the handle of a job, by the name of its workload or FluxJob, or by its jobid.

        Raises
        ------
        InvalidInput
            There is none.
        """
        where = namespace or self.namespace
        with in_words():
            name = (await find(self._client, where, str(reference)))["metadata"]["name"]
            return await follow_handle(self._client, self._follower(where), where, name)

    async def jobs(
        self,
        *,
        state: str = "live",
        queue: str = "",
        user: str = "",
        all_namespaces: bool = False,
    ) -> Records:
        """Return jobs, the running ones first, then the waiting ones by turn.

        Parameters
        ----------
        state : States, or live, waiting, started, ended, all, separated by commas.
        """
        wanted = parse_states(state, "state")
        namespace = None if all_namespaces else self.namespace
        found: list[tuple[tuple[int, ...], dict[str, Any]]] = []
        with in_words():
            async with aclosing(Narrowed(self._client, namespace, user).pages(wanted)) as pages:
                async for page in pages:
                    for one in page.items:
                        line = read_line(one)
                        is_of = (not queue or line.queue == queue) and line.state in wanted
                        if is_of and (not user or line.user == user):
                            found.append((turn(line), job_record(one)))
        return Records(one for _, one in sorted(found, key=lambda pair: pair[0]))

    async def queues(self) -> Records:
        """Return the queues with their policy and the numbers of their jobs."""
        with in_words():
            found, _ = await self._client.collect(FLUXQUEUES, keep=queue_record)
        return Records(found)

    async def nodes(self) -> Records:
        """Return the nodes: state, levels, and the use of each resource in base units."""
        with in_words():
            lines, levels = await read_nodes(self._client)
        return Records(node_record(one, levels) for one in lines)

    async def history(self, job: str | int, *, namespace: str | None = None) -> Records:
        """Return what happened to a job, and which user or part did it. It may have ended."""
        return await self._read(
            "/history", {"namespace": namespace or self.namespace, "job": str(job)}
        )

    async def runs(
        self, *, all_namespaces: bool = False, since: str = "", until: str = "", user: str = "",
        queue: str = "", limit: int = 0,
    ) -> Records:  # fmt: skip
        """Return ended runs, one by one. ``since`` and ``until`` are "7d" or "2030-01-31"."""
        query = {"since": since, "until": until, "user": user, "queue": queue}
        namespace = "" if all_namespaces else self.namespace
        return await self._read("/accounting/runs", {**query, "namespace": namespace}, limit)

    async def accounting(
        self, *, by: str = "user,queue,namespace", all_namespaces: bool = False, since: str = "",
        until: str = "", user: str = "", queue: str = "",
    ) -> Records:  # fmt: skip
        """Return sums of usage: runs, core-hours, GPU-hours, mean wait.

        Parameters
        ----------
        by : user, queue, namespace, result, day, month, separated by commas.
        """
        query = {"by": by, "since": since, "until": until, "user": user, "queue": queue}
        namespace = "" if all_namespaces else self.namespace
        return await self._read("/accounting", {**query, "namespace": namespace})

    async def _read(self, path: str, query: Mapping[str, str], limit: int = 0) -> Records:
        found = Records()
        url, token = self._view
        with in_words():
            async with (
                open_view(self._client, url, token, impersonated=self._impersonated) as view,
                aclosing(view.lists(path, query, limit)) as pages,
            ):
                async for page in pages:
                    found += page
        return found

    async def _ask(self, spec: dict[str, Any]) -> Explanation:
        review = await placement_reviews.ask(self._client, self.namespace, spec, EXPLAINED_WITHIN_S)
        return read_explanation(review)

    def _follower(self, namespace: str) -> FluxJobFollower:
        found = self._followers.get(namespace)
        if found is None:
            found = self._followers[namespace] = FluxJobFollower(self._client, namespace)
        return found


class AsyncCallArray(Generic[T]):
    """The calls of a ``map``: ``async for`` yields their values in order.

    ``handle`` is the job of the whole array, with its state, logs and ``cancel``.
    """

    def __init__(self, handle: AsyncJobHandle, count: int) -> None:
        self.handle, self._count = handle, count

    def __len__(self) -> int:
        return self._count

    def __aiter__(self) -> AsyncGenerator[T, None]:
        return self.handle.values(self._count)

    async def results(self) -> list[T]:
        """Wait for all values. Raises the error of the first task that has one."""
        async with aclosing(self.handle.values(self._count)) as values:
            return [one async for one in values]
