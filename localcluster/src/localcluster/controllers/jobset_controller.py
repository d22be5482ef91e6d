"""A JobSet controller for demos: it creates the Jobs of JobSets, and follows their suspension.

A cluster has it only on request (``--jobsets``), because tests of JobSet controllers bring their
own. The plans are in ``jobsets``.
"""

from __future__ import annotations

from localcluster.client.calls import Client
from localcluster.client.informer import Key
from localcluster.client.resources import CRDS, JOBS
from localcluster.controllers.jobsets import JOBSETS, definition, is_over, jobs_of, next_status
from localcluster.errors import Conflict
from localcluster.loops.context import Context, QueueController
from localcluster.loops.informers import by_controller
from localcluster.loops.objects import controller_of, is_deleting, is_true, key_of, now, uid_of
from localcluster.loops.workqueue import WorkQueue
from localcluster.loops.writing import create_all, message_of
from localcluster.obj import Obj

COMPONENT = "jobset-controller"


async def install(client: Client) -> None:
    """Create the definition of JobSets. Call it before the informers start."""
    try:
        await client.create(CRDS, None, definition())
    except Conflict:
        return  # kept from an earlier run


class JobSetController(QueueController):
    """Reconciles JobSets and their Jobs."""

    def __init__(self, context: Context) -> None:
        self._client, self._events = context.client_of(COMPONENT), context.events
        self._sets = context.informers.get(JOBSETS)
        self._jobs = context.informers.get(JOBS)
        self._jobs_of = context.informers.index(JOBS, by_controller)
        self._queue: WorkQueue[Key] = WorkQueue(COMPONENT, self._sync)
        self._sets.add_handler(self._changed)
        self._jobs.add_handler(self._job_changed)

    def _job_changed(self, old: Obj | None, new: Obj | None) -> None:
        job = new or old
        owner = controller_of(job) if job is not None else None
        if job is not None and owner is not None and owner["kind"] == JOBSETS.kind:
            self._queue.add((job["metadata"]["namespace"], owner["name"]))

    async def _sync(self, key: Key) -> None:
        jobset = self._sets.get(*key)
        if jobset is None or is_deleting(jobset):
            return
        jobs = self._jobs_of.get(uid_of(jobset))
        if not is_over(jobset):
            await self._reconcile(jobset, jobs)
        status = next_status(jobset, jobs, now())
        if status != jobset.get("status"):
            body = {**jobset, "status": status}
            written = await self._client.replace(JOBSETS, *key, body, subresource="status")
            self._sets.observe(written)

    async def _reconcile(self, jobset: Obj, jobs: list[Obj]) -> None:
        there = {one["metadata"]["name"]: one for one in jobs}
        wanted = jobs_of(jobset)
        missing = [one for one in wanted if one["metadata"]["name"] not in there]
        _, failure = await create_all(self._client, self._jobs, missing, lambda _: None)
        if failure is not None:
            message = f"Error creating: {message_of(failure)}"
            self._events.record(COMPONENT, jobset, "Warning", "JobCreationFailed", message)
            raise failure
        for one in wanted:
            await self._follow(there.get(one["metadata"]["name"]), one["spec"])

    async def _follow(self, job: Obj | None, wanted: Obj) -> None:
        """Suspend or resume a Job that has not ended."""
        if job is None or is_true(job, "Complete") or is_true(job, "Failed"):
            return
        if bool(job["spec"].get("suspend")) is not wanted["suspend"]:
            body = {"spec": {"suspend": wanted["suspend"]}}
            self._jobs.observe(await self._client.patch(JOBS, *key_of(job), body))
