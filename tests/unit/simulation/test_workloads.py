"""Synthetic workloads: from a seed, within their bounds, and shaped as they claim."""

from __future__ import annotations

from itertools import pairwise
from statistics import fmean

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.simulation.arrivals import (
    DAY_S,
    ROUND_DURATIONS_S,
    WorkloadShape,
    node_faults,
    synthetic,
)


def test_a_seed_is_a_workload() -> None:
    """The same seed, the same jobs. Another, others."""
    assert synthetic(1, 50, nodes=8, cores_per_node=8) == synthetic(
        1, 50, nodes=8, cores_per_node=8
    )
    assert synthetic(1, 50, nodes=8, cores_per_node=8) != synthetic(
        2, 50, nodes=8, cores_per_node=8
    )


def test_shape() -> None:
    """Sizes fit, durations are over-estimated and round, arrivals bring the load asked for."""
    shape = WorkloadShape(load=0.9)
    jobs = synthetic(4, 2000, nodes=16, cores_per_node=16, shape=shape)
    assert all(0 < job.cpu_m <= 0.6 * 256_000 + 16_000 for job in jobs)
    assert all(job.request.duration_s is not None for job in jobs)
    assert all(job.runs_s <= (job.request.duration_s or 0) for job in jobs)
    asked = {job.request.duration_s for job in jobs}
    assert len([one for one in asked if one in ROUND_DURATIONS_S]) > 10
    work = sum(job.cpu_m * job.runs_s for job in jobs)
    assert 0.75 < work / (256_000 * jobs[-1].submit_s) < 1.1
    assert all(a.submit_s <= b.submit_s for a, b in pairwise(jobs))


def test_overruns_are_as_many_as_asked_for() -> None:
    """A third, give or take."""
    jobs = synthetic(4, 600, nodes=4, cores_per_node=4, shape=WorkloadShape(overrun_share=1 / 3))
    late = [job for job in jobs if job.runs_s > (job.request.duration_s or 0)]
    assert 150 < len(late) < 250


def test_arrivals_follow_the_day() -> None:
    """More by day than by night."""
    shape = WorkloadShape(load=0.05, is_diurnal=True)
    jobs = synthetic(4, 1500, nodes=4, cores_per_node=4, shape=shape)
    assert jobs[-1].submit_s > 5 * DAY_S
    hours = [job.submit_s % DAY_S / 3600 for job in jobs]
    by_day = fmean(8 <= hour < 20 for hour in hours)
    assert by_day > 0.65


@pytest.mark.parametrize(
    ("count", "nodes", "load", "field"),
    [(0, 1, 1.0, "jobs"), (1, 0, 1.0, "nodes"), (1, 1, 0, "load")],
)
def test_nonsense_is_refused(count: int, nodes: int, load: float, field: str) -> None:
    """By name."""
    with pytest.raises(InvalidInput) as caught:
        synthetic(1, count, nodes=nodes, cores_per_node=1, shape=WorkloadShape(load=load))
    assert caught.value.where == field


def test_no_node_is_lost_while_it_is_down() -> None:
    """Each loss is repaired before the next of that node."""
    events = node_faults(1, ["a", "b"], count=50, until_s=20_000)
    is_up = {"a": True, "b": True}
    assert events
    for event in sorted(events, key=lambda one: one.at_s):
        assert is_up[event.node] != event.is_up
        is_up[event.node] = event.is_up
    assert all(is_up.values())
