"""The arguments, and the order of the measurements.

Machines grow slower and faster within minutes, so each turn with fluxqueue stands between two of
Kubernetes alone, and is held against these.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
import tempfile
from collections.abc import AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from pathlib import Path

from benchmarks.throughput import load, report, scenes, turnaround
from benchmarks.throughput.ground import NODE_CPU_M, Ground, embedded_ground, real_ground
from benchmarks.throughput.load import Load
from benchmarks.throughput.meters import Meter, Pids
from benchmarks.throughput.report import BYSTANDER, GROUPED, MANAGED, PLAIN, Measured, Run
from benchmarks.under_way import under_way
from fluxqueue_devtools.localpg import LocalPostgres
from fluxqueue_devtools.stack import Stack
from fluxqueue_devtools.stack_options import StackOptions
from tests.support import chart_rights
from tests.support.control_plane import GATES_ENV

SECTIONS = ("rates", "across", "turnaround", "gang", "owners", "latency", "sql", "resync")
ASSETS = "KUBEBUILDER_ASSETS"
WARM_UP = Load("warm-up", 20, 2)
POD_CPU, LARGE_POD_CPU = "1", "4"
GANG_SHARE = 0.75
"""Of the cluster that the large gang takes."""


class Benchmark:
    """One run over one cluster: Kubernetes alone, and with fluxqueue, in turn."""

    def __init__(self, ground: Ground, folder: Path, arguments: argparse.Namespace) -> None:
        self._ground, self._folder, self._arguments = ground, folder, arguments
        self._only: set[str] = set(arguments.only)
        self.measured = Measured()
        self._loads = [
            *(_loads(arguments) if "rates" in self._only else ()),
            *(_loads_across(arguments) if "across" in self._only else ()),
        ]

    async def run(self) -> None:
        """Everything that was asked for, into ``measured``."""
        turns = self._arguments.repeat if self._loads else 1
        await self._alone(gangs=True)
        for turn in range(turns):
            await self._ground.add_rights(self._folder)
            async with self._system(turn, MANAGED) as stack:
                await self._with(stack, is_last=turn == turns - 1)
            if self._arguments.groups:
                async with self._system(turn, GROUPED) as stack:
                    await self._rates(GROUPED, self._meter(_pids_of(stack)))
            await self._ground.remove_rights()
            await self._alone(gangs=False)

    @asynccontextmanager
    async def _system(self, turn: int, mode: str) -> AsyncIterator[Stack]:
        how = {chart_rights.GROUPED: "group" if mode == GROUPED else "pods"}
        options = StackOptions(
            data_dir=self._folder / f"system-{turn}-{mode}",
            kubeconfig=self._ground.kubeconfig,
            workers=self._arguments.workers,
            kubeconfigs=self._ground.kubeconfigs,
            environ={**self._ground.environ, **how},
        )
        async with Stack(options) as stack:
            yield stack

    async def _alone(self, *, gangs: bool) -> None:
        meter = self._meter({})
        await self._rates(PLAIN, meter)
        if gangs:
            await self._gangs(PLAIN, meter)
            await self._turnarounds(PLAIN, None)

    async def _with(self, stack: Stack, *, is_last: bool) -> None:
        meter = self._meter(_pids_of(stack))
        await meter.begin()
        await meter.end()  # what a start asks for belongs to no Job
        # Bystanders are the same for every load: the easy ones tell.
        for mode in (BYSTANDER, MANAGED) if "rates" in self._only else (MANAGED,):
            await self._rates(mode, meter)
        if is_last:
            await self._one_by_one(stack, meter)

    async def _one_by_one(self, stack: Stack, meter: Meter) -> None:
        if "rates" in self._only:
            self.measured.idle = await scenes.idle_cpu(meter)
        if "latency" in self._only:
            _say("latency of Jobs one by one")
            jobs = self._arguments.latency_jobs
            self.measured.latency_s = await scenes.idle_latency(self._ground.client, jobs)
        await self._gangs(MANAGED, meter)
        await self._turnarounds(MANAGED, stack.postgres)
        await self._sql_and_resync(stack)

    async def _sql_and_resync(self, stack: Stack) -> None:
        assert stack.postgres is not None
        client = self._ground.client
        if "sql" in self._only:
            _say("statements of a Job")
            async with self._namespace(MANAGED) as namespace:
                self.measured.sql = await scenes.sql_of_job(
                    client, stack.postgres, namespace, self._arguments.sql_jobs
                )
        if "resync" in self._only:
            _say(f"resync of {self._arguments.resync} Jobs")
            async with self._namespace(MANAGED) as namespace:
                self.measured.resync = await scenes.resync(
                    client, stack, namespace, self._arguments.resync
                )

    async def _rates(self, mode: str, meter: Meter) -> None:
        client = self._ground.client
        if self._loads:
            async with self._namespace(mode) as namespace:
                await load.run(client, namespace, WARM_UP)
        for one in self._loads:
            if mode == BYSTANDER and one.is_indexed:
                continue
            async with self._namespace(mode) as namespace:
                await meter.rest()
                await meter.begin()
                took_s = await load.run(client, namespace, one)
                run = Run(mode, one, took_s, await meter.end())
                self.measured.runs.append(run)
                _say(f"{mode}: {report.named(one)}: {run.rate:.1f} pods/s")

    async def _gangs(self, mode: str, meter: Meter) -> None:
        # So large that the gang lies on most nodes, and a quarter of it on some.
        size = self._arguments.gang
        cpu_m = min(int(GANG_SHARE * self._arguments.nodes * NODE_CPU_M / size), NODE_CPU_M // 4)
        gangs = [(max(1, size // 4), 1, False), (size, 1, False), (size, 1, True)]
        sizes = gangs if "gang" in self._only else []
        if "owners" in self._only:
            few, many = max(2, size // 40), max(3, size // 10)
            sizes += [(10 * owners, owners, False) for owners in (few, many)]
        for pods, owners, is_indexed in sizes:
            async with self._namespace(mode) as namespace:
                await meter.rest()  # the deletion of the last gang belongs to no other
                found = await scenes.gang(
                    self._ground.client,
                    namespace,
                    meter,
                    pods,
                    owners=owners,
                    cpu_m=cpu_m,
                    is_indexed=is_indexed,
                )
                self.measured.gangs.setdefault(mode, []).append(found)
                _say(f"{mode}: {found.name}: all running after {found.running_s:.1f} s")

    async def _turnarounds(self, mode: str, postgres: LocalPostgres | None) -> None:
        if "turnaround" not in self._only:
            return
        client, arguments = self._ground.client, self._arguments
        whole = Load(
            "whole",
            arguments.turns,
            max(1, arguments.nodes // 2),
            str(NODE_CPU_M // 1000),
            is_indexed=True,
            duration=turnaround.POD_DURATION,
        )
        async with self._namespace(mode) as namespace:
            found = await turnaround.turnarounds(client, namespace, whole, postgres)
            self.measured.turnarounds[mode] = found
            _say(f"{mode}: turnaround p50 {found.total_s(0.5):.2f} s")
        for one in [_loads(arguments)[1], *_loads_across(arguments)]:
            async with self._namespace(mode) as namespace:
                burst = await turnaround.burst(client, namespace, one)
                self.measured.bursts.setdefault(one, {})[mode] = burst
                _say(f"{mode}: burst of {report.named(one)}: {burst.last_s:.2f} s")

    @asynccontextmanager
    async def _namespace(self, mode: str) -> AsyncIterator[str]:
        client = self._ground.client
        name = await load.make_namespace(client, mode, is_managed=mode != BYSTANDER)
        yield name
        await load.empty_namespace(client, name)

    def _meter(self, ours: Pids) -> Meter:
        return Meter(
            {**self._ground.pids, **ours},
            self._ground.client,
            counts_requests=self._ground.counts_requests,
        )


def _loads(arguments: argparse.Namespace) -> list[Load]:
    """The easy loads: one pod, and gangs that fit on one node."""
    return [
        Load("one", arguments.jobs, 1, POD_CPU),
        Load("ten", arguments.gangs, 10, POD_CPU),
    ]


def _loads_across(arguments: argparse.Namespace) -> list[Load]:
    """Gangs across nodes: all fit at once, and a full cluster. Each pod knows its index."""
    return [
        Load(
            "across",
            arguments.gangs,
            10,
            POD_CPU,
            is_indexed=True,
            policy="spread",
            title="across nodes, all fit",
        ),
        Load(
            "full",
            arguments.gangs,
            10,
            LARGE_POD_CPU,
            is_indexed=True,
            title="across nodes, full cluster",
        ),
    ]


def _pids_of(stack: Stack) -> dict[str, Callable[[], int | None]]:
    """Our parts by name."""
    pids: dict[str, Callable[[], int | None]] = {
        name: lambda part=part: part.pid  # type: ignore[misc]
        for name, part in stack.parts.items()
    }
    postgres = stack.postgres
    if postgres is not None:
        pids["postgres"] = lambda: postgres.pid
    return pids


def _say(text: str) -> None:
    print(f"… {text}", file=sys.stderr, flush=True)


def _print(measured: Measured) -> bool:
    for part in (
        report.rates,
        report.processor_time,
        report.requests,
        report.gangs,
        report.turnarounds,
        report.sql,
    ):
        for text in part(measured):
            print(text)
    print("figures to reach")
    lines = report.figures(measured)
    for line in lines:
        print(f"  {line.render(digits=2)}")
    return all(line.is_reached for line in lines)


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.throughput", description=__doc__)
    parser.add_argument(
        "--assets",
        type=Path,
        default=os.environ.get(ASSETS) or None,
        help=f"folder of a control plane's programs (default: ${ASSETS}; else embedded)",
    )
    parser.add_argument("--nodes", type=int, default=20, help="simulated nodes of 32 cores")
    parser.add_argument("--jobs", type=int, default=500, help="one-pod Jobs in a run")
    parser.add_argument("--gangs", type=int, default=60, help="gangs of ten in a run")
    parser.add_argument("--turns", type=int, default=24, help="gangs of half the nodes, in turn")
    parser.add_argument("--gang", type=int, default=200, help="pods of a large gang, to 1,000")
    parser.add_argument("--sql-jobs", type=int, default=100, help="busy Jobs whose SQL is counted")
    parser.add_argument("--latency-jobs", type=int, default=30, help="Jobs one by one")
    parser.add_argument("--resync", type=int, default=1000, help="Jobs that are brought back")
    parser.add_argument("--repeat", type=int, default=5, help="turns of bystander and managed each")
    parser.add_argument("--workers", type=int, default=1, help="worker processes")
    parser.add_argument(
        "--groups",
        action="store_true",
        help="also with FLUXQUEUE_BIND_GANGS=group, on Kubernetes 1.37 with its groups on",
    )
    parser.add_argument(
        "--only",
        type=lambda text: text.split(","),
        default=list(SECTIONS),
        help=f"of {','.join(SECTIONS)}: those named here, joined by commas",
    )
    arguments = parser.parse_args()
    if unknown := set(arguments.only) - set(SECTIONS):
        parser.error(f"--only: no such section: {', '.join(sorted(unknown))}")
    if arguments.repeat < 1:
        parser.error(f"--repeat: at least 1, not {arguments.repeat}")
    return arguments


async def _run(arguments: argparse.Namespace, folder: Path) -> bool:
    if arguments.groups:
        os.environ |= {chart_rights.GROUPED: "group", GATES_ENV: "groups"}
    running = asyncio.current_task()
    assert running is not None
    for number in (signal.SIGINT, signal.SIGTERM):
        asyncio.get_running_loop().add_signal_handler(number, running.cancel)
    ground: AbstractAsyncContextManager[Ground]
    if arguments.assets is not None:
        ground = real_ground(folder, arguments.assets, arguments.nodes)
    else:
        ground = embedded_ground(folder, arguments.nodes)
    where = "a real control plane" if arguments.assets is not None else "the embedded cluster"
    print(f"on {where}, {arguments.nodes} simulated nodes, {arguments.workers} worker(s)\n")
    async with ground as cluster:
        benchmark = Benchmark(cluster, folder, arguments)
        try:
            await benchmark.run()
        finally:  # print what was measured until then, also when it is interrupted
            is_reached = _print(benchmark.measured)
    return is_reached


def main() -> None:
    """Measure and print. The exit code says whether all figures are reached."""
    arguments = _parse()
    with tempfile.TemporaryDirectory(prefix="fluxqueue-throughput-") as name:
        folder = Path(name)
        folder.chmod(0o755)  # where Postgres runs as `nobody`, it must reach its data
        try:
            is_reached = asyncio.run(_run(arguments, folder))
        except asyncio.CancelledError:
            raise SystemExit("interrupted") from None
    if not is_reached:
        raise SystemExit(1)


if __name__ == "__main__":
    with under_way("throughput"):
        main()
