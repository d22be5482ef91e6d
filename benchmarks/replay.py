"""``make bench-replay``: what the time machine needs for a day of 5,000 jobs, as a table.

The recorded day is a simulated one, on 256 nodes. It is read as JSON, replayed with another policy,
and compared. A second one has three times the work that the nodes can do, so hundreds of jobs wait
at any time. The figures are of one process, as the window runs it.
"""

from __future__ import annotations

import argparse
import json
import resource
import sys
import time

from benchmarks.line import Line
from benchmarks.under_way import under_way
from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.simulation.arrivals import WorkloadShape, synthetic
from fluxqueue.simulation.comparison import to_json
from fluxqueue.simulation.recorded_day import parse_day
from fluxqueue.simulation.replay import as_recorded, replay
from fluxqueue.simulation.what_changes import parse_changes
from tests.support.recorded_days import history_of

JOBS, NODES, CORES = 5_000, 256, 16
SHAPE = WorkloadShape(load=0.8, shortest_s=30, longest_s=3600, widest=0.1)
DEEP_JOBS = 2_000
DEEP = WorkloadShape(load=3.0, shortest_s=30, longest_s=3600, widest=0.1)
DEEP_GOAL_S = 60.0
GOALS_S = {"as it was": 15.0, "fcfs": 15.0, "conservative": 60.0}
GOAL_MIB = 400


def main() -> int:
    """Print the table. Exit code 1 if a goal is missed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--jobs", type=int, default=JOBS)
    arguments = parser.parse_args()
    work = synthetic(1, arguments.jobs, nodes=NODES, cores_per_node=CORES, shape=SHAPE)
    text = json.dumps(history_of(work, NODES, CORES, "easy"))
    lines = []
    for name, policy in (("as it was", ""), ("conservative", "conservative"), ("fcfs", "fcfs")):
        began_s = time.process_time()
        day = parse_day(json.loads(text), "bench")
        one = replay(day, queue_policy("easy"), parse_changes(policy, (), ()))
        answer = json.dumps(to_json(day, as_recorded(day), one, (), name))
        took_s = time.process_time() - began_s
        lines.append(Line(f"replay, {name}", took_s, "s", GOALS_S[name], is_more_better=False))
        lines.append(Line(f"its answer, {name}", len(answer) / 1e6, "MB"))
    lines.append(_deep())
    peak_mib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    lines.append(Line("memory", peak_mib, "MiB", GOAL_MIB, is_more_better=False))
    print(f"{len(day.jobs)} jobs in {day.span_s / 3600:.1f} hours on {NODES} nodes\n")
    for line in lines:
        print(line.render())
    return 0 if all(line.is_reached for line in lines) else 1


def _deep() -> Line:
    """Return what the replay of a deep backlog takes."""
    work = synthetic(1, DEEP_JOBS, nodes=NODES, cores_per_node=CORES, shape=DEEP)
    day = parse_day(history_of(work, NODES, CORES, "easy"), "bench")
    began_s = time.process_time()
    replay(day, queue_policy("easy"))
    took_s = time.process_time() - began_s
    return Line(f"replay of {DEEP_JOBS} jobs, deep", took_s, "s", DEEP_GOAL_S, is_more_better=False)


if __name__ == "__main__":
    with under_way("replay"):
        code = main()
    sys.exit(code)
