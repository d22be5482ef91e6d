"""Jobs beside closed nodes: none starts whose limit reaches into a maintenance."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.placement import Closure
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.prediction.durations import Durations
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Decisions
from fluxqueue.scheduler.forecast import forecast
from fluxqueue.scheduler.pending_job import LearnedPlan, PendingJob
from tests.support.pool_model import node, placement, request

COOLING = Closure("cooling", ("a", "b"), 100, 200)


def cluster(*closures: Closure, names: str = "ab") -> Matcher:
    """Nodes of four cores each."""
    matcher = Matcher(ShareLedger(), "lonode")
    for name in names:
        matcher.set_node(node(name), {})
    matcher.ledger.close(closures)
    return matcher


def a_job(duration_s: int, *, nodes: int = 1, jobid: int = 1, has_limit: bool = True) -> PendingJob:
    """A job of whole nodes."""
    asked = request(nodes, duration_s=duration_s, **{CPU: 4})
    return PendingJob(f"u{jobid}", jobid, 0, asked, "default", "u", has_limit=has_limit)


def cycle(matcher: Matcher, *jobs: PendingJob, now: int = 0) -> Decisions:
    matcher.clear_plan()
    return run_cycle(matcher, list(jobs), POLICIES["easy"], now)


def test_what_ends_before_a_maintenance_starts_and_the_rest_is_planned_behind_it() -> None:
    short, long = a_job(100), a_job(101, jobid=2)
    found = cycle(cluster(COOLING), short, long)
    assert [job.uid for job, _ in found.allocated] == ["u1"]
    assert [(job.uid, where.starts_at) for job, where in found.reserved] == [("u2", 200)]


def test_the_grace_of_its_pods_counts() -> None:
    asked = replace(a_job(100).request, grace_s=1)
    found = cycle(cluster(COOLING), replace(a_job(100), request=asked))
    assert not found.allocated
    assert [where.starts_at for _, where in found.reserved] == [200]


def test_the_limit_counts_and_not_the_plan() -> None:
    """A job that is planned for ten seconds may take the hundred and one that it declares."""
    asked = a_job(101)
    plan = LearnedPlan.of(asked.request, Durations(limit_s=101, typical_s=10, long_s=10))
    learned = replace(asked, learned=plan)
    found = cycle(cluster(COOLING), learned)
    assert not found.allocated
    free = cycle(cluster(COOLING, names="abc"), learned)
    assert [where.nodes for _, where in free.allocated] == [("c",)]


def test_a_job_without_a_limit_gets_no_node_that_closes() -> None:
    """However long it is planned. Beside such nodes it starts."""
    endless = a_job(10, has_limit=False)
    assert not cycle(cluster(COOLING), endless).allocated
    found = cycle(cluster(COOLING, names="abc"), endless)
    assert [where.nodes for _, where in found.allocated] == [("c",)]


def test_closed_nodes_take_nothing_until_they_open() -> None:
    found = cycle(cluster(COOLING), a_job(10), now=150)
    assert not found.allocated
    assert [where.starts_at for _, where in found.reserved] == [200]
    assert cycle(cluster(COOLING), a_job(10), now=200).allocated


def test_what_runs_when_it_begins_goes_on_and_nothing_joins_it() -> None:
    matcher = cluster(COOLING)
    matcher.allocate("running", placement(("a", {CPU: 2}), until=180))
    found = cycle(
        matcher, replace(a_job(10), request=request(1, duration_s=10, **{CPU: 2})), now=120
    )
    assert not found.allocated
    assert "running" in matcher.ledger.live


@pytest.mark.parametrize(
    ("now", "job", "words"),
    [
        (0, a_job(101), "would run into maintenance cooling on a, 00:01 UTC"),
        (0, a_job(10, has_limit=False), "would run into maintenance cooling on a, 00:01 UTC"),
        (150, a_job(10), "waits for a in maintenance cooling until 00:03 UTC"),
    ],
)
def test_the_reason_names_the_reservation(now: int, job: PendingJob, words: str) -> None:
    matcher = cluster(COOLING)
    found = cycle(matcher, job, now=now)
    outlook = forecast(matcher, [job], found, POLICIES["easy"], now)[job.uid]
    assert words in outlook.reason
    assert outlook.expected_start == 200


def test_other_work_in_the_way_is_named_and_not_the_reservation() -> None:
    matcher = cluster(COOLING)
    matcher.allocate("running", placement(("a", {CPU: 4}), ("b", {CPU: 4}), until=50))
    job = a_job(101)
    found = cycle(matcher, job)
    outlook = forecast(matcher, [job], found, POLICIES["easy"], 0, jobids={"running": 7})["u1"]
    assert "maintenance" not in outlook.reason
