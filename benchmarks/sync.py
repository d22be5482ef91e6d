"""``make bench-sync``: updates of the matcher's graph against building it anew, as a table.

The sprints of KubeFlux planned this comparison. Their graph of 8 nodes took 0.336 s to rebuild and
0.143 ms to cancel a job. Here the graph is the matcher's table, read from rows in a real Postgres:
nodes, unmanaged pods, and running jobs, at least one for each node. An update is measured as it
happens: the controller writes the change, and the matcher takes it.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import sys
import time
from collections.abc import Awaitable, Callable, Sequence
from dataclasses import replace
from statistics import median

import psycopg

from benchmarks.cycle import node
from benchmarks.under_way import under_way
from fluxqueue.cli.main import GC_THRESHOLDS
from fluxqueue.db.database import Database
from fluxqueue.db.store.cluster_rows import save_foreign, save_nodes
from fluxqueue.db.store.matcher_rows import load_graph, take_changes
from fluxqueue.db.store.rule_rows import RuleSeen, save_rules
from fluxqueue.db.store.sharing import POLICIES
from fluxqueue.fluxjob.node import ForeignPod, NodeFact
from fluxqueue.fluxjob.request import CPU, MEMORY
from fluxqueue.graph.ledger.placement import FOREVER, PlacedSlot, Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.policy.sharing.node_grants import NodeSharing
from tests.support.postgres import PostgresServer, running_server
from tests.support.rows import settings_for

SIZES = ((8, 80), (8, 100_000), (1000, 100_000), (10_000, 100_000))
"""Nodes and unmanaged pods: a cluster as KubeFlux measured, and three with very many pods."""
PAGE = 1000
REPEATS = 21
BATCH = 100
THEIRS_REBUILD_S, THEIRS_CANCEL_MS = 0.336, 0.143
"""KubeFlux, at 8 nodes."""
NOW = 1_800_000_000
Figures = dict[str, float]

_JOBS = """
INSERT INTO fluxjobs (uid, place, namespace, name, workload_kind, workload_name, flux_uid,
    user_name, state, request, size, observed, is_examined, accepted_by)
SELECT 'job-' || n, n + 1, 'team', 'job-' || n || '-job', 'Job', 'job-' || n, 'flux-' || n, 'user',
    'Running', '{}', 1, '{"wanted": 1}', true, 'default' FROM generate_series(0, %(last)s) n
"""
_ALLOCATIONS = """
INSERT INTO allocations (uid, term, starts_at, until, is_live)
SELECT 'job-' || n, 1, %(now)s, %(now)s + 3600 + n, true FROM generate_series(0, %(last)s) n
"""
_SLOTS = """
INSERT INTO allocation_slots (allocation_id, number, node, resources, state)
SELECT id, 0, 'node-' || lpad((split_part(uid, '-', 2)::int %% %(nodes)s)::text, 5, '0'),
    '{"cpu": 1000, "memory": 1073741824, "pods": 1}', 'free' FROM allocations
"""
_END = """
WITH ended AS (UPDATE allocations SET is_live = false, ended_at = now() WHERE uid = :uid
               RETURNING id)
INSERT INTO graph_changes (kind, key) SELECT 'allocation', CAST(id AS text) FROM ended
"""


def pod(number: int, nodes: int, cpu: int = 10) -> ForeignPod:
    """An unmanaged pod of a few millicores. The pods are spread over the nodes."""
    where = f"node-{number % nodes:05}"
    resources = {CPU: cpu, MEMORY: 1 << 20}
    return ForeignPod(f"pod-{number}", f"team-{number % 20}", f"web-{number}", where, resources)


class SyncBench:
    """One cluster in rows, and a matcher's ledger over it."""

    def __init__(self, database: Database, url: str, nodes: int, pods: int) -> None:
        self._database, self._url, self._nodes, self._pods = database, url, nodes, pods
        self._ledger, self._sharing = ShareLedger(), NodeSharing()
        self._jobs = max(nodes, 2 * REPEATS)
        self._ended = 0

    async def fill(self) -> None:
        """Write all rows."""
        facts = [node(number) for number in range(self._nodes)]
        for first in range(0, self._nodes, PAGE):
            async with self._database.begin() as tx:
                await save_nodes(tx, facts[first : first + PAGE], ())
        for first in range(0, self._pods, PAGE):
            some = range(first, min(first + PAGE, self._pods))
            async with self._database.begin() as tx:
                await save_foreign(tx, [pod(number, self._nodes) for number in some], ())
        values = {"last": self._jobs - 1, "now": NOW, "nodes": self._nodes}
        with psycopg.connect(self._url, autocommit=True) as connection:
            connection.execute("SET session_replication_role = replica")
            for statement in (_JOBS, _ALLOCATIONS, _SLOTS):
                connection.execute(statement.encode(), values)
            connection.execute("ANALYZE")

    async def rebuild(self) -> float:
        """Return the seconds that it takes to build the ledger anew from the rows."""
        gc.collect()
        ledger, sharing = ShareLedger(), NodeSharing()
        began_s = time.perf_counter()
        async with self._database.begin() as tx:
            await load_graph(tx, ledger, sharing, NOW)
        took_s = time.perf_counter() - began_s
        assert len(ledger.rows) == self._nodes
        assert len(ledger.live) + self._ended == self._jobs
        self._ledger, self._sharing = ledger, sharing
        return took_s

    async def update(self, write: Callable[[int], Awaitable[None]]) -> float:
        """Return the milliseconds (median) from a change to the ledger that has it."""
        took: list[float] = []
        for number in range(REPEATS):
            began_s = time.perf_counter()
            await write(number)
            async with self._database.begin() as tx:
                await take_changes(tx, self._ledger, self._sharing, NOW)
            took.append(time.perf_counter() - began_s)
        return median(took[1:]) * 1000

    async def pods_change(self, count: int) -> float:
        """Let ``count`` unmanaged pods change what they use."""

        async def write(turn: int) -> None:
            some = [pod(number, self._nodes, cpu=20 + turn) for number in range(count)]
            async with self._database.begin() as tx:
                await save_foreign(tx, some, ())

        return await self.update(write)

    async def node_changes(self) -> float:
        """Let a node be cordoned or uncordoned."""

        async def write(turn: int) -> None:
            changed: NodeFact = replace(node(0), is_schedulable=bool(turn % 2))
            async with self._database.begin() as tx:
                await save_nodes(tx, [changed], ())

        return await self.update(write)

    async def job_ends(self) -> float:
        """Let a job end: its allocation is over."""

        async def write(turn: int) -> None:
            self._ended = turn + 1
            async with self._database.begin() as tx:
                await tx.execute(_END, uid=f"job-{turn}")

        return await self.update(write)

    def cancel(self) -> float:
        """Return the milliseconds (median) of one cancellation in memory, after a booking."""
        slots = (PlacedSlot("node-00001", ((CPU, 8000), (MEMORY, 1 << 30))),)
        took: list[float] = []
        for _ in range(1001):
            self._ledger.book("one", Placement(slots, NOW, FOREVER))
            began_s = time.perf_counter()
            self._ledger.cancel("one")
            took.append(time.perf_counter() - began_s)
        return median(took) * 1000

    async def share(self) -> None:
        """Put all nodes under a policy, for which each pod is read."""
        spec = {"policy": "headroom", "headroom": {"cpu": "5%"}}
        async with self._database.begin() as tx:
            await save_rules(tx, POLICIES, [RuleSeen("all", "u", 1, spec)], ())


async def measure(url: str, nodes: int, pods: int) -> Figures:
    """Return all figures of one size."""
    async with Database(settings_for(url), role="bench") as database:
        bench = SyncBench(database, url, nodes, pods)
        await bench.fill()
        found = {"rebuild (s)": median([await bench.rebuild() for _ in range(3)])}
        found["one unmanaged pod changes (ms)"] = await bench.pods_change(1)
        found[f"{BATCH} unmanaged pods change (ms)"] = await bench.pods_change(BATCH)
        found["a node is cordoned (ms)"] = await bench.node_changes()
        found["a job ends (ms)"] = await bench.job_ends()
        found["cancel, in memory (ms)"] = bench.cancel()
        await bench.share()
        found["rebuild under a sharing policy (s)"] = await bench.rebuild()
        found["one pod changes under a policy (ms)"] = await bench.pods_change(1)
        return found


def tell(figures: dict[tuple[int, int], Figures]) -> None:
    """Print the table, one column for each size."""
    print(f"{'nodes':<40}" + "".join(f"{nodes:>10,}" for nodes, _ in figures))
    print(f"{'unmanaged pods':<40}" + "".join(f"{pods:>10,}" for _, pods in figures))
    for what in next(iter(figures.values())):
        values = "".join(f"{found[what]:>10.3f}" for found in figures.values())
        print(f"{what:<40}{values}")
    first = next(iter(figures.values()))
    print(
        f"\nKubeFlux at 8 nodes: rebuild {THEIRS_REBUILD_S} s, cancel {THEIRS_CANCEL_MS} ms."
        f" Here: {THEIRS_REBUILD_S / first['rebuild (s)']:.1f} and"
        f" {THEIRS_CANCEL_MS / first['cancel, in memory (ms)']:.1f} times as fast"
    )


def run(
    postgres: PostgresServer, sizes: Sequence[tuple[int, int]]
) -> dict[tuple[int, int], Figures]:
    """Measure all sizes, each in a database of its own."""
    found = {}
    for nodes, pods in sizes:
        print(f"{nodes:,} nodes, {pods:,} pods ...", file=sys.stderr, flush=True)
        url = postgres.create()
        found[nodes, pods] = asyncio.run(measure(url, nodes, pods))
        postgres.drop(url)
    return found


def main() -> None:
    """Measure, and print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--nodes", type=int, help="one size only")
    parser.add_argument("--pods", type=int, default=100_000, help="unmanaged pods of this size")
    arguments = parser.parse_args()
    sizes = SIZES if arguments.nodes is None else ((arguments.nodes, arguments.pods),)
    gc.set_threshold(*GC_THRESHOLDS)
    with running_server() as postgres:
        tell(run(postgres, sizes))


if __name__ == "__main__":
    with under_way("sync"):
        main()
