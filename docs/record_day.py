"""A recorded day for the window without a cluster: a simulated day, and a replay of it.

``recorded_window`` calls it. ``recorded_server.js`` plays the day, and answers a question of the
time machine with the replay. The same input gives the same day.
"""

from __future__ import annotations

import json
import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import Any

from fluxqueue.fluxjob.levels import Level
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import CPU
from fluxqueue.jobspec.render import render
from fluxqueue.jobspec.shape import describe, equal_slots
from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.policy.queue_rules import read_rules
from fluxqueue.scheduler.cycle_decisions import Queues
from fluxqueue.scheduler.forecast import forecast
from fluxqueue.simulation.arrivals import WorkloadShape, synthetic
from fluxqueue.simulation.comparison import to_json
from fluxqueue.simulation.recorded_day import FORM, parse_day
from fluxqueue.simulation.replay import as_recorded, replay
from fluxqueue.simulation.simulated_jobs import RACK, SimulatedJob, uniform_cluster
from fluxqueue.simulation.simulator import Engine, RunRecord, SimulatedSite
from fluxqueue.simulation.what_changes import parse_changes

ADDED = "8:n00"
"""The change of the replay: eight more nodes."""
SEED, JOBS, NODES, CORES, POLICY = 5, 700, 48, 16, "easy"
PLAYED_S, BEGIN_S = 10 * 3600, 12 * 3600
"""The day begins while the queue fills, and plays until it is nearly empty."""
FORECAST_S = 600
"""Time between two forecasts of the recording. A cluster has one every few seconds."""
ZONE, GPU, GPUS, GPU_RACK = "zone", "nvidia.com/gpu", 4, "r2"
OTHERS = {"n48": {"isUp": False}, "n49": {"isOpen": False}, "n50": {"taints": 1}}
"""Nodes that no job of the recording uses: down, drained, and tainted."""
UNMANAGED = {"n11": {CPU: 3000}, "n27": {CPU: 2000}, "n43": {CPU: 4000}}
QUEUES: dict[str, dict[str, Any]] = {
    "default": {"policy": POLICY},
    "gpu": {
        "policy": POLICY,
        "limits": {"total": {"jobs": 10, "nodes": 14}, "perUser": {"jobs": 3}},
    },
}
PEOPLE = ("ada", "bo", "chen", "dara", "emil", "fay", "gus", "hana")
WORK = ("train", "fold", "render", "align", "assemble", "weather", "sweep", "etl")
_TIME = re.compile(r"(?:[A-Z][a-z]{2} ([0-9]{2}) )?([0-9]{2}):([0-9]{2}) UTC")


@dataclass(slots=True)
class _Told:
    """What the scheduler said of a waiting job: its outlooks and its promises, as they changed.

    An outlook is a time, an expected start or None, and a reason. A promise is a time, a start, an
    end and the nodes, without nodes if the job has none any more.
    """

    outlooks: list[tuple[int, int | None, str]] = field(default_factory=list)
    promises: list[tuple[int, int, int, list[str]]] = field(default_factory=list)


def _cluster() -> list[NodeFact]:
    """Return the nodes: three racks in two zones, one of them with GPUs."""
    found = []
    for node in uniform_cluster(NODES, CORES):
        rack = node.labels[RACK]
        more = {GPU: GPUS} if rack == GPU_RACK else {}
        labels = {**node.labels, ZONE: "zone-b" if rack == GPU_RACK else "zone-a"}
        found.append(replace(node, capacity={**node.capacity, **more}, labels=labels))
    return found


def _work() -> list[SimulatedJob]:
    """Return the jobs. Every eighth one trains on GPUs."""
    shape = WorkloadShape(load=1.1, longest_s=3 * 3600, widest=0.25, is_diurnal=True)
    return [
        _on_gpus(job) if _kind(job) == "train" else job
        for job in synthetic(SEED, JOBS, nodes=NODES, cores_per_node=CORES, shape=shape)
    ]


def _kind(job: SimulatedJob) -> str:
    return WORK[job.number * 7 % len(WORK)]


def _on_gpus(job: SimulatedJob) -> SimulatedJob:
    count = 2 << job.number // len(WORK) % 4
    needs = {CPU: 4000, GPU: 1}
    request = equal_slots(count, needs, duration_s=int(job.request.duration_s))
    return replace(job, request=request, queue="gpu")


def _simulate(work: list[SimulatedJob]) -> tuple[list[RunRecord], dict[str, _Told]]:
    """Run the day, and keep what the scheduler says while it is played."""
    policy, rules = (
        queue_policy(POLICY),
        {name: read_rules(name, one) for name, one in QUEUES.items()},
    )
    engine = Engine(_cluster(), work, policy, site=SimulatedSite(unmanaged=UNMANAGED), queues=rules)
    told: dict[str, _Told] = defaultdict(_Told)
    next_s = BEGIN_S
    while engine.step():
        if not BEGIN_S - 3600 <= engine.now <= BEGIN_S + PLAYED_S:
            continue
        _note_promises(engine, told)
        if engine.now >= next_s:
            next_s = engine.now + FORECAST_S
            _note_outlooks(engine, told)
    return engine.records, told


def _note_promises(engine: Engine, told: dict[str, _Told]) -> None:
    reserved = dict(engine.decisions.reserved)
    for job, where in reserved.items():
        one = (engine.now, where.starts_at, where.until, sorted(set(where.nodes)))
        known = told[job.uid].promises
        if not known or known[-1][1:] != one[1:]:
            known.append(one)
    waiting = {job.uid for job in reserved}
    for uid, one in told.items():
        if one.promises and one.promises[-1][3] and uid not in waiting:
            one.promises.append((engine.now, 0, 0, []))


def _note_outlooks(engine: Engine, told: dict[str, _Told]) -> None:
    queues = Queues(engine.queues.rules, engine.queues.use())
    jobids = {uid: engine.by_uid[uid].job.number for uid in engine.running}
    found = forecast(
        engine.matcher, engine.queue(), engine.decisions, engine.policy, engine.now,
        queues=queues, jobids=jobids,
    )  # fmt: skip
    reserved = [(job, "") for job, _ in engine.decisions.reserved]
    for job, reason in [*engine.decisions.waiting, *reserved]:
        outlook = found.get(job.uid)
        start_s = None if outlook is None else outlook.expected_start
        said = _in_seconds(reason if outlook is None else outlook.reason, engine.now)
        known = told[job.uid].outlooks
        if not known or known[-1][1:] != (start_s, said):
            known.append((engine.now, start_s, said))


def _in_seconds(reason: str, now: int) -> str:
    """Return a reason with its times as seconds of the day, because the page plays it today."""

    def seconds(found: re.Match[str]) -> str:
        day, hour, minute = found.groups()
        at = (int(day) - 1 if day else now // 86_400) * 86_400 + int(hour) * 3600 + int(minute) * 60
        return f"@{at if at > now - 60 else at + 86_400}@"

    return _TIME.sub(seconds, reason)


def _job(record: RunRecord, told: _Told) -> dict[str, Any] | None:
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
        "name": f"{_kind(job)}-{job.number}",
        "user": PEOPLE[int(job.user.removeprefix("user") or 0) % len(PEOPLE)],
        "queue": job.queue,
        "shape": describe(job.request),
        "size": len(placement.slots),
        "submitted": job.submit_s,
        "started": since,
        "ended": ended,
        "until": placement.until,
        "promised": None if record.promise is None else record.promise.starts_at,
        "nodes": nodes,
        "outlooks": told.outlooks,
        "promises": told.promises,
    }


def _nodes(cluster: list[NodeFact]) -> list[dict[str, Any]]:
    """Return the nodes as the map has them, with those that no job uses."""
    usual = {"isUp": True, "isOpen": True, "taints": 0}
    found = []
    for node in cluster:
        used = UNMANAGED.get(node.name, {})
        resources = {name: [total, used.get(name, 0)] for name, total in node.capacity.items()}
        path = [node.labels[ZONE], node.labels[RACK]]
        found.append({"name": node.name, "path": path, **usual, "resources": resources})
    for name, state in OTHERS.items():
        resources = {CPU: [CORES * 1000, 0]}
        found.append(
            {"name": name, "path": ["zone-b", "r3"], **usual, **state, "resources": resources}
        )
    return found


def record() -> tuple[str, str]:
    """Return the recording and the replay as JSON."""
    cluster, work = _cluster(), _work()
    records, told = _simulate(work)
    made = (_job(one, told[one.job.uid]) for one in records)
    found = [one for one in made if one is not None]
    queues = [{"name": name, "spec": spec} for name, spec in QUEUES.items()]
    day = {
        "playFrom": BEGIN_S,
        "playTo": BEGIN_S + PLAYED_S,
        "levels": [ZONE, RACK],
        "nodes": _nodes(cluster),
        "queues": queues,
        "jobs": found,
    }
    requests = {job.number: render(job.request) for job in work}
    history = {
        "form": FORM,
        "since": BEGIN_S,
        "until": BEGIN_S + PLAYED_S,
        "read": max(one["ended"] for one in found) + 1,
        "nodes": [node.to_json() for node in cluster],
        "unmanaged": UNMANAGED,
        "queues": queues,
        "jobs": [
            {**one, "namespace": one["user"], "request": requests[one["jobid"]]}
            for one in found
            if one["ended"] > BEGIN_S
        ],
    }
    recorded = parse_day(history, "recorded day")
    changes = parse_changes("", (ADDED,), ())
    again = replay(recorded, queue_policy(POLICY), changes)
    levels = (Level(ZONE, (ZONE,)), Level(RACK, (RACK,)))
    told_again = to_json(recorded, as_recorded(recorded), again, levels, changes.describe())
    return _text(day), _text(told_again)


def _text(data: dict[str, Any]) -> str:
    return json.dumps(data, separators=(",", ":")) + "\n"
