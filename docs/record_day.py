"""Record a day for the demo of the window (``?demo=1``): a simulated day as one JSON file.

``python docs/record_day.py`` writes ``fluxqueue/view/static/demo.json``. The same input gives the
same file, and a test compares both. ``static/demo.js`` plays it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.simulation.arrivals import WorkloadShape, synthetic
from fluxqueue.simulation.engine import RunRecord, simulate
from fluxqueue.simulation.jobs import RACK, uniform_cluster

FILE = Path(__file__).parents[1] / "fluxqueue/view/static/demo.json"
SEED, JOBS, NODES, CORES, POLICY = 5, 700, 48, 16, "easy"
PLAYED_S, BEGIN_S = 10 * 3600, 12 * 3600
"""The demo begins while the queue fills, and plays until it is nearly empty."""
PEOPLE = ("ada", "bo", "chen", "dara", "emil", "fay", "gus", "hana")
WORK = ("train", "fold", "render", "align", "assemble", "weather", "sweep", "etl")


def _job(record: RunRecord) -> dict[str, Any] | None:
    if not record.spans:
        return None
    since, ended, placement = record.spans[-1]
    nodes: dict[str, dict[str, int]] = {}
    for slot in placement.slots:
        amounts = nodes.setdefault(slot.node, {})
        for name, amount in slot.resources:
            amounts[name] = amounts.get(name, 0) + amount
    job = record.job
    return {
        "jobid": job.number,
        "name": f"{WORK[job.number * 7 % len(WORK)]}-{job.number}",
        "user": PEOPLE[int(job.user.removeprefix("user") or 0) % len(PEOPLE)],
        "size": len(placement.slots),
        "submitted": job.submit_s,
        "started": since,
        "ended": ended,
        "until": placement.until,
        "nodes": nodes,
    }


def record() -> str:
    """Return the recording as JSON."""
    cluster = uniform_cluster(NODES, CORES)
    shape = WorkloadShape(load=1.15, longest_s=3 * 3600, widest=0.25, is_diurnal=True)
    work = synthetic(SEED, JOBS, nodes=NODES, cores_per_node=CORES, shape=shape)
    found = [_job(one) for one in simulate(cluster, work, queue_policy(POLICY))]
    day = {
        "policy": POLICY,
        "playFrom": BEGIN_S,
        "playTo": BEGIN_S + PLAYED_S,
        "levels": [RACK],
        "nodes": [
            {
                "name": node.name,
                "path": [node.labels[RACK]],
                "isUp": True,
                "isOpen": True,
                "taints": 0,
                "resources": {"cpu": [node.capacity["cpu"], 0]},
            }
            for node in cluster
        ],
        "jobs": [one for one in found if one is not None],
    }
    return json.dumps(day, separators=(",", ":"))


if __name__ == "__main__":
    FILE.write_text(record() + "\n")
