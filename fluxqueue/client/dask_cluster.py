"""``FluxQueueCluster``: the workers of Dask as jobs of the queue, for dask-jobqueue.

A user imports it. dask-jobqueue calls a batch system's command for each job and reads the number
that it prints. Here the client takes the place of the command, so nothing is installed beside it.
A job waits as long as the queue wants: Dask counts no time before a worker runs.
"""

from __future__ import annotations

import asyncio
from typing import Any

import dask
from dask_jobqueue.core import Job as DaskJob
from dask_jobqueue.core import JobQueueCluster
from distributed.core import Status

from fluxqueue.client.batch.job_manifest import new_name
from fluxqueue.client.batch.job_options import JobOptions
from fluxqueue.client.sync_client import Client, JobHandle
from fluxqueue.errors import FluxQueueError

SECTION = "fluxqueue"
"""The part of Dask's configuration: ``jobqueue.fluxqueue``."""

_DEFAULTS: dict[str, Any] = {
    "name": "dask-worker",
    "cores": None,
    "memory": None,
    "processes": 1,
    "interface": None,
    # Seconds that a worker waits for its scheduler. They begin when the worker runs.
    "death-timeout": 60,
    "local-directory": None,
    "shared-temp-directory": None,
    "extra": None,
    "worker-command": "distributed.cli.dask_worker",
    "worker-extra-args": [],
    "job-extra": None,
    "job-extra-directives": {},
    "env-extra": None,
    "job-script-prologue": [],
    "header-skip": None,
    "job-directives-skip": [],
    "log-directory": None,
    "shebang": "#!/bin/sh",
    # The path of this Python means nothing in the image of a worker.
    "python": "python3",
    "scheduler-options": {},
}
dask.config.update_defaults({"jobqueue": {SECTION: _DEFAULTS}})


class DaskWorkerJob(DaskJob):  # type: ignore[misc]  # dask-jobqueue has no types
    """One job with the workers of one node. dask-jobqueue makes it.

    Parameters
    ----------
    client : Submits the job.
    options : Of the job: image, gpus, queue, priority, time, ... (``JobOptions``).
    """

    config_name = SECTION

    def __init__(
        self,
        scheduler: str | None = None,
        name: str | None = None,
        *,
        client: Client,
        options: JobOptions,
        **more: Any,
    ) -> None:
        super().__init__(scheduler=scheduler, name=name, **more)
        self.job_header = ""
        self.client, self.options = client, options
        self.handle: JobHandle | None = None

    async def start(self) -> None:
        """Submit the job. The cluster does not wait for its start.

        Raises
        ------
        InvalidInput, ApiError
            The job is refused, with the reason.
        """
        self.handle = await asyncio.to_thread(self._submit)
        self.job_id = self.handle.name
        self.status = Status.running

    def _submit(self) -> JobHandle:
        options: JobOptions = {
            "name": new_name(self.job_name),
            "cpus": self.worker_cores,
            "memory": str(self.worker_memory),
            # A worker has no work of its own. Dask runs its tasks again elsewhere.
            "requeue": True,
            **self.options,
        }
        lines = [*filter(None, self._job_script_prologue), self._command_template]
        return self.client.submit("\n".join(lines), **options)

    async def close(self) -> None:
        """Cancel the job if it waits or runs, and delete it if it has ended."""
        if self.handle is not None:
            await asyncio.to_thread(self._cancel, self.handle)
        self.status = Status.closed
        self._event_finished.set()

    @staticmethod
    def _cancel(handle: JobHandle) -> None:
        try:
            if handle.done():
                handle.delete()
            else:
                handle.cancel(wait=False)
        except FluxQueueError:
            # It has ended, and its object was deleted.
            return


class FluxQueueCluster(JobQueueCluster):  # type: ignore[misc]  # dask-jobqueue has no types
    """A Dask cluster with its workers in the queue, and its scheduler in this process.

    Pods must reach this process: run it in the cluster, or give ``scheduler_options`` a host.

    Parameters
    ----------
    cores, memory : Of each job, and requested for its pod: 4, "8GiB".
    processes : Workers in each job, which share its cores and memory. Default: 1.
    client : Default: a client of the kubeconfig.
    options : Of each job (``JobOptions``): {"image": "my/dask", "queue": "night"}.
    more : See ``dask_jobqueue.JobQueueCluster``: ``n_workers``, ``scheduler_options``, ...
    """

    job_cls = DaskWorkerJob

    def __init__(
        self, *, client: Client | None = None, options: JobOptions | None = None, **more: Any
    ) -> None:
        super().__init__(client=client or Client(), options=options or {}, **more)
