"""The tables, and the figures to reach. Pure: what was measured goes in, text comes out."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from operator import attrgetter

from benchmarks.line import Line
from benchmarks.throughput.load import Load
from benchmarks.throughput.meters import MeterReading, Statements
from benchmarks.throughput.scenes import Gang, Resync, SqlOfJob
from benchmarks.throughput.turnaround import STAGES, Burst, Turnarounds

OURS = ("controller", "worker", "webhook", "postgres")
PLAIN, BYSTANDER, MANAGED, GROUPED = "plain", "bystander", "managed", "grouped"
MODES = (PLAIN, BYSTANDER, MANAGED, GROUPED)
SHOWN = 0.05
"""Requests and milliseconds per Job below this are left out of the tables."""
TEXTS_SHOWN = 25
LINEAR = 1.5
"""A gang's time for each pod may be at most this much higher than a quarter of it has."""


@dataclass(frozen=True, slots=True)
class Run:
    """One load in one mode."""

    mode: str
    load: Load
    took_s: float
    reading: MeterReading

    @property
    def rate(self) -> float:
        """Pods a second, from the first submission to the last Complete."""
        return self.load.all_pods / self.took_s


@dataclass(slots=True)
class Measured:
    """All that was measured. What was left out by option is empty or None."""

    runs: list[Run] = field(default_factory=list)
    gangs: dict[str, list[Gang]] = field(default_factory=dict)
    turnarounds: dict[str, Turnarounds] = field(default_factory=dict)
    bursts: dict[Load, dict[str, Burst]] = field(default_factory=dict)
    idle: MeterReading | None = None
    latency_s: Mapping[str, float] | None = None
    sql: SqlOfJob | None = None
    resync: Resync | None = None

    def loads(self) -> list[Load]:
        """The loads, in their order."""
        return list(dict.fromkeys(run.load for run in self.runs))

    def of(self, load: Load, mode: str) -> list[Run]:
        """The runs of a load in a mode."""
        return [run for run in self.runs if run.load == load and run.mode == mode]

    def ratios(self, load: Load, mode: str) -> list[float]:
        """Of each run of ``mode``: its rate over that of Kubernetes alone just before and after."""
        found, waiting = list[float](), list[Run]()
        before: Run | None = None
        for run in self.runs:
            if run.load == load and run.mode == mode:
                waiting.append(run)
            elif run.load == load and run.mode == PLAIN:
                beside = statistics.mean(one.rate for one in (before, run) if one is not None)
                found += [one.rate / beside for one in waiting]
                before, waiting = run, []
        # One that was interrupted has nothing after it.
        return found + [one.rate / before.rate for one in waiting if before is not None]

    def ratio(self, load: Load, mode: str) -> float | None:
        """The median of ``ratios``."""
        found = self.ratios(load, mode)
        return statistics.median(found) if found else None


def named(load: Load) -> str:
    """A load in words."""
    return f"{load.jobs} Jobs of {load.pods}" + (f" {load.title}" if load.title else "")


# --- the tables ----------------------------------------------------------------------------------


def rates(measured: Measured) -> list[str]:
    """Rates by mode, and their ratios to Kubernetes alone before and after."""
    text = []
    for load in measured.loads():
        text.append(f"{named(load)}: pods a second, first submission to last end")
        for mode in MODES:
            found = [run.rate for run in measured.of(load, mode)]
            if found:
                each = " ".join(f"{rate:.1f}" for rate in found)
                line = f"  {mode:<10} {statistics.median(found):7.1f}  ({each})"
                if ratios := measured.ratios(load, mode) if mode != PLAIN else []:
                    of_each = " ".join(f"{one:.2f}" for one in ratios)
                    line += f"  ratio {statistics.median(ratios):.2f}  ({of_each})"
                text.append(line)
        text.append("")
    return text


def processor_time(measured: Measured) -> list[str]:
    """Milliseconds of processor time per Job, by process and mode."""
    text = []
    for load in measured.loads():
        columns = {mode: cpu_ms(measured.of(load, mode), load.jobs) for mode in MODES}
        text.append(f"processor time per Job, ms, until all parts are idle: {named(load)}")
        text += _table(columns, digits=1)
    return text


def requests(measured: Measured) -> list[str]:
    """API requests per Job, by verb and resource, and what is beyond Kubernetes alone."""
    text = []
    for load in measured.loads():
        columns = {
            mode: per_job
            for mode in MODES
            if (per_job := requests_per(measured.of(load, mode), load.jobs)) is not None
        }
        if columns:
            text.append(f"API requests per Job, without watches and leases: {named(load)}")
            text += _table(columns, digits=2)
    return text


def gangs(measured: Measured) -> list[str]:
    """Large gangs: times, and requests beyond Kubernetes alone for each pod."""
    text = []
    for mode, found in measured.gangs.items():
        for one in found:
            ours = our_part(one.reading.cpu_s)
            text.append(
                f"{one.name:<24} {mode:<8} all pods made {one.made_s:6.2f} s,"
                f" let go {one.let_go_s:6.2f} s, running {one.running_s:6.2f} s;"
                f" our parts {1000 * ours / one.pods:.1f} ms of processor time per pod"
            )
    for one in measured.gangs.get(MANAGED, ()):
        if of_pod := gang_beyond(measured, one):
            listed = ", ".join(
                f"{n:.2f} {what}" for what, n in sorted_by_size(of_pod) if abs(n) >= SHOWN
            )
            text.append(f"{one.name}: beyond plain, per pod: {listed}")
    return [*text, ""] if text else []


def turnarounds(measured: Measured) -> list[str]:
    """From the end of one gang to the start of the next one in its room, and bursts."""
    text = []
    for mode, found in measured.turnarounds.items():
        text.append(
            f"turnaround, {mode}, {len(found.turns)} gangs: p50 {found.total_s(0.5):.2f} s,"
            f" p99 {found.total_s(0.99):.2f} s; a gang alone:"
            f" {statistics.median(found.alone_s):.2f} s"
        )
        for stage in STAGES:
            if (half := found.stage_s(stage, 0.5)) is not None:
                most = found.stage_s(stage, 0.99) or 0.0
                text.append(f"  {stage:<10} p50 {half:6.3f} s, p99 {most:6.3f} s")
    for load, bursts in measured.bursts.items():
        for mode, one in bursts.items():
            text.append(
                f"burst of {named(load)}, {mode}: the first runs after {one.first_s:.2f} s, the"
                f" last after {one.last_s:.2f} s; one alone after {one.alone_s:.2f} s"
            )
    return [*text, ""] if text else []


def sql(measured: Measured) -> list[str]:
    """Statements by the role that sent them, and the most frequent ones."""
    if measured.sql is None:
        return []
    found = measured.sql
    idle_per_s = found.idle.number / found.idle.span_s
    text = [f"SQL in idleness: {idle_per_s:.1f} statements/s, taken off below"]
    for name, counted, jobs in (
        ("alone", found.alone, found.alone_jobs),
        ("busy", found.busy, found.busy_jobs),
    ):
        roles = ", ".join(
            f"{role} {found.per_job(counted, jobs, _sent_by(role)):.1f}"
            for role in sorted(counted.by_role)
        )
        text.append(f"  a Job of 4 pods, {name}: {roles}")
    for counted, number, of in (
        (found.idle, found.idle.span_s, "in idleness, per second"),
        (found.alone, found.alone_jobs, "of a Job alone, what idleness does among it"),
        (found.busy, found.busy_jobs, f"of {found.busy_jobs} busy Jobs, per Job"),
    ):
        text.append(f"  most frequent {of}:")
        for what, times in counted.by_text.most_common(TEXTS_SHOWN):
            text.append(f"  {times / number:7.2f}  {what[:110]}")
    return [*text, ""]


def _sent_by(role: str) -> Callable[[Statements], int]:
    return lambda counted: counted.by_role[role]


def _table(columns: Mapping[str, Mapping[str, float]], digits: int) -> list[str]:
    """Rows by name, one column for each mode, and what is beyond the first of them."""
    names = sorted(
        {name for column in columns.values() for name in column},
        key=lambda name: -max(column.get(name, 0.0) for column in columns.values()),
    )
    columns = {mode: column for mode, column in columns.items() if column}
    text = [f"  {'':<34}" + "".join(f"{mode:>12}" for mode in columns) + f"{'beyond':>12}"]
    for name in [*names, ""]:
        values = [
            column.get(name, 0.0) if name else sum(column.values()) for column in columns.values()
        ]
        if max(values, default=0.0) >= SHOWN:
            numbers = [*values, values[-1] - values[0]]
            shown = "".join(f"{number:12.{digits}f}" for number in numbers)
            text.append(f"  {name or 'all':<34}{shown}")
    return [*text, ""]


# --- figures -------------------------------------------------------------------------------------


def cpu_ms(runs: Sequence[Run], each: int) -> dict[str, float]:
    """Median milliseconds by process, for each of ``each``."""
    names = {name for run in runs for name in run.reading.cpu_s}
    return {
        name: 1000 * statistics.median(run.reading.cpu_s.get(name, 0.0) for run in runs) / each
        for name in names
    }


def our_part(by_process: Mapping[str, float]) -> float:
    """The sum over our own processes and Postgres."""
    return sum(value for name, value in by_process.items() if _is_ours(name))


def _is_ours(process: str) -> bool:
    """Workers are numbered."""
    return process.partition("-")[0] in OURS


def requests_per(runs: Sequence[Run], each: int) -> dict[str, float] | None:
    """Mean requests by kind, for each of ``each``. None where they are not counted."""
    counted = [run.reading.requests for run in runs if run.reading.requests is not None]
    if not counted:
        return None
    total: Counter[str] = Counter()
    for one in counted:
        total.update(one)
    return {what: number / len(counted) / each for what, number in total.items()}


def beyond(own: Mapping[str, float], plain: Mapping[str, float]) -> dict[str, float]:
    """What ``own`` has more, by kind. Less of one kind counts against it."""
    found = {kind: own.get(kind, 0.0) - plain.get(kind, 0.0) for kind in {*own, *plain}}
    return {kind: number for kind, number in found.items() if number}


def gang_beyond(measured: Measured, managed: Gang) -> dict[str, float] | None:
    """Requests beyond Kubernetes alone for each pod of a gang, by kind. None: not counted."""
    of_plain = measured.gangs.get(PLAIN, ())
    plain = next((one for one in of_plain if one.name == managed.name), None)
    if plain is None or plain.reading.requests is None or managed.reading.requests is None:
        return None
    return beyond(
        {what: n / managed.pods for what, n in managed.reading.requests.items()},
        {what: n / plain.pods for what, n in plain.reading.requests.items()},
    )


def sorted_by_size(found: Mapping[str, float]) -> Iterable[tuple[str, float]]:
    """Largest first."""
    return sorted(found.items(), key=lambda item: -item[1])


def figures(measured: Measured) -> list[Line]:
    """The figures to reach, each with its goal."""
    return [
        *_figures_of_loads(measured),
        *_figures_of_requests(measured),
        *_figures_of_sql(measured),
        *_figures_of_cpu(measured),
        *_figures_of_time(measured),
    ]


def _single(measured: Measured) -> Load | None:
    return next((load for load in measured.loads() if load.pods == 1), None)


def _figures_of_loads(measured: Measured) -> list[Line]:
    lines = []
    goals = {(MANAGED, True): 0.70, (MANAGED, False): 0.85}
    for mode in (MANAGED, BYSTANDER):
        for load in measured.loads():
            name = "one-pod Jobs" if load.pods == 1 else f"gangs of {load.pods}"
            name += f" {load.title}" if load.title else ""
            if (ratio := measured.ratio(load, mode)) is not None:
                goal = goals.get((mode, load.pods == 1), 0.95)
                lines.append(Line(f"{name}, {mode}, ratio to plain", ratio, "", goal))
    return lines


def _figures_of_requests(measured: Measured) -> list[Line]:
    lines = []
    if (single := _single(measured)) is not None:
        own, plain = (requests_per(measured.of(single, m), single.jobs) for m in (MANAGED, PLAIN))
        if own is not None and plain is not None:
            found = beyond(own, plain)
            what = "requests beyond plain, one-pod Job, busy"
            lines.append(Line(what, sum(found.values()), "", 7, False))
            reads = sum(n for kind, n in found.items() if kind.startswith("GET "))
            lines.append(Line("  of these GET", reads, "", SHOWN, False))
    for one in measured.gangs.get(MANAGED, ()):
        if (of_pod := gang_beyond(measured, one)) is not None:
            what = f"requests beyond plain per pod, {one.name}"
            goal = 0.2 if one.is_indexed else 1.2
            lines.append(Line(what, sum(of_pod.values()), "", goal, False))
    return lines


def _figures_of_sql(measured: Measured) -> list[Line]:
    if (found := measured.sql) is None:
        return []

    def lines(name: str, counted: Statements, jobs: int, goal: float) -> list[Line]:
        what = f"SQL per 4-pod Job, {name}"
        number, transactions, control = (
            found.per_job(counted, jobs, attrgetter(name))
            for name in ("number", "transactions", "control")
        )
        return [
            Line(what, number, "statements", goal, False),
            Line("  in", transactions, "transactions"),
            Line("  beside them BEGIN, COMMIT, checks of connections", control, ""),
        ]

    return [
        *lines("idle", found.alone, found.alone_jobs, 80),
        *lines("busy", found.busy, found.busy_jobs, 25),
    ]


def _figures_of_cpu(measured: Measured) -> list[Line]:
    lines = []
    single = _single(measured)
    if single is not None and (runs := measured.of(single, MANAGED)):
        ours = our_part(cpu_ms(runs, single.jobs))
        lines.append(Line("CPU of our parts and Postgres per one-pod Job", ours, "ms", 12, False))
    bystanders = [run for run in measured.runs if run.mode == BYSTANDER]
    if bystanders and measured.idle is not None:
        idle_per_s = measured.idle.cpu_s.get("controller", 0.0) / measured.idle.span_s
        spent_s = sum(
            run.reading.cpu_s.get("controller", 0.0) - idle_per_s * run.reading.span_s
            for run in bystanders
        )
        pods = sum(run.load.all_pods for run in bystanders)
        what = "CPU of the controller per foreign pod, idle part taken off"
        lines.append(Line(what, 1000 * spent_s / pods, "ms", 0.5, False))
    if measured.idle is not None:
        for name in filter(_is_ours, measured.idle.cpu_s):
            percent = 100 * measured.idle.cpu_s[name] / measured.idle.span_s
            lines.append(Line(f"  {name} when idle", percent, "% of a core"))
    return lines


def _figures_of_time(measured: Measured) -> list[Line]:
    lines = []
    if measured.latency_s is not None:
        let_go = measured.latency_s["pods ungated"]
        lines.append(Line("idle: submitted to pods let go, p50", let_go, "s", 0.10, False))
    lines += _figures_of_turnarounds(measured)
    found = sorted(measured.gangs.get(MANAGED, ()), key=lambda one: one.pods)
    lines += _figures_of_gangs([one for one in found if one.owners == 1 and not one.is_indexed])
    lines += _figures_of_gangs([one for one in found if one.is_indexed])
    lines += _figures_of_gangs([one for one in found if one.owners > 1])
    if (again := measured.resync) is not None:
        what = f"resync of {again.jobs:,} Jobs"
        lines.append(Line(f"{what}: start to all rows", again.took_s, "s"))
        longest = "  its longest transaction"
        lines.append(Line(longest, again.transaction_s, "s", 0.5, False))
        lines.append(Line("  longest wait of anybody for a lock", again.wait_s, "s", 0.5, False))
    return lines


def _figures_of_turnarounds(measured: Measured) -> list[Line]:
    lines = []
    if (turns := measured.turnarounds.get(MANAGED)) is not None and turns.turns:
        alone_s = statistics.median(turns.alone_s)
        what = "turnaround p50, as a multiple of an idle start"
        lines.append(Line(what, turns.total_s(0.5) / alone_s, "", 2, False))
    for load, bursts in measured.bursts.items():
        if (own := bursts.get(MANAGED)) is not None and (plain := bursts.get(PLAIN)) is not None:
            last, first = own.last_s / plain.last_s, own.first_s / own.alone_s
            lines.append(Line(f"burst of {named(load)}: last, to plain", last, "", 1.2, False))
            lines.append(Line("  its first, to one alone", first, ""))
    return lines


def _figures_of_gangs(found: Sequence[Gang]) -> list[Line]:
    """Of gangs of one sort, the smallest first: the time of the largest, and is it linear?"""
    lines = []
    for one in found:
        what = f"{one.name}: submitted to all pods let go"
        goal = 8 * one.pods / 1000 if one is found[-1] else None
        lines.append(Line(what, one.let_go_s, "s", goal, False))
    if len(found) > 1:
        first, last = found[0], found[-1]
        growth = (last.let_go_s / last.pods) / (first.let_go_s / first.pods)
        what = f"  time per pod, {last.pods} to {first.pods}"
        lines.append(Line(what, growth, "", LINEAR, False))
    return lines
