"""``FluxQueueOperator``: a task of Airflow as a job of the queue. It occupies no worker of Airflow.

A DAG imports it. The operator submits, and defers to ``FluxQueueTrigger``. The triggerer follows
all jobs of its process, each by a watch. A requeue or a lost node does not fail the task: the job
continues, and the task ends with it.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

from airflow.sdk import BaseOperator
from airflow.sdk.exceptions import AirflowException
from airflow.triggers.base import BaseTrigger, TriggerEvent

from fluxqueue.client.async_client import AsyncClient
from fluxqueue.client.batch.job_options import JobOptions
from fluxqueue.client.submission import Work
from fluxqueue.client.sync_client import Client, JobHandle
from fluxqueue.errors import WaitTimeout
from fluxqueue.fluxjob.states import FluxJobState


class FluxQueueOperator(BaseOperator):  # type: ignore[misc]  # Airflow is not installed here
    """Submits work, waits for its end, and writes its logs to those of the task.

    Parameters
    ----------
    work : What ``Client.submit`` takes, but no function: a command, a line of shell, a manifest.
    options : Of the job: image, cpus, queue, priority, ... (``JobOptions``).
    namespace : Default: that of the kubeconfig.
    kubeconfig, context : Default: as the command line has them. The triggerer needs the same file.
    queued_timeout, running_timeout : Longest wait in the queue and longest run, in seconds. The job
        is cancelled after them. Both count anew if the triggerer is restarted.
    deferrable : False: wait in a worker of Airflow.
    """

    template_fields: Sequence[str] = ("work", "options", "namespace")

    def __init__(
        self,
        *,
        work: Work,
        options: JobOptions | None = None,
        namespace: str | None = None,
        kubeconfig: str | None = None,
        context: str | None = None,
        queued_timeout: float | None = None,
        running_timeout: float | None = None,
        deferrable: bool = True,
        **more: Any,
    ) -> None:
        super().__init__(**more)
        self.work, self.options, self.namespace = work, options, namespace
        self.kubeconfig, self.cluster_context = kubeconfig, context
        self.queued_timeout, self.running_timeout = queued_timeout, running_timeout
        self.deferrable = deferrable
        self._job = ""

    def _client(self) -> Client:
        return Client(
            kubeconfig=self.kubeconfig, context=self.cluster_context, namespace=self.namespace
        )

    def execute(self, context: Any) -> str:  # noqa: ARG002  Airflow gives it
        """Submit, and wait or defer. Return the name of the job."""
        with self._client() as client:
            handle = client.submit(self.work, **(self.options or {}))
            self._job = handle.name
            self.log.info("submitted %s to the queue", handle.name)
            if self.deferrable:
                # The triggerer finds the job by its name, which the queue knows from now on.
                next(iter(handle.changes()), None)
                trigger = FluxQueueTrigger(
                    name=handle.name,
                    namespace=handle.namespace,
                    kubeconfig=self.kubeconfig,
                    context=self.cluster_context,
                    queued_timeout=self.queued_timeout,
                    running_timeout=self.running_timeout,
                )
                self.defer(trigger=trigger, method_name="execute_complete")
            return self._end(handle, _wait(handle, self.queued_timeout, self.running_timeout))

    def execute_complete(self, context: Any, event: Mapping[str, str]) -> str:  # noqa: ARG002
        """Write the logs after the end of the job, and return its name.

        Raises
        ------
        AirflowException
            It has failed, was cancelled, or a time is up.
        """
        with self._client() as client:
            return self._end(client.job(event["name"]), event["timeout"])

    def _end(self, handle: JobHandle, timeout: str) -> str:
        for line in handle.logs():
            self.log.info("%s", line)
        if timeout:
            handle.cancel(wait=False)
            raise AirflowException(timeout)
        if handle.state != FluxJobState.COMPLETED.value:
            raise AirflowException(f"{handle.name} {handle.state}: {handle.reason}")
        return handle.name

    def on_kill(self) -> None:
        """Cancel the job of a task that is stopped while a worker of Airflow has it."""
        if self._job:
            with self._client() as client:
                client.job(self._job).cancel(wait=False)


def _wait(handle: JobHandle, queued_s: float | None, running_s: float | None) -> str:
    """Wait for the end of a job. Return why its time is up, empty if it has ended."""
    try:
        handle.wait(queued_timeout=queued_s, running_timeout=running_s)
    except WaitTimeout as error:
        return str(error)
    return ""


class FluxQueueTrigger(BaseTrigger):  # type: ignore[misc]  # Airflow is not installed here
    """Waits for the end of a job in the triggerer. ``FluxQueueOperator`` makes it."""

    def __init__(self, **given: Any) -> None:
        super().__init__()
        self.given = given

    def serialize(self) -> tuple[str, dict[str, Any]]:
        """Return the class and its arguments, for another triggerer."""
        return (f"{type(self).__module__}.{type(self).__name__}", self.given)

    def _client(self) -> AsyncClient:
        given = self.given
        return AsyncClient(
            kubeconfig=given["kubeconfig"], context=given["context"], namespace=given["namespace"]
        )

    async def on_kill(self) -> None:
        """Cancel the job of a task that a user clears or marks while it is deferred.

        Triggerers call it since Airflow 3.3, and not when they stop themselves.
        """
        async with self._client() as client:
            handle = await client.job(self.given["name"])
            await handle.cancel(wait=False)

    async def run(self) -> AsyncIterator[TriggerEvent]:
        """Yield one event when the job has ended, or its time is up."""
        given = self.given
        async with self._client() as client:
            handle = await client.job(given["name"])
            timeout = ""
            try:
                await handle.wait(
                    queued_timeout=given["queued_timeout"],
                    running_timeout=given["running_timeout"],
                )
            except WaitTimeout as error:
                timeout = str(error)
        # The connections are closed by now: Airflow does not come back after the event.
        yield TriggerEvent({"name": handle.name, "timeout": timeout})
