"""``make bench-queue``: deep queues on a real Postgres, without an API server, as a table.

Runs the matcher of the worker over rows as the controller writes them. What is measured:
submission, committed decisions of one-slot jobs at several depths, a cycle over a full queue in
which nothing fits, many reservations and a forecast in memory. ``--quick`` is a tenth.

The first batch on a new database is a line of its own: it pays for connections, prepared
statements and plans, once. It is of jobs that then go away, and what follows is measured warm.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import resource
import tempfile
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path

from benchmarks.line import Line
from benchmarks.under_way import under_way
from fluxqueue.clock import SystemClock
from fluxqueue.db import leadership, migrate
from fluxqueue.db.database import Database
from fluxqueue.db.store.cluster_rows import save_foreign, save_nodes
from fluxqueue.db.store.observations import save_workloads
from fluxqueue.fluxjob.facts import WorkloadFacts
from fluxqueue.fluxjob.node import ForeignPod, NodeFact
from fluxqueue.fluxjob.observation import WorkloadSeen
from fluxqueue.fluxjob.request import CPU, MEMORY
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.render import render
from fluxqueue.jobspec.shape import equal_slots
from fluxqueue.kube.client import KubeClient
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.process.settings import MATCH_POLICY, Settings
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.forecast import Effort, forecast
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.schedule import ROLE, CycleRunner
from fluxqueue_devtools.localpg import LocalPostgres
from tests.support.rows import NOWHERE
from tests.support.sql import dicts

NODES = 1000
CORES = 64_000
BATCH = 500
GI = 2**30
WIDTHS = 10
"""Different requests among those that do not fit."""
LEGEND = f"""\
submission: all jobs over all their time, in batches of {BATCH}, on a database that {BATCH} others
warmed up (they came and went before anything was measured); the cold batch and the slowest of the
warm ones have lines of their own; what a matcher rests between its cycles is left out"""


def request(cpu_m: int, *, count: int = 1, duration_s: int | None = 3600) -> Jobspec:
    """A request of equal slots."""
    return equal_slots(count, {CPU: cpu_m, MEMORY: GI}, duration_s=duration_s)


def node(number: int) -> NodeFact:
    """A node of 64 cores."""
    name = f"node-{number:05}"
    capacity = {CPU: CORES, MEMORY: 256 * GI, "pods": 110}
    return NodeFact(name, f"uid-{name}", capacity, {"kubernetes.io/hostname": name})


def foreign(number: int) -> ForeignPod:
    """A pod of others that leaves its node too little for a whole-node slot."""
    return ForeignPod(f"foreign-{number}", "other", f"x-{number}", node(number).name, {CPU: 1000})


def seen(number: int, asked: Jobspec, priority: int) -> WorkloadSeen:
    """A BatchJob as the controller sees it."""
    uid = f"{number:08x}-bench"
    return WorkloadSeen(
        uid=uid,
        namespace="default",
        name=f"job-{number}-job",
        workload_kind="Job",
        workload_name=f"job-{number}",
        flux_uid=None,
        user_name="",
        queue="default",
        held_by=None,
        request=render(asked),
        size=asked.size,
        duration_s=int(asked.duration_s) or None,
        begin_at_s=None,
        facts=WorkloadFacts(
            priority=priority,
            wanted=asked.size,
            is_suspended=True,
            is_suspendable=True,
            replaces_pods=True,
        ),
    )


class Restless(SystemClock):
    """A matcher's pace keeps it from working all the time, which is not what its work costs."""

    async def sleep(self, delay_s: float) -> None:  # noqa: ARG002  as the base class has it
        """Let others run."""
        await super().sleep(0)


class QueueBench:
    """One database of its own, nodes, and a matcher."""

    def __init__(self, database: Database, settings: Settings) -> None:
        self.database = database
        self.context = WorkerContext(database, KubeClient(NOWHERE), settings, Restless(), "bench")
        self.submitted = 0

    async def prepare(self) -> CycleRunner:
        """Nodes, and a term."""
        async with self.database.begin() as tx:
            await save_nodes(tx, [node(n) for n in range(NODES)], [])
        return CycleRunner(self.context, await leadership.seize(self.database, ROLE, "bench"))

    async def submit(
        self, asked: Sequence[Jobspec], *, priority: int = 0
    ) -> list[tuple[int, float]]:
        """Submit in batches as the observer does. Give the size and the time (s) of each."""
        batches = []
        for start in range(0, len(asked), BATCH):
            some = asked[start : start + BATCH]
            batch = [seen(self.submitted + n, one, priority) for n, one in enumerate(some)]
            self.submitted += len(batch)
            batches.append((len(batch), await self._save(batch)))
        return batches

    async def warm_up(self) -> float:
        """The first batch, of jobs that then go away. Give its rate."""
        batch = [seen(self.submitted + n, request(CORES), 0) for n in range(BATCH)]
        self.submitted += len(batch)
        rate = len(batch) / await self._save(batch)
        await self._save([replace(one, is_deleting=True, is_gone=True) for one in batch])
        return rate

    async def _save(self, batch: list[WorkloadSeen]) -> float:
        """Store one batch. Give the time it took (s)."""
        began = time.perf_counter()
        async with self.database.begin() as tx:
            await save_workloads(tx, batch)
        return time.perf_counter() - began

    async def allocated(self) -> int:
        """How many hold resources."""
        async with self.database.begin() as tx:
            (row,) = await dicts(tx, "SELECT count(*) AS n FROM allocations WHERE is_live")
        assert row is not None
        return int(row["n"])


async def decisions(url: str, depth: int, started: int) -> list[Line]:
    """Rates at one depth: submission, then decisions while ``depth`` wait behind."""
    settings = Settings(database_url=url)
    async with Database(settings, role="bench") as database:
        bench = QueueBench(database, settings)
        matcher = await bench.prepare()
        cold = await bench.warm_up()
        # The fitting ones will fill more nodes than these leave over.
        wide = [request(CORES, count=NODES - width) for width in range(WIDTHS)]
        each = (depth - started) // WIDTHS
        batches = await bench.submit([one for one in wide for _ in range(each)])
        async with database.begin() as tx:  # one node taken, so that none of them fits
            await save_foreign(tx, [foreign(n) for n in range(WIDTHS)], [])
        began = time.perf_counter()
        await matcher.run()
        examined = (depth - started) / (time.perf_counter() - began)
        batches += await bench.submit([request(CORES // 32)] * started, priority=1)
        began = time.perf_counter()
        await matcher.run()
        took = time.perf_counter() - began
        got = await bench.allocated()
        assert got == started, f"{got} of {started} started"
        again = await idle_cycle(matcher)
    rate = started / took
    submission = sum(size for size, _ in batches) / sum(time_s for _, time_s in batches)
    slowest = min(size / time_s for size, time_s in batches)
    return [
        Line(f"{depth:,} deep: the first batch of all, cold", cold, "jobs/s"),
        Line(f"{depth:,} deep: submission", submission, "jobs/s", 2000),
        Line(f"{depth:,} deep: the slowest of its batches", slowest, "jobs/s"),
        Line(f"{depth:,} deep: examined for the first time", examined, "jobs/s"),
        Line(f"{depth:,} deep: one-slot decisions committed", rate, "jobs/s", 1000),
        Line(f"{depth:,} deep: a cycle in which nothing fits", again * 1000, "ms", 100, False),
    ]


async def idle_cycle(matcher: CycleRunner) -> float:
    """The best of a few cycles without news, in seconds."""
    best = float("inf")
    for _ in range(5):
        began = time.perf_counter()
        await matcher.run()
        best = min(best, time.perf_counter() - began)
    return best


def reservations(nodes: int, running: int, reserved: int) -> Line:
    """One conservative cycle in memory: ``running`` jobs with ends, ``reserved`` promises."""
    pools = Matcher(ShareLedger(), MATCH_POLICY)
    pools.ledger.add_rows([node(n).name for n in range(nodes)])
    for number in range(nodes):
        pools.set_node(node(number), {})
    per_job = max(1, nodes // running)
    for number in range(running):
        placed = pools.match_now(request(CORES, count=per_job), 0)
        pools.allocate(f"run-{number}", replace(placed, until=1000 + 37 * number % 5003))
    wide = [
        PendingJob(
            f"wait-{n}", n, 0, request(CORES, count=per_job * (2 + n % 7), duration_s=600 + n)
        )
        for n in range(reserved)
    ]
    began = time.perf_counter()
    decided = run_cycle(pools, wide, POLICIES["conservative"], 0)
    took = time.perf_counter() - began
    assert len(decided.reserved) == reserved
    what = f"conservative: {nodes:,} nodes, {running:,} running, {reserved} promises"
    return Line(what, took * 1000, "ms", 1000, False)


def forecasts(nodes: int, running: int, waiting: int, depth: int) -> list[Line]:
    """One forecast in memory: ``waiting`` in the queue, of which ``depth`` are estimated."""
    pools = Matcher(ShareLedger(), MATCH_POLICY)
    pools.ledger.add_rows([node(n).name for n in range(nodes)])
    for number in range(nodes):
        pools.set_node(node(number), {})
    per_job = max(1, nodes // running)
    for number in range(running):
        placed = pools.match_now(request(CORES, count=per_job), 0)
        pools.allocate(f"run-{number}", replace(placed, until=1000 + 37 * number % 5003))
    queue = [
        PendingJob(f"wait-{n}", n, 0, request(CORES, count=1 + n % 17, duration_s=600 + n % 50))
        for n in range(waiting)
    ]
    policy = POLICIES["easy"]
    began = time.perf_counter()
    decided = run_cycle(pools, queue, policy, 0)
    between = time.perf_counter()
    told = forecast(pools, queue, decided, policy, 0, effort=Effort(depth))
    ended = time.perf_counter()
    assert len(told) == depth
    assert all(one.expected_start is not None for one in told.values())
    what = f"forecast: {nodes:,} nodes, {running:,} running, depth {depth}"
    return [
        Line(f"the walk before it, over {waiting:,}", (between - began) * 1000, "ms"),
        Line(what, (ended - between) * 1000, "ms", 1000, False),
    ]


async def run(*, is_quick: bool) -> list[Line]:
    """All measurements."""
    scale = 10 if is_quick else 1
    lines = [reservations(4000 // scale, 1000 // scale, 100)]
    lines += forecasts(1000 // scale, 250 // scale, 1000, 200)
    with tempfile.TemporaryDirectory(prefix="fluxqueue-bench-") as folder:
        data = Path(folder)
        os.chmod(folder, 0o755)  # noqa: PTH101, S103 where the server runs as `nobody`
        with LocalPostgres(data / "server") as server:
            for depth in (500, 15_000 // scale, 50_000 // scale):
                name = f"bench_{depth}"
                await asyncio.to_thread(_create, server.url, name)
                url = server.url_of(name)
                await asyncio.to_thread(migrate.upgrade, url)
                started = 400 if depth == 500 else 4000 // scale
                lines += await decisions(url, depth, started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return [*lines, Line("memory of this process, at most", peak, "MiB", 500, False)]


def _create(url: str, name: str) -> None:
    import psycopg

    with psycopg.connect(url, autocommit=True) as connection:
        connection.execute(f"CREATE DATABASE {name}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--quick", action="store_true", help="a tenth of the sizes")
    for line in asyncio.run(run(is_quick=parser.parse_args().quick)):
        print(line.render())
    print(f"\n{LEGEND}")


if __name__ == "__main__":
    with under_way("queue"):
        main()
