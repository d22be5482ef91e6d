"""``FluxQueueProvider``: Parsl's blocks as jobs of the queue.

Parsl imports it from a user's configuration. Parsl's own provider for Kubernetes makes bare Pods,
which cannot be requeued, and it shows a deleted one as running for ever. Parsl polls the state of
its blocks: here that costs no request, because the handles share a watch.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import timedelta
from typing import Any, Unpack

from parsl.jobs.states import JobState, JobStatus
from parsl.providers.base import ExecutionProvider

from fluxqueue.client.batch.job_manifest import new_name
from fluxqueue.client.batch.job_options import JobOptions
from fluxqueue.client.job_view import GONE
from fluxqueue.client.sync_client import Client, JobHandle
from fluxqueue.errors import FluxQueueError
from fluxqueue.fluxjob.states import FluxJobState

STATES = {
    FluxJobState.HELD.value: JobState.HELD,
    FluxJobState.ALLOCATED.value: JobState.PENDING,
    FluxJobState.RUNNING.value: JobState.RUNNING,
    FluxJobState.COMPLETED.value: JobState.COMPLETED,
    FluxJobState.FAILED.value: JobState.FAILED,
    FluxJobState.CANCELLED.value: JobState.CANCELLED,
    GONE: JobState.CANCELLED,
}
"""States of a block. All others are PENDING: it waits in the queue, whatever for."""


class FluxQueueProvider(ExecutionProvider):  # type: ignore[misc]  # parsl has no types
    """Blocks are Jobs. A block of several nodes has one pod on each, which start together.

    Parameters
    ----------
    client : Default: a client of the kubeconfig.
    init_blocks, min_blocks, max_blocks, nodes_per_block, parallelism : See Parsl.
    walltime : Longest run of a block: "01:00:00", seconds, a timedelta.
    options : Of each block: image, cpus, memory, gpus, queue, priority, ... (``JobOptions``).
    """

    def __init__(
        self,
        *,
        client: Client | None = None,
        init_blocks: int = 1,
        min_blocks: int = 0,
        max_blocks: int = 1,
        nodes_per_block: int = 1,
        parallelism: float = 1.0,
        walltime: float | str | timedelta = "01:00:00",
        **options: Unpack[JobOptions],
    ) -> None:
        self.client = client or Client()
        self.init_blocks, self.min_blocks, self.max_blocks = init_blocks, min_blocks, max_blocks
        self.nodes_per_block, self.parallelism = nodes_per_block, parallelism
        self.walltime, self.options = walltime, options
        self.script_dir: str | None = None
        self.resources: dict[object, Any] = {}
        # Parsl computes the workers of a node from these.
        cpus = str(options.get("cpus") or "")
        self.cores_per_node = int(cpus) if cpus.isdigit() else None
        self.mem_per_node = None
        self._handles: dict[object, JobHandle] = {}

    @property
    def label(self) -> str:
        """Name of the provider."""
        return "fluxqueue"

    @property
    def status_polling_interval(self) -> int:
        """Seconds between two calls of ``status``, which costs no request."""
        return 5

    def submit(self, command: str, tasks_per_node: int, job_name: str = "parsl.auto") -> str:
        """Submit a block, and return its identifier.

        Raises
        ------
        InvalidInput, ApiError
            The block is refused, with the reason.
        """
        options: JobOptions = {
            "name": new_name(job_name),
            "time": self.walltime,
            # A block has no work of its own. Parsl runs the tasks of a lost one again.
            "requeue": True,
            "env": {"PARSL_CORES": str(self.cores_per_node)} if self.cores_per_node else {},
            **self.options,
        }
        if self.nodes_per_block > 1:
            options = {**options, "nodes": self.nodes_per_block, "tasks": self.nodes_per_block}
        # The launcher of a user starts what runs on a node. Parsl's default starts the command.
        line = command if tasks_per_node == 1 else _several(command, tasks_per_node)
        handle = self.client.submit(line, **options)
        self._handles[handle.name] = handle
        self.resources[handle.name] = {"job_id": handle.name, "status": JobStatus(JobState.PENDING)}
        return handle.name

    def status(self, job_ids: Sequence[object]) -> list[JobStatus]:
        """Return the states of blocks, each with the reason why it waits or has failed."""
        found = []
        for one in job_ids:
            handle = self._handles[one]
            state = STATES.get(handle.state, JobState.PENDING)
            status = JobStatus(state, message=handle.reason or None)
            self.resources[one]["status"] = status
            found.append(status)
        return found

    def cancel(self, job_ids: Sequence[object]) -> list[bool]:
        """Cancel blocks, and delete their Jobs. Return which of them could be."""
        return [self._cancel(self._handles[one]) for one in job_ids]

    @staticmethod
    def _cancel(handle: JobHandle) -> bool:
        try:
            handle.cancel(wait=False)
        except FluxQueueError:
            return False
        return True


def _several(command: str, count: int) -> str:
    return f"for n in $(seq {count}); do ({command}) & done; wait"
