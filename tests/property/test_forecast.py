"""Forecasts of random queues: they change nothing, and where all is exact they come true."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.forecast import forecast
from fluxqueue.simulation.simulated_jobs import SimulatedJob, cores_request, uniform_cluster
from fluxqueue.simulation.simulator import Engine

NODES, CORES = 3, 4


@st.composite
def jobs(draw: st.DrawFn) -> list[SimulatedJob]:
    """All there from the beginning, and of exactly the length they say."""
    return [
        SimulatedJob(
            number,
            0,
            cores_request(draw(st.integers(1, NODES * CORES)), asked_s, cores_per_node=CORES),
            asked_s,
            priority=draw(st.sampled_from((0, 0, 5))),
        )
        for number, asked_s in enumerate(
            draw(st.lists(st.integers(1, 30), min_size=1, max_size=10)), start=1
        )
    ]


def begun(work: list[SimulatedJob], policy: str) -> Engine:
    """After the first cycle."""
    engine = Engine(uniform_cluster(NODES, CORES), work, POLICIES[policy])
    assert engine.step()
    return engine


def outlook(engine: Engine) -> dict[str, int | None]:
    """Expected starts after a cycle."""
    queue, decisions = engine.queue(), engine.decisions
    told = forecast(engine.matcher, queue, decisions, engine.policy, engine.now)
    assert set(told) == {job.uid for job in queue}
    assert all(one.reason for one in told.values())
    return {uid: one.expected_start for uid, one in told.items()}


@settings(max_examples=80, deadline=None)
@given(work=jobs(), policy=st.sampled_from(("fcfs", "conservative")))
def test_where_all_is_exact_forecasts_come_true(work: list[SimulatedJob], policy: str) -> None:
    """No job comes later, none ends early: under fcfs and conservative the plan is the future."""
    engine = begun(work, policy)
    expected = outlook(engine)
    while engine.step():
        pass
    assert {uid: engine.by_uid[uid].started_s for uid in expected} == expected


@settings(max_examples=80, deadline=None)
@given(work=jobs(), policy=st.sampled_from(sorted(POLICIES)))
def test_a_forecast_changes_nothing(work: list[SimulatedJob], policy: str) -> None:
    """Pools and plan are as before, and the next cycle decides the same."""
    engine = begun(work, policy)
    booked = engine.matcher.ledger.booked.copy()
    plan = engine.matcher.ledger.plan.copy()
    first = outlook(engine)
    assert (engine.matcher.ledger.booked == booked).all()
    after = engine.matcher.ledger.plan
    assert after.placements == plan.placements
    for name in ("rows", "starts", "untils", "takes", "dips"):
        assert np.array_equal(getattr(after, name), getattr(plan, name))
    assert outlook(engine) == first
    again = run_cycle(engine.matcher, engine.queue(), engine.policy, engine.now)
    assert again.reserved == engine.decisions.reserved
    assert not again.allocated


@settings(max_examples=80, deadline=None)
@given(work=jobs(), policy=st.sampled_from(sorted(POLICIES)))
def test_forecasts_respect_the_policy(work: list[SimulatedJob], policy: str) -> None:
    """Promised starts are shown as they are. Fcfs expects in queue order. No job starts now."""
    engine = begun(work, policy)
    expected = outlook(engine)
    for job, placement in engine.decisions.reserved:
        assert expected[job.uid] == placement.starts_at
    starts = [expected[job.uid] for job in engine.queue()]
    assert all(start is not None and start > engine.now for start in starts)
    if policy == "fcfs":
        assert starts == sorted(starts, key=lambda start: start or 0)
