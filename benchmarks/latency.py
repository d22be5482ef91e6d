"""``make bench-latency``: from submission to released pods on an idle embedded cluster, as a table.

Starts everything as ``fluxqueue up`` does, and creates one Job after the other, each when the
system is idle again. One watch in this process sees the stages: the FluxJob queued, its status
Allocated, the Job unsuspended, its pods made, its pods ungated, Running, Complete. The goal is a
median below 0.5 s from submission to ungated. ``--kubeconfig`` measures on another cluster.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import tempfile
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from benchmarks.processes import cpu_s
from benchmarks.under_way import under_way
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import load_kubeconfig
from fluxqueue.kube.resources import FLUXJOBS, JOBS, PODS, ApiResource
from fluxqueue.workload.pods import gate_index
from fluxqueue_devtools.stack import Stack
from fluxqueue_devtools.stack_options import ClusterShape, StackOptions

GOAL_S = 0.5
UNGATED = "pods ungated"
STAGES = (
    "answered",
    "FluxJob made",
    "Allocated",
    "unsuspended",
    "pods made",
    UNGATED,
    "Running",
    "Complete",
)
NAMESPACE = "default"
REST_S = 1.0
"""After each: the system is idle again when the next comes, its predecessor forgotten."""
Times = dict[str, float]


class LatencyStopwatch:
    """When each Job reached each stage, seconds of the monotonic clock."""

    def __init__(self, pods: int) -> None:
        self._pods = pods
        self.times: dict[str, Times] = {}
        self._ungated: dict[str, set[str]] = {}
        self.changed = asyncio.Event()

    def reached(self, name: str, stage: str) -> None:
        """Note the first time only."""
        self.times.setdefault(name, {}).setdefault(stage, time.monotonic())
        self.changed.set()

    def see(self, resource: ApiResource, obj: dict[str, Any]) -> None:
        """Read the stages off one observed object."""
        name = obj["metadata"]["name"]
        status = obj.get("status") or {}
        if resource is FLUXJOBS:
            job = name.removesuffix("-job")
            self.reached(job, "FluxJob made")
            if status.get("state") in {"Allocated", "Running", "Completed"}:
                self.reached(job, "Allocated")
        elif resource is JOBS:
            if not obj["spec"]["suspend"]:
                self.reached(name, "unsuspended")
            if any(one["type"] == "Complete" for one in status.get("conditions") or ()):
                self.reached(name, "Complete")
        else:
            self._see_pod(obj)

    def _see_pod(self, pod: dict[str, Any]) -> None:
        job = pod["metadata"]["labels"]["batch.kubernetes.io/job-name"]
        self.reached(job, "pods made")
        if gate_index(pod["spec"]) is None:
            ungated = self._ungated.setdefault(job, set())
            ungated.add(pod["metadata"]["uid"])
            if len(ungated) == self._pods:
                self.reached(job, UNGATED)
        if pod["status"].get("phase") == "Running":
            self.reached(job, "Running")


async def _watch(client: KubeClient, resource: ApiResource, stopwatch: LatencyStopwatch) -> None:
    version = (await client.list(resource, NAMESPACE)).resource_version
    while True:
        async for event in client.watch(resource, NAMESPACE, resource_version=version):
            version = event.object["metadata"]["resourceVersion"]
            if event.type in {"ADDED", "MODIFIED"}:
                stopwatch.see(resource, event.object)


def _job(name: str, pods: int) -> dict[str, Any]:
    notes = {"localcluster/duration": "100ms"}
    container = {"name": "main", "image": "none", "resources": {"requests": {"cpu": "1"}}}
    return {
        "metadata": {"name": name},
        "spec": {
            "parallelism": pods,
            "completions": pods,
            "template": {
                "metadata": {"annotations": notes},
                "spec": {"restartPolicy": "Never", "containers": [container]},
            },
        },
    }


async def measure(client: KubeClient, *, jobs: int, pods: int) -> dict[str, list[float]]:
    """Run ``jobs`` Jobs of ``pods`` pods, one at a time. Seconds since submission by stage."""
    stopwatch = LatencyStopwatch(pods)
    watches = [
        asyncio.create_task(_watch(client, resource, stopwatch))
        for resource in (JOBS, PODS, FLUXJOBS)
    ]
    seconds: dict[str, list[float]] = {stage: [] for stage in STAGES}
    try:
        for number in range(-2, jobs):  # the first ones warm connections and imports up
            name = f"latency-{time.time_ns():x}"
            started = time.monotonic()
            await client.create(JOBS, NAMESPACE, _job(name, pods))
            stopwatch.reached(name, "answered")
            while set(STAGES) - set(stopwatch.times[name]):
                stopwatch.changed.clear()
                await asyncio.wait_for(stopwatch.changed.wait(), 60)
            for stage in STAGES if number >= 0 else ():
                seconds[stage].append(stopwatch.times[name][stage] - started)
            await client.delete(JOBS, NAMESPACE, name, propagation="Background")
            await asyncio.sleep(REST_S)
    finally:
        for watch in watches:
            watch.cancel()
        await asyncio.gather(*watches, return_exceptions=True)
    return seconds


@asynccontextmanager
async def _running(folder: Path, kubeconfig: Path | None) -> AsyncIterator[Stack]:
    options = StackOptions(
        data_dir=folder,
        shape=ClusterShape(nodes=4),
        kubeconfig=kubeconfig,
        cluster_arguments=("--quick",),
    )
    async with Stack(options) as stack:
        yield stack


def _cpu_s(stack: Stack) -> dict[str, float]:
    """Processor seconds that each part has used so far."""
    return {name: cpu_s(part.pid) for name, part in stack.parts.items() if part.pid is not None}


async def _run(arguments: argparse.Namespace, folder: Path) -> bool:
    async with (
        _running(folder, arguments.kubeconfig) as stack,
        KubeClient(load_kubeconfig(str(stack.kubeconfig))) as client,
    ):
        before = _cpu_s(stack)
        seconds = await measure(client, jobs=arguments.jobs, pods=arguments.pods)
        used = {name: after - before.get(name, 0.0) for name, after in _cpu_s(stack).items()}
    print(f"{arguments.jobs} Jobs of {arguments.pods} pods, one at a time, since submission:")
    print(f"{'':14}{'p50':>9}{'p90':>9}{'max':>9}")
    for stage, values in seconds.items():
        p90 = statistics.quantiles(values, n=10)[-1]
        print(f"{stage:14}{statistics.median(values):8.3f}s{p90:8.3f}s{max(values):8.3f}s")
    each = ", ".join(f"{k} {1000 * v / arguments.jobs:.0f} ms" for k, v in used.items())
    print(f"processor time for each Job and the second after it: {each}")
    is_reached = statistics.median(seconds[UNGATED]) < GOAL_S
    print(f"goal: {UNGATED} p50 below {GOAL_S} s: {'reached' if is_reached else 'missed'}")
    return is_reached


def main() -> None:
    """Measure and print. The exit code says whether the goal is reached."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=30)
    parser.add_argument("--pods", type=int, default=4)
    parser.add_argument("--kubeconfig", type=Path, help="an existing cluster")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="fluxqueue-latency-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # where Postgres runs as `nobody`, it must reach its data
        if not asyncio.run(_run(arguments, folder)):
            raise SystemExit(1)


if __name__ == "__main__":
    with under_way("latency"):
        main()
