"""Figures of a schedule: the usual ones of the field, from the records of one simulation.

Bounded slowdown is max(1, (wait + run) / max(run, tau)) with tau = 10 s, so that very short jobs do
not dominate the mean. Sources: Feitelson and Rudolph, "Metrics and benchmarking for parallel job
scheduling", JSSPP 1998. Feitelson, "Metrics for parallel job scheduling and their convergence",
JSSPP 2001.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import CPU
from fluxqueue.prediction.calibration import StartFigures
from fluxqueue.simulation.simulator import RunRecord

TAU_S = 10
P95 = 95


@dataclass(frozen=True, slots=True)
class Figures:
    """One policy's result. Times are in seconds, ``utilisation`` is between 0 and 1."""

    policy: str
    jobs: int
    impossible: int
    unfinished: int
    makespan_s: int
    utilisation: float
    mean_wait_s: float
    median_wait_s: float
    p95_wait_s: float
    mean_slowdown: float
    p95_slowdown: float
    backfilled: int
    promised: int
    promises_kept: int
    promises_excused: int
    starts: StartFigures

    @property
    def promises_broken(self) -> int:
        """Return the number of promises broken without an excuse, which must be 0."""
        return self.promised - self.promises_kept - self.promises_excused


def bounded_slowdown(wait_s: float, runs_s: float, tau_s: float = TAU_S) -> float:
    """Return how many times longer than alone a job took.

    Run times below ``tau_s`` count as ``tau_s``.
    """
    return max(1.0, (wait_s + runs_s) / max(runs_s, tau_s))


def percentile(values: Sequence[float], percent: float) -> float:
    """Return the smallest value that ``percent`` of all do not exceed (nearest rank).

    It is 0 for no values.
    """
    ordered = sorted(values)
    if not ordered:
        return 0.0
    rank = max(1, -(-len(ordered) * percent // 100))
    return ordered[int(rank) - 1]


def figures(
    policy: str, records: Sequence[RunRecord], nodes: Sequence[NodeFact], more_cpu_s: int = 0
) -> Figures:
    """Sum up one run. ``more_cpu_s``: millicore-seconds of nodes that came and went."""
    ended = [one for one in records if one.ended_s is not None]
    waits = [float(one.wait_s) for one in ended]
    slowdowns = [bounded_slowdown(one.wait_s, one.job.runs_s) for one in ended]
    first_s = min((one.job.submit_s for one in records), default=0)
    makespan_s = max((one.ended_s or 0 for one in ended), default=first_s) - first_s
    capacity = sum(fact.capacity.get(CPU, 0) for fact in nodes)
    offered = capacity * makespan_s + more_cpu_s
    used = sum(
        (until - since) * sum(dict(slot.resources).get(CPU, 0) for slot in placement.slots)
        for one in records
        for since, until, placement in one.spans
    )
    promised = [one for one in ended if one.promise is not None]
    kept = [one for one in promised if one.is_promise_kept]
    excused = [
        one for one in promised if not one.is_promise_kept and one.promise and one.promise.excuse
    ]
    impossible = sum(one.is_impossible or bool(one.refusal) for one in records)
    return Figures(
        policy=policy,
        jobs=len(records),
        impossible=impossible,
        unfinished=len(records) - len(ended) - impossible,
        makespan_s=makespan_s,
        utilisation=used / offered if offered else 0.0,
        mean_wait_s=fmean(waits) if waits else 0.0,
        median_wait_s=median(waits) if waits else 0.0,
        p95_wait_s=percentile(waits, P95),
        mean_slowdown=fmean(slowdowns) if slowdowns else 0.0,
        p95_slowdown=percentile(slowdowns, P95),
        backfilled=sum(one.is_backfilled for one in ended),
        promised=len(promised),
        promises_kept=len(kept),
        promises_excused=len(excused),
        starts=StartFigures.of(one.told for one in records if one.told is not None),
    )


_HEAD = (
    f"{'makespan':>9}{'util':>7}"
    f"{'wait':>9}{'median':>8}{'p95':>9}"
    f"{'slow':>6}{'p95':>6}{'filled':>7}  kept"
)
"""At most 80 columns. docs/admin/simulator.md describes them."""


def render_table(results: Sequence[Figures]) -> str:
    """Return a table with one line per policy."""
    width = max([12, *(len(one.policy) for one in results)])
    head = "policy".ljust(width) + _HEAD
    return "\n".join([head, *(one.policy.ljust(width) + _render(one) for one in results)])


def _render(one: Figures) -> str:
    line = (
        f"{clock(one.makespan_s):>9}{one.utilisation:>7.1%}"
        f"{clock(one.mean_wait_s):>9}{clock(one.median_wait_s):>8}{clock(one.p95_wait_s):>9}"
        f"{one.mean_slowdown:>6.1f}{one.p95_slowdown:>6.1f}{one.backfilled:>7}  "
    )
    if not one.promised:
        return line + "-"
    parts = [f"{one.promises_kept}/{one.promised}"]
    if one.promises_excused:
        parts.append(f"{one.promises_excused} excused")
    if one.promises_broken:
        parts.append(f"{one.promises_broken} BROKEN")
    return line + ", ".join(parts)


def clock(seconds: float) -> str:
    """Return seconds as ``hh:mm:ss``. Hours can exceed 99."""
    whole = round(seconds)
    return f"{whole // 3600}:{whole // 60 % 60:02}:{whole % 60:02}"
