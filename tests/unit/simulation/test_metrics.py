"""Figures of a schedule that can be added up by hand."""

from __future__ import annotations

import pytest

from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.simulation.schedule_figures import (
    bounded_slowdown,
    clock,
    figures,
    percentile,
    render_table,
)
from fluxqueue.simulation.simulated_jobs import (
    NodeEvent,
    SimulatedJob,
    cores_request,
    uniform_cluster,
)
from fluxqueue.simulation.simulator import SimulatedSite, simulate


def job(number: int, submit_s: int, cores: int, asked_s: int, runs_s: int) -> SimulatedJob:
    """On nodes of 4 cores."""
    return SimulatedJob(number, submit_s, cores_request(cores, asked_s, cores_per_node=4), runs_s)


WORK = [job(1, 0, 4, 100, 100), job(2, 10, 8, 100, 50), job(3, 20, 4, 60, 60)]


def test_easy_by_hand() -> None:
    """1 runs from 0 to 100, 3 beside it from 20 to 80, 2 on both from 100 to 150."""
    nodes = uniform_cluster(2, 4)
    records = simulate(nodes, WORK, POLICIES["easy"])
    assert [(one.started_s, one.ended_s) for one in records] == [(0, 100), (100, 150), (20, 80)]
    assert [one.is_backfilled for one in records] == [False, False, True]
    assert records[1].overtaken_by == 1
    result = figures("easy", records, nodes)
    assert result.makespan_s == 150
    assert result.utilisation == pytest.approx((4 * 100 + 4 * 60 + 8 * 50) / (8 * 150))
    assert result.mean_wait_s == 30
    assert result.median_wait_s == 0
    assert result.p95_wait_s == 90
    assert result.mean_slowdown == pytest.approx((1 + 140 / 50 + 1) / 3)
    assert (result.promised, result.promises_kept, result.promises_broken) == (1, 1, 0)
    assert "1/1" in render_table([result])


def test_fcfs_by_hand() -> None:
    """3 waits behind 2."""
    nodes = uniform_cluster(2, 4)
    records = simulate(nodes, WORK, POLICIES["fcfs"])
    assert [one.started_s for one in records] == [0, 100, 150]
    assert render_table([figures("fcfs", records, nodes)]).endswith("  -")


def test_lost_nodes_by_hand() -> None:
    """Half of job 1 is lost at 30 and begins anew at 40. Job 2 loses all at 110 and waits."""
    nodes = uniform_cluster(2, 4)
    work = [job(1, 0, 8, 100, 50), job(2, 95, 4, 100, 50)]
    faults = [
        NodeEvent(30, "n1", is_up=False),
        NodeEvent(40, "n1", is_up=True),
        NodeEvent(110, "n0", is_up=False),
        NodeEvent(500, "n0", is_up=True),
    ]
    one, two = simulate(nodes, work, POLICIES["easy"], site=SimulatedSite(faults=faults))
    assert (one.started_s, one.ended_s, one.restarts) == (0, 90, 0)
    assert [(since, until, len(p.slots)) for since, until, p in one.spans] == [
        (0, 30, 2),
        (30, 40, 1),
        (40, 90, 2),
    ]
    assert (two.started_s, two.ended_s, two.restarts) == (110, 160, 1)
    assert [p.nodes for _, _, p in two.spans] == [("n0",), ("n1",)]


def test_what_never_fits_is_counted_apart() -> None:
    """It neither waits nor delays other jobs."""
    nodes = uniform_cluster(1, 4)
    records = simulate(nodes, [job(1, 0, 8, 10, 10), job(2, 0, 4, 10, 10)], POLICIES["fcfs"])
    result = figures("fcfs", records, nodes)
    assert (result.impossible, result.unfinished, result.makespan_s) == (1, 0, 10)


@pytest.mark.parametrize(
    ("wait_s", "runs_s", "expected"), [(0, 1, 1.0), (9, 1, 1.0), (99, 1, 10.0), (100, 100, 2.0)]
)
def test_bounded_slowdown(wait_s: int, runs_s: int, expected: float) -> None:
    """Tau of 10 s keeps a job of one second from counting a hundredfold."""
    assert bounded_slowdown(wait_s, runs_s) == expected


def test_percentile_is_a_value_that_occurred() -> None:
    """Nearest rank."""
    assert percentile([1, 2, 3, 4], 50) == 2
    assert percentile(list(range(1, 101)), 95) == 95
    assert percentile([], 95) == 0
    assert clock(3661) == "1:01:01"
