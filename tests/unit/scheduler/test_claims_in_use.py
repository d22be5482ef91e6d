"""Volume claims for one pod at a time: a job with one keeps others in the queue."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace

import pytest

from fluxqueue.fluxjob.exclusive_use import claim_use
from fluxqueue.fluxjob.request import CPU
from fluxqueue.fluxjob.wait_reason import WaitReason
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.tell.never import why_never
from fluxqueue.jobspec import Count, Jobspec, Resource
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Decisions, Ongoing
from fluxqueue.scheduler.lack import Given, Lack
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.scheduler.satisfiable import split_unsatisfiable
from tests.support.asked import Slots, asked
from tests.support.pool_model import node, placement, request

DATA, LOGS = claim_use("ns", "data"), claim_use("ns", "logs")
WITH_DATA = ((CPU, 1), (DATA, 1))
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


def unequal(*parts: tuple[int, str]) -> Jobspec:
    """Pods of several kinds, each kind with a claim of its own."""
    return asked([Slots(count, ((CPU, 1), (claim, 1))) for count, claim in parts])


@pytest.mark.parametrize(
    "never",
    [
        asked([Slots(2, WITH_DATA)]),
        asked([Slots(3, WITH_DATA)], is_spread=True),
        asked([Slots(2, WITH_DATA)], within="rack"),
        unequal((1, DATA), (1, DATA)),
        unequal((1, LOGS), (2, DATA)),
    ],
)
def test_a_gang_with_one_claim_can_never_run_together(never: Jobspec) -> None:
    """Whatever nodes there are or may come. The reason names the claim, the field and a way out."""
    matcher = cluster()
    matcher.ledger.autoscaler = "Karpenter"
    jobs = [replace(job(1, DATA), request=never)]
    possible, impossible = split_unsatisfiable(matcher, jobs)
    assert not possible
    ((_, why),) = impossible
    assert why.startswith("needs volume claim data in several pods at once")
    assert "accessModes: ReadWriteOncePod" in why
    assert "Fix: " in why
    assert 'fluxqueue/gang: "false"' in why
    assert "Karpenter" not in why
    assert why == why_never(matcher.by_shares, never)


@pytest.mark.parametrize(
    "possible", [unequal((1, DATA), (1, LOGS)), asked([Slots(1, WITH_DATA)], is_spread=True)]
)
def test_pods_with_claims_of_their_own_run_together(possible: Jobspec) -> None:
    assert cluster().is_satisfiable(possible)


def test_a_job_of_any_size_starts_with_the_least_that_the_claim_permits() -> None:
    """More pods than one would only wait for the claim."""
    pools = (Resource(CPU, Count(1, 1)), Resource(DATA, Count(1, 1)))
    slot = Resource("slot", Count(1, 4), pools, label="s0")
    matcher = cluster()
    assert len(matcher.match_now(Jobspec(9999, (slot,)), 0).slots) == 1


def lack(*claims: str, is_sweep: bool) -> Lack:
    """A running job with pods that wait for three further slots."""
    asks = job(1, *claims).request
    return Lack("s", 3, asks, ("a",), 60, is_independent=is_sweep, jobid=1, duration_s=60)


def test_a_sweep_uses_its_claim_one_pod_at_a_time() -> None:
    """The next pod waits for the end of the one before, and jobs behind the sweep pass."""
    matcher = cluster()
    one = placement(("a", {CPU: 1, DATA: 1}), until=60)
    matcher.allocate("s", one)
    found = run_cycle(
        matcher,
        [job(2)],
        POLICIES["fcfs"],
        0,
        ongoing=Ongoing(lacks=[lack(DATA, is_sweep=True)]),
    )
    assert found.grown.barred == {"s": IN_USE}
    assert not found.grown.slots
    assert started(found) == [2]
    # Its last pod has ended, and its slot was given back.
    matcher.ledger.take_back("s", 1)
    found = run_cycle(
        matcher, [], POLICIES["fcfs"], 0, ongoing=Ongoing(lacks=[lack(DATA, is_sweep=True)])
    )
    ((_, placed),) = found.grown.slots
    assert len(placed) == 1
    assert found.grown.barred == {"s": IN_USE}


def grown(matcher: Matcher, one: Lack) -> Given:
    """What a running job gets in a cycle without waiting jobs."""
    return run_cycle(matcher, [], POLICIES["easy"], 0, ongoing=Ongoing(lacks=[one])).grown


def test_further_pods_of_a_running_set_wait_for_their_claim() -> None:
    """Other kinds of its pods get their slots."""
    matcher = cluster()
    matcher.allocate("s", placement(("a", {CPU: 1, DATA: 1})))
    given = grown(matcher, lack(DATA, is_sweep=False))
    assert given.barred == {"s": IN_USE}
    assert not given.slots
    mixed = replace(
        lack(is_sweep=False),
        request=unequal((1, DATA), (1, LOGS)),
        kinds=("s0", "s1"),
        count=2,
    )
    given = grown(matcher, mixed)
    ((_, placed),) = given.slots
    assert [slot.kind for one in placed for slot in one.slots] == ["s1"]
    matcher.cancel("s")
    matcher.allocate("s", placement(("a", {CPU: 1})))
    assert grown(matcher, lack(DATA, is_sweep=False)).slots
