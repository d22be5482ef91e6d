"""``make soak``: the highest rate that the machine gives, for long, and whether all levels off.

A fixed number of Jobs is in flight: each that is Complete makes room for the next, and its TTL
deletes it. History is kept for two minutes only, so that retention has to keep pace as well. Memory
of each part, size and dead rows of each table, and the time from submission to Complete are sampled
all the while. A figure levels off if it is no higher in the last third of the time than in the
middle one, beyond a slack. The exit code is 0 if all of them do, and if the invariants hold at the
end.
"""

from __future__ import annotations

import argparse
import asyncio
import os
import statistics
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path

import psycopg

from benchmarks.processes import tree_cpu_s, tree_memory_mib
from benchmarks.throughput import load
from benchmarks.throughput.ground import Ground, embedded_ground, real_ground
from benchmarks.under_way import under_way
from fluxqueue.checking import Severity
from fluxqueue.checking.check import check
from fluxqueue.cli.check_invariants import describe
from fluxqueue.clock import SystemClock
from fluxqueue.db.database import Database
from fluxqueue.process.settings import Settings
from fluxqueue_devtools.stack import Stack
from fluxqueue_devtools.stack_options import StackOptions

SAMPLES = 120
SAMPLE_MIN_S = 1.0
TTL_S = 5
RETENTION_S = 120
GANG_EVERY, GANG = 10, 10
SHOWN = 10
"""Rows of the table that is printed while it runs and at its end."""
REST_S = 20.0
CHECK_PATIENCE_S = 20.0
EVENT_TTL = ("--event-ttl=2m",)
"""Of the API server: an hour of events is not what is under test."""

_TABLES = """
SELECT schemaname || '.' || relname AS name, pg_total_relation_size(relid) / 1048576.0 AS mib,
    n_dead_tup AS dead, n_live_tup AS live FROM pg_stat_user_tables ORDER BY 1
"""


@dataclass(frozen=True, slots=True)
class Slack:
    """How much more the last third may have than the middle one: a share, and as much besides."""

    share: float
    besides: float


MEMORY, SIZE = Slack(0.10, 8.0), Slack(0.15, 4.0)
ROWS, LATENCY = Slack(0.5, 2000.0), Slack(0.25, 0.5)
"""As many Jobs as ever are in flight, so a latency that levels off is a rate that does."""


@dataclass(slots=True)
class Series:
    """One figure over time: seconds since the beginning, and its value."""

    slack: Slack
    unit: str
    points: list[tuple[float, float]] = field(default_factory=list)

    def third(self, number: int, span_s: float) -> float:
        """The median within one third of the time (1 to 3). 0 where nothing was measured."""
        low, high = span_s * (number - 1) / 3, span_s * number / 3
        found = [value for at_s, value in self.points if low <= at_s <= high]
        return statistics.median(found) if found else 0.0

    def levels_off(self, span_s: float) -> bool:
        """Whether the last third has no more than the middle one."""
        middle, last = self.third(2, span_s), self.third(3, span_s)
        return last <= middle * (1 + self.slack.share) + self.slack.besides


class Soak:
    """One run: the Jobs in flight, and what is sampled meanwhile."""

    def __init__(self, ground: Ground, stack: Stack, *, at_once: int, span_s: float) -> None:
        self._ground, self._stack = ground, stack
        self._at_once, self._span_s = at_once, span_s
        self._began_s = time.monotonic()
        self._number = 0
        self.series: dict[str, Series] = {}
        self.latencies: list[tuple[float, float]] = []
        self._cpu: dict[str, float] = {}

    async def run(self, namespace: str) -> None:
        """Keep Jobs in flight and take samples until the time is over. Then wait for the last."""
        async with load.Completions(self._ground.client, namespace) as completions:
            self._began_s = time.monotonic()
            async with asyncio.TaskGroup() as group:
                sampling = group.create_task(self._sample())
                for _ in range(self._at_once):
                    group.create_task(self._keep_one(completions, namespace))
            assert sampling.done()

    @property
    def _now_s(self) -> float:
        return time.monotonic() - self._began_s

    async def _keep_one(self, completions: load.Completions, namespace: str) -> None:
        while self._now_s < self._span_s:
            self._number += 1
            pods = GANG if self._number % GANG_EVERY == 0 else 1
            name = f"soak-{self._number:07}"
            body = load.job(name, pods)
            body["spec"]["ttlSecondsAfterFinished"] = TTL_S
            submitted_s = time.monotonic()
            await load.create_all(self._ground.client, namespace, [body])
            ended_s = await completions.of(name)
            self.latencies.append((ended_s - self._began_s, ended_s - submitted_s))

    # --- samples ---------------------------------------------------------------------------------

    async def _sample(self) -> None:
        every_s = max(SAMPLE_MIN_S, self._span_s / SAMPLES)
        told = 0
        while self._now_s < self._span_s:
            await asyncio.sleep(every_s)
            at_s = self._now_s
            await asyncio.to_thread(self._take, at_s)
            self._take_latencies(at_s, every_s)
            if at_s * SHOWN / self._span_s >= told + 1:
                told = int(at_s * SHOWN / self._span_s)
                print(self._so_far(at_s), flush=True)

    def _take(self, at_s: float) -> None:
        for name, pid in self._pids().items():
            self._add(f"memory of {name}", at_s, tree_memory_mib(pid), MEMORY, "MiB")
            self._cpu[name] = tree_cpu_s(pid)
        assert self._stack.postgres is not None
        with psycopg.connect(self._stack.postgres.socket_url, autocommit=True) as connection:
            for name, mib, dead, live in connection.execute(_TABLES).fetchall():
                self._add(f"size of {name}", at_s, float(mib), SIZE, "MiB")
                self._add(f"dead rows of {name}", at_s, float(dead), ROWS, "")
                self._add(f"rows of {name}", at_s, float(live), ROWS, "")

    def _take_latencies(self, at_s: float, every_s: float) -> None:
        latest = [took for ended, took in self.latencies if at_s - every_s < ended <= at_s]
        if len(latest) > 1:
            self._add("latency p50", at_s, statistics.median(latest), LATENCY, "s")
            p95 = statistics.quantiles(latest, n=20)[-1]
            self._add("latency p95", at_s, p95, LATENCY, "s")

    def _add(self, name: str, at_s: float, value: float, slack: Slack, unit: str) -> None:
        self.series.setdefault(name, Series(slack, unit)).points.append((at_s, value))

    def _pids(self) -> dict[str, int]:
        """Our parts. The cluster is not under test."""
        found = {name: part.pid for name, part in self._stack.parts.items()}
        assert self._stack.postgres is not None
        found["postgres"] = self._stack.postgres.pid
        return {name: pid for name, pid in found.items() if pid is not None}

    def _so_far(self, at_s: float) -> str:
        rate = len(self.latencies) / at_s
        memory = ", ".join(
            f"{name.removeprefix('memory of ')} {one.points[-1][1]:.0f}"
            for name, one in self.series.items()
            if name.startswith("memory of ")
        )
        p50 = self.series.get("latency p50")
        shown = f"{p50.points[-1][1]:.2f} s" if p50 is not None else "–"
        return f"{at_s:6.0f} s  {rate:5.1f} Jobs/s  p50 {shown}  MiB: {memory}"


# --- the verdict ---------------------------------------------------------------------------------


def verdict(series: Mapping[str, Series], span_s: float) -> tuple[list[str], list[str]]:
    """The table of all that was sampled, and the names of what does not level off."""
    text = [f"{'medians of each third of the time':<58}{'first':>10}{'middle':>10}{'last':>10}"]
    growing = []
    for name in sorted(series):
        one = series[name]
        thirds = [one.third(number, span_s) for number in (1, 2, 3)]
        if max(thirds) < 0.005:
            continue
        digits = 2 if one.unit == "s" else 0 if not one.unit else 1
        shown = "".join(f"{value:10.{digits}f}" for value in thirds)
        levels_off = one.levels_off(span_s)
        text.append(f"{name:<58}{shown} {one.unit:<4}{'' if levels_off else ' GROWS'}".rstrip())
        if not levels_off:
            growing.append(name)
    return text, growing


async def _broken(ground: Ground, stack: Stack) -> list[str]:
    """The invariants that do not hold now, in words."""
    settings = Settings(database_url=stack.database_url)
    async with Database(settings, role="soak") as database:
        findings = await check(database, ground.client, SystemClock(), patience_s=CHECK_PATIENCE_S)
    broken = [one for one in findings if one.severity is Severity.BROKEN]
    return describe(broken) if broken else []


# --- the command ---------------------------------------------------------------------------------


def _parse() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="benchmarks.soak", description=__doc__)
    parser.add_argument("--assets", type=Path, help="folder of a control plane; else embedded")
    parser.add_argument(
        "--minutes", type=float, default=20.0, help="how long (less than five says little)"
    )
    parser.add_argument("--at-once", type=int, default=64, help="Jobs in flight")
    parser.add_argument("--nodes", type=int, default=20, help="simulated nodes of 32 cores")
    parser.add_argument("--workers", type=int, default=1, help="worker processes")
    return parser.parse_args()


async def _run(arguments: argparse.Namespace, folder: Path) -> Sequence[str]:
    span_s = 60 * arguments.minutes
    if arguments.assets is not None:
        more = {"kube-apiserver": EVENT_TTL}
        cluster = real_ground(folder, arguments.assets, arguments.nodes, more)
    else:
        cluster = embedded_ground(folder, arguments.nodes)
    async with cluster as ground:
        await ground.add_rights(folder)
        options = StackOptions(
            data_dir=folder / "system",
            kubeconfig=ground.kubeconfig,
            workers=arguments.workers,
            kubeconfigs=ground.kubeconfigs,
            environ={
                **ground.environ,
                "FLUXQUEUE_HISTORY_RETENTION_S": str(RETENTION_S),
                "FLUXQUEUE_ACCOUNTING_RETENTION_S": str(RETENTION_S),
            },
        )
        async with Stack(options) as stack:
            soak = Soak(ground, stack, at_once=arguments.at_once, span_s=span_s)
            namespace = await load.make_namespace(ground.client, "soak", is_managed=True)
            await soak.run(namespace)
            await asyncio.sleep(REST_S)
            broken = await _broken(ground, stack)
    text, growing = verdict(soak.series, span_s)
    print("\n".join(["", *text]))
    rate = len(soak.latencies) / span_s
    print(f"\n{len(soak.latencies)} Jobs, {rate:.1f} a second, one in {GANG_EVERY} of {GANG} pods")
    return [*(f"grows: {name}" for name in growing), *broken]


def main() -> None:
    """Run and print. The exit code says whether everything levels off and the invariants hold."""
    arguments = _parse()
    with tempfile.TemporaryDirectory(prefix="fluxqueue-soak-") as name:
        os.chmod(name, 0o755)  # noqa: PTH101, S103  where Postgres runs as `nobody`
        troubles = asyncio.run(_run(arguments, Path(name)))
    print("\n".join(troubles or ["everything levels off, and the invariants hold"]))
    if troubles:
        raise SystemExit(1)


if __name__ == "__main__":
    with under_way("soak"):
        main()
