"""``AsyncJobHandle``: one job of the queue, from its submission to its end.

``async_client`` makes handles. All handles of a client share one watch (``following``), so what a
handle shows is at most a watch delay old, and costs no request.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator, Callable, Mapping
from contextlib import aclosing, suppress
from dataclasses import dataclass
from datetime import timedelta
from typing import Any, Self, Unpack

from fluxqueue.client.calls import ending_of, message_of, read_value
from fluxqueue.client.explanation import Explanation, changes_of, read_explanation
from fluxqueue.client.fluxjob_lists import HOLDING
from fluxqueue.client.follower import FluxJobFollower, FollowedFluxJob, reduce_fluxjob
from fluxqueue.client.job_view import GONE, JobNames, JobView
from fluxqueue.client.last_word import read_last_word
from fluxqueue.client.pod_logs import (
    LogFollower,
    LogLine,
    OnTrouble,
    index_of,
    phase_of,
    pod_changes,
    read_logs,
    until_released,
)
from fluxqueue.client.records import Records
from fluxqueue.client.refusals import in_words
from fluxqueue.errors import (
    ApiUnavailable,
    Gone,
    NotFound,
    NotQueued,
    QueuedTimeout,
    RunningTimeout,
    WorkFailed,
)
from fluxqueue.fluxjob.holders import ANNOTATION
from fluxqueue.fluxjob.states import FINAL, FluxJobState
from fluxqueue.kube import placement_reviews, steer
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import FLUXJOBS, JOBS, PODS
from fluxqueue.kube.workload_resource import resource_of
from fluxqueue.workload.fluxjob_name import name_for
from fluxqueue.workload.labels import HOLD, JOBID, group_keys
from fluxqueue.workload.objects import Object

APPEARS_S = 60.0
"""Longest time until the controller has made the FluxJob of a new workload."""
EXPLAINED_WITHIN_S = 30.0


@dataclass(frozen=True, slots=True)
class HandleSurroundings:
    """What a handle needs of its client."""

    client: KubeClient
    follower: FluxJobFollower


class AsyncJobHandle(JobView):
    """One job that can be waited for and steered."""

    def __init__(
        self, surroundings: HandleSurroundings, followed: FollowedFluxJob, **names: Unpack[JobNames]
    ) -> None:
        super().__init__(followed, **names)
        self._client, self._follower = surroundings.client, surroundings.follower

    def close(self) -> None:
        """Follow it no longer. Its properties stay as they are, and the job continues."""
        self._follower.forget(self._followed)

    # -- waiting ---------------------------------------------------------------------------------

    async def changes(self) -> AsyncGenerator[tuple[str, str], None]:
        """Yield its state and reason, then again after each change, until it has ended.

        Raises
        ------
        NotQueued
            The controller makes no FluxJob of it.
        ApiError
            The watch is refused.
        """
        with in_words():
            await self._appears()
            last = None
            while True:
                version = self._followed.version
                await self._hear_last_word()
                if (now := (self.state, self.reason)) != last:
                    last = now
                    yield now
                if self.done():
                    return
                await self._followed.changed(version)

    async def reach(
        self, states: frozenset[str], tell: Callable[[str, str], None] | None = None
    ) -> bool:
        """Wait until it is in one of ``states``, or never will be. Return which of these it is.

        A state of a started job counts as reached if the job has started and ended meanwhile.
        ``tell`` is called with each state and reason.
        """
        async with aclosing(self.changes()) as changes:
            async for state, reason in changes:
                if tell is not None:
                    tell(state, reason)
                has_run = bool(states & HOLDING) and state in FINAL and self.started is not None
                if state in states or has_run:
                    return True
        return False

    async def wait(
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
        now_s = asyncio.get_running_loop().time
        queued_s = running_s = 0.0
        with in_words():
            await self._appears()
            while not self.done():
                is_running, version, since_s = (
                    self.state in HOLDING,
                    self._followed.version,
                    now_s(),
                )
                limit = running_timeout if is_running else queued_timeout
                spent_s = running_s if is_running else queued_s
                try:
                    async with asyncio.timeout(None if limit is None else limit - spent_s):
                        await self._followed.changed(version)
                except TimeoutError:
                    raise self._too_late(is_running, limit or 0.0) from None
                if is_running:
                    running_s += now_s() - since_s
                else:
                    queued_s, running_s = queued_s + now_s() - since_s, 0.0
            await self._hear_last_word()
        return self

    async def _hear_last_word(self) -> None:
        """Learn how it ended, if its FluxJob went before it said so."""
        seen = self._followed.object
        if self.state == GONE and seen is not None and self._followed.last_word is None:
            self._followed.last_word = await read_last_word(self._client, seen)

    def _too_late(self, is_running: bool, limit_s: float) -> QueuedTimeout | RunningTimeout:
        if is_running:
            return RunningTimeout(f"{self.name}: has run for {limit_s:g} s, and continues")
        why = f": {self.reason}" if self.reason else ""
        return QueuedTimeout(f"{self.name}: not started within {limit_s:g} s, and waits{why}")

    async def _appears(self) -> None:
        """Wait until its FluxJob was seen."""
        try:
            async with asyncio.timeout(APPEARS_S):
                while self._followed.object is None and not self._followed.is_gone:
                    await self._followed.changed(self._followed.version)
        except TimeoutError:
            pass
        else:
            return
        # The watch may have been away. Then this says so, or finds the FluxJob.
        with suppress(NotFound):
            found = await self._client.get(FLUXJOBS, self.namespace, self.fluxjob)
            self._followed.take(reduce_fluxjob(found))
        if self._followed.object is None:
            raise NotQueued(
                f"no FluxJob {self.fluxjob} after {APPEARS_S:.0f} s: does the controller run, and "
                "is the namespace managed?"
            )

    async def result(
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
        await self.wait(queued_timeout=queued_timeout, running_timeout=running_timeout)
        with in_words():
            pods = await self._pods()
            for pod in pods:
                if message_of(pod):
                    return await read_value(self._client, pod)
        raise self.without_answer(pods[-1] if pods else None)

    def without_answer(self, pod: Object | None) -> WorkFailed:
        """Return the error of a call whose pod has left no answer, and how its container ended."""
        if self.state != FluxJobState.COMPLETED.value:
            return WorkFailed(self.name, self.state, self.reason, ending_of(pod) if pod else "")
        why = "its pod has left no answer (a simulated cluster runs no programs)"
        return WorkFailed(self.name, self.state, why)

    # -- its pods --------------------------------------------------------------------------------

    @property
    def selector(self) -> str:
        """The label selector of its pods."""
        if self.kind == JOBS.kind:
            return f"batch.kubernetes.io/job-name={self.name}"
        return f"{JOBID}={self.jobid}"

    async def pods(self) -> Records:
        """Return the pods of its present start: name, index, node, phase.

        Pods of an earlier start that are still ending are left out.
        """
        with in_words():
            return Records(_pod_record(pod) for pod in await self._pods())

    async def _pods(self) -> list[Object]:
        if self.kind != JOBS.kind:
            await self._appears()
        found = await self._client.list(PODS, self.namespace, label_selector=self.selector)
        present = [one for one in found.items if "deletionTimestamp" not in one["metadata"]]
        return sorted(present, key=lambda one: (index_of(one) or 0, one["metadata"]["name"]))

    async def logs(
        self, *, follow: bool = False, container: str = "", on_trouble: OnTrouble | None = None
    ) -> AsyncGenerator[LogLine, None]:
        """Yield the lines of its pods.

        Parameters
        ----------
        follow : Yield lines as they are written, until the job has ended. The pods of a start after
            a requeue are followed, too.
        container : Default: the first one.
        on_trouble : Called with a pod and an error if its log cannot be followed.
        """
        with in_words():
            if self.kind != JOBS.kind:
                await self._appears()
            lines = (
                LogFollower(
                    self._client,
                    self.namespace,
                    self.selector,
                    until_over=self._until_over,
                    on_trouble=on_trouble,
                    container=container,
                ).lines()
                if follow
                else read_logs(self._client, self.namespace, self.selector, container)
            )
            async with aclosing(lines):
                async for line in lines:
                    yield line

    async def _until_over(self) -> None:
        async with aclosing(self.changes()) as changes:
            async for _ in changes:
                pass

    async def values(self, count: int) -> AsyncGenerator[Any, None]:
        """Yield the values of the tasks of an array in their order, each as soon as it is there.

        Raises
        ------
        WorkFailed
            The job has ended, and a task has not.
        Exception
            The one that the function has raised for a task.
        """
        done: dict[int, Object] = {}
        over = asyncio.create_task(self._until_over())
        arrivals: asyncio.Queue[Object | None] = asyncio.Queue()
        watching = asyncio.create_task(self._arrivals(arrivals))
        over.add_done_callback(lambda _: arrivals.put_nowait(None))
        try:
            for index in range(count):
                while index not in done:
                    pod = await arrivals.get()
                    if pod is None:
                        await over
                        done |= {index_of(one) or 0: one for one in await self._answered()}
                        if index not in done:
                            raise WorkFailed(self.name, self.state, f"no answer of task {index}")
                    else:
                        done[index_of(pod) or 0] = pod
                yield await read_value(self._client, done[index])
                done[index] = {}
        finally:
            for task in (over, watching):
                task.cancel()
            await asyncio.gather(over, watching, return_exceptions=True)

    async def _arrivals(self, into: asyncio.Queue[Object | None]) -> None:
        async with aclosing(pod_changes(self._client, self.namespace, self.selector)) as changes:
            async for pod, _ in changes:
                if message_of(pod):
                    into.put_nowait(pod)

    async def _answered(self) -> list[Object]:
        return [one for one in await self._pods() if message_of(one)]

    # -- steering --------------------------------------------------------------------------------

    async def explain(
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
        changes = changes_of(
            size=size, time=time, queue=queue, priority=priority, within=within, requests=requests
        )  # fmt: skip
        with in_words():
            await self._appears()
            spec: dict[str, Any] = {"fluxJob": self.fluxjob}
            if changes:
                spec["changes"] = changes
            review = await placement_reviews.ask(
                self._client, self.namespace, spec, EXPLAINED_WITHIN_S
            )
            return read_explanation(review)

    async def hold(self) -> None:
        """Keep it from starting until it is released."""
        await self._steer(steer.hold)

    async def release(self) -> None:
        """Return it to its place in the queue, also if it was submitted with ``hold``.

        Raises
        ------
        InvalidInput
            Something else holds it. The hint is the way to release it.
        """
        with in_words():
            present = await self._present()
            if (present.get("status") or {}).get("authorHold") == ANNOTATION:
                unheld = {"metadata": {"uid": self.uid, "annotations": {HOLD: None}}}
                where = (resource_of(self.kind), self.namespace, self.name)
                await self._client.patch(*where, unheld, field_manager=steer.FIELD_MANAGER)
            else:
                await steer.release(self._client, present)

    async def requeue(self) -> None:
        """End its pods, and return it to its old place in the queue."""
        await self._steer(steer.requeue)

    async def priority(self, value: int | None) -> None:
        """Set its priority. None returns to that of its author."""
        await self._change({"priority": value})

    async def move(self, queue: str) -> None:
        """Move it to another queue while it waits."""
        await self._change({"queue": queue})

    async def cancel(self, *, wait: bool = True) -> None:
        """Delete it, waiting or running.

        Parameters
        ----------
        wait : Return when its pods have ended, so that its resources are free.
        """
        with in_words():
            seen = self._followed.object
            try:
                if seen is None and self.uid:
                    await self._delete_workload()
                elif seen is not None and not self.done():
                    await steer.cancel(self._client, await self._present())
            except NotFound:
                pass  # It has just been deleted.
            if wait:
                await self._until_free()
            self._note_unseen_end()

    def _note_unseen_end(self) -> None:
        """End the waits for a FluxJob that was not seen before its workload was deleted."""
        if self._followed.object is None:
            self._followed.end_unseen()
            self._follower.forget(self._followed)

    async def delete(self) -> None:
        """Delete the workload with its pods, also if it has ended. Its history stays."""
        with in_words():
            try:
                await self._delete_workload()
            except NotFound:
                return
            finally:
                self._note_unseen_end()
                self._follower.forget(self._followed)

    async def _delete_workload(self) -> None:
        await self._client.delete(
            resource_of(self.kind), self.namespace, self.name, uid=self.uid or None,
            propagation="Background",
        )  # fmt: skip

    async def _until_free(self) -> None:
        """Wait until no new pod can come, then until no pod uses a node."""
        if self._followed.object is not None:
            await self._until_over()
        await self._until_workload_gone()
        if self.jobid is not None or self.kind == JOBS.kind:
            await until_released(self._client, self.namespace, self.selector)

    async def _until_workload_gone(self) -> None:
        """Wait until its Job is deleted: until then, a controller may make pods of it."""
        if self.kind != JOBS.kind:
            return
        with suppress(NotFound):
            found = await self._client.get(JOBS, self.namespace, self.name)
            while found["metadata"]["uid"] == self.uid:
                await self._until_changed(found["metadata"]["resourceVersion"])
                found = await self._client.get(JOBS, self.namespace, self.name)

    async def _until_changed(self, version: str) -> None:
        selector = f"metadata.name={self.name}"
        events = self._client.watch(
            JOBS, self.namespace, resource_version=version, field_selector=selector
        )
        with suppress(Gone, ApiUnavailable):
            async with aclosing(events):
                async for event in events:
                    if event.type != "BOOKMARK":
                        return

    async def _steer(self, verb: Callable[..., Any]) -> None:
        with in_words():
            await verb(self._client, await self._present())

    async def _change(self, spec: dict[str, Any]) -> None:
        with in_words():
            await steer.change_spec(self._client, await self._present(), spec)

    async def _present(self) -> Object:
        """Return the FluxJob as it is now: a change just before may not have been seen yet.

        Raises
        ------
        NotFound
            It is gone. Another job may have its name since.
        """
        await self._appears()
        found = await self._client.get(FLUXJOBS, self.namespace, self.fluxjob)
        if self._followed.is_of is not None and not self._followed.is_of(found):
            message = f"job {self.name} is gone, and another one has its name"
            raise NotFound(404, "NotFound", message, {"message": message})
        return found


def _pod_record(pod: Object) -> dict[str, Any]:
    return {
        "name": pod["metadata"]["name"],
        "index": index_of(pod),
        "node": pod["spec"].get("nodeName"),
        "phase": phase_of(pod),
    }


async def follow_handle(
    client: KubeClient, follower: FluxJobFollower, namespace: str, fluxjob: str
) -> AsyncJobHandle:
    """Return the handle of an existing FluxJob.

    Raises
    ------
    NotFound
        It does not exist any more.
    """
    # Follow first, then read: a change in between is seen.
    followed = await follower.follow(fluxjob)
    try:
        found = await client.get(FLUXJOBS, namespace, fluxjob)
    except BaseException:
        follower.forget(followed)
        raise
    uid, workload = found["metadata"]["uid"], found["spec"]["workload"]
    followed.mean(lambda one: bool(one["metadata"]["uid"] == uid))
    followed.take(reduce_fluxjob(found))
    return AsyncJobHandle(
        HandleSurroundings(client, follower), followed, namespace=namespace,
        kind=workload["kind"], name=workload["name"], uid=workload["uid"],
    )  # fmt: skip


async def handle_of(client: KubeClient, follower: FluxJobFollower, made: Object) -> AsyncJobHandle:
    """Return the handle of a workload that has just been created."""
    meta = made["metadata"]
    fluxjob, is_group = fluxjob_of(made)
    followed = await follower.follow(fluxjob, is_of_workload(made, is_group=is_group))
    with suppress(NotFound):
        found = await client.get(FLUXJOBS, meta["namespace"], fluxjob)
        followed.take(reduce_fluxjob(found))
    return AsyncJobHandle(
        HandleSurroundings(client, follower), followed, namespace=meta["namespace"],
        kind=made["kind"], name=meta["name"], uid=meta["uid"],
    )  # fmt: skip


def fluxjob_of(body: Mapping[str, Any]) -> tuple[str, bool]:
    """Return the name of the FluxJob of a new object, and whether it is that of a group."""
    meta = body["metadata"]
    texts = {**(meta.get("labels") or {}), **(meta.get("annotations") or {})}
    for key in group_keys():
        if texts.get(key):
            return name_for(texts[key], "group"), True
    return name_for(meta["name"], str(body["kind"]).lower()), False


def is_of_workload(made: Object, *, is_group: bool) -> Callable[[Object], bool]:
    """Return the test for the FluxJob of a new object."""
    uid, created = made["metadata"]["uid"], made["metadata"]["creationTimestamp"]

    def is_of(fluxjob: Object) -> bool:
        # That of a group names no member. An older one of its name belongs to an older group.
        if is_group:
            return bool(fluxjob["metadata"]["creationTimestamp"] >= created)
        return bool(fluxjob["spec"]["workload"]["uid"] == uid)

    return is_of
