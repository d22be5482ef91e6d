"""The pods of a job, and their logs as they are written, for as long as the job lasts.

``handles`` and ``fluxqueue submit --attach`` call it. A requeue ends pods and brings others: both
are followed. One watch finds the pods, and each container that runs has one stream.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from contextlib import aclosing
from dataclasses import dataclass

from fluxqueue.errors import ApiError, ApiUnavailable, Gone, NotFound
from fluxqueue.kube.backoff import Backoff
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import PODS
from fluxqueue.workload.objects import Object
from fluxqueue.workload.observed_pod import completion_index

BEGUN = frozenset({"Running", "Succeeded", "Failed"})
OVER = frozenset({"Succeeded", "Failed"})
LINES_AHEAD = 1000
"""Lines that are read before their reader takes them."""
RETRY_BASE_S, RETRY_CAP_S = 0.2, 10.0
FORBIDDEN = 403
UNWATCHED_S = 1.0
"""Seconds between two lists for a user without the right to watch."""
_DEFAULT_CONTAINER = "kubectl.kubernetes.io/default-container"

OnTrouble = Callable[[str, Exception], None]
"""Told of a pod without a readable log, and why."""


@dataclass(frozen=True, slots=True)
class LogLine:
    """One line of a log. ``index`` is that of an Indexed Job, else None."""

    pod: str
    index: int | None
    text: str

    def __str__(self) -> str:
        return self.text


def phase_of(pod: Object) -> str:
    """Return the phase of a pod."""
    return str((pod.get("status") or {}).get("phase") or "Pending")


def index_of(pod: Object) -> int | None:
    """Return the completion index of a pod, or None."""
    return completion_index(pod["metadata"])


async def pod_changes(
    client: KubeClient, namespace: str, selector: str
) -> AsyncGenerator[tuple[Object, bool], None]:
    """Yield each pod with its present state, then each change, and whether the pod is gone.

    It goes on until it is closed.

    Raises
    ------
    ApiError
        The API server refuses.
    """
    backoff = Backoff(base_s=RETRY_BASE_S, cap_s=RETRY_CAP_S)
    known: dict[str, Object] = {}
    version = ""
    while True:
        try:
            if not version:
                listed = await client.list(PODS, namespace, label_selector=selector)
                fresh = {pod["metadata"]["uid"]: pod for pod in listed.items}
                for uid in known.keys() - fresh.keys():
                    yield known[uid], True
                for pod in fresh.values():
                    yield pod, False
                known, version = dict(fresh), listed.resource_version
            events = client.watch(
                PODS, namespace, resource_version=version, label_selector=selector
            )
            async with aclosing(events):
                async for event in events:
                    version = event.object["metadata"]["resourceVersion"]
                    if event.type == "BOOKMARK":
                        continue
                    uid, is_gone = event.object["metadata"]["uid"], event.type == "DELETED"
                    known.pop(uid, None)
                    if not is_gone:
                        known[uid] = event.object
                    yield event.object, is_gone
            backoff.reset()
        except Gone:
            version = ""
        except ApiUnavailable as error:
            await asyncio.sleep(backoff.next_delay_s(error.retry_after_s))
        except ApiError as error:
            if error.code != FORBIDDEN or not version:
                raise
            # A user may list pods, and not watch them.
            version = ""
            await asyncio.sleep(UNWATCHED_S)


async def until_released(client: KubeClient, namespace: str, selector: str) -> None:
    """Wait until no pod of a selector uses a node: each has ended or is gone."""
    backoff = Backoff(base_s=RETRY_BASE_S, cap_s=RETRY_CAP_S)
    while True:
        is_listed = False
        try:
            listed = await client.list(PODS, namespace, label_selector=selector)
            using = {one["metadata"]["uid"] for one in listed.items if phase_of(one) not in OVER}
            if not using:
                return
            is_listed = True
            # The watch begins where the list ends: no end of a pod is between them.
            events = client.watch(
                PODS, namespace, resource_version=listed.resource_version, label_selector=selector
            )
            async with aclosing(events):
                async for event in events:
                    if event.type == "BOOKMARK":
                        continue
                    uid = event.object["metadata"]["uid"]
                    is_over = event.type == "DELETED" or phase_of(event.object) in OVER
                    (using.discard if is_over else using.add)(uid)
                    if not using:
                        return
        except Gone:
            continue
        except ApiUnavailable as error:
            await asyncio.sleep(backoff.next_delay_s(error.retry_after_s))
        except ApiError as error:
            if error.code != FORBIDDEN or not is_listed:
                raise
            await asyncio.sleep(UNWATCHED_S)


async def read_logs(
    client: KubeClient, namespace: str, selector: str, container: str = ""
) -> AsyncGenerator[LogLine, None]:
    """Yield what the pods of a selector have written so far, pod by pod.

    Raises
    ------
    ApiError, ApiUnavailable
        The API server refuses, or cannot be reached.
    """
    listed = await client.list(PODS, namespace, label_selector=selector)
    pods = [one for one in listed.items if phase_of(one) in BEGUN]
    for pod in sorted(pods, key=lambda one: (index_of(one) or 0, one["metadata"]["name"])):
        path = PODS.path(namespace, pod["metadata"]["name"], "log")
        lines = client.lines(path, {"container": container or container_of(pod)})
        async with aclosing(lines):
            async for line in lines:
                yield _line(pod, line)


def _line(pod: Object, line: bytes) -> LogLine:
    return LogLine(pod["metadata"]["name"], index_of(pod), line.decode("utf-8", "replace"))


def container_of(pod: Object) -> str:
    """Return the container that kubectl shows if none is named."""
    notes = pod["metadata"].get("annotations") or {}
    return str(notes.get(_DEFAULT_CONTAINER) or pod["spec"]["containers"][0]["name"])


def _statuses(pod: Object) -> Sequence[Object]:
    return (pod.get("status") or {}).get("containerStatuses") or ()


def _restarts(pod: Object, container: str) -> int:
    return next(
        (one.get("restartCount", 0) for one in _statuses(pod) if one["name"] == container), 0
    )


class LogFollower:
    """Follows the logs of all pods of a job.

    Parameters
    ----------
    until_over : Waits until the job has ended. No new pods come after that.
    on_trouble : Called for a pod whose log cannot be read. The others go on.
    """

    def __init__(
        self,
        client: KubeClient,
        namespace: str,
        selector: str,
        *,
        until_over: Callable[[], Awaitable[None]],
        on_trouble: OnTrouble | None = None,
        container: str = "",
    ) -> None:
        self._client, self._namespace, self._selector = client, namespace, selector
        self._until_over, self._container = until_over, container
        self._on_trouble = on_trouble or _ignore
        self._lines: asyncio.Queue[LogLine | None] = asyncio.Queue(LINES_AHEAD)
        self._readers: dict[tuple[str, int], asyncio.Task[None]] = {}

    async def lines(self) -> AsyncGenerator[LogLine, None]:
        """Yield lines as they are written, until the job has ended and all is read.

        Raises
        ------
        ApiError
            The pods may not be listed.
        """
        work = asyncio.create_task(self._work(), name="follow logs")
        try:
            while (line := await self._lines.get()) is not None:
                yield line
            await work
        finally:
            tasks = [work, *self._readers.values()]
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _work(self) -> None:
        watching = asyncio.create_task(self._watch())
        over = asyncio.ensure_future(self._until_over())
        try:
            await asyncio.wait({watching, over}, return_when=asyncio.FIRST_COMPLETED)
            if watching.done():
                watching.result()
            over.result()
            # A short pod can have come and ended between two events.
            listed = await self._client.list(PODS, self._namespace, label_selector=self._selector)
            for pod in listed.items:
                self._look_at(pod)
            await asyncio.gather(*self._readers.values())
        finally:
            for task in (watching, over):
                task.cancel()
            await asyncio.gather(watching, over, return_exceptions=True)
            await self._lines.put(None)

    async def _watch(self) -> None:
        async with aclosing(pod_changes(self._client, self._namespace, self._selector)) as changes:
            async for pod, is_gone in changes:
                if not is_gone:
                    self._look_at(pod)

    def _look_at(self, pod: Object) -> None:
        """Read the log of a container that runs or has run. A restart is another run."""
        if phase_of(pod) not in BEGUN:
            return
        name = self._container or container_of(pod)
        key = (pod["metadata"]["uid"], _restarts(pod, name))
        if key not in self._readers:
            self._readers[key] = asyncio.create_task(self._read(pod, name))

    async def _read(self, pod: Object, container: str) -> None:
        try:
            async with aclosing(self._stamped(pod, container)) as lines:
                async for line in lines:
                    await self._lines.put(line)
        except NotFound:
            return  # The pod is gone: a requeue ends pods.
        except (ApiError, ApiUnavailable) as error:
            self._on_trouble(pod["metadata"]["name"], error)

    async def _stamped(self, pod: Object, container: str) -> AsyncGenerator[LogLine, None]:
        """Yield the lines of a pod once each, also if the connection breaks.

        Each line comes with the time at which it was written. A new stream begins at the last time,
        and the lines of that time that were read already are left out.
        """
        name = pod["metadata"]["name"]
        path = PODS.path(self._namespace, name, "log")
        backoff = Backoff(base_s=RETRY_BASE_S, cap_s=RETRY_CAP_S)
        last, at_last = "", 0
        while True:
            query = {"follow": "true", "timestamps": "true", "container": container}
            query |= {"sinceTime": last} if last else {}
            # The server knows whole seconds only, so it sends lines again.
            seen, skipped = last, at_last
            try:
                async with aclosing(self._client.lines(path, query)) as lines:
                    async for line in lines:
                        stamp, _, text = line.decode("utf-8", "replace").partition(" ")
                        if stamp < seen:
                            continue
                        if stamp == seen and skipped:
                            skipped -= 1
                            continue
                        at_last = at_last + 1 if stamp == last else 1
                        last = stamp
                        yield LogLine(name, index_of(pod), text)
                if not await self._still_runs(pod, container):
                    return
            except ApiUnavailable as error:
                await asyncio.sleep(backoff.next_delay_s(error.retry_after_s))

    async def _still_runs(self, pod: Object, container: str) -> bool:
        """Return whether the stream of a container ended before the container did."""
        found = await self._client.get(PODS, self._namespace, pod["metadata"]["name"])
        is_same = found["metadata"]["uid"] == pod["metadata"]["uid"]
        is_same = is_same and _restarts(found, container) == _restarts(pod, container)
        states = [one.get("state") or {} for one in _statuses(found) if one["name"] == container]
        return is_same and any("running" in one for one in states)


def _ignore(_pod: str, _error: Exception) -> None:
    return
