"""What simulated jobs are shown of their starts, and whether that was true."""

from __future__ import annotations

from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.simulation.schedule_figures import Figures, figures
from fluxqueue.simulation.simulated_jobs import SimulatedJob, cores_request, uniform_cluster
from fluxqueue.simulation.simulator import SimulatedSite, simulate


def _line(jobs: int, declared_s: int, every: int) -> Figures:
    """Jobs of one node that run for 200 s each, of which one comes every 190 s."""
    request = cores_request(4, declared_s, cores_per_node=4)
    work = [SimulatedJob(n, 190 * n, request, 200) for n in range(1, jobs + 1)]
    nodes = uniform_cluster(1, 4)
    site = SimulatedSite(expects_every=every)
    return figures("easy", simulate(nodes, work, queue_policy("easy"), site=site), nodes)


def test_exact_plans_are_true_at_once() -> None:
    """All but the first wait, and start when they were shown."""
    found = _line(100, 200, every=1).starts
    assert (found.started, found.by_expected, found.by_latest) == (99, 99, 99)
    assert _line(100, 200, every=3).starts.started == 33
    assert _line(100, 200, every=0).starts.started == 0


def test_plans_that_are_ten_times_too_long_are_corrected() -> None:
    """Declared durations are like that. Half of the expected starts become true all the same."""
    found = _line(300, 2000, every=1).starts
    assert 0.4 <= found.by_expected / found.started <= 0.75
    assert found.by_latest / found.started >= 0.9
