"""The Python client: submit work to the queue, follow it, and read the cluster.

::

    from fluxqueue.client import Client

    with Client() as client:
        handle = client.submit(["python", "train.py"], image="python:3.13", cpus=4)
        print(handle.wait().state)

It needs a kubeconfig, or the service account of a pod, and no database. The command line uses the
same functions.
"""

from __future__ import annotations

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from fluxqueue.client.async_client import AsyncCallArray, AsyncClient
    from fluxqueue.client.batch.job_options import JobOptions
    from fluxqueue.client.calls import RemoteTraceback
    from fluxqueue.client.executor import QueueExecutor, QueueFuture
    from fluxqueue.client.explanation import Explanation
    from fluxqueue.client.handles import AsyncJobHandle
    from fluxqueue.client.pod_logs import LogLine
    from fluxqueue.client.records import Records
    from fluxqueue.client.sync_client import CallArray, Client, JobHandle
    from fluxqueue.errors import (
        ApiError,
        ApiUnavailable,
        FluxQueueError,
        InvalidInput,
        NotQueued,
        QueuedTimeout,
        RunningTimeout,
        WaitTimeout,
        WorkFailed,
    )

__all__ = [
    "ApiError",
    "ApiUnavailable",
    "AsyncCallArray",
    "AsyncClient",
    "AsyncJobHandle",
    "CallArray",
    "Client",
    "Explanation",
    "FluxQueueError",
    "InvalidInput",
    "JobHandle",
    "JobOptions",
    "LogLine",
    "NotQueued",
    "QueueExecutor",
    "QueueFuture",
    "QueuedTimeout",
    "Records",
    "RemoteTraceback",
    "RunningTimeout",
    "WaitTimeout",
    "WorkFailed",
]

_PLACES = {
    "AsyncCallArray": "client.async_client",
    "AsyncClient": "client.async_client",
    "AsyncJobHandle": "client.handles",
    "CallArray": "client.sync_client",
    "Client": "client.sync_client",
    "Explanation": "client.explanation",
    "JobHandle": "client.sync_client",
    "JobOptions": "client.batch.job_options",
    "LogLine": "client.pod_logs",
    "QueueExecutor": "client.executor",
    "QueueFuture": "client.executor",
    "Records": "client.records",
    "RemoteTraceback": "client.calls",
}
"""Where each name is. Others are errors. A command imports a part of this package, and not all."""


def __getattr__(name: str) -> Any:
    if name not in __all__:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"fluxqueue.{_PLACES.get(name, 'errors')}"), name)


def __dir__() -> list[str]:
    return __all__
