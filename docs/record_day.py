"""Record a day for the demo of the window (``?demo=1``): a simulated day, and a replay of it.

``python docs/record_day.py`` writes ``demo.json`` and ``demo-replay.json`` in
``fluxqueue/view/static``. The same input gives the same files, and a test compares them.
``static/demo.js`` plays the day, and answers a question of the time machine with the replay.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from fluxqueue.fluxjob.levels import Level
from fluxqueue.jobspec import render
from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.simulation.arrivals import WorkloadShape, synthetic
from fluxqueue.simulation.comparison import to_json
from fluxqueue.simulation.engine import RunRecord, simulate
from fluxqueue.simulation.jobs import RACK, uniform_cluster
from fluxqueue.simulation.recorded_day import FORM, parse_day
from fluxqueue.simulation.replay import as_recorded, replay
from fluxqueue.simulation.what_changes import parse_changes

FOLDER = Path(__file__).parents[1] / "fluxqueue/view/static"
FILE, REPLAY_FILE = FOLDER / "demo.json", FOLDER / "demo-replay.json"
ADDED = "8:n00"
"""The change of the replay: eight more nodes."""
SEED, JOBS, NODES, CORES, POLICY = 5, 700, 48, 16, "easy"
PLAYED_S, BEGIN_S = 10 * 3600, 12 * 3600
"""The demo begins while the queue fills, and plays until it is nearly empty."""
OTHERS = {"n48": {"isUp": False}, "n49": {"isOpen": False}, "n50": {"taints": 1}}
"""Nodes that no job of the recording uses: down, drained, and tainted."""
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
        "promised": None if record.promise is None else record.promise.starts_at,
        "nodes": nodes,
    }


def record() -> tuple[str, str]:
    """Return the recording and the replay as JSON."""
    cluster = uniform_cluster(NODES, CORES)
    shape = WorkloadShape(load=1.15, longest_s=3 * 3600, widest=0.25, is_diurnal=True)
    work = synthetic(SEED, JOBS, nodes=NODES, cores_per_node=CORES, shape=shape)
    records = simulate(cluster, work, queue_policy(POLICY))
    found = [one for one in map(_job, records) if one is not None]
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
        ]
        + [
            {"name": name, "path": ["r3"], "isUp": True, "isOpen": True, "taints": 0, **state}
            | {"resources": {"cpu": [CORES * 1000, 0]}}
            for name, state in OTHERS.items()
        ],
        "jobs": found,
    }
    requests = {job.number: render(job.request) for job in work}
    history = {
        "form": FORM,
        "since": BEGIN_S,
        "until": BEGIN_S + PLAYED_S,
        "read": max(one["ended"] for one in found) + 1,
        "nodes": [node.to_json() for node in cluster],
        "jobs": [
            {**one, "namespace": one["user"], "queue": "default", "request": requests[one["jobid"]]}
            for one in found
            if one["ended"] > BEGIN_S
        ],
    }
    recorded = parse_day(history, "demo")
    changes = parse_changes("", (ADDED,), ())
    again = replay(recorded, queue_policy(POLICY), changes)
    told = to_json(
        recorded, as_recorded(recorded), again, (Level(RACK, (RACK,)),), changes.describe()
    )
    return _text(day), _text(told)


def _text(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":")) + "\n"


if __name__ == "__main__":
    for file, text in zip((FILE, REPLAY_FILE), record(), strict=True):
        file.write_text(text, encoding="utf-8")
