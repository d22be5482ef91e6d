"""Watch BatchJobs with the label ``fluxqueue/managed`` only, so that others cost nothing.

Part of ``watches``. The label decides nothing else. If it is removed from a BatchJob that waits or
runs, it is put back. Otherwise the BatchJob would be stranded, or taken for gone.

So a BatchJob that leaves the watch is requested once more, by the patch that puts its label back,
unless it has ended. ``look`` finds BatchJobs that lost their label while no controller watched.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from fluxqueue.clock import Clock
from fluxqueue.controller.observing.read_workload import trim_job
from fluxqueue.errors import ApiError, ApiUnavailable, Conflict, Invalid, NotFound
from fluxqueue.kube.backoff import Backoff
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.informer import Informer, TroubleHandler
from fluxqueue.kube.resources import JOBS
from fluxqueue.workload import labels
from fluxqueue.workload.deletion import carry
from fluxqueue.workload.groups import read_mark
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.managed import is_taken_in
from fluxqueue.workload.objects import Object

logger = logging.getLogger(__name__)

RETRY_MIN_S, RETRY_MAX_S = 0.2, 60.0
LOOK_S = 10.0


class BatchJobs:
    """The managed BatchJobs.

    Parameters
    ----------
    is_known : returns whether the end of a BatchJob, by its UID, matters.
    on_change : receives each change, as from an informer. Removals are reported only when certain.
    """

    def __init__(
        self,
        client: KubeClient,
        clock: Clock,
        *,
        is_known: Callable[[str], bool],
        on_change: Callable[[Object | None, Object | None], None],
        on_trouble: TroubleHandler | None = None,
    ) -> None:
        self._client, self._clock = client, clock
        self._is_known, self._on_change = is_known, on_change
        self._asking: dict[str, asyncio.Task[None]] = {}
        self.informer = Informer(
            client,
            JOBS,
            label_selector=labels.MANAGED,
            transform=trim_job,
            carry=carry,
            on_change=self._see,
            on_trouble=on_trouble,
            retry_cap_s=5.0,
        )

    async def look(self) -> None:
        """Put the label back on all managed BatchJobs that lack it.

        Raises
        ------
        ApiUnavailable, ApiError
            BatchJobs cannot be listed.
        """
        found, _ = await self._client.collect(
            JOBS, keep=self._stray, label_selector=f"!{labels.MANAGED}"
        )
        for job in found:
            if job is not None:
                self._ask(job)
        if self._asking:  # longer refusals are retried in the background
            await asyncio.wait(list(self._asking.values()), timeout=LOOK_S)

    async def stop(self) -> None:
        """Cancel all patches."""
        tasks = list(self._asking.values())
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def _stray(self, job: Object) -> Object | None:
        try:
            return self._find_stray(job)
        except Exception as error:  # noqa: BLE001  one unreadable Job must not stop the list
            uid = job["metadata"].get("uid")
            logger.warning("Job cannot be read", extra={"uid": uid, "error": str(error)})
            return None

    def _find_stray(self, job: Object) -> Object | None:
        template = (job.get("spec") or {}).get("template") or {}
        is_ours = (
            self._is_known(job["metadata"]["uid"])
            or is_taken_in(trim_job(job))
            or read_mark(template) is not None
        )
        return trim_job(job) if is_ours else None

    def _see(self, old: Object | None, new: Object | None) -> None:
        # Leaving the watch is no proof of deletion: the label may have been removed.
        if new is None and old is not None and self._may_be_there(old):
            self._ask(old)
        else:
            self._on_change(old, new)

    def _may_be_there(self, job: Object) -> bool:
        """Return whether it matters that a BatchJob may only have lost its label."""
        meta = job["metadata"]
        try:
            has_ended = BATCH_JOB.progress(job).result is not None
        except Exception:  # noqa: BLE001  an unreadable Job is requested again
            has_ended = False
        is_over = has_ended or bool(meta.get("deletionTimestamp"))
        return not is_over and self._is_known(meta["uid"])

    def _ask(self, job: Object) -> None:
        uid = job["metadata"]["uid"]
        # One patch at a time per BatchJob.
        if uid not in self._asking:
            self._asking[uid] = asyncio.create_task(self._put_back(job), name=f"label {uid}")

    async def _put_back(self, job: Object) -> None:
        """Label a BatchJob again. Report its removal if it is gone."""
        meta, backoff = job["metadata"], Backoff(base_s=RETRY_MIN_S, cap_s=RETRY_MAX_S)
        uid, namespace, name = meta["uid"], meta["namespace"], meta["name"]
        try:
            while True:
                try:
                    found = await self._label(namespace, name, uid)
                except NotFound:
                    break
                except (ApiUnavailable, ApiError) as error:
                    extra = {"action": "label", "uid": uid, "error": str(error)}
                    logger.warning("label not put back; tried again", extra=extra)
                    await self._clock.sleep(backoff.next_delay_s())
                    continue
                logger.warning("label was taken off; put back", extra={"uid": uid})
                # Not before the first list, which contains it anyway.
                if self.informer.synced.is_set():
                    self.informer.observe(found)
                return
        finally:
            del self._asking[uid]
        watched = self.informer.get(namespace, name)
        # It may have come back through the watch meanwhile: then it is not gone.
        if watched is None or watched["metadata"]["uid"] != uid:
            self._on_change(job, None)

    async def _label(self, namespace: str, name: str, uid: str) -> Object:
        """Put the label on a BatchJob, and return it.

        Raises
        ------
        NotFound
            It is gone, or another BatchJob has its name now.
        ApiError, ApiUnavailable
            The label cannot be written.
        """
        body = {"metadata": {"uid": uid, "labels": {labels.MANAGED: "true"}}}
        try:
            return await self._client.patch(JOBS, namespace, name, body, kind=PatchKind.MERGE)
        except (Conflict, Invalid):
            # Refused because of its UID, or by a policy: only the first means that it is gone.
            there = await self._client.get(JOBS, namespace, name)
            if there["metadata"]["uid"] == uid:
                raise
        raise NotFound(404, "NotFound", f"{namespace}/{name} is another BatchJob now", {})
