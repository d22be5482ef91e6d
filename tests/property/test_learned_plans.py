"""What plans by learned run times may cost others, for random workloads on virtual time.

Plans may be wrong in any way. Limits are enforced, so whatever is promised is kept.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.policy.queue_rules import DEFAULT_QUEUE, IN_ORDER, SHORTEST, QueueRules
from fluxqueue.simulation.learning import DurationSource
from fluxqueue.simulation.simulated_jobs import SimulatedJob, cores_request, uniform_cluster
from fluxqueue.simulation.simulator import Engine, RunRecord, SimulatedSite, simulate

NODES = 4
SLACK_S = 50


def job(
    number: int, at: int, cores: int, runs_s: int, limit_s: int | None, user: str
) -> SimulatedJob:
    """One job of a user. It asks for whole nodes, so each node is in use by one job."""
    return SimulatedJob(
        number, at, cores_request(cores, limit_s, cores_per_node=1), runs_s, user=user
    )


@st.composite
def workloads(draw: st.DrawFn, *, has_limits: bool) -> list[SimulatedJob]:
    """Jobs of three users. Their run times have little to do with their limits."""
    found, at = [], 0
    for number in range(1, draw(st.integers(1, 25)) + 1):
        at += draw(st.integers(0, 30))
        runs_s = draw(st.sampled_from((1, 2, 10, 60, 300)))
        limit_s = runs_s * draw(st.sampled_from((1, 3, 20))) if has_limits else None
        user = draw(st.sampled_from(("ann", "bob", "eve")))
        found.append(job(number, at, draw(st.integers(1, NODES)), runs_s, limit_s, user))
    return found


def run(
    work: list[SimulatedJob], policy: str = "easy", rules: QueueRules | None = None
) -> list[RunRecord]:
    """Simulate with learned plans."""
    return simulate(
        uniform_cluster(NODES, 1),
        work,
        queue_policy(policy),
        queues={DEFAULT_QUEUE: rules or QueueRules(DEFAULT_QUEUE)},
        site=SimulatedSite(durations=DurationSource.LEARNED),
    )


@settings(max_examples=150, deadline=None)
@given(
    workloads(has_limits=True),
    st.sampled_from(("fcfs", "easy", "hybrid", "conservative")),
    st.sampled_from((SHORTEST, IN_ORDER)),
    st.sampled_from((None, 1, SLACK_S)),
)
def test_with_limits_every_promise_is_kept(
    work: list[SimulatedJob], policy: str, jumpers: str, max_delay_s: int | None
) -> None:
    """Some jobs jump ahead by wrong plans, and their order does not matter."""
    rules = QueueRules(DEFAULT_QUEUE, jumpers=jumpers, max_delay_s=max_delay_s)
    for one in run(work, policy, rules):
        assert one.ended_s is not None
        assert one.is_promise_kept, f"job {one.job.number}: {one.promise}"


ONE = (1, 1, 1, "ann")
"""Nodes, run time, limit and user of a small job."""
ONCE_LATE = {
    "promised before anything was learned": (
        [(0, ONE)] * 7
        + [(0, (2, 1, 1, "ann")), (0, (3, 1, 1, "ann")), (0, ONE), (0, (1, 2, 2, "ann"))]
        + [(1, (1, 2, 2, "ann"))]
        + [(1, ONE)] * 6,
        None,
    ),
    "renewed before a job ahead on its nodes": (
        [(0, ONE)] * 14 + [(1, (3, 1, 1, "ann")), (1, (2, 10, 10, "ann"))],
        None,
    ),
    "two promises that overlap by limit": (
        [(0, ONE)] * 14 + [(1, (3, 1, 1, "ann")), (1, (2, 10, 10, "ann"))],
        1,
    ),
    "renewed on a node with a later limit": (
        [(0, ONE), (1, ONE), (1, ONE), (1, (1, 2, 2, "ann"))]
        + [(1, ONE)] * 3
        + [(1, (1, 2, 2, "ann")), (1, ONE), (1, ONE), (1, (1, 1, 3, "ann"))]
        + [(1, ONE)] * 6,
        None,
    ),
    "renewed in the order of the queue": (
        [(0, (1, 2, 2, "ann"))]
        + [(2, ONE)] * 6
        + [(2, (1, 2, 2, "ann")), (2, ONE), (2, (1, 1, 3, "ann")), (2, (1, 1, 3, "ann"))]
        + [(2, ONE)] * 7,
        None,
    ),
    "of a job without runs behind one with a plan": (
        [(0, ONE), (0, (4, 1, 3, "ann")), (0, (1, 1, 20, "bob")), (0, (4, 1, 1, "ann")), (0, ONE)],
        None,
    ),
    "due at a time at which nothing ends": (
        [
            *((0, (1, 300, 300, "ann")), (0, (4, 60, 180, "ann")), (26, (3, 300, 300, "bob"))),
            *((46, (4, 1, 1, "ann")), (171, (3, 1, 1, "ann")), (171, (1, 10, 180, "ann"))),
            *((214, (1, 10, 6000, "bob")), (244, (1, 1, 1, "bob")), (302, (4, 1, 1, "ann"))),
            *((302, ONE), (302, ONE)),
        ],
        None,
    ),
}
"""Workloads in which a promise was met late or never: when each job comes, its size, the slack."""


@pytest.mark.parametrize("policy", ["hybrid", "conservative"])
@pytest.mark.parametrize("case", ONCE_LATE)
def test_a_promise_that_was_late_once_is_kept(case: str, policy: str) -> None:
    found, max_delay_s = ONCE_LATE[case]
    work = [
        job(number, at, cores, runs_s, limit_s, user)
        for number, (at, (cores, runs_s, limit_s, user)) in enumerate(found, 1)
    ]
    rules = QueueRules(DEFAULT_QUEUE, max_delay_s=max_delay_s)
    for one in run(work, policy, rules):
        assert one.ended_s is not None
        assert one.is_promise_kept, f"job {one.job.number}: {one.promise}"


@settings(max_examples=100, deadline=None)
@given(workloads(has_limits=False))
def test_without_any_duration_every_job_runs(work: list[SimulatedJob]) -> None:
    """There are no promises, and no job is starved."""
    for one in run(work):
        assert one.ended_s is not None
        assert one.promise is None


def flood(lies: bool, *, fresh_names: bool, limit_s: int | None) -> list[SimulatedJob]:
    """One wide job behind a stream of another tenant that keeps the cluster busy."""
    wide = job(1, 5, NODES, 100, 200, "victim")
    stream = []
    for number in range(2, 130):
        is_lie = lies and number % 12
        user = f"eve{number}" if fresh_names else "eve"
        runs_s = 1 if is_lie else 100
        stream.append(job(number, (number - 2) // 2, 1, runs_s, limit_s, user))
    return [wide, *stream]


def wait_of_the_wide_job(work: list[SimulatedJob]) -> int:
    """How long the victim waits."""
    return next(one for one in run(work) if one.job.number == 1).wait_s


def test_lies_and_fresh_names_do_not_starve_a_wide_job() -> None:
    """It waits for what runs, then for its slack at most, and for one plan that was wrong."""
    for lies in (False, True):
        for fresh_names in (False, True):
            work = flood(lies, fresh_names=fresh_names, limit_s=150)
            assert wait_of_the_wide_job(work) <= 150 + 200


def test_a_stream_without_durations_does_not_starve_a_wide_job() -> None:
    """Its ends are only planned. The wide job still keeps its nodes from its latest start on."""
    for lies in (False, True):
        for fresh_names in (False, True):
            work = flood(lies, fresh_names=fresh_names, limit_s=None)
            rules = QueueRules(DEFAULT_QUEUE, max_delay_s=SLACK_S, planned_s=100)
            found = run(work, rules=rules)[0]
            assert found.wait_s <= 600, (lies, fresh_names)


def test_what_is_learned_changes_the_plans_of_pending_jobs() -> None:
    """Twenty jobs of one template wait. After the first has run, all have a short plan."""
    blocker = job(1, 0, NODES, 50, 60, "ann")
    same = [job(number, number, NODES, 2, 3600, "bob") for number in range(2, 22)]
    engine = Engine(
        uniform_cluster(NODES, 1),
        [blocker, *same],
        queue_policy("easy"),
        site=SimulatedSite(durations=DurationSource.LEARNED),
    )
    while engine.step() and not engine.by_uid["2"].ended_s:
        pass
    assert engine.pending
    for _, _, one in engine.pending:
        assert one.learned is not None
        assert one.learned.durations.typical_s == 2


def test_small_jobs_run_while_a_job_without_an_end_holds_one_node() -> None:
    """No node is idle because an end is unknown. The wide job keeps its place."""
    endless = job(1, 0, 1, 1_000_000, None, "ann")
    wide = job(2, 1, NODES, 10, None, "bob")
    small = [job(number, number, 1, 5, None, "eve") for number in range(3, 23)]
    found = run([endless, wide, *small])
    started = [one.started_s for one in found[2:]]
    assert all(at is not None and at < 1_000_000 for at in started)
    assert found[1].started_s is not None


def test_the_shortest_plan_jumps_first_if_the_queue_wants_that() -> None:
    """Four free slots of time before the reserved start: the shorter job gets them first."""
    known = [
        job(1, 0, 1, 5, 100, "ann"),
        job(2, 0, 1, 40, 100, "bob"),
    ]
    busy = job(3, 50, 3, 60, 60, "zoe")
    head = job(4, 51, NODES, 10, 10, "zoe")
    one_node = [
        job(5, 52, 1, 40, 100, "bob"),
        replace(job(6, 52, 1, 5, 100, "ann")),
    ]
    for jumpers, first in ((SHORTEST, 6), (IN_ORDER, 5)):
        rules = QueueRules(DEFAULT_QUEUE, jumpers=jumpers, max_delay_s=3600)
        found = {one.job.number: one for one in run([*known, busy, head, *one_node], rules=rules)}
        other = 11 - first
        assert (found[first].started_s or 0) < (found[other].started_s or 0)
