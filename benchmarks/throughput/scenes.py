"""What is measured one by one on the running system, while nothing else runs on it."""

from __future__ import annotations

import asyncio
import os
import signal
import statistics
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import psycopg

from benchmarks import latency
from benchmarks.throughput import load
from benchmarks.throughput.meters import (
    LongestTransaction,
    Meter,
    MeterReading,
    SqlMeter,
    Statements,
)
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import PODS
from fluxqueue.workload.pods import gate_index
from fluxqueue_devtools.localpg import LocalPostgres
from fluxqueue_devtools.stack import Stack

IDLE_S = 10.0
IDLE_JOBS = 5
REST_S = 1.5
POLL_S = 0.1
UNPUBLISHED_REST_S = 5.0


# --- idle ----------------------------------------------------------------------------------------


async def idle_cpu(meter: Meter) -> MeterReading:
    """What all parts use on an idle system."""
    await meter.begin()
    await asyncio.sleep(IDLE_S)
    return await meter.end()


async def idle_latency(client: KubeClient, jobs: int, pods: int = 4) -> Mapping[str, float]:
    """Seconds from submission to each stage, medians of ``jobs`` Jobs, one after the other."""
    measured = await latency.measure(client, jobs=jobs, pods=pods)
    return {stage: statistics.median(values) for stage, values in measured.items()}


# --- SQL -----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class SqlOfJob:
    """Statements of one Job of four pods, alone and among many."""

    idle: Statements
    alone: Statements
    alone_jobs: int
    busy: Statements
    busy_jobs: int

    def per_job(self, counted: Statements, jobs: int, figure: Callable[[Statements], int]) -> float:
        """A figure for each Job, without what the same time costs when idle."""
        idle = figure(self.idle) * counted.span_s / self.idle.span_s
        return max(0.0, figure(counted) - idle) / jobs


async def sql_of_job(
    client: KubeClient, postgres: LocalPostgres, namespace: str, busy_jobs: int
) -> SqlOfJob:
    """Count statements: in idleness, of Jobs one by one, and of many Jobs at once."""
    meter = SqlMeter(postgres)
    await meter.begin()
    try:
        await asyncio.sleep(IDLE_S)
        idle = meter.so_far()
        for number in range(IDLE_JOBS):
            await load.run(client, namespace, load.Load(f"alone-{number}", 1, 4))
            await _until_ended(postgres, namespace)
        alone = meter.so_far()
        await load.run(client, namespace, load.Load("busy", busy_jobs, 4))
        await _until_ended(postgres, namespace)
        busy = meter.so_far()
    finally:
        await meter.end()
    return SqlOfJob(idle, alone, IDLE_JOBS, busy, busy_jobs)


async def _until_ended(postgres: LocalPostgres, namespace: str) -> None:
    sql = "SELECT count(*) FROM fluxjobs WHERE namespace = %s AND ended_at IS NULL"
    await _until(postgres, sql, (namespace,), 0)
    await asyncio.sleep(REST_S)


async def _until(
    postgres: LocalPostgres, sql: str, values: tuple[object, ...], wanted: int
) -> None:
    """Wait until a count is what is wanted."""
    async with (
        asyncio.timeout(load.TIMEOUT_S),
        await psycopg.AsyncConnection.connect(postgres.socket_url, autocommit=True) as connection,
    ):
        while True:
            row = await (await connection.execute(sql.encode(), values)).fetchone()
            if row is not None and row[0] == wanted:
                return
            await asyncio.sleep(POLL_S)


# --- a large gang --------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Gang:
    """Seconds since submission: all pods made, all ungated, all running. Then the resources used.

    ``owners``: how many Jobs make its pods. If there are several, these name a group.
    ``is_indexed``: each pod has a completion index.
    """

    pods: int
    owners: int
    made_s: float
    let_go_s: float
    running_s: float
    reading: MeterReading
    is_indexed: bool = False

    @property
    def name(self) -> str:
        """As tables call it."""
        kind = "Indexed gang" if self.is_indexed else "gang"
        return f"{kind} of {self.pods}" + (f" of {self.owners} Jobs" if self.owners > 1 else "")


class _Pods:
    """The pods of one namespace, as a watch sees them."""

    def __init__(self) -> None:
        self.made: set[str] = set()
        self.let_go: set[str] = set()
        self.running: set[str] = set()
        self.at_s: dict[str, float] = {}
        self.changed = asyncio.Event()

    async def watch(self, client: KubeClient, namespace: str, version: str, wanted: int) -> None:
        while True:
            async for event in client.watch(PODS, namespace, resource_version=version):
                pod = event.object
                version, uid = pod["metadata"]["resourceVersion"], pod["metadata"].get("uid")
                if event.type not in {"ADDED", "MODIFIED"}:
                    continue
                self.made.add(uid)
                if gate_index(pod["spec"]) is None:
                    self.let_go.add(uid)
                if pod["status"].get("phase") == "Running":
                    self.running.add(uid)
                for stage in ("made", "let_go", "running"):
                    if len(getattr(self, stage)) == wanted and stage not in self.at_s:
                        self.at_s[stage] = time.monotonic()
                        self.changed.set()


async def gang(
    client: KubeClient,
    namespace: str,
    meter: Meter,
    pods: int,
    *,
    owners: int = 1,
    cpu_m: int,
    is_indexed: bool = False,
) -> Gang:
    """``pods`` pods of ``cpu_m`` millicores each that start as one, until all run.

    ``owners``: the Jobs that make them, as many each. One is suspended. The pods of several gather.
    """
    seen = _Pods()
    version = (await client.list(PODS, namespace)).resource_version
    watching = asyncio.create_task(seen.watch(client, namespace, version, pods))
    try:
        await meter.begin()
        began = time.monotonic()
        await load.create_all(client, namespace, _jobs_of(pods, owners, cpu_m, is_indexed))
        async with asyncio.timeout(load.TIMEOUT_S):
            while "running" not in seen.at_s or "let_go" not in seen.at_s:
                seen.changed.clear()
                waiting = asyncio.create_task(seen.changed.wait())
                await asyncio.wait({waiting, watching}, return_when=asyncio.FIRST_COMPLETED)
                if watching.done():
                    watching.result()
        reading = await meter.end()
    finally:
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
    made, let_go, running = (seen.at_s[s] - began for s in ("made", "let_go", "running"))
    return Gang(pods, owners, made, let_go, running, reading, is_indexed)


def _jobs_of(pods: int, owners: int, cpu_m: int, is_indexed: bool) -> list[dict[str, Any]]:
    name, each = f"gang-{pods}", pods // owners
    group = {"fluxqueue/pod-group": name, "fluxqueue/group-size": str(each * owners)}
    return [
        load.job(
            f"{name}-{number}",
            each,
            cpu=f"{cpu_m}m",
            duration=None,
            annotations=group if owners > 1 else {},
            is_indexed=is_indexed,
        )
        for number in range(owners)
    ]


# --- rebuilding ----------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Resync:
    """From the start of a controller on an empty database to all rows, in seconds.

    ``transaction_s``: the controller's longest transaction. ``wait_s``: the longest wait of
    any session for a lock.
    """

    jobs: int
    took_s: float
    transaction_s: float
    wait_s: float


async def resync(client: KubeClient, stack: Stack, namespace: str, jobs: int) -> Resync:
    """Rebuild the rows of ``jobs`` held Jobs from the cluster, after they were all lost."""
    assert stack.postgres is not None
    held = {"fluxqueue/hold": "true"}
    await load.create_all(
        client,
        namespace,
        [load.job(f"held-{number:06}", 1, annotations=held) for number in range(jobs)],
    )
    rows = "SELECT count(*) FROM fluxjobs WHERE namespace = %s"
    await _until(stack.postgres, rows, (namespace,), jobs)
    await asyncio.sleep(UNPUBLISHED_REST_S)
    async with LongestTransaction(stack.postgres, "controller") as longest:
        pid = stack.parts["controller"].pid
        assert pid is not None, "the controller runs"
        os.kill(pid, signal.SIGKILL)
        began = time.monotonic()
        await asyncio.to_thread(_empty, stack.postgres)
        await _until(stack.postgres, rows, (namespace,), jobs)
        took_s = time.monotonic() - began
        await asyncio.sleep(REST_S)
    return Resync(jobs, took_s, longest.transaction_s, longest.wait_s)


def _empty(postgres: LocalPostgres) -> None:
    with psycopg.connect(postgres.socket_url) as connection:
        connection.execute("TRUNCATE fluxjobs CASCADE")
