"""``make bench-view``: what the view server needs for a full queue, as a table.

``fluxqueue view`` as a process, over rows of 50,000 FluxJobs that wait or run and as many that have
ended, on 1,000 nodes. It measures the first page of each list (the longest of a few), for a user
with all namespaces and for a user with one. Then come all pages one after the other, and many
callers at once. It also measures the highest memory.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import psycopg

from benchmarks.line import Line
from benchmarks.processes import memory_mib
from benchmarks.under_way import under_way
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import ClusterConfig
from fluxqueue.process.certs.folder import ensure
from localcluster import LocalCluster
from tests.support import retained
from tests.support.postgres import running_server
from tests.support.workers import QUIET

GOAL_S, GOAL_MIB = 1.0, 200
REPEATED, AT_ONCE = 3, 16
NODES, NAMESPACES = 1000, 20
LISTS = (
    "/queue", "/jobs", "/forecast", "/nodes", "/accounting", "/accounting/runs",
    "/history?namespace=team-7&job=old-7", "/queue?namespace=team-7", "/jobs?namespace=team-7",
    "/jobs?user=user-7", "/accounting?by=user,month", "/accounting?namespace=team-7",
)  # fmt: skip

LIVING = """
INSERT INTO fluxjobs (uid, place, namespace, name, workload_kind, workload_name, flux_uid,
    user_name, state, reason, request, size, observed, is_examined, accepted_by, priority,
    submitted_at, expected_start)
SELECT gen_random_uuid(), 1000000000 + n, 'team-' || n %% %(namespaces)s,
    'new-' || n || '-job', 'Job', 'new-' || n, gen_random_uuid(), 'user-' || n %% 50,
    CASE WHEN n %% 50 = 0 THEN 'Running' ELSE 'Pending' END,
    'waits for 16 cores on each of 4 nodes', '{}', 4, '{"wanted": 4}', true, 'default', n %% 100,
    now() - n * interval '1 s', CASE WHEN n %% 5 = 0 THEN now() + n * interval '1 s' END
FROM generate_series(1, %(number)s) n
"""
_NODES = """
INSERT INTO nodes (name, fact)
SELECT 'node-' || n, jsonb_build_object('name', 'node-' || n, 'up', true, 'schedulable', true,
    'labels', '{}'::jsonb, 'capacity', '{"cpu": 64000, "memory": 274877906944, "pods": 110}'::jsonb)
FROM generate_series(0, %(number)s - 1) n
"""


def fill(url: str, number: int) -> None:
    """Rows as the server itself makes them, beside the triggers."""
    retained.fill(url, number)
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(LIVING.encode(), {"number": number, "namespaces": NAMESPACES})
        connection.execute(_NODES.encode(), {"number": NODES})
        connection.execute("ANALYZE fluxjobs, nodes")


async def _first_pages(client: KubeClient) -> None:
    for path in LISTS:
        longest = 0.0
        for _ in range(REPEATED):
            began_s = time.perf_counter()
            await client.request("GET", f"/api/v1{path}")
            longest = max(longest, time.perf_counter() - began_s)
        tell(Line(f"first page of {path}", longest, "s", GOAL_S, is_more_better=False))


async def _all_pages(client: KubeClient) -> None:
    count, more, began_s = 0, "", time.perf_counter()
    while True:
        page = await client.request("GET", f"/api/v1/queue?limit=500{more}")
        count += len(page["items"])
        if "continue" not in page:
            break
        more = f"&continue={page['continue']}"
    tell(Line(f"all {count} of /queue, 500 a page", time.perf_counter() - began_s, "s"))


async def _many(client: KubeClient) -> None:
    began_s = time.perf_counter()
    await asyncio.gather(
        *(client.request("GET", "/api/v1/queue?limit=500") for _ in range(AT_ONCE))
    )
    tell(Line(f"{AT_ONCE} callers at once", time.perf_counter() - began_s, "s"))


def tell(line: Line) -> None:
    """Print a line of the table."""
    print(line.render(2), flush=True)


async def _measure(url: str, folder: Path) -> None:
    files = ensure(folder / "certs", ["127.0.0.1"], now=datetime.now(tz=UTC))
    async with LocalCluster(QUIET) as cluster:
        cluster.write_kubeconfig(folder / "kubeconfig")
        environ = {
            **os.environ,
            "DATABASE_URL": url,
            "KUBECONFIG": str(folder / "kubeconfig"),
            "FLUXQUEUE_HTTP_PORT": "0",
        }
        command = [sys.executable, "-m", "fluxqueue", "view", "--cert-dir", str(files.folder)]
        command += ["--host", "127.0.0.1", "--port", "0"]
        process = await asyncio.create_subprocess_exec(*command, env=environ, stdout=PIPE)
        try:
            assert process.stdout is not None
            ready = (await process.stdout.readline()).decode()
            config: dict[str, Any] = {"ca_pem": files.ca.read_text(), "token": cluster.token}
            server = f"https://127.0.0.1:{ready.split()[-1]}"
            async with KubeClient(ClusterConfig(server=server, **config), timeout_s=60) as client:
                before, _ = memory_mib(process.pid)
                await _first_pages(client)
                await _all_pages(client)
                await _many(client)
            _, peak = memory_mib(process.pid)
            tell(Line("memory at first", before, "MiB"))
            tell(Line("memory at most", peak, "MiB", GOAL_MIB, is_more_better=False))
        finally:
            process.terminate()
            await process.wait()


def main() -> None:
    """Fill a database, start the server, ask."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000, help="that live, and that have ended")
    number = parser.parse_args().jobs
    with running_server() as postgres, tempfile.TemporaryDirectory() as folder:
        url = postgres.create()
        fill(url, number)
        print(f"{number} FluxJobs that live, {number} that have ended, {NODES} nodes\n")
        asyncio.run(_measure(url, Path(folder)))
        postgres.drop(url)


if __name__ == "__main__":
    with under_way("view"):
        main()
