"""Volume claims for one pod at a time: a job with one keeps others in the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fluxqueue.fluxjob.exclusive_use import claim_use
from fluxqueue.fluxjob.request import CPU
from fluxqueue.fluxjob.wait_reason import WaitReason
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.scheduler.cycle import Decisions, PendingJob, run_cycle
from tests.support.pool_model import node, placement, request

DATA, LOGS = claim_use("ns", "data"), claim_use("ns", "logs")
IN_USE = "volume claim data is for one pod at a time (ReadWriteOncePod), and another pod uses it"


def cluster(foreign: Mapping[str, int] | None = None) -> Matcher:
    """Two nodes of four cores, one with unmanaged pods."""
    matcher = Matcher(ShareLedger(), "lonode")
    matcher.set_node(node("a"), foreign or {})
    matcher.set_node(node("b"), {})
    return matcher


def job(jobid: int, *claims: str, cpu: int = 1) -> PendingJob:
    """A job of one pod with these claims."""
    needs = {CPU: cpu, **dict.fromkeys(claims, 1)}
    return PendingJob(f"u{jobid}", jobid, 0, request(1, duration_s=60, **needs))


def cycle(matcher: Matcher, jobs: Sequence[PendingJob]) -> Decisions:
    """What one cycle decides."""
    return run_cycle(matcher, jobs, POLICIES["easy"], 0)


def started(decisions: Decisions) -> list[int]:
    """The jobs that start."""
    return [one.jobid for one, _ in decisions.allocated]


def test_of_two_queued_jobs_with_one_claim_the_first_starts() -> None:
    """The second waits with that reason, and jobs behind it pass."""
    matcher = cluster()
    found = cycle(matcher, [job(1, DATA), job(2, DATA), job(3, LOGS)])
    assert started(found) == [1, 3]
    assert [(one.jobid, why) for one, why in found.waiting] == [(2, IN_USE)]
    assert found.wait_reason == {"u2": WaitReason.CLAIM_IN_USE}
    assert not found.unsatisfiable
    matcher.cancel("u1")
    assert started(cycle(matcher, [job(2, DATA)])) == [2]


def test_a_claim_of_an_unmanaged_pod_counts_until_it_ends() -> None:
    """It may be on any node, and several pods may name it."""
    matcher = cluster({DATA: 1})
    assert matcher.is_satisfiable(job(1, DATA).request)
    assert cycle(matcher, [job(1, DATA)]).waiting[0][1] == IN_USE
    matcher.set_node(node("b"), {DATA: 2})
    matcher.set_node(node("a"), {})
    assert not started(cycle(matcher, [job(1, DATA)]))
    matcher.remove_node("b")
    assert started(cycle(matcher, [job(1, DATA)])) == [1]
    assert matcher.ledger.claims == {DATA: 1}


def test_a_reservation_keeps_the_claim() -> None:
    """A small job behind it would otherwise start with the claim and put the promise off."""
    matcher = cluster()
    matcher.allocate("x", placement(("a", {CPU: 3}), ("b", {CPU: 3}), until=100))
    found = cycle(matcher, [job(1, DATA, cpu=4), job(2, DATA), job(3)])
    assert [one.jobid for one, _ in found.reserved] == [1]
    assert started(found) == [3]
    assert found.waiting[0][1].endswith("and job 1 has a reservation with it")
    assert found.barred == {"u2"}


def test_what_is_booked_is_given_back_once() -> None:
    """Ends, extensions, what-if questions and a restart keep the count."""
    matcher = cluster()
    ledger = matcher.ledger
    one = placement(("a", {CPU: 1, DATA: 1}), until=60)
    ledger.book_all([("x", one), ("y", placement(("b", {CPU: 1, LOGS: 1})))])
    assert ledger.claims == {DATA: 1, LOGS: 1}
    ledger.end_at("x", 90)
    with ledger.without(["x"]):
        assert ledger.claims == {LOGS: 1}
    ledger.book("x", one)
    ledger.extend_apart("x", placement(("b", {CPU: 1, DATA: 1})))
    assert ledger.claims[DATA] == 2
    ledger.take_back("x", 1)
    assert ledger.claims == {DATA: 1, LOGS: 1}
    ledger.cancel("x")
    ledger.cancel("y")
    assert ledger.claims == {}
    assert DATA not in ledger.columns
