"""Cycles on virtual time: the same code as in production, a day of work in a second.

A small simulator runs ``run_cycle`` whenever something is submitted or ends. Jobs run exactly as
long as they said, or end early or late where the test says so.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.prediction.durations import OVERRUN_GRACE_S
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.scheduler.satisfiable import split_unsatisfiable
from tests.support.pool_model import Model, node, request
from tests.support.submissions import Simulation, Submission, Workload, submissions


def workloads(*, is_exact: bool = True, has_endless: bool = False) -> st.SearchStrategy[Workload]:
    """Nodes and jobs."""
    jobs = st.lists(submissions(is_exact=is_exact, has_endless=has_endless), max_size=12)
    return st.tuples(st.integers(1, 3), jobs)


ANY_POLICY = st.sampled_from(sorted(POLICIES))


@settings(max_examples=150, deadline=None)
@given(policy=ANY_POLICY, work=workloads(is_exact=False, has_endless=True))
def test_every_possible_job_starts_once(policy: str, work: Workload) -> None:
    """No starvation under any policy, whatever runs over, under or without a known end."""
    simulation = Simulation(POLICIES[policy], *work)
    simulation.run()
    assert not simulation.pending
    assert set(simulation.started) | simulation.impossible == {str(n) for n in range(len(work[1]))}
    assert len(simulation.order) == len(set(simulation.order))


@settings(max_examples=150, deadline=None)
@given(work=workloads(is_exact=False, has_endless=True))
def test_fcfs_starts_in_queue_order(work: Workload) -> None:
    """No job overtakes a waiting job that is before it in the queue."""
    simulation = Simulation(POLICIES["fcfs"], *work)
    simulation.run()
    jobs = work[1]
    for place, uid in enumerate(simulation.order):
        for later in simulation.order[place + 1 :]:
            one, other = jobs[int(uid)], jobs[int(later)]
            is_before = (-other.priority, int(later)) < (-one.priority, int(uid))
            was_there = other.at <= simulation.started[uid]
            if is_before and was_there:
                assert simulation.started[later] == simulation.started[uid]


def _without_newcomers(work: Workload) -> Workload:
    """All submitted at once: no job of higher priority comes in between."""
    nodes, jobs = work
    return nodes, [Submission(0, 0, job.asked, job.runs_s) for job in jobs]


@settings(max_examples=200, deadline=None)
@given(policy=st.sampled_from(("easy", "hybrid", "conservative")), work=workloads())
def test_promises_never_move_later(policy: str, work: Workload) -> None:
    """Exact durations, no job jumps the queue: each new promise is no later than the last."""
    simulation = Simulation(POLICIES[policy], *_without_newcomers(work))
    simulation.run()
    for uid, promises in simulation.promised.items():
        assert promises == sorted(promises, reverse=True), f"job {uid} was put off: {promises}"
        assert simulation.started[uid] <= promises[-1]


@settings(max_examples=150, deadline=None)
@given(work=workloads())
def test_the_head_starts_no_later_than_without_any_backfill(work: Workload) -> None:
    """EASY: the first blocked job is not delayed by those behind it (fcfs has none of those)."""
    nodes, jobs = _without_newcomers(work)
    easy, fcfs = (Simulation(POLICIES[name], nodes, jobs) for name in ("easy", "fcfs"))
    easy.run()
    fcfs.run()
    blocked = [job for job in map(str, range(len(jobs))) if fcfs.started.get(job, 0) > 0]
    if blocked:
        head = blocked[0]
        assert easy.started[head] <= fcfs.started[head]


@settings(max_examples=100, deadline=None)
@given(policy=ANY_POLICY, work=workloads())
def test_a_cycle_repeated_decides_nothing_new(policy: str, work: Workload) -> None:
    """The same queue at the same time: nothing more starts, the same is promised."""
    nodes, jobs = _without_newcomers(work)
    pools = Matcher(ShareLedger(), "lonode")
    for number in range(nodes):
        pools.set_node(node(f"n{number}"), {})
    all_jobs = [PendingJob(str(n), n, 0, job.asked) for n, job in enumerate(jobs)]
    queue, _ = split_unsatisfiable(pools, all_jobs)
    first = run_cycle(pools, queue, POLICIES[policy], 0)
    started = {job.uid for job, _ in first.allocated}
    again = run_cycle(pools, [j for j in queue if j.uid not in started], POLICIES[policy], 0)
    assert not again.allocated
    assert [(j.uid, p.starts_at) for j, p in again.reserved] == [
        (j.uid, p.starts_at) for j, p in first.reserved
    ]


@settings(max_examples=100, deadline=None)
@given(work=workloads())
def test_conservative_promises_what_the_model_finds(work: Workload) -> None:
    """Each promise is the earliest possible, given all promises before it."""
    nodes, jobs = _without_newcomers(work)
    pools, model = Matcher(ShareLedger(), "lonode"), Model(0)
    for number in range(nodes):
        fact = node(f"n{number}")
        pools.set_node(fact, {})
        model.nodes[fact.name] = fact
    queue, _ = split_unsatisfiable(
        pools, [PendingJob(str(n), n, 0, job.asked) for n, job in enumerate(jobs)]
    )
    decided = run_cycle(pools, queue, POLICIES["conservative"], 0)
    started = {job.uid: got for job, got in decided.allocated}
    reserved = {job.uid: got for job, got in decided.reserved}
    for job in queue:
        fits = model.fits(job.request, 0)
        assert (job.uid in started) == fits
        if fits:
            model.booked[job.uid] = started[job.uid]
            continue
        expected = model.earliest(job.request)
        assert reserved[job.uid].starts_at == expected
        model.reserved.append(reserved[job.uid])


def test_an_overrun_moves_the_promise_in_growing_steps() -> None:
    """The job that overruns keeps its node. The head's start follows it."""
    jobs = [
        Submission(0, 0, request(cpu=4, duration_s=10), 150),
        Submission(0, 0, request(cpu=4, duration_s=10), 10),
        Submission(20, 0, request(cpu=4, duration_s=10), 10),
    ]
    simulation = Simulation(POLICIES["easy"], 1, jobs)
    simulation.run()
    assert simulation.promised["1"] == [10, 10 + 4 * OVERRUN_GRACE_S]
    assert simulation.started == {"0": 0, "1": 150, "2": 160}
