"""ttlSecondsAfterFinished: deletes finished Jobs in the foreground when their time is over."""

from __future__ import annotations

from datetime import datetime

from localcluster.client.resources import JOBS
from localcluster.errors import Conflict, NotFound
from localcluster.loops.context import Context, QueueController
from localcluster.loops.objects import (
    condition_of,
    is_deleting,
    key_of,
    later,
    now,
    read_time,
    uid_of,
)
from localcluster.loops.workqueue import WorkQueue
from localcluster.obj import Obj

COMPONENT = "ttl-after-finished-controller"


def expires_at(job: Obj) -> datetime | None:
    """Return when a Job must be deleted, or None while it runs or if it has no TTL."""
    ttl_s = job["spec"].get("ttlSecondsAfterFinished")
    if ttl_s is None:
        return None
    for kind in ("Complete", "Failed"):
        condition = condition_of(job, kind)
        if condition is not None and condition.get("status") == "True":
            ended = read_time(condition.get("lastTransitionTime"))
            return later(ended, ttl_s) if ended is not None else None
    return None


class TtlController(QueueController):
    """Deletes Jobs with an expired TTL."""

    def __init__(self, context: Context) -> None:
        self._client = context.client_of(COMPONENT)
        self._jobs = context.informers.get(JOBS)
        self._queue: WorkQueue[tuple[str, str]] = WorkQueue(COMPONENT, self._sync)
        self._jobs.add_handler(self._changed)

    def _changed(self, _old: Obj | None, new: Obj | None) -> None:
        if new is not None and not is_deleting(new) and expires_at(new) is not None:
            self._queue.add(key_of(new))

    async def _sync(self, key: tuple[str, str]) -> None:
        job = self._jobs.get(*key)
        if job is None or is_deleting(job):
            return
        due = expires_at(job)
        if due is None:
            return
        left_s = (due - now()).total_seconds()
        if left_s > 0:
            self._queue.add_after(key, left_s)
            return
        try:
            await self._client.delete(JOBS, *key, uid=uid_of(job), propagation="Foreground")
        except (NotFound, Conflict):
            return
