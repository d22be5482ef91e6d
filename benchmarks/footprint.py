"""Memory of each part by size of cluster and queue, as the table of docs/admin/operations.md.

``python -m benchmarks.footprint NODES WAITING`` starts everything as ``fluxqueue up`` does. It
fills an embedded cluster of NODES nodes, and lets WAITING further Jobs queue. Then it reads from
/proc the present and the highest memory of each process (resident, MiB), its CPU seconds, and the
connections to the database. Linux only.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import tempfile
import time
from pathlib import Path
from typing import Any

from benchmarks.processes import cpu_s, memory_mib
from benchmarks.under_way import under_way
from fluxqueue.db.database import Database
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import load_kubeconfig
from fluxqueue.kube.resources import JOBS
from fluxqueue.process.settings import Settings
from fluxqueue_devtools.stack import Stack
from fluxqueue_devtools.stack_options import ClusterShape, StackOptions
from tests.support.sql import dicts

NAMESPACE = "default"
AT_ONCE = 16
POLL_S = 1.0
REST_S = 20.0


def job(name: str, pods: int) -> dict[str, Any]:
    """A Job whose pods take a node each and do not end."""
    template = {
        "metadata": {"annotations": {"localcluster/never-ends": "true"}},
        "spec": {
            "restartPolicy": "Never",
            "containers": [
                {"name": "main", "image": "none", "resources": {"requests": {"cpu": "16"}}}
            ],
        },
    }
    return {
        "metadata": {"name": name, "annotations": {"fluxqueue/duration": "1h"}},
        "spec": {"parallelism": pods, "completions": pods, "template": template},
    }


async def create_all(client: KubeClient, jobs: list[dict[str, Any]]) -> None:
    """Create Jobs, a few at once."""
    gate = asyncio.Semaphore(AT_ONCE)

    async def create(one: dict[str, Any]) -> None:
        async with gate:
            await client.create(JOBS, NAMESPACE, one)

    async with asyncio.TaskGroup() as group:
        for one in jobs:
            group.create_task(create(one))


async def count(database: Database, sql: str) -> int:
    """One number from the database."""
    async with database.begin() as tx:
        (row,) = await dicts(tx, sql)
    assert row is not None
    return int(row["number"])


async def until(database: Database, sql: str, wanted: int, timeout_s: float) -> None:
    """Wait until a count is what is wanted."""
    deadline_s = time.monotonic() + timeout_s
    while (found := await count(database, sql)) < wanted:
        if time.monotonic() > deadline_s:
            raise SystemExit(f"after {timeout_s:g} s {found} of {wanted}: {sql}")
        await asyncio.sleep(POLL_S)


async def measure(nodes: int, waiting: int, timeout_s: float) -> None:
    """Fill, wait until all is queued and matched, and print."""
    with tempfile.TemporaryDirectory(prefix="fluxqueue-footprint-") as folder:
        os.chmod(folder, 0o755)  # noqa: PTH101, S103  its server may run as `nobody`
        shape = ClusterShape(nodes=nodes, cpu="16", memory="64Gi")
        async with Stack(StackOptions(data_dir=Path(folder), shape=shape)) as stack:
            settings = Settings.from_env({"DATABASE_URL": stack.database_url})
            config = load_kubeconfig(str(stack.kubeconfig))
            async with Database(settings, role="footprint") as database, KubeClient(config) as api:
                started_s = time.monotonic()
                await create_all(api, [job("runs", nodes)])
                running = "SELECT count(*) AS number FROM pods WHERE phase = 'Running'"
                await until(database, running, nodes, timeout_s)
                await create_all(api, [job(f"waits-{n}", 1) for n in range(waiting)])
                queued = (
                    "SELECT count(*) AS number FROM fluxjobs WHERE state IN ('Pending', 'Reserved')"
                )
                await until(database, queued, waiting, timeout_s)
                filled_s = time.monotonic() - started_s
                await asyncio.sleep(REST_S)  # a resident size is read at rest
                print(f"{nodes} nodes, {nodes} pods, {waiting} waiting; filled in {filled_s:.0f} s")
                for name, part in stack.parts.items():
                    if part.pid is not None:
                        now, most = memory_mib(part.pid)
                        used_s = cpu_s(part.pid)
                        print(f"  {name:<12} {now:7.0f} MiB, at most {most:7.0f}, {used_s:6.0f} s")
                size = "SELECT pg_database_size(current_database()) / 1048576 AS number"
                print(f"  {'database':<12} {await count(database, size):7} MiB on disk")
                sql = "SELECT count(*) AS number FROM pg_stat_activity WHERE application_name"
                for role in ("controller", "worker"):
                    number = await count(database, f"{sql} LIKE 'fluxqueue-{role}/%'")
                    print(f"  {role:<12} {number:7} connections")


def main() -> None:
    """Read the arguments and measure."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("nodes", type=int)
    parser.add_argument("waiting", type=int)
    parser.add_argument("--timeout", type=float, default=600, help="seconds for each step")
    arguments = parser.parse_args()
    asyncio.run(measure(arguments.nodes, arguments.waiting, arguments.timeout))


if __name__ == "__main__":
    with under_way("footprint"):
        main()
