"""Requests over several levels, several kinds of slots, whole racks: case by case."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.placement import PlacedSlot, Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.tell.busy import why_not_now
from fluxqueue.graph.tell.never import why_never
from fluxqueue.jobspec.model import UNLIMITED, Count, Jobspec, Resource

ZONE, RACK = "topology.kubernetes.io/zone", "topology.kubernetes.io/rack"
BLOCK = "topology.kubernetes.io/block"


def some(kind: str, count: int, *below: Resource, exclusive: bool | None = None) -> Resource:
    """A vertex of a request."""
    return Resource(kind, Count(count, count), below, is_exclusive=exclusive, label=kind)


def slot(count: int, cpu: int = 1000, label: str = "task") -> Resource:
    """Slots of some millicores."""
    return Resource("slot", Count(count, count), (some(CPU, cpu),), label=label)


def job(*resources: Resource, duration_s: float = 60, prefer_within: str = "") -> Jobspec:
    """A request."""
    return Jobspec(1, resources, duration_s=duration_s, prefer_within=prefer_within)


def cluster(policy: str = "lonode") -> Matcher:
    """Zones a and b, each with racks r1 and r2 of three nodes of 4 cores: a-r1-0, ..., b-r2-2."""
    matcher = Matcher(ShareLedger(), policy)
    for zone in "ab":
        for rack in ("r1", "r2"):
            for number in range(3):
                add(matcher, f"{zone}-{rack}-{number}", {ZONE: zone, RACK: rack})
    return matcher


def add(matcher: Matcher, name: str, labels: dict[str, str]) -> None:
    """A node of 4 cores."""
    matcher.set_node(NodeFact(name, name, {CPU: 4000}, labels), {})


def racks(placement: Placement) -> Counter[str]:
    """Slots by zone and rack."""
    return Counter(node.rpartition("-")[0] for node in placement.nodes)


def test_several_racks_with_a_count_in_each() -> None:
    """``rack[2] -> node[2] -> slot[2]``: two nodes of two slots in each of two racks."""
    found = cluster().match_now(job(some("rack", 2, some("node", 2, slot(2)))), 0)
    assert racks(found) == {"a-r1": 4, "a-r2": 4}
    assert set(Counter(found.nodes).values()) == {2}
    assert list(found.nodes) == sorted(found.nodes), "neighbouring slots lie close"


@pytest.mark.parametrize("policy", ["first", "lonode", "hinode", "pack", "spread"])
def test_neighbouring_slots_share_a_rack(policy: str) -> None:
    """Whatever nodes a policy takes, in whatever order they joined: the slots are numbered along
    the tree, so that those of one zone follow each other, and in it those of one rack."""
    matcher = Matcher(ShareLedger(), policy)
    for number in range(12):
        add(matcher, f"n{number * 5 % 12}", {ZONE: "ab"[number % 2], RACK: f"r{number % 3}"})
    for asked in (job(slot(30)), job(some("node", 9, slot(2)))):
        placement = matcher.match_now(asked, 0)
        facts = [matcher.ledger.masks.facts[matcher.ledger.rows[node]] for node in placement.nodes]
        paths = [(fact.labels[ZONE], fact.labels[RACK]) for fact in facts if fact is not None]
        assert len(set(paths)) > 3
        assert paths == sorted(paths)


def test_the_commonest_of_flux() -> None:
    """``node[4] -> slot[2]``."""
    found = cluster().match_now(job(some("node", 4, slot(2))), 0)
    assert Counter(found.nodes) == dict.fromkeys(["a-r1-0", "a-r1-1", "a-r1-2", "a-r2-0"], 2)


def test_racks_of_one_name_in_two_zones_are_two_racks() -> None:
    """Four nodes of racks called r1 exist, but no rack has four."""
    asked = job(some("rack", 1, some("node", 4, slot(1))))
    matcher = cluster()
    assert not matcher.is_satisfiable(asked)
    assert matcher.is_satisfiable(job(some("rack", 4, some("node", 3, slot(4)))))


def test_zone_then_rack() -> None:
    """Both racks must be of one zone. The fuller zone that can is taken."""
    matcher = cluster()
    asked = job(some("zone", 1, some("rack", 2, some("node", 3, slot(1, 3000)))))
    matcher.allocate("x", matcher.match_now(job(some("node", 1, slot(1, 2000))), 0))
    assert racks(matcher.match_now(asked, 0)) == {"b-r1": 3, "b-r2": 3}


def test_an_unnamed_level_in_between_makes_nothing_impossible() -> None:
    """Fluxion's trap: ``zone -> node`` with racks between, blocks between zone and rack."""
    matcher = Matcher(ShareLedger(), "lonode")
    for number in range(4):
        labels = {ZONE: "a", BLOCK: f"b{number // 2}", RACK: f"r{number}"}
        add(matcher, f"n{number}", labels)
    assert matcher.match_now(job(some("zone", 1, some("node", 4, slot(1)))), 0).nodes == (
        "n0", "n1", "n2", "n3")  # fmt: skip
    assert len(matcher.match_now(job(some("zone", 1, some("rack", 4, slot(4)))), 0).slots) == 16


def test_nodes_that_do_not_say_where_they_stand_are_in_no_rack() -> None:
    """It is not known that they share one."""
    matcher = Matcher(ShareLedger(), "lonode")
    add(matcher, "n0", {RACK: "r"})
    add(matcher, "n1", {})
    add(matcher, "n2", {})
    assert not matcher.is_satisfiable(job(some("rack", 1, some("node", 2, slot(1)))))
    assert matcher.match_now(job(some("rack", 1, slot(1))), 0).nodes == ("n0",)


def test_the_fullest_rack_that_suffices_is_taken_and_bytes_do_not_outweigh_cores() -> None:
    """r2 has less cpu left and one byte of memory more: it is the fuller one."""
    matcher = Matcher(ShareLedger(), "lonode")
    for number, memory in ((1, 1 << 30), (2, (1 << 30) + 1)):
        fact = NodeFact(f"n{number}", "", {CPU: 4000, "memory": memory}, {RACK: f"r{number}"})
        matcher.set_node(fact, {CPU: 3000 if number == 2 else 0})
    assert matcher.match_now(job(some("rack", 1, slot(1))), 0).nodes == ("n2",)


def test_an_exclusive_rack_is_taken_whole() -> None:
    """Its other nodes are held too. A rack that is in use is left alone."""
    matcher = cluster()
    matcher.allocate("x", matcher.match_now(job(slot(1)), 0))
    found = matcher.match_now(job(some("rack", 1, slot(1), exclusive=True)), 0)
    assert (found.nodes, found.held) == (("a-r2-0",), ("a-r2-0", "a-r2-1", "a-r2-2"))
    matcher.allocate("y", found)
    assert "a-r2" not in racks(matcher.match_now(job(slot(35)), 0))
    with pytest.raises(InsufficientResources):
        matcher.match_now(job(slot(36)), 0)
    with pytest.raises(InsufficientResources):
        matcher.match_now(job(some("rack", 3, slot(1), exclusive=True)), 0)
    matcher.cancel("y")
    assert matcher.match_now(job(some("rack", 3, slot(1), exclusive=True)), 0)


def test_launcher_and_workers_side_by_side() -> None:
    """Two kinds of slots in one rack. What one takes the other does not get."""
    matcher = cluster()
    workers = some("node", 2, slot(1, 4000, "worker"))
    found = matcher.match_now(job(some("rack", 1, slot(1, 1000, "launcher"), workers)), 0)
    assert [dict(one.resources)[CPU] for one in found.slots] == [1000, 4000, 4000]
    assert len(set(found.nodes)) == 3
    assert len(racks(found)) == 1
    four = some("node", 3, slot(1, 4000, "worker"))
    assert not matcher.is_satisfiable(job(some("rack", 1, slot(1, 1000, "launcher"), four)))


def test_a_preferred_level_gives_way_upwards() -> None:
    """All in one rack, else in one zone, else anywhere."""
    matcher = cluster()
    few, more, many = (job(slot(n, 4000), prefer_within="rack") for n in (3, 4, 7))
    assert racks(matcher.match_now(few, 0)) == {"a-r1": 3}
    assert racks(matcher.match_now(more, 0)) == {"a-r1": 3, "a-r2": 1}
    assert racks(matcher.match_now(many, 0)) == {"a-r1": 3, "a-r2": 3, "b-r1": 1}


def test_a_preferred_level_that_cannot_be_gives_way_too() -> None:
    """Each slot takes all cores of its node: not two on one node, and so in one rack."""
    all_cores = Resource(CPU, Count(1, 1), is_exclusive=True)
    two = Resource("slot", Count(2, 2), (all_cores,), label="task")
    found = cluster().match_now(job(two, prefer_within="node"), 0)
    assert found.nodes == ("a-r1-0", "a-r1-1")


def test_counts_that_are_not_fixed_become_as_many_as_fit() -> None:
    """On each node, in each rack for itself, as many as there are, by the series of each count."""
    matcher = cluster()
    for rack in ("a-r1", "b-r2"):
        whole = Placement((PlacedSlot(f"{rack}-0", ((CPU, 4000),)),), 0, 60)
        matcher.allocate(rack, whole)
    two_to_four = Resource("node", Count(2, 4), (slot(1, 3000),))
    at_most_eight = job(Resource("rack", Count(1, 8), (two_to_four,)))
    found = matcher.match_now(at_most_eight, 0)
    assert racks(found) == {"a-r1": 2, "a-r2": 3, "b-r1": 3, "b-r2": 2}
    in_one = job(some("rack", 1, two_to_four))
    assert racks(matcher.match_now(in_one, 0)) == {"a-r1": 2}, "the fullest, then all of it"
    doubled = job(Resource("slot", Count(1, 64, "*", 2), (some(CPU, 1000),), label="task"))
    assert len(matcher.match_now(doubled, 0).nodes) == 32, "of 40"
    unbounded = job(Resource("slot", Count(1, UNLIMITED), (some(CPU, 1000),), label="task"))
    assert len(matcher.match_now(unbounded, 0).nodes) == 40
    matcher.allocate("all", matcher.match_now(unbounded, 0))
    later = matcher.match_later(in_one, 0)
    assert (later.starts_at, len(later.nodes)) == (60, 3)


def test_nodes_hold_as_many_slots_as_each_has_room_for() -> None:
    """Not one number for all, and in the order of the racks."""
    matcher = cluster()
    matcher.allocate("x", Placement((PlacedSlot("a-r1-1", ((CPU, 3000),)),), 0, 60))
    nodes = some("node", 1, replace(slot(1), count=Count(1, 3)))
    found = matcher.match_now(job(some("rack", 2, replace(nodes, count=Count(1, 8)))), 0)
    assert racks(found) == {"a-r1": 7, "a-r2": 9}
    assert Counter(found.nodes)["a-r1-1"] == 1
    assert list(found.nodes) == sorted(found.nodes)


def test_a_rack_is_promised_when_it_gets_free() -> None:
    """Room over the whole cluster is not room in one rack."""
    matcher = cluster()
    for number, end in enumerate((50, 40, 30, 20)):
        for index in range(3):
            found = matcher.match_now(job(some("node", 1, slot(1, 3000)), duration_s=end), 0)
            matcher.allocate(f"{number}-{index}", found)
    later = matcher.match_later(job(some("rack", 2, some("node", 3, slot(1, 4000)))), 0)
    assert (later.starts_at, racks(later)) == (30, {"b-r1": 3, "b-r2": 3})


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            job(some("rack", 3, some("node", 2, slot(1, 3000)))),
            "2 racks of 4 have 2 free nodes with 3 cpu; 3 are needed",
        ),
        (
            job(some("rack", 2, some("node", 4, slot(4)))),
            "none of 4 racks has 4 free nodes with 4 cpu; 2 are needed",
        ),
        (
            job(some("zone", 2, some("rack", 2, some("node", 2, slot(1, 2000))))),
            "1 zone of 2 has 2 racks with 2 free nodes with 2 cpu; 2 are needed",
        ),
        (job(some("node", 9, slot(4))), "8 free nodes have 4 cpu; 9 are needed"),
        (job(slot(30)), None),
    ],
)
def test_why_not_now_says_it_level_by_level(asked: Jobspec, expected: str | None) -> None:
    """What is free now, the lowest level that is short first. Slots anywhere name no level."""
    matcher = cluster()
    for name, cpu in (("a-r1-0", 4000), ("a-r1-1", 2500), ("a-r2-0", 4000), ("a-r2-1", 2500)):
        matcher.allocate(name, Placement((PlacedSlot(name, ((CPU, cpu),)),), 0, 60))
    assert why_not_now(matcher.by_shares, asked) == expected


@pytest.mark.parametrize(
    ("asked", "expected"),
    [
        (
            job(some("rack", 5, slot(2))),
            "4 racks of 4 have 2 slots of 1 cpu; 5 are needed",
        ),
        (
            job(some("rack", 2, some("node", 4, slot(1)))),
            "none of 4 racks has 4 nodes with 1 cpu; 2 are needed",
        ),
        (job(some("rack", 1, some("node", 4, slot(1)))), "within one rack; none is so large"),
        (job(some("node", 4, slot(5))), "needs 5 cpu on one node; the largest of 12 nodes has 4"),
        (job(some("zone", 3, some("rack", 2, slot(1)))), "2 zones of 2 have"),
        (job(some("block", 1, slot(1))), "none is so large"),
        (
            job(Resource("node", Count(13, 20), (slot(1),))),
            "needs 13 nodes with 1 cpu; the cluster has 12",
        ),
    ],
)
def test_why_never_says_it_level_by_level(asked: Jobspec, expected: str) -> None:
    """How many places would do, and how many are needed."""
    matcher = cluster()
    assert not matcher.is_satisfiable(asked)
    assert expected in why_never(matcher.by_shares, asked)


def test_a_further_slot_goes_to_the_place_of_its_siblings() -> None:
    """In the same rack of the same zone, however the level is called. Elsewhere than refused."""
    matcher = cluster()
    for word in ("rack", RACK):
        asked = job(some(word, 1, some("node", 3, slot(1, 3000))))
        found = matcher.match_more(asked, ["b-r1-0", "b-r1-2"], 0, 60)
        assert found.nodes == ("b-r1-1",)
    anywhere = job(some("node", 3, slot(1)))
    found = matcher.match_more(anywhere, ["a-r1-0"], 0, 60, avoid=["a-r1-1", "a-r1-2"])
    assert found.nodes == ("a-r2-0",)


def test_rows_of_nodes_that_are_gone_are_used_again() -> None:
    """20,000 nodes come and go. The arrays hold those that are there."""
    matcher = cluster()
    size = len(matcher.ledger.names)
    for number in range(20_000):
        add(matcher, f"late-{number}", {RACK: f"late-{number}"})
        matcher.remove_node(f"late-{number}")
    assert len(matcher.ledger.names) <= size + 64
    assert len(matcher.ledger.topology.places("rack", matcher.ledger.masks.facts)) <= 5


def test_a_row_with_work_on_it_waits_for_its_end() -> None:
    """The node may come back, and still knows what runs there."""
    matcher = Matcher(ShareLedger(), "lonode")
    add(matcher, "n0", {})
    matcher.allocate("x", matcher.match_now(job(slot(1, 3000)), 0))
    matcher.remove_node("n0")
    add(matcher, "n1", {})
    add(matcher, "n0", {})
    assert matcher.match_now(job(slot(1, 2000)), 0).nodes == ("n1",)
    matcher.remove_node("n0")
    matcher.cancel("x")
    assert "n0" not in matcher.ledger.rows
