"""Plain Jobs of one tenant without durations: they leave no nodes idle for the Jobs of others."""

from __future__ import annotations

import pytest

from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.simulation.learning import DurationSource
from fluxqueue.simulation.simulated_jobs import SimulatedJob, cores_request, uniform_cluster
from fluxqueue.simulation.simulator import RunRecord, SimulatedSite, simulate

HOUR_S = 3600
PLANNED_S = HOUR_S
"""What a job without a duration is planned for. The slack of a blocked one is as long."""


def _run(source: DurationSource, anchor_s: int, *, every_s: int) -> list[RunRecord]:
    """An anchor of 1 cpu, a wall that wants all four nodes, and 20 small jobs of 5 minutes."""

    def plain(number: int, at: int, cores: int, runs_s: int, user: str) -> SimulatedJob:
        request = cores_request(cores, None, cores_per_node=8)
        return SimulatedJob(number, at, request, runs_s, user=user)

    work = [plain(1, 0, 1, anchor_s, "mallory"), plain(2, 3, 32, 10, "mallory")]
    work += [plain(3 + n, 5 + n * every_s, 1, 300, "alice") for n in range(20)]
    site = SimulatedSite(durations=source)
    return simulate(uniform_cluster(4, 8), work, queue_policy("easy"), site=site)


@pytest.mark.parametrize("source", [DurationSource.DECLARED, DurationSource.LEARNED])
def test_all_small_jobs_run_beside_an_endless_one(source: DurationSource) -> None:
    """They come at once, and 31 of 32 cpu are free for them."""
    _, wall, *small = _run(source, 30 * 24 * HOUR_S, every_s=0)
    assert [one.wait_s for one in small] == [0] * 20
    assert wall.started_s == 30 * 24 * HOUR_S


@pytest.mark.parametrize("source", [DurationSource.DECLARED, DurationSource.LEARNED])
def test_the_large_job_keeps_its_place_and_its_bound(source: DurationSource) -> None:
    """Small jobs come for hours. They delay it once, by what one of them was planned for."""
    _, wall, *small = _run(source, HOUR_S, every_s=200)
    assert wall.started_s is not None
    assert HOUR_S <= wall.started_s <= HOUR_S + PLANNED_S
    assert all(one.ended_s is not None for one in small)
