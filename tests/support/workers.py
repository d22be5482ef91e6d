"""A worker as a task over an API server that only stores, and a Job as admission leaves it.

For tests of what a worker does while its surroundings fail: real Postgres, the embedded API.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import replace
from typing import Any

from fluxqueue.clock import SystemClock
from fluxqueue.db.database import Database
from fluxqueue.fluxjob.observation import WorkloadSeen
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import JOBS, PODS
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.worker_process import Worker
from fluxqueue.workload.labels import GATE
from localcluster import LocalCluster, LocalClusterConfig
from tests.support.clusters import InProcessTransport, config_of
from tests.support.faults import FaultyTransport
from tests.support.pool_model import request
from tests.support.rows import Rows, pod, settings_for, workload

QUIET = LocalClusterConfig(run_controllers=False, run_scheduler=False, run_nodes=False)
POD_SPEC = {
    "containers": [{"name": "main", "image": "registry.example/app:1"}],
    "restartPolicy": "Never",
    "schedulingGates": [{"name": GATE}],
}


@asynccontextmanager
async def worker(
    url: str,
    cluster: LocalCluster,
    identity: str = "w1",
    *,
    faults: float = 0.0,
    key: bytes = b"",
    **more: Any,
) -> AsyncIterator[FaultyTransport]:
    """A worker process, as a task. ``key``: which it shares with a webhook."""
    settings = settings_for(url, **more)
    transport = FaultyTransport(InProcessTransport(cluster), seed=1, rate=faults)
    async with (
        Database(settings, role="worker") as database,
        KubeClient(config_of(cluster), transport=transport) as client,
    ):
        context = WorkerContext(
            database, client, settings, SystemClock(), identity, placement_key=key
        )
        running = asyncio.create_task(Worker(context).run())
        try:
            yield transport
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


@asynccontextmanager
async def rows_of(url: str) -> AsyncIterator[Rows]:
    """The controller's side: observations and a look at the rows."""
    async with Database(settings_for(url), role="test") as database:
        yield Rows(database, clock=SystemClock(), settings=settings_for(url))


async def submit(rows: Rows, admin: KubeClient, name: str, *, pods: int = 0) -> str:
    """Make a BatchJob and write down what the controller sees of it. Give its UID."""
    seen = await make_job(admin, name, pods=pods)
    await rows.see(seen)
    return seen.uid


async def make_job(admin: KubeClient, name: str, *, pods: int = 0) -> WorkloadSeen:
    """A suspended BatchJob with gated pods, as admission and the controllers leave it."""
    template = {"metadata": {}, "spec": POD_SPEC}
    body = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": name, "namespace": "default"},
        "spec": {"suspend": True, "parallelism": 1, "completions": 1, "template": template},
    }
    job = await admin.create(JOBS, "default", body)
    facts = []
    for number in range(pods):
        made = await admin.create(
            PODS,
            "default",
            {"metadata": {"name": f"{name}-{number}", "namespace": "default"}, "spec": POD_SPEC},
        )
        facts.append(replace(pod(made["metadata"]["uid"]), name=made["metadata"]["name"]))
    uid: str = job["metadata"]["uid"]
    seen = workload(uid, request(max(1, pods), cpu=1), workload_name=name, name=f"{name}-job")
    return replace(seen, flux_uid=None, pods=tuple(facts))


async def is_released(admin: KubeClient, name: str) -> bool:
    """Whether the BatchJob may start pods."""
    return not (await admin.get(JOBS, "default", name))["spec"]["suspend"]


async def ungated_to(admin: KubeClient, name: str) -> str | None:
    """The node a pod was released to."""
    spec = (await admin.get(PODS, "default", name))["spec"]
    if spec.get("schedulingGates"):
        return None
    node: str = spec["nodeSelector"]["kubernetes.io/hostname"]
    return node
