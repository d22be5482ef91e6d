"""``make bench-durations``: what learned run times are worth, on whole logs of real machines.

Each log runs under ``easy`` with declared durations, with learned ones, and with learned ones after
all declared durations were deleted. The ratios are those of the mean and of the 95th percentile of
the bounded slowdown (10 s) to the first run. The table also says how many of the waiting jobs, of
which every eighth is asked, start by their expected start, and by the later time that nine of ten
keep. A log that is not there is skipped.
"""

from __future__ import annotations

import argparse
import os
import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from benchmarks.line import Line
from benchmarks.under_way import under_way
from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.prediction.calibration import StartFigures
from fluxqueue.simulation.learning import DurationSource
from fluxqueue.simulation.schedule_figures import Figures, figures
from fluxqueue.simulation.simulated_jobs import SimulatedJob, uniform_cluster
from fluxqueue.simulation.simulator import SimulatedSite, simulate
from fluxqueue.simulation.swf import read_file, to_jobs

TRACES = Path(os.environ.get("FLUXQUEUE_TRACES", "../shared/traces"))

EXPECTS_EVERY = 8
"""One of so many waiting jobs is shown its start."""


@dataclass(frozen=True, slots=True)
class Machine:
    """One log and its machine. ``mean`` is the goal of the ratio, ``job_ms`` that of the cost."""

    log: str
    nodes: int
    cores: int
    mean: float | None = None
    job_ms: float | None = None


MACHINES = (
    Machine("KTH-SP2", 100, 1, 0.72, 1.0),
    Machine("CEA-Curie-sample", 5_832, 16, 0.38),
    Machine("NASA-iPSC-1993", 128, 1),
)


def main() -> int:
    """Print the table. Exit code 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=None, help="only the first ones of each log")
    parser.add_argument("--only", default="", help="only the logs with this in their name")
    arguments = parser.parse_args()
    lines: list[Line] = []
    for machine in MACHINES:
        path = TRACES / f"{machine.log}.swf.gz"
        if arguments.only not in machine.log:
            continue
        if not path.exists():
            print(f"{machine.log}: skipped, {path} is not there")
            continue
        log = read_file(path)
        work, _ = to_jobs(log, cores_per_node=machine.cores, count=arguments.jobs)
        lines += _compare(machine, work)
    for line in lines:
        print(line.render(3))
    return 0 if all(line.is_reached for line in lines) else 1


def _compare(machine: Machine, work: Sequence[SimulatedJob]) -> list[Line]:
    declared, cost_ms = _run(machine, work, DurationSource.DECLARED)
    learned, _ = _run(machine, work, DurationSource.LEARNED)
    silent = [replace(one, request=replace(one.request, duration_s=0.0)) for one in work]
    deleted, _ = _run(machine, silent, DurationSource.LEARNED)
    name = machine.log
    return [
        _ratio(f"{name}, learned", learned.mean_slowdown, declared.mean_slowdown, machine.mean),
        _ratio(f"{name}, learned, p95", learned.p95_slowdown, declared.p95_slowdown, 1.0),
        _ratio(f"{name}, none declared", deleted.mean_slowdown, declared.mean_slowdown, 1.0),
        *_starts(f"{name}, learned", learned.starts),
        *_starts(f"{name}, none declared", deleted.starts),
        Line(f"{name}, promises broken", learned.promises_broken, "jobs", 0, is_more_better=False),
        Line(f"{name}, a job in sim", cost_ms, "ms", machine.job_ms, is_more_better=False),
    ]


def _starts(name: str, found: StartFigures) -> list[Line]:
    """Return how often expected starts were true: half of them, and nine of ten."""
    half, most = found.by_expected / found.started, found.by_latest / found.started
    return [
        Line(f"{name}, by expected start", half, "of starts", 0.45, is_more_better=True),
        Line(f"{name}, by 9 of 10", most, "of starts", 0.90, is_more_better=True),
        Line(f"{name}, by 9 of 10, at most", most, "of starts", 0.95, is_more_better=False),
    ]


def _ratio(name: str, value: float, base: float, goal: float | None) -> Line:
    return Line(name, value / base, "of easy, declared", goal, is_more_better=False)


def _run(
    machine: Machine, work: Sequence[SimulatedJob], source: DurationSource
) -> tuple[Figures, float]:
    """Return the figures of one run, and the milliseconds of a processor for each job."""
    cluster = uniform_cluster(machine.nodes, machine.cores)
    began_s = time.process_time()
    every = EXPECTS_EVERY if source == DurationSource.LEARNED else 0
    site = SimulatedSite(durations=source, expects_every=every)
    records = simulate(cluster, work, queue_policy("easy"), site=site)
    cost_ms = (time.process_time() - began_s) * 1000 / len(work)
    found = figures(f"easy, {source}", records, cluster)
    print(
        f"{machine.log}, {source}: slowdown {found.mean_slowdown:.2f},"
        f" p95 {found.p95_slowdown:.2f}, wait {found.mean_wait_s:.0f} s,"
        f" promises {found.promises_kept}/{found.promised}",
        flush=True,
    )
    return found, cost_ms


if __name__ == "__main__":
    with under_way("durations"):
        code = main()
    sys.exit(code)
