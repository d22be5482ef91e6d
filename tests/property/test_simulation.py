"""Whole workloads on virtual time: what must hold under every policy, whatever happens to nodes."""

from __future__ import annotations

from unittest.mock import patch

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.graph.match.by_shares import ByShares
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.policy.queue_rules import PreemptionRules
from fluxqueue.scheduler.failed_searches import FailedSearches
from fluxqueue.simulation.arrivals import WorkloadShape, node_faults, synthetic
from fluxqueue.simulation.schedule_figures import figures
from fluxqueue.simulation.simulated_jobs import (
    NodeEvent,
    SimulatedJob,
    cores_request,
    uniform_cluster,
)
from fluxqueue.simulation.simulator import Engine, RunRecord, SimulatedSite, simulate
from tests.support.rooms import check_rooms

NODES, CORES = 4, 4


@st.composite
def small_jobs(draw: st.DrawFn) -> list[SimulatedJob]:
    """A dozen jobs of all sizes. Some overrun, some end early, some are more urgent."""
    count = draw(st.integers(1, 14))
    jobs = []
    for number in range(1, count + 1):
        asked_s = draw(st.integers(1, 40))
        jobs.append(
            SimulatedJob(
                number=number,
                submit_s=draw(st.integers(0, 60)),
                request=cores_request(
                    draw(st.integers(1, NODES * CORES)), asked_s, cores_per_node=CORES
                ),
                runs_s=draw(st.sampled_from((asked_s, asked_s, max(1, asked_s // 3), asked_s * 3))),
                priority=draw(st.sampled_from((0, 0, 0, 5))),
            )
        )
    return jobs


@st.composite
def faults(draw: st.DrawFn) -> list[NodeEvent]:
    """Up to three losses, each repaired."""
    names = [fact.name for fact in uniform_cluster(NODES, CORES)]
    return node_faults(
        draw(st.integers(0, 1000)),
        names,
        count=draw(st.integers(0, 3)),
        until_s=draw(st.integers(1, 120)),
        repair_s=60,
    )


ANY_POLICY = st.sampled_from(sorted(POLICIES))
RESERVING = st.sampled_from(("easy", "hybrid", "conservative"))


@settings(max_examples=40, deadline=None)
@given(policy=ANY_POLICY, jobs=small_jobs(), lost=faults())
def test_every_policy_keeps_the_invariants(
    policy: str, jobs: list[SimulatedJob], lost: list[NodeEvent]
) -> None:
    """Overruns and node losses included: nothing is overbooked at any time, every job ends
    exactly once, nothing is left booked, no promise is broken."""
    engine = Engine(
        uniform_cluster(NODES, CORES), jobs, POLICIES[policy], site=SimulatedSite(faults=lost)
    )
    while engine.step():
        check_rooms(engine, CORES)
        assert {job.uid for job in engine.queue()}.isdisjoint(engine.running)
    assert not engine.pending
    assert not engine.running
    assert not engine.matcher.ledger.booked.any()
    for record in engine.records:
        assert record.ended_s is not None
        assert record.started_s is not None
        assert record.started_s >= record.job.submit_s
        assert record.ended_s >= record.started_s + record.job.runs_s
        assert record.is_promise_kept or (record.promise and record.promise.excuse)


@settings(max_examples=40, deadline=None)
@given(policy=RESERVING, jobs=small_jobs())
def test_a_promise_is_kept_unless_somebody_overran(policy: str, jobs: list[SimulatedJob]) -> None:
    """Early ends and urgent newcomers put no job off. An excuse is an overrun, and a real one."""
    records = simulate(uniform_cluster(NODES, CORES), jobs, POLICIES[policy])
    have_overrun = any(
        one.job.request.duration_s is not None and one.job.runs_s > one.job.request.duration_s
        for one in records
    )
    for one in records:
        if not one.is_promise_kept:
            assert have_overrun
            assert one.promise is not None
            assert "overrun" in (one.promise.excuse or "")


@settings(max_examples=40, deadline=None)
@given(jobs=small_jobs(), lost=faults())
def test_fcfs_keeps_the_order(jobs: list[SimulatedJob], lost: list[NodeEvent]) -> None:
    """No job starts while a job before it in the queue waits."""
    engine = Engine(
        uniform_cluster(NODES, CORES), jobs, POLICIES["fcfs"], site=SimulatedSite(faults=lost)
    )
    while engine.step():
        last = max(
            ((-job.priority, job.jobid) for job, _ in engine.decisions.allocated), default=None
        )
        first = min(((-job.priority, job.jobid) for job in engine.queue()), default=None)
        assert last is None or first is None or last < first


@settings(max_examples=15, deadline=None)
@given(policy=RESERVING, size=st.integers(1, NODES), runs_s=st.integers(1, 20))
def test_overtaking_is_bounded(policy: str, size: int, runs_s: int) -> None:
    """Small work that never stops coming cannot keep a large job waiting: it starts when what ran
    at its submission has ended, at the latest."""
    small = [
        SimulatedJob(number, number, cores_request(CORES, runs_s, cores_per_node=CORES), runs_s)
        for number in range(1, 50)
        if number != 20
    ]
    large = SimulatedJob(20, 20, cores_request(size * CORES, 10, cores_per_node=CORES), 10)
    records = simulate(uniform_cluster(NODES, CORES), [*small, large], POLICIES[policy])
    big = next(one for one in records if one.job.number == 20)
    assert big.started_s is not None
    ahead = [one for one in records if one.job.number < 20]
    assert big.started_s <= max([one.ended_s or 0 for one in ahead] + [20])


@pytest.mark.parametrize("seed", [1, 2, 3])
def test_easy_beats_fcfs(seed: int) -> None:
    """On wait, on slowdown and on utilisation."""
    nodes = uniform_cluster(16, 16)
    jobs = synthetic(seed, 150, nodes=16, cores_per_node=16)
    fcfs, easy = (
        figures(name, simulate(nodes, jobs, POLICIES[name]), nodes) for name in ("fcfs", "easy")
    )
    assert easy.mean_wait_s < fcfs.mean_wait_s
    assert easy.mean_slowdown < fcfs.mean_slowdown
    assert easy.utilisation > fcfs.utilisation
    assert easy.backfilled > 0
    assert fcfs.backfilled == 0


@pytest.mark.parametrize("seed", [1, 2])
def test_conservative_never_delays_anyone_promised(seed: int) -> None:
    """Users over-estimate, so jobs end early all the time and plans change in every cycle."""
    nodes = uniform_cluster(16, 16)
    jobs = synthetic(seed, 60, nodes=16, cores_per_node=16)
    result = figures("conservative", simulate(nodes, jobs, POLICIES["conservative"]), nodes)
    assert result.promised > 5
    assert result.promises_kept == result.promised


def _told(
    jobs: list[SimulatedJob], policy: str, lost: list[NodeEvent], leaves: bool
) -> list[object]:
    """What each cycle decides and says, and what becomes of the jobs."""
    rules = PreemptionRules(frozenset({"default"}), min_runtime_s=3) if leaves else None
    engine = Engine(
        uniform_cluster(NODES, CORES),
        jobs,
        POLICIES[policy],
        site=SimulatedSite(faults=lost),
        preemption=rules,
    )
    told: list[object] = []
    while engine.step():
        made = engine.decisions
        told.append((made.allocated, made.reserved, made.waiting, made.barred))
    return [*told, *_essence(engine.records)]


@settings(max_examples=40, deadline=None)
@given(policy=ANY_POLICY, jobs=small_jobs(), lost=faults(), leaves=st.booleans())
def test_what_a_walk_skips_changes_no_decision(
    policy: str, jobs: list[SimulatedJob], lost: list[NodeEvent], leaves: bool
) -> None:
    """A search for every job of every cycle finds the same, and gives the same reasons."""
    found = _told(jobs, policy, lost, leaves)
    with (
        patch.object(FailedSearches, "why", lambda *_: None),
        patch.object(ByShares, "lacks_now", lambda *_: False),
    ):
        assert _told(jobs, policy, lost, leaves) == found


def _essence(records: list[RunRecord]) -> list[object]:
    return [(one.job.number, one.started_s, one.ended_s, one.spans) for one in records]


def test_the_same_seed_gives_the_same_schedule() -> None:
    """Determinism: workload, faults and every placement."""
    nodes = uniform_cluster(8, 8)

    def run() -> list[object]:
        shape = WorkloadShape(overrun_share=0.1, is_diurnal=True)
        jobs = synthetic(7, 60, nodes=8, cores_per_node=8, shape=shape)
        lost = node_faults(7, [fact.name for fact in nodes], count=4, until_s=jobs[-1].submit_s)
        return _essence(simulate(nodes, jobs, POLICIES["easy"], site=SimulatedSite(faults=lost)))

    assert run() == run()
