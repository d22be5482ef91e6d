"""``make bench-resync``: rows and cluster brought together at 50,000 Jobs, as a table.

The controller's own observer, in a process of its own, against a real Postgres and an embedded API
server that is full. It starts with an empty database, which it fills from FluxJobs and pods. Then
come resyncs as at an interval, which list everything again. One finds no difference. Another finds
lost rows and wrong rows. Meanwhile a user submits a Job now and then. The time until it has its row
is what users notice of a resync.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import os
import sys
import tempfile
import time
from asyncio.subprocess import PIPE
from collections.abc import AsyncIterator, Awaitable
from contextlib import asynccontextmanager, suppress
from pathlib import Path
from typing import Any

import psycopg

from benchmarks import filled
from benchmarks.line import Line
from benchmarks.processes import memory_mib
from benchmarks.under_way import under_way
from fluxqueue.cli.main import GC_THRESHOLDS
from fluxqueue.clock import SystemClock
from fluxqueue.controller.observing.observer import Observer
from fluxqueue.controller.term import Term
from fluxqueue.db.database import Database, Transaction
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import load_config
from fluxqueue.kube.resources import JOBS
from tests.support.postgres import running_server
from tests.support.rows import settings_for
from tests.support.sql import dicts

GOAL_S = 0.5
EVERY_S = 0.25
POLL_S = 0.01
SUBMITTED = filled.RUNNING_SHARE * 1_000_000 + 1
"""Numbers of Jobs that are submitted meanwhile: none of them runs."""

_LOSE = "DELETE FROM fluxjobs WHERE jobid % 40 = 7 AND state = 'Pending'"
_SPOIL = "UPDATE fluxjobs SET observed = '{\"wanted\": 7}' WHERE jobid % 40 = 9"


class Watched(Term):
    """A term, with a look at its transactions."""

    longest_s = 0.0

    @asynccontextmanager
    async def begin_write(self) -> AsyncIterator[Transaction]:
        """As it is, timed."""
        async with super().begin_write() as tx:
            began_s = time.perf_counter()
            yield tx
        self.longest_s = max(self.longest_s, time.perf_counter() - began_s)


class Submitting:
    """A user that submits a Job now and then, and looks for its row."""

    def __init__(self, client: KubeClient, database: Database) -> None:
        self._client, self._database = client, database
        self._number = SUBMITTED
        self.waits_s: list[float] = []

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            await self._submit()
            await asyncio.sleep(EVERY_S)

    async def _submit(self) -> None:
        body, self._number = filled.job(self._number), self._number + 1
        meta = body["metadata"]
        del meta["uid"]
        began_s = time.perf_counter()
        made = await self._client.create(JOBS, meta["namespace"], body)
        while not await self._has_row(made["metadata"]["uid"]):  # noqa: ASYNC110 as psql would
            await asyncio.sleep(POLL_S)
        self.waits_s.append(time.perf_counter() - began_s)

    async def _has_row(self, uid: str) -> bool:
        async with self._database.begin() as tx:
            return bool(await dicts(tx, "SELECT FROM fluxjobs WHERE uid = :uid", uid=uid))


async def _observe(url: str, kubeconfig: str) -> None:
    """The controller's process: one line on standard input is one resync."""
    gc.set_threshold(*GC_THRESHOLDS)
    async with (
        Database(settings_for(url), role="controller") as database,
        KubeClient(load_config(kubeconfig)) as client,
    ):
        settings, clock = settings_for(url), SystemClock()
        term = await Watched.begin(database, settings, clock, "bench")
        observer = Observer(term, client, settings, clock)
        running = asyncio.create_task(observer.run())
        while not observer.is_synced:
            await asyncio.sleep(0.1)
            if running.done():
                running.result()
        _answer(term)
        reader = asyncio.StreamReader()
        loop = asyncio.get_running_loop()
        await loop.connect_read_pipe(lambda: asyncio.StreamReaderProtocol(reader), sys.stdin)
        while await reader.readline():
            term.longest_s = 0.0
            await observer.resync.resync()
            _answer(term)
        running.cancel()
        with suppress(asyncio.CancelledError):
            await running


def _answer(term: Watched) -> None:
    _, peak = memory_mib(os.getpid())
    print(f"{term.longest_s} {peak}", flush=True)


class ResyncBench:
    """Tells lines, and runs one thing after the other."""

    def __init__(self, url: str, submitting: Submitting) -> None:
        self._url, self._submitting = url, submitting

    async def idle(self) -> None:
        """What a submission takes while nothing else happens."""
        await self._beside(asyncio.sleep(2))  # connections, prepared statements
        await self._beside(asyncio.sleep(5))
        self._tell_waits("idle")

    async def resync(self, what: str, controller: asyncio.subprocess.Process) -> None:
        """One resync, with submissions meanwhile."""
        assert controller.stdin is not None
        controller.stdin.write(b"resync\n")
        took_s, (longest_s, peak) = await self._beside(_answered(controller))
        tell(Line(f"{what}: whole", took_s, "s"))
        tell(Line(f"{what}: longest transaction that writes", longest_s, "s", GOAL_S, False))
        self._tell_waits(what)
        tell(Line(f"{what}: controller's memory at most so far", peak, "MiB"))

    async def _beside(self, work: Awaitable[Any]) -> tuple[float, Any]:
        self._submitting.waits_s.clear()
        beside = asyncio.create_task(self._submitting.run())
        began_s = time.perf_counter()
        found = await work
        took_s = time.perf_counter() - began_s
        while not (self._submitting.waits_s or beside.done()):  # noqa: ASYNC110
            await asyncio.sleep(POLL_S)
        beside.cancel()
        with suppress(asyncio.CancelledError):
            await beside
        return took_s, found

    def _tell_waits(self, what: str) -> None:
        waits = sorted(self._submitting.waits_s)
        tell(Line(f"{what}: a submitted Job has its row, median", waits[len(waits) // 2], "s"))
        tell(Line(f"{what}: the longest of {len(waits)}", waits[-1], "s", GOAL_S, False))


async def _answered(controller: asyncio.subprocess.Process) -> tuple[float, float]:
    assert controller.stdout is not None
    longest_s, peak = (await controller.stdout.readline()).split()
    return float(longest_s), float(peak)


def tell(line: Line) -> None:
    """Print a line of the table."""
    print(line.render(2), flush=True)


def _rows(url: str) -> int:
    with psycopg.connect(url, autocommit=True) as connection:
        row = connection.execute("SELECT count(*) FROM fluxjobs").fetchone()
    assert row is not None
    return int(row[0])


async def _measure(url: str, folder: Path, number: int) -> None:
    kubeconfig = str(folder / "kubeconfig")
    async with filled.filled_server(number, Path(kubeconfig)) as filling_s:
        print(f"{number} Jobs and FluxJobs, made in {filling_s:.0f} s\n", flush=True)
        command = [sys.executable, "-m", "benchmarks.resync", "--observe", url, kubeconfig]
        began_s = time.perf_counter()
        controller = await asyncio.create_subprocess_exec(*command, stdin=PIPE, stdout=PIPE)
        try:
            longest_s, peak = await _answered(controller)
            tell(Line(f"empty database: {_rows(url)} rows", time.perf_counter() - began_s, "s"))
            tell(Line("empty database: longest transaction", longest_s, "s", GOAL_S, False))
            tell(Line("empty database: controller's memory at most", peak, "MiB"))
            async with (
                Database(settings_for(url), role="bench") as database,
                KubeClient(load_config(kubeconfig)) as client,
            ):
                bench = ResyncBench(url, Submitting(client, database))
                await bench.idle()
                await bench.resync("nothing differs", controller)
                with psycopg.connect(url, autocommit=True) as connection:
                    lost = connection.execute(_LOSE).rowcount
                    spoilt = connection.execute(_SPOIL).rowcount
                print(f"{lost} rows lost, {spoilt} wrong")
                await bench.resync("5 % differ", controller)
        finally:
            if controller.returncode is None:
                controller.kill()
            await controller.wait()


def main() -> None:
    """Fill, rebuild, compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=50_000)
    parser.add_argument("--observe", nargs=2, help=argparse.SUPPRESS)
    arguments = parser.parse_args()
    if arguments.observe:
        asyncio.run(_observe(*arguments.observe))
        return
    with running_server() as postgres, tempfile.TemporaryDirectory() as folder:
        url = postgres.create()
        asyncio.run(_measure(url, Path(folder), arguments.jobs))
        postgres.drop(url)


if __name__ == "__main__":
    with under_way("resync"):
        main()
