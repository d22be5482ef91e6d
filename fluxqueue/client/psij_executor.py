"""``FluxQueueJobExecutor``: jobs of PSI/J as jobs of the queue.

PSI/J loads it for ``JobExecutor.get_instance("fluxqueue")``, by the descriptor in
``psij-descriptors``. PSI/J starts ranks with launchers. Here each process is a pod, and the queue
starts all of them together.
"""

from __future__ import annotations

import asyncio
import shlex
from contextlib import aclosing
from pathlib import Path
from typing import Any, cast

from psij import (
    InvalidJobException,
    JobExecutor,
    JobExecutorConfig,
    JobState,
    JobStatus,
    ResourceSpecV1,
    SubmitException,
)

from fluxqueue.client.async_client import AsyncClient
from fluxqueue.client.batch.job_options import KNOWN, JobOptions
from fluxqueue.client.handles import AsyncJobHandle
from fluxqueue.client.job_view import GONE
from fluxqueue.client.loop_thread import open_for
from fluxqueue.errors import FluxQueueError, InvalidInput
from fluxqueue.fluxjob.states import FluxJobState

PREFIX = "fluxqueue."
"""Custom attributes with it are options of the job: ``fluxqueue.image``."""
STATES = {
    FluxJobState.ALLOCATED.value: JobState.ACTIVE,
    FluxJobState.RUNNING.value: JobState.ACTIVE,
    FluxJobState.COMPLETED.value: JobState.COMPLETED,
    FluxJobState.FAILED.value: JobState.FAILED,
    FluxJobState.CANCELLED.value: JobState.CANCELED,
    GONE: JobState.CANCELED,
}
"""States of a job. All others are QUEUED: it waits, whatever for."""
LAUNCHERS = (None, "single", "multiple")


class FluxQueueJobExecutor(JobExecutor):  # type: ignore[misc]  # PSI/J is not installed here
    """Submits to the namespace of the kubeconfig. All its jobs share one watch.

    Parameters
    ----------
    url : A namespace. Default: that of the kubeconfig.
    """

    def __init__(self, url: str | None = None, config: JobExecutorConfig | None = None) -> None:
        super().__init__(url=url, config=config or JobExecutorConfig())

        async def make() -> AsyncClient:
            return AsyncClient(namespace=url or None)

        self._thread, self._client, _ = open_for(self, make())
        self._handles: dict[str, AsyncJobHandle] = {}

    def submit(self, job: Any) -> None:
        """Submit a job. ``job.native_id`` is then the name of its Job.

        Raises
        ------
        InvalidJobException
            The specification cannot be run here. It says which part of it.
        SubmitException
            The API server refuses it, or cannot be reached.
        """
        words, options = read_spec(self._check_job(job))
        try:
            handle = self._thread.run(self._client.submit(words, **options))
        except InvalidInput as error:
            raise InvalidJobException(str(error)) from error
        except FluxQueueError as error:
            raise SubmitException(str(error)) from error
        self._begin(job, handle)

    def attach(self, job: Any, native_id: str) -> None:
        """Follow a job of the queue that exists, by its name."""
        job.executor = self
        self._begin(job, self._thread.run(self._client.job(native_id)))

    def _begin(self, job: Any, handle: AsyncJobHandle) -> None:
        job._native_id = handle.name
        self._handles[job.id] = handle
        job.status = JobStatus(JobState.QUEUED)
        asyncio.run_coroutine_threadsafe(self._follow(job, handle), self._thread.loop)

    def cancel(self, job: Any) -> None:
        """Cancel a job. It becomes CANCELED when the queue has deleted it."""
        handle = self._handles.get(job.id)
        if handle is None:
            raise SubmitException(f"{job.id}: was not submitted by this executor")
        self._thread.run(handle.cancel(wait=False))

    def list(self) -> list[str]:
        """Return the names of the waiting and running jobs of the namespace."""
        return [str(one["name"]) for one in self._thread.run(self._client.jobs())]

    async def _follow(self, job: Any, handle: AsyncJobHandle) -> None:
        """Tell PSI/J each state. The output is written before the last one."""
        try:
            async with aclosing(handle.changes()) as changes:
                async for state, reason in changes:
                    now = STATES.get(state, JobState.QUEUED)
                    if now.final:
                        await _write_output(handle, job.spec.stdout_path)
                    # PSI/J ignores a return to QUEUED, as after a requeue.
                    job.status = JobStatus(now, message=reason or None)
        except (FluxQueueError, OSError) as error:
            job.status = JobStatus(JobState.FAILED, message=str(error))


async def _write_output(handle: AsyncJobHandle, path: Path | None) -> None:
    if path is not None:
        lines = [f"{line}\n" async for line in handle.logs()]
        await asyncio.to_thread(path.write_text, "".join(lines), encoding="utf-8")


def read_spec(spec: Any) -> tuple[list[str], JobOptions]:
    """Return the command and the options of a ``JobSpec``.

    Raises
    ------
    InvalidJobException
        It has no executable, or asks for what pods do not have.
    """
    if not spec.executable:
        raise InvalidJobException("executable: is missing. Fix: name a program of the image")
    if spec.launcher not in LAUNCHERS:
        why = f"launcher: {spec.launcher!r} starts no pods. Fix: use 'multiple', or leave it out"
        raise InvalidJobException(why)
    if spec.stdin_path is not None:
        why = f"stdin_path: {spec.stdin_path} cannot be read. Fix: read a file on a volume"
        raise InvalidJobException(why)
    words = [str(spec.executable), *(spec.arguments or ())]
    if spec.directory is not None:
        line = f"cd {shlex.quote(str(spec.directory))} && exec {shlex.join(words)}"
        words = ["/bin/sh", "-c", line]
    options: dict[str, Any] = {"env": dict(spec.environment or {}), **_attributes(spec.attributes)}
    if spec.name:
        options["name"] = str(spec.name)
    options |= _resources(spec)
    return words, cast(JobOptions, options)


def _attributes(attributes: Any) -> dict[str, Any]:
    """Return the options of queue, time, and those of ours."""
    if attributes is None:
        return {}
    if attributes.reservation_id:
        why = f"reservation_id: {attributes.reservation_id!r} is not known. Fix: name a queue"
        raise InvalidJobException(why)
    found: dict[str, Any] = {"time": attributes.duration}
    if attributes.queue_name:
        found["queue"] = attributes.queue_name
    for key, value in (attributes.custom_attributes or {}).items():
        name = str(key).removeprefix(PREFIX)
        if name == key:
            continue
        if name not in KNOWN:
            why = f"{key}: {value!r} is for no option. Fix: use one of {sorted(KNOWN)}"
            raise InvalidJobException(why)
        found[name] = value
    return found


def _resources(spec: Any) -> dict[str, Any]:
    """Return the options of the shape."""
    asked = spec.resources
    if not isinstance(asked, ResourceSpecV1):
        raise InvalidJobException("resources: version is not known. Fix: use ResourceSpecV1")
    processes = asked.computed_process_count if spec.launcher != "single" else 1
    found: dict[str, Any] = {"tasks": processes}
    if asked.node_count is not None:
        found["nodes"] = asked.computed_node_count
    if asked.cpu_cores_per_process:
        found["cpus"] = asked.cpu_cores_per_process
    if asked.gpu_cores_per_process:
        found["gpus"] = asked.gpu_cores_per_process
    if asked.exclusive_node_use:
        found["exclusive"] = True
    if asked.memory:
        # The whole job has it. Each process is a pod.
        found["memory"] = str(-(-asked.memory // processes))
    return found
