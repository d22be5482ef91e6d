"""Further nodes of pods with constraints that the matcher cannot judge."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.placement import FOREVER, PlacedSlot, Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Count, Jobspec, Resource
from fluxqueue.scheduler.cycle_decisions import Decisions
from fluxqueue.scheduler.lack import Given, Lack
from fluxqueue.scheduler.node_choices import JOBS_MAX, NODES_MAX, give_choices
from fluxqueue.scheduler.pending_job import PendingJob
from tests.support.asked import Slots, asked
from tests.support.pool_model import RACK, node, placement, request

MATES = {f"n{n}": {f"n{n ^ 1}"} for n in range(6)}
"""The other node of the rack of each."""


def cluster(number: int = 6, in_rack: int = 2) -> Matcher:
    """Nodes of four cores in racks of two."""
    matcher = Matcher(ShareLedger(), "lonode")
    for index in range(number):
        matcher.set_node(node(f"n{index}", rack=f"r{index // in_rack}"), {})
    return matcher


def slot(count: int) -> Resource:
    """Slots of one core."""
    return Resource("slot", Count(count, count), (Resource(CPU, Count(1, 1)),), label="s0")


def tree(*resources: Resource) -> Jobspec:
    """A request of such vertices."""
    return Jobspec(9999, resources)


def chosen(
    matcher: Matcher, asked: Jobspec, *, is_unsure: bool = True, refused: Sequence[str] = ()
) -> list[tuple[str, ...]] | None:
    """What a job gets that starts now."""
    job = PendingJob("u", 1, 0, asked, refused=tuple(refused), is_unsure=is_unsure)
    placed = matcher.match_now(asked, 0)
    matcher.allocate("u", placed)
    try:
        found = give_choices(matcher, Decisions(allocated=[(job, placed)]), 0)
    finally:
        matcher.cancel("u")
    return found.get("u")


def test_a_pod_gets_all_nodes_with_room() -> None:
    """Neither full ones, nor those that are promised, nor those that refused it."""
    matcher = cluster()
    one = request(cpu=2, duration_s=60)
    assert chosen(matcher, one) == [("n1", "n2", "n3", "n4", "n5")]
    assert chosen(matcher, one, is_unsure=False) is None
    assert chosen(matcher, one, is_unsure=False, refused=("n3",)) == [("n1", "n2", "n4", "n5")]
    matcher.allocate("x", placement(("n2", {CPU: 3})))
    matcher.set_node(replace(node("n4", rack="r2"), is_schedulable=False), {})
    matcher.reserve(placement(("n5", {CPU: 4}), starts_at=30, until=90), 0)
    assert chosen(matcher, one) == [("n1", "n3")]


def test_pods_with_nodes_of_their_own_divide_the_others() -> None:
    """Our own rules, such as one pod on each node, are unknown to kube-scheduler."""
    found = chosen(cluster(), request(2, cpu=3, is_spread=True))
    assert found == [("n2", "n4"), ("n3", "n5")]


def test_pods_that_may_share_a_node_have_the_same_choice() -> None:
    """All of them may have to be on the one node that none of them has now."""
    matcher = cluster(4)
    assert chosen(matcher, request(2, cpu=3)) == [("n2", "n3"), ("n2", "n3")]
    assert chosen(matcher, request(2, cpu=1)) == [("n1", "n2", "n3")] * 2


def test_pods_of_a_level_have_a_choice_inside_their_place() -> None:
    """So all of them stay together, wherever kube-scheduler binds each."""
    matcher = cluster()
    assert chosen(matcher, request(2, cpu=1, within=RACK)) == [("n1",), ("n1",)]
    # The other rack has more room, and is none of theirs.
    assert chosen(matcher, request(1, cpu=1, within=RACK), refused=("n1",)) is None
    apart = tree(Resource(RACK, Count(3, 3), (slot(1),)))
    assert chosen(matcher, apart) == [("n1",), ("n3",), ("n5",)]
    even = tree(Resource(RACK, Count(1, 1), (slot(2),)), Resource(RACK, Count(2, 2), (slot(1),)))
    nodes, found = matcher.match_now(even, 0).nodes, chosen(matcher, even) or []
    assert [set(others) for others in found] == [MATES[name] for name in nodes]


def test_pods_of_a_place_with_nodes_of_their_own_divide_the_rest_of_it() -> None:
    """Two of them on one node would break the rule of the level below."""
    matcher = cluster(8, in_rack=4)
    nodes = Resource("node", Count(2, 2), (slot(1),))
    assert chosen(matcher, tree(Resource(RACK, Count(1, 1), (nodes,)))) == [("n2",), ("n3",)]
    both = chosen(matcher, tree(Resource(RACK, Count(2, 2), (nodes,))))
    assert both == [("n2",), ("n3",), ("n6",), ("n7",)]


def test_unequal_pods_have_the_nodes_with_room_for_their_kind() -> None:
    matcher = cluster(4)
    matcher.allocate("x", placement(("n3", {CPU: 2})))
    unequal = asked([Slots(1, ((CPU, 4),)), Slots(1, ((CPU, 2),))])
    assert matcher.match_now(unequal, 0).nodes == ("n0", "n1")
    assert chosen(matcher, unequal) == [("n2",), ("n2", "n3")]
    of_their_own = asked([Slots(1, ((CPU, 4),)), Slots(1, ((CPU, 2),))], is_spread=True)
    assert chosen(matcher, of_their_own) is None


def test_what_takes_nodes_or_places_whole_has_no_choice() -> None:
    """kube-scheduler would bind its pods beside others that have come meanwhile."""
    matcher = cluster()
    assert chosen(matcher, request(2, cpu=1, is_exclusive=True)) is None
    assert (
        chosen(matcher, tree(Resource("node", Count(1, 1), (slot(1),), is_exclusive=True))) is None
    )
    assert chosen(matcher, tree(Resource(RACK, Count(1, 1), (slot(1),), is_exclusive=True))) is None
    # Two slots that must share a node, whichever it is.
    assert chosen(matcher, tree(Resource("node", Count(1, 1), (slot(2),)))) is None


def test_the_choice_is_bounded() -> None:
    """In the names of one pod, and in the jobs of one cycle."""
    matcher = cluster(NODES_MAX + 10)
    (names,) = chosen(matcher, request(cpu=2)) or [()]
    assert len(names) == NODES_MAX
    one = request(cpu=1)
    started = [
        (PendingJob(f"u{n}", n, 0, one, is_unsure=True), matcher.match_now(one, 0))
        for n in range(JOBS_MAX + 5)
    ]
    assert len(give_choices(matcher, Decisions(allocated=started), 0)) == JOBS_MAX


def test_a_pod_that_is_sent_elsewhere_has_a_choice() -> None:
    """Its replacement is not tried on one node after the other."""
    matcher = cluster()
    asked = request(2, cpu=2)
    lack = Lack("u", 1, asked, ("n0",), None, refused=("n1",))
    placed = Placement((PlacedSlot("n2", ((CPU, 2),), "s0"),), 0, FOREVER)
    given = Given([(lack, [placed])])
    assert give_choices(matcher, Decisions(grown=given), 0) == {"u": [("n0", "n3", "n4", "n5")]}


def test_further_pods_of_running_work_have_the_choice_of_the_first() -> None:
    """Of a set that grows, and of a sweep, which grows in its turn."""
    matcher = cluster()
    asked = request(2, cpu=2)
    placed = Placement((PlacedSlot("n2", ((CPU, 2),), "s0"),), 0, FOREVER)
    for is_independent in (False, True):
        lack = Lack("u", 2, asked, ("n0",), None, is_independent=is_independent, is_unsure=True)
        given = Given([(lack, [placed])])
        expected = {"u": [("n0", "n1", "n3", "n4", "n5")]}
        if is_independent:
            grown = Decisions(grown=given)
            assert give_choices(matcher, grown, 0) == expected
        else:
            assert give_choices(matcher, Decisions(grown=given), 0) == expected
        sure = Given([(replace(lack, is_unsure=False), [placed])])
        assert give_choices(matcher, Decisions(grown=sure), 0) == {}


def test_further_pods_with_nodes_of_their_own_divide_the_others() -> None:
    """Those that come in one cycle, beside the ones that are there."""
    matcher = cluster()
    asked = request(4, cpu=2, is_spread=True)
    lack = Lack("u", 2, asked, ("n0", "n1"), None, is_unsure=True)
    slots = [Placement((PlacedSlot(name, ((CPU, 2),), "s0"),), 0, FOREVER) for name in ("n2", "n3")]
    given = Given([(lack, slots)])
    assert give_choices(matcher, Decisions(grown=given), 0) == {"u": [("n4",), ("n5",)]}
