"""``make bench-window``: what the window needs on a large cluster, as a table.

``fluxqueue view`` as a process, over rows of 50,000 FluxJobs on 10,000 nodes, and Chromium in front
of it. It measures the first load: bytes of the page itself, and time until the map is drawn. It
measures the time of a frame while the map is panned, and the memory of the view server.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from datetime import UTC, datetime
from pathlib import Path

import psycopg

from benchmarks.line import Line
from benchmarks.processes import memory_mib
from benchmarks.under_way import under_way
from benchmarks.view import LIVING
from fluxqueue.process.certs.folder import ensure
from localcluster import LocalCluster
from tests.support.browser import Page, browsing, missing_browser
from tests.support.postgres import running_server
from tests.support.workers import QUIET

FIRST_KB, FIRST_S, FRAME_MS, GOAL_MIB = 300, 1.5, 16, 250
NODES, NAMESPACES, PANNED = 10_000, 20, 40

_NODES = """
INSERT INTO nodes (name, fact)
SELECT 'node-' || n, jsonb_build_object('name', 'node-' || n, 'up', n %% 97 > 0,
    'schedulable', n %% 89 > 0, 'labels', jsonb_build_object(
        'topology.kubernetes.io/zone', 'z' || n / 2500,
        'topology.kubernetes.io/rack', 'r' || n / 50),
    'capacity', '{"cpu": 64000, "memory": 274877906944, "pods": 110, "nvidia.com/gpu": 4}'::jsonb)
FROM generate_series(0, %(number)s - 1) n
"""
_ALLOCATIONS = """
WITH made AS (
    INSERT INTO allocations (uid, term, starts_at, until)
    SELECT uid, 1, extract(epoch FROM now())::bigint - 600, extract(epoch FROM now())::bigint + 3600
    FROM fluxjobs WHERE state = 'Running' RETURNING id
)
INSERT INTO allocation_slots (allocation_id, number, node, resources)
SELECT id, k, 'node-' || (id * 8 + k) %% %(number)s,
    '{"cpu": 32000, "memory": 68719476736, "pods": 1, "nvidia.com/gpu": 2}'
FROM made, generate_series(0, 7) k
"""


def fill(url: str, jobs: int) -> None:
    """Write rows as the server itself makes them, beside the triggers."""
    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute("SET session_replication_role = replica")
        connection.execute(LIVING.encode(), {"number": jobs, "namespaces": NAMESPACES})
        connection.execute(_NODES.encode(), {"number": NODES})
        connection.execute(_ALLOCATIONS.encode(), {"number": NODES})
        connection.execute("ANALYZE fluxjobs, nodes, allocations, allocation_slots")


@contextmanager
def _serving(url: str, kubeconfig: Path, folder: Path) -> Iterator[tuple[str, int]]:
    """Yield the address of a view server, and its process id."""
    environ = {
        **os.environ,
        "DATABASE_URL": url,
        "KUBECONFIG": str(kubeconfig),
        "FLUXQUEUE_HTTP_PORT": "0",
    }
    command = [sys.executable, "-m", "fluxqueue", "view", "--cert-dir", str(folder)]
    command += ["--host", "127.0.0.1", "--port", "0"]
    with subprocess.Popen(command, env=environ, stdout=subprocess.PIPE, text=True) as process:
        try:
            assert process.stdout is not None
            yield f"https://127.0.0.1:{process.stdout.readline().split()[-1]}", process.pid
        finally:
            process.terminate()


def _is_drawn(page: Page) -> bool:
    drawn = "return Boolean(document.querySelector('canvas')?.dataset.frameMs)"
    return bool(page.run(drawn)) and f"{NODES} nodes" in page.text(".bar")


def _frame_ms(page: Page) -> list[float]:
    """Pan the map, and return how long each frame took to draw."""
    script = """
        const canvas = document.querySelector('canvas'), done = arguments[arguments.length - 1];
        const found = []; let left = arguments[0];
        const step = () => {
          found.push(Number(canvas.dataset.frameMs));
          if (!left--) return done(found.slice(2));
          const key = left % 2 ? 'ArrowLeft' : 'ArrowRight';
          canvas.dispatchEvent(new KeyboardEvent('keydown', {key, bubbles: true}));
          requestAnimationFrame(() => requestAnimationFrame(step));
        };
        step();
    """
    return [float(one) for one in page.driver.execute_async_script(script, PANNED)]


def _look(address: str, token: str) -> None:
    with browsing() as page:
        page.open(address)
        page.type("#token", token)
        page.click(".login button")
        page.until(_is_drawn, "the map is not drawn")
        page.run("localStorage.clear()")
        page.driver.execute_cdp_cmd("Network.clearBrowserCache", {})
        began_s = time.perf_counter()
        page.open(address)
        page.until(_is_drawn, "the map is not drawn again")
        took_s = time.perf_counter() - began_s
        size = page.run(
            "return performance.getEntries().filter((one) => one.transferSize && "
            "!one.name.includes('/api/')).reduce((sum, one) => sum + one.transferSize, 0)"
        )
        data = page.run(
            "return performance.getEntries().filter((one) => one.name.includes('/api/'))"
            ".reduce((sum, one) => sum + (one.transferSize || 0), 0)"
        )
        frames = sorted(_frame_ms(page))
    tell(Line("first load: the page itself", size / 1000, "kB", FIRST_KB, is_more_better=False))
    tell(Line("first load: data", data / 1000, "kB"))
    tell(Line("first load until the map is drawn", took_s, "s", FIRST_S, is_more_better=False))
    middle = frames[len(frames) // 2]
    tell(Line("a frame while panning, median", middle, "ms", FRAME_MS, is_more_better=False))
    tell(Line("a frame while panning, longest", frames[-1], "ms"))


def tell(line: Line) -> None:
    """Print a line of the table."""
    print(line.render(2), flush=True)


async def _measure(url: str, folder: Path) -> None:
    files = ensure(folder / "certs", ["127.0.0.1"], now=datetime.now(tz=UTC))
    async with LocalCluster(QUIET) as cluster:
        cluster.write_kubeconfig(folder / "kubeconfig")
        kubeconfig, token = folder / "kubeconfig", cluster.token

        def work() -> None:
            with _serving(url, kubeconfig, files.folder) as (address, pid):
                _look(address, token)
                _, peak = memory_mib(pid)
            tell(Line("memory of the view server", peak, "MiB", GOAL_MIB, is_more_better=False))

        await asyncio.to_thread(work)


def main() -> None:
    """Fill a database, start the server, look."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000, help="that wait or run")
    jobs = parser.parse_args().jobs
    if why := missing_browser():
        sys.exit(f"{why}: install the packages chromium and chromium-driver")
    with running_server() as postgres, tempfile.TemporaryDirectory() as folder:
        url = postgres.create()
        fill(url, jobs)
        print(f"{jobs} FluxJobs on {NODES} nodes\n")
        asyncio.run(_measure(url, Path(folder)))
        postgres.drop(url)


if __name__ == "__main__":
    with under_way("window"):
        main()
