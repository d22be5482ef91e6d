"""Recorded days for the time machine: what the simulator made, as the database tells it."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.jobspec.render import render
from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.simulation.arrivals import WorkloadShape, synthetic
from fluxqueue.simulation.recorded_day import FORM
from fluxqueue.simulation.simulated_jobs import SimulatedJob, uniform_cluster
from fluxqueue.simulation.simulator import RunRecord, simulate

EPOCH_S = 1_900_000_000
HOUR_S = 3600


def as_history(
    nodes: Sequence[NodeFact], records: Sequence[RunRecord], since_s: int, until_s: int
) -> dict[str, Any]:
    """Return runs of the simulator as a history of ``[since_s, until_s)``, in virtual seconds."""
    return {
        "form": FORM,
        "since": EPOCH_S + since_s,
        "until": EPOCH_S + until_s,
        "read": EPOCH_S + 10**7,
        "nodes": [one.to_json() for one in nodes],
        "unmanaged": {},
        "queues": [{"name": "default", "spec": {}}],
        "used": [],
        "jobs": [_job(one) for one in records if one.ended_s is not None and one.ended_s > since_s],
    }


def _job(record: RunRecord) -> dict[str, Any]:
    job, placement = record.job, record.placement
    assert placement is not None
    assert record.started_s is not None
    assert record.ended_s is not None
    places: dict[str, dict[str, int]] = {}
    for slot in placement.slots:
        amounts = places.setdefault(slot.node, {})
        for name, amount in slot.resources:
            amounts[name] = amounts.get(name, 0) + amount
    return {
        "jobid": job.number,
        "name": f"job-{job.number}",
        "namespace": "default",
        "user": job.user,
        "queue": job.queue,
        "priority": job.priority,
        "submitted": EPOCH_S + job.submit_s,
        "started": EPOCH_S + record.started_s,
        "ended": EPOCH_S + record.ended_s,
        "until": EPOCH_S + placement.until,
        "request": render(job.request),
        "nodes": places,
        "exclusive": placement.is_exclusive,
    }


def simulated_history(
    seed: int,
    *,
    jobs: int = 150,
    nodes: int = 8,
    cores: int = 8,
    policy: str = "easy",
    since_s: int = 0,
    until_s: int | None = None,
    load: float = 1.1,
) -> dict[str, Any]:
    """Return what a simulated cluster recorded. Without ``until_s`` it ends with the last start."""
    work = synthetic(seed, jobs, nodes=nodes, cores_per_node=cores, shape=WorkloadShape(load=load))
    return history_of(work, nodes, cores, policy, since_s, until_s)


def history_of(
    work: Sequence[SimulatedJob],
    nodes: int,
    cores: int,
    policy: str,
    since_s: int = 0,
    until_s: int | None = None,
) -> dict[str, Any]:
    """Return what a simulated cluster recorded of these jobs."""
    cluster = uniform_cluster(nodes, cores)
    records = simulate(cluster, work, queue_policy(policy))
    last_s = max(one.started_s or 0 for one in records) + 1
    return as_history(cluster, records, since_s, until_s or last_s)
