"""The Job controller: watches Jobs and their pods, and executes ``job_plan``. A thin loop.

Pod changes are collected for ``job_batch_s``. A new or changed Job is processed immediately. Jobs
with another controller in ``managedBy`` are ignored.
"""

from __future__ import annotations

import asyncio
import copy

from localcluster.client.resources import JOBS, PODS
from localcluster.controllers.job_backoff import NO_FAILURES, BackoffRecord
from localcluster.controllers.job_plan import JobPlan, finish, plan_job, settle_counts
from localcluster.controllers.job_pods import TRACKING_FINALIZER, is_tracked
from localcluster.controllers.job_view import is_job_finished
from localcluster.errors import ClientError, NotFound
from localcluster.loops.context import Context
from localcluster.loops.informers import by_controller
from localcluster.loops.objects import (
    controller_of,
    is_deleting,
    is_ready,
    node_name,
    now,
    phase_of,
    uid_of,
)
from localcluster.loops.workqueue import WorkQueue
from localcluster.loops.writing import (
    create_all,
    delete_object,
    message_of,
    strip_finalizer,
)
from localcluster.obj import Obj

COMPONENT = "job-controller"
OWN_MANAGER = "kubernetes.io/job-controller"

JobKey = tuple[str, str, str]
"""(namespace, name, uid)"""


class JobController:
    """Reconciles Jobs and their pods."""

    def __init__(self, context: Context, *, workers: int = 8) -> None:
        self._client = context.client_of(COMPONENT)
        self._events, self._options = context.events, context.options
        self._jobs = context.informers.get(JOBS)
        self._pods = context.informers.get(PODS)
        self._pods_of = context.informers.index(PODS, by_controller)
        self._backoffs: dict[str, BackoffRecord] = {}
        self._written: dict[str, str] = {}
        self._queue: WorkQueue[JobKey] = WorkQueue(COMPONENT, self._sync, workers=workers)
        self._orphans: WorkQueue[tuple[str, str]] = WorkQueue(COMPONENT, self._release_orphan)
        self._jobs.add_handler(self._job_changed)
        self._pods.add_handler(self._pod_changed)

    def start(self) -> None:
        """Start working."""
        self._queue.start()
        self._orphans.start()

    async def stop(self) -> None:
        """Stop working."""
        await self._queue.stop()
        await self._orphans.stop()

    # -- changes that require a sync -------------------------------------------------------------

    def _job_changed(self, old: Obj | None, new: Obj | None) -> None:
        job = new or old
        assert job is not None
        metadata = job["metadata"]
        key = (metadata["namespace"], metadata["name"], metadata["uid"])
        if old is None or new is None:
            self._queue.add(key)
            return
        if old["metadata"].get("generation") != metadata.get("generation"):
            self._queue.add(key)
        elif self._written.get(metadata["uid"]) != metadata["resourceVersion"]:
            self._queue.add_after(key, self._options.job_batch_s)

    def _pod_changed(self, old: Obj | None, new: Obj | None) -> None:
        pod = new or old
        assert pod is not None
        owner = controller_of(pod)
        # An orphaning deletion detaches the pods while they are still counted.
        if owner is None and new is not None and is_tracked(pod):
            self._orphans.add((pod["metadata"]["namespace"], pod["metadata"]["name"]))
        if owner is None or owner["kind"] != "Job":
            return
        if old is not None and new is not None and _traits(old) == _traits(new):
            return
        key = (pod["metadata"]["namespace"], owner["name"], owner["uid"])
        self._queue.add_after(key, self._options.job_batch_s)

    # -- one sync --------------------------------------------------------------------------------

    async def _sync(self, key: JobKey) -> None:
        namespace, name, uid = key
        job = self._jobs.get(namespace, name)
        if job is None or uid_of(job) != uid:
            self._backoffs.pop(uid, None)
            self._written.pop(uid, None)
            await self._release_orphans(key)
            return
        if job["spec"].get("managedBy", OWN_MANAGER) != OWN_MANAGER:
            return
        pods = self._pods_of.get(uid)
        if is_job_finished(job):
            self._backoffs.pop(uid, None)
            await self._release(pods)
            return
        backoff = self._backoffs.get(uid, NO_FAILURES)
        plan = plan_job(job, pods, now(), backoff, self._options)
        if plan.look_again_s is not None:
            self._queue.add_after(key, plan.look_again_s)
        await self._carry_out(job, plan)

    async def _carry_out(self, job: Obj, plan: JobPlan) -> None:
        failure = await self._delete_pods(job, plan)
        failure = await self._create_pods(job, plan) or failure
        for kind, reason, message in plan.events:
            self._events.record(COMPONENT, job, kind, reason, message)
        job = await self._write_status(job, plan.status)
        self._backoffs[uid_of(job)] = plan.backoff  # only after its failures were stored
        released = await self._release(plan.release)
        status = copy.deepcopy(plan.status)
        uncounted = status.get("uncountedTerminatedPods") or {}
        tracked = {uid for uids in uncounted.values() for uid in uids} - released
        settle_counts(status, tracked)
        event = finish(status, plan.final if failure is None else None, now())
        await self._write_status(job, status)
        if event is not None:
            self._events.record(COMPONENT, job, *event)
        if failure is not None:
            raise failure

    async def _delete_pods(self, job: Obj, plan: JobPlan) -> ClientError | None:
        """Delete pods.

        A suspended or surplus pod loses its finalizer first, so that it is never counted.
        """

        async def delete(pod: Obj) -> None:
            if plan.is_stripped_first and not await strip_finalizer(
                self._client, self._pods, pod, TRACKING_FINALIZER
            ):
                pod = self._pods.get(pod["metadata"]["namespace"], pod["metadata"]["name"]) or pod
            if await delete_object(self._client, self._pods, pod):
                message = f"Deleted pod: {pod['metadata']['name']}"
                self._events.record(COMPONENT, job, "Normal", "SuccessfulDelete", message)

        results = await asyncio.gather(*map(delete, plan.delete), return_exceptions=True)
        return self._count_failures(plan, results)

    @staticmethod
    def _count_failures(plan: JobPlan, results: list[BaseException | None]) -> ClientError | None:
        first: ClientError | None = None
        for result in results:
            if isinstance(result, ClientError):
                first = first or result
                plan.status["active"] = plan.status.get("active", 0) + 1
                plan.status["terminating"] = max(0, plan.status.get("terminating", 0) - 1)
            elif result is not None:
                raise result
        return first

    async def _create_pods(self, job: Obj, plan: JobPlan) -> ClientError | None:
        def created(pod: Obj) -> None:
            message = f"Created pod: {pod['metadata']['name']}"
            self._events.record(COMPONENT, job, "Normal", "SuccessfulCreate", message)

        made, failure = await create_all(self._client, self._pods, plan.create, created)
        missing = len(plan.create) - made
        if missing:
            active = plan.status.get("active", 0) - missing
            plan.status.pop("active", None)
            if active > 0:
                plan.status["active"] = active
        if failure is not None:
            message = f"Error creating: {message_of(failure)}"
            self._events.record(COMPONENT, job, "Warning", "FailedCreate", message)
        return failure

    async def _release(self, pods: list[Obj]) -> set[str]:
        """Remove the tracking finalizer. Return the uids of pods that do not have it now."""

        async def release(pod: Obj) -> str:
            current = self._pods.get(pod["metadata"]["namespace"], pod["metadata"]["name"])
            if current is None or uid_of(current) != uid_of(pod) or not is_tracked(current):
                return uid_of(pod)
            done = await strip_finalizer(self._client, self._pods, current, TRACKING_FINALIZER)
            return uid_of(pod) if done else ""

        tracked = [pod for pod in pods if is_tracked(pod)]
        results = await asyncio.gather(*map(release, tracked), return_exceptions=True)
        errors = [result for result in results if isinstance(result, BaseException)]
        if errors:
            raise errors[0]
        return {uid for uid in results if isinstance(uid, str) and uid}

    async def _release_orphans(self, key: JobKey) -> None:
        """Release pods of a deleted Job, which must not keep their finalizer."""
        namespace, name, uid = key
        pods = [pod for pod in self._pods_of.get(uid) if is_tracked(pod)]
        if not pods:
            return
        try:
            job = await self._client.get(JOBS, namespace, name)
        except NotFound:
            job = None
        if job is None or uid_of(job) != uid:
            await self._release(pods)

    async def _release_orphan(self, key: tuple[str, str]) -> None:
        """Release a pod that has lost its Job, by an orphaning deletion for example."""
        pod = self._pods.get(*key)
        if pod is not None and controller_of(pod) is None:
            await self._release([pod])

    async def _write_status(self, job: Obj, status: Obj) -> Obj:
        """Write the status if it changed. A conflict repeats the sync."""
        if status == (job.get("status") or {}):
            return job
        namespace, name = job["metadata"]["namespace"], job["metadata"]["name"]
        body = {**job, "status": status}
        written = await self._client.replace(JOBS, namespace, name, body, subresource="status")
        self._written[uid_of(job)] = written["metadata"]["resourceVersion"]
        self._jobs.observe(written)
        return written


def _traits(pod: Obj) -> tuple[object, ...]:
    """Return the properties of a pod that concern its Job, without binding or labels."""
    return (
        phase_of(pod),
        is_deleting(pod),
        is_ready(pod),
        is_tracked(pod),
        bool(node_name(pod)) and phase_of(pod) == "Failed",
    )
