"""Further slots of a running workload: each as it fits, or all of them together."""

from __future__ import annotations

from dataclasses import replace

from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.policy.limits import NOTHING, Amounts
from fluxqueue.policy.queue_policy import POLICIES
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Decisions, Ongoing
from fluxqueue.scheduler.lack import Lack
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.scheduler.top_up import top_up
from tests.support.pool_model import node, placement, request

LACK = Lack("u", 3, request(1, duration_s=60, **{CPU: 4}), ("a",), 1_000, has_limit=False)


def cluster(nodes: int) -> Matcher:
    """Nodes of four cores each, the first of them in use by the job itself."""
    matcher = Matcher(ShareLedger(), "lonode")
    for name in "abcdef"[: nodes + 1]:
        matcher.set_node(node(name), {})
    matcher.ledger.book("u", placement(("a", {CPU: 4})))
    return matcher


def grow(matcher: Matcher, lack: Lack, *, most_nodes: int = 9) -> tuple[int, str, Amounts]:
    """Return how many slots it gets, what stopped it, and what is counted as used then."""
    used = NOTHING

    def count(more: Amounts) -> None:
        nonlocal used
        used += more

    def why_over(has: Amounts, more: Amounts) -> str | None:
        return "too many nodes" if has.nodes + more.nodes > most_nodes else None

    placed, stopped = top_up(matcher, lack, 0, why_over, count)
    return len(placed), stopped, used


def test_each_slot_is_given_as_soon_as_it_fits() -> None:
    assert grow(cluster(2), LACK)[0] == 2
    assert grow(cluster(3), LACK)[0] == 3


def test_pods_that_start_together_get_all_their_slots_or_none() -> None:
    """What was booked for a part of them is free again, and no limit counts it."""
    whole, matcher = replace(LACK, is_whole=True), cluster(2)
    assert grow(matcher, whole) == (0, "", NOTHING)
    assert grow(matcher, replace(LACK, count=2))[0] == 2
    assert grow(cluster(3), whole)[0] == 3


def test_a_limit_that_stops_a_part_stops_all() -> None:
    found, stopped, used = grow(cluster(3), replace(LACK, is_whole=True), most_nodes=3)
    assert (found, stopped, used) == (0, "too many nodes", NOTHING)
    assert grow(cluster(3), LACK, most_nodes=3)[:2] == (2, "too many nodes")


# --- in a queue without backfill ------------------------------------------------------------------


def in_turn(*, head_nodes: int, beside_until: int) -> Decisions:
    """A cycle of an fcfs queue: job 1 on "a" has lost a slot, and one of more priority is the head.

    "b" is free, "c" is in use until ``beside_until``.
    """
    matcher = Matcher(ShareLedger(), "lonode")
    for name in "abc":
        matcher.set_node(node(name), {})
    matcher.ledger.book("u", placement(("a", {CPU: 4}), until=1_000))
    matcher.ledger.book("beside", placement(("c", {CPU: 4}), until=beside_until))
    lack = replace(LACK, count=1, jobid=1, has_limit=True)
    asked = request(head_nodes, duration_s=60, **{CPU: 4})
    head = PendingJob("head", 2, 9, asked, "", "someone")
    return run_cycle(matcher, [head], POLICIES["fcfs"], 0, ongoing=Ongoing(lacks=[lack]))


def test_a_job_that_lost_a_slot_does_not_wait_behind_a_head_that_waits_for_its_end() -> None:
    """Neither would go on: the head needs all three nodes."""
    found = in_turn(head_nodes=3, beside_until=500)
    assert [(lack.uid, len(placed)) for lack, placed in found.grown.slots] == [("u", 1)]


def test_it_waits_behind_a_head_that_can_start_before_its_end() -> None:
    """The head waits for another job, and the policy permits no overtaking."""
    found = in_turn(head_nodes=2, beside_until=500)
    assert not found.grown.slots
    assert found.grown.barred == {"u": "waits behind job 2 (fcfs)"}
