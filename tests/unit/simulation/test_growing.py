"""Node pools in a simulation: what comes, what it costs, and that all of it goes."""

from __future__ import annotations

from decimal import Decimal

import pytest

from fluxqueue.errors import InvalidSettings
from fluxqueue.policy.provision_rules import NO_RULES, ProvisionRules
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.simulation.arrivals import WorkloadShape, synthetic
from fluxqueue.simulation.growing import GrowingCluster, parse_pool
from fluxqueue.simulation.simulated_jobs import SimulatedJob, cores_request, uniform_cluster
from fluxqueue.simulation.simulator import SimulatedSite, simulate

POOL = "gpu=0..16,4m,3.10"


def _run(jobs: list[SimulatedJob], rule: ProvisionRules) -> tuple[GrowingCluster, list[int]]:
    grown: list[GrowingCluster] = []
    records = simulate(
        uniform_cluster(2, 16),
        jobs,
        POLICIES["easy"],
        site=SimulatedSite(pools=[parse_pool(POOL, 16)], provision=rule),
        grown=grown,
    )
    assert all(one.ended_s is not None for one in records)
    return grown[0], [one.wait_s for one in records]


def test_a_job_that_is_too_large_gets_nodes() -> None:
    """Three nodes on a cluster of two: one comes after four minutes, and goes after it was idle."""
    job = SimulatedJob(1, 0, cores_request(48, 3600, cores_per_node=16), 3600)
    grown, waits = _run([job], NO_RULES)
    assert waits == [240]
    assert grown.most == 1
    seconds = 3600 + 600
    assert grown.node_s == seconds
    assert grown.cost == Decimal("3.10") * seconds / 3600


def test_an_earlier_start_can_be_bought() -> None:
    """The rule shortens the wait, and costs. Without it, present nodes are enough."""
    jobs = synthetic(1, 40, nodes=2, cores_per_node=16, shape=WorkloadShape(load=1.1))
    without, waits = _run(jobs, NO_RULES)
    assert (without.node_s, without.cost) == (0, 0)
    bought, shorter = _run(jobs, ProvisionRules(earlier_s=60))
    assert sum(shorter) < sum(waits)
    assert 0 < bought.most <= 16
    poor, _ = _run(jobs, ProvisionRules(earlier_s=60, budget=Decimal(3)))
    assert (poor.most, poor.cost) == (0, 0), "a node costs more than the budget"


def test_the_option_is_checked() -> None:
    """Name, bounds, time and price."""
    pool = parse_pool("a=1..2,90s", 8)
    assert (pool.least, pool.most, pool.provisioning_s, pool.price) == (1, 2, 90, 0)
    for text in ("a", "a=1", "a=2..1,4m", "a=0..4", "=0..4,4m", "a=0..4,4m,3,1"):
        with pytest.raises(InvalidSettings, match="is no node pool"):
            parse_pool(text, 8)
