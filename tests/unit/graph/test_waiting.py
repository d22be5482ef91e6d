"""Sentences about what is in the way. The cases worth reading one by one."""

from __future__ import annotations

import pytest

from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.placement import Others
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.tell.blockers import (
    Holder,
    describe_holders,
    describe_nodes,
    in_the_way,
    why_no_plan,
    write_time,
)
from fluxqueue.jobspec import Jobspec
from tests.support.pool_model import RACK, node, placement, request

NOON = 1_700_049_600
assert NOON % 86_400 == 12 * 3600


def racks() -> Matcher:
    """Two racks of two nodes with 4 cores."""
    pools = Matcher(ShareLedger(), "lonode")
    for number in range(4):
        pools.set_node(node(f"n{number}", rack=f"r{number // 2}"), {})
    return pools


def test_only_those_who_must_end_first_are_in_the_way() -> None:
    """Of three on the nodes: the last to end first. One that ends later is not waited for."""
    pools = racks()
    pools.allocate("early", placement(("n0", {CPU: 2}), until=NOON + 60))
    pools.allocate("late", placement(("n1", {CPU: 4}), until=NOON + 120))
    pools.allocate("later", placement(("n0", {CPU: 1}), until=NOON + 999))
    asked = request(2, cpu=3, duration_s=60, is_spread=True)
    way = in_the_way(
        pools.by_shares,
        placement(("n0", {CPU: 3}), ("n1", {CPU: 3}), ("n2", {CPU: 3}), starts_at=NOON + 120),
    )
    assert asked.size == 2
    assert way.nodes == ("n0", "n1"), "n2 is free"
    assert [holder.key for holder in way.holders] == ["late", "early"]


def test_nodes_are_named_by_their_place_or_their_names_or_counted() -> None:
    """The level only where all must share it."""
    pools = racks()
    assert describe_nodes(pools.by_shares, ["n3", "n2", "n3"], RACK) == "2 nodes of rack r1"
    assert describe_nodes(pools.by_shares, ["n3", "n2"], None) == "n[2-3]"
    assert describe_nodes(pools.by_shares, ["n1", "n2"], RACK) == "n[1-2]", "of two racks"
    names = [f"node-{chr(97 + number)}-of-the-cluster" for number in range(9)]
    pools.ledger.add_rows(names)
    assert describe_nodes(pools.by_shares, names, None) == "9 nodes"


def test_holders_are_named_by_jobid_with_their_ends() -> None:
    """At most three, and none by its UID."""
    holders = [Holder(f"u{n}", NOON, NOON + 3600 * n) for n in range(1, 6)]
    jobids = {f"u{n}": n for n in range(1, 4)}
    assert describe_holders(holders[:1], NOON, jobids) == "job 1 until 13:00 UTC"
    assert describe_holders(holders, NOON, jobids) == (
        "job 1 until 13:00 UTC, job 2 until 14:00 UTC, job 3 until 15:00 UTC and 2 more"
    )
    assert describe_holders([Holder("u9", NOON + 3600)], NOON, {}) == "another job without a limit"
    past = Holder("u1", NOON - 60, NOON - 5)
    assert describe_holders([past], NOON, jobids) == "job 1 past its end"


def test_the_planned_end_of_a_holder_is_not_told() -> None:
    """It may be a prediction from runs of another user. The limit is public."""
    for planned in (NOON - 60, NOON + 60, NOON + 3600):
        holder = Holder("u1", planned, NOON + 7200)
        assert describe_holders([holder], NOON, {"u1": 1}) == "job 1 until 14:00 UTC"


def test_times_do_not_depend_on_when_they_are_written() -> None:
    """The same words all day. The day itself where it is another."""
    at = NOON + 7200
    assert write_time(at, NOON) == write_time(at, NOON + 3600) == "14:00 UTC"
    assert write_time(NOON + 3 * 86_400, NOON) == "Nov 18 12:00 UTC"


OTHERS = (
    "pods of namespaces kube-system, logs leave too little room on n[0-2] and have no known end"
)


FOR_GOOD = (
    "DaemonSets and static pods of namespaces kube-system, logs leave too little room on n[0-2]"
    " for good"
)


def _down() -> Matcher:
    pools = Matcher(ShareLedger(), "lonode")
    pools.set_node(node("n1", is_up=False), {})
    pools.set_node(node("n2", is_up=False), {})
    pools.set_node(node("n3", cpu=1), {})
    return pools


def _others(permanent: int = 0) -> Matcher:
    pools = Matcher(ShareLedger(), "lonode")
    for number in range(3):
        others = Others(("kube-system", "logs"), {CPU: permanent})
        pools.set_node(node(f"n{number}"), {CPU: 2}, others)
    pools.set_node(node("n3", cpu=1), {})
    return pools


@pytest.mark.parametrize(
    ("pools", "asked", "expected"),
    [
        (_down(), request(cpu=4), "fits only with nodes that are down: n[1-2]"),
        (
            _others(),
            request(cpu=4),
            OTHERS,
        ),
        (_others(1), request(cpu=4), FOR_GOOD),
        (_others(1), request(cpu=3), OTHERS),
        (racks(), request(4, cpu=4), None),
    ],
)
def test_why_no_plan(pools: Matcher, asked: Jobspec, expected: str | None) -> None:
    """Down, taken by others, or only by our own."""
    assert pools.is_satisfiable(asked)
    assert why_no_plan(pools.by_shares, asked) == expected
