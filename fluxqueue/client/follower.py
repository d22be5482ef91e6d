"""One watch of FluxJobs for all jobs that a client follows in a namespace.

``handles`` asks it. However many jobs are followed, there is one stream and no polling. A single
job is watched by its name, several by their namespace. What is not followed is dropped as it comes.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from contextlib import aclosing
from typing import Any

from fluxqueue.client.last_word import LastWord
from fluxqueue.errors import ApiUnavailable, FluxQueueError, Gone
from fluxqueue.fluxjob.states import FINAL
from fluxqueue.kube.backoff import Backoff
from fluxqueue.kube.client import KubeClient, WatchEvent
from fluxqueue.kube.resources import FLUXJOBS
from fluxqueue.workload.objects import Object

RETRY_BASE_S, RETRY_CAP_S = 0.2, 10.0
_META = ("name", "namespace", "uid", "resourceVersion", "creationTimestamp")
_SPEC = ("workload", "size", "user", "queue", "priority")
_STATUS = (
    "state", "reason", "jobid", "queue", "nodes", "priority", "position", "startTime",
    "expectedStart", "endTime",
)  # fmt: skip
"""What is kept of a FluxJob: thousands may be followed. All else is read when it is needed."""


class FollowedFluxJob:
    """The last state of one FluxJob. ``object`` is None until it was seen.

    ``last_word``: how it ended, if it went before it said so.

    Parameters
    ----------
    name : Of the FluxJob.
    is_of : Whether a FluxJob of that name is the one that is meant. Names are used again.
    """

    __slots__ = (
        "_others", "_waiting", "failure", "is_gone", "is_of", "last_word", "name", "object",
        "version",
    )  # fmt: skip

    def __init__(self, name: str, is_of: Callable[[Object], bool] | None) -> None:
        self.name, self.is_of = name, is_of
        self.object: Object | None = None
        self.is_gone = False
        self.failure: FluxQueueError | None = None
        self.last_word: LastWord | None = None
        self.version = 0
        self._waiting: set[asyncio.Future[None]] = set()
        self._others: Object | None = None

    def mean(self, is_of: Callable[[Object], bool]) -> None:
        """Say which FluxJob is meant, now that its workload is known."""
        self.is_of = is_of
        if (seen := self._others) is not None:
            self._others = None
            self.take(seen)

    def take(self, fluxjob: Object, *, is_gone: bool = False) -> None:
        """Take a state. That of another FluxJob of this name ends the one that was followed."""
        if self.is_of is None:
            # Its workload is being created: the FluxJob can come before the answer to that.
            self._others = None if is_gone else fluxjob
            return
        if not self.is_of(fluxjob):
            self.lose()
            return
        if self.object is not None and _number(fluxjob) < _number(self.object):
            return
        self.object, self.is_gone = fluxjob, is_gone
        self._tell()

    def lose(self) -> None:
        """Note that the FluxJob does not exist any more, if it did."""
        if self.object is not None and not self.is_gone:
            self.is_gone = True
            self._tell()

    def end_unseen(self) -> None:
        """Note that no FluxJob comes any more, because its workload is gone."""
        if self.object is None and not self.is_gone:
            self.is_gone = True
            self._tell()

    def fail(self, failure: FluxQueueError) -> None:
        """End all waits with an error."""
        self.failure = failure
        self._tell()

    @property
    def has_ended(self) -> bool:
        """Whether no further change can come."""
        state = ((self.object or {}).get("status") or {}).get("state")
        return self.is_gone or state in FINAL

    async def changed(self, since: int) -> None:
        """Wait until ``version`` is beyond ``since``. Raises the error that ended the watch."""
        while self.version == since and self.failure is None:
            waiting: asyncio.Future[None] = asyncio.get_running_loop().create_future()
            self._waiting.add(waiting)
            try:
                await waiting
            finally:
                self._waiting.discard(waiting)
        if self.failure is not None:
            raise self.failure

    def _tell(self) -> None:
        self.version += 1
        for one in self._waiting:
            if not one.done():
                one.set_result(None)


class FluxJobFollower:
    """Follows FluxJobs of one namespace. ``close`` ends the watch."""

    def __init__(self, client: KubeClient, namespace: str) -> None:
        self._client, self._namespace = client, namespace
        # By name. What has ended leaves it, so it is as large as what is live.
        self._followed: dict[str, list[FollowedFluxJob]] = {}
        self._version = ""
        self._beginning = asyncio.Lock()
        self._task: asyncio.Task[None] | None = None
        self._stream: asyncio.Task[None] | None = None
        self._watched = ""

    async def follow(
        self, name: str, is_of: Callable[[Object], bool] | None = None
    ) -> FollowedFluxJob:
        """Follow the FluxJob of that name from now on.

        Parameters
        ----------
        is_of : See ``FollowedFluxJob``. None: ``mean`` is called later.

        Raises
        ------
        ApiError, ApiUnavailable
            The API server refuses, or cannot be reached.
        """
        async with self._beginning:
            if not self._version:
                self._version = await self._present_version()
        found = FollowedFluxJob(name, is_of)
        self._followed.setdefault(name, []).append(found)
        self._begin()
        return found

    def forget(self, followed: FollowedFluxJob) -> None:
        """Follow it no longer. Harmless if it is not followed."""
        rest = [one for one in self._followed.get(followed.name, ()) if one is not followed]
        if rest:
            self._followed[followed.name] = rest
        else:
            self._followed.pop(followed.name, None)

    async def close(self) -> None:
        """End the watch. The last states stay readable."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def _begin(self) -> None:
        """Watch, or watch more than before."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._run(), name="follow fluxjobs")
        elif self._stream is not None and self._watched != self._selector():
            # It goes on from the version that it has reached, so nothing is missed.
            self._stream.cancel()

    def _selector(self) -> str:
        # A watch of all stays one: to narrow it would cost a new request for each job that ends.
        if self._stream is not None and not self._watched:
            return ""
        names = list(self._followed)
        return f"metadata.name={names[0]}" if len(names) == 1 else ""

    async def _run(self) -> None:
        backoff = Backoff(base_s=RETRY_BASE_S, cap_s=RETRY_CAP_S)
        is_behind = False
        try:
            while True:
                try:
                    if is_behind:
                        await self._read_again()
                        is_behind = False
                    await self._stream_once()
                    backoff.reset()
                except Gone:
                    is_behind = True
                    await asyncio.sleep(backoff.next_delay_s())
                except ApiUnavailable as error:
                    await asyncio.sleep(backoff.next_delay_s(error.retry_after_s))
        except FluxQueueError as error:
            self._fail(error)
        except Exception as error:  # noqa: BLE001  else all that wait would wait for ever
            self._fail(ApiUnavailable(f"the watch of FluxJobs has ended: {error!r}"))

    def _fail(self, error: FluxQueueError) -> None:
        """End all waits. The next job begins a new watch."""
        self._version = ""
        for one in [one for many in self._followed.values() for one in many]:
            one.fail(error)
        self._followed.clear()

    async def _stream_once(self) -> None:
        self._watched = self._selector()
        self._stream = asyncio.create_task(self._watch(self._watched))
        try:
            await asyncio.wait({self._stream})
        finally:
            self._stream.cancel()
        if not self._stream.cancelled():
            self._stream.result()

    async def _watch(self, selector: str) -> None:
        events = self._client.watch(
            FLUXJOBS, self._namespace, resource_version=self._version, field_selector=selector
        )
        async with aclosing(events):
            async for event in events:
                self._apply(event)

    def _apply(self, event: WatchEvent) -> None:
        meta = event.object["metadata"]
        self._version = meta["resourceVersion"]
        if event.type == "BOOKMARK" or meta["name"] not in self._followed:
            return
        reduced = reduce_fluxjob(event.object)
        for one in self._followed[meta["name"]]:
            one.take(reduced, is_gone=event.type == "DELETED")
        self._drop_ended(meta["name"])

    def _drop_ended(self, name: str) -> None:
        for one in self._followed.get(name, ()):
            if one.has_ended:
                self.forget(one)

    async def _read_again(self) -> None:
        """List what is followed: the server has forgotten the version of the watch."""

        def keep(found: dict[str, Any]) -> Object | None:
            is_followed = found["metadata"]["name"] in self._followed
            return reduce_fluxjob(found) if is_followed else None

        kept, self._version = await self._client.collect(FLUXJOBS, self._namespace, keep=keep)
        there = {one["metadata"]["name"]: one for one in kept if one is not None}
        for name, followed in list(self._followed.items()):
            for one in followed:
                if name in there:
                    one.take(there[name])
                else:
                    one.lose()
            self._drop_ended(name)

    async def _present_version(self) -> str:
        async with aclosing(self._client.pages(FLUXJOBS, self._namespace, limit=1)) as pages:
            async for page in pages:
                return page.resource_version
        raise AssertionError("unreachable: a list has a page")


def reduce_fluxjob(fluxjob: Mapping[str, Any]) -> Object:
    """Return what handles show of a FluxJob."""

    def only(part: Mapping[str, Any], names: tuple[str, ...]) -> dict[str, Any]:
        return {name: part[name] for name in names if name in part}

    return {
        "metadata": only(fluxjob["metadata"], _META),
        "spec": only(fluxjob["spec"], _SPEC),
        "status": only(fluxjob.get("status") or {}, _STATUS),
    }


def _number(fluxjob: Object) -> int:
    version = fluxjob["metadata"].get("resourceVersion") or ""
    return int(version) if version.isdigit() else 0
