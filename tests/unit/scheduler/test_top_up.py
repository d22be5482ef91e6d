"""Further slots of a running workload: each as it fits, or all of them together."""

from __future__ import annotations

from dataclasses import replace

from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.policy.limits import NOTHING, Amounts
from fluxqueue.scheduler.lack import Lack
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
