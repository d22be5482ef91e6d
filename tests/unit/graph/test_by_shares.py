"""Matcher and its sentences: the cases worth reading one by one."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import CPU, MEMORY, MatchPolicy
from fluxqueue.graph.ledger.placement import FOREVER, PlacedSlot, Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.by_shares import placement_on
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.tell.never import why_never
from fluxqueue.jobspec import Count, Jobspec, Resource
from tests.support.asked import Slots, demand
from tests.support.asked import asked as make
from tests.support.pool_model import RACK, node, placement, request

NOW = 1000
GI = 2**30


def pool_set(*cpus: int, policy: MatchPolicy = MatchPolicy.LONODE, **more: int) -> Matcher:
    """Nodes n0, n1, ... with so many millicores."""
    pools = Matcher(ShareLedger(), policy)
    for number, cpu in enumerate(cpus):
        pools.set_node(node(f"n{number}", cpu=cpu, **more), {})
    return pools


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        (MatchPolicy.LONODE, ("n0",)),
        (MatchPolicy.HINODE, ("n2",)),
        (MatchPolicy.PACK, ("n1",)),
        (MatchPolicy.SPREAD, ("n2",)),
    ],
)
def test_policies_choose_among_equals(policy: MatchPolicy, expected: tuple[str, ...]) -> None:
    """n1 is the fullest, n2 the emptiest, n0 in between."""
    pools = pool_set(8, 8, 8, policy=policy)
    pools.allocate("a", placement(("n0", {CPU: 2})))
    pools.allocate("b", placement(("n1", {CPU: 5})))
    assert pools.match_now(request(cpu=1), NOW).nodes == expected


def test_foreign_use_over_capacity_leaves_nothing_and_breaks_nothing() -> None:
    """Others took more than the node has: it is full, not negative room elsewhere."""
    pools = pool_set(4, 4)
    pools.set_node(node("n0", cpu=4), {CPU: 9})
    assert pools.match_now(request(4, cpu=1), NOW).nodes == ("n1",) * 4
    with pytest.raises(InsufficientResources):
        pools.match_now(request(5, cpu=1), NOW)
    pools.set_node(node("n0", cpu=4), {CPU: 3})
    assert pools.match_now(request(5, cpu=1), NOW).nodes == ("n0", *("n1",) * 4)


def test_a_node_that_left_and_came_back_still_knows_what_runs_on_it() -> None:
    """Losing the Node object does not end the pods there."""
    pools = pool_set(4)
    pools.allocate("a", placement(("n0", {CPU: 3})))
    pools.remove_node("n0")
    with pytest.raises(InsufficientResources):
        pools.match_now(request(cpu=1), NOW)
    pools.set_node(node("n0", cpu=4), {})
    assert pools.match_now(request(cpu=1), NOW).nodes == ("n0",)
    with pytest.raises(InsufficientResources):
        pools.match_now(request(cpu=2), NOW)


def test_of_size_nothing_fits_always() -> None:
    """A Job of parallelism 0 needs no node, not even a cluster."""
    assert Matcher(ShareLedger(), "lonode").match_now(request(0, cpu=1), NOW).slots == ()
    assert Matcher(ShareLedger(), "lonode").is_satisfiable(request(0, cpu=1))


def test_a_job_that_overruns_keeps_its_place_and_plans_adapt() -> None:
    """Its end has passed. Nothing is taken from it, and the plan moves on."""
    pools = pool_set(4)
    pools.allocate("late", placement(("n0", {CPU: 4}), starts_at=0, until=NOW - 100))
    with pytest.raises(InsufficientResources):
        pools.match_now(request(cpu=1), NOW)
    assert pools.match_later(request(cpu=1), NOW).starts_at > NOW


def test_nothing_is_planned_behind_what_no_plan_ends() -> None:
    """An allocation that cannot be read has no end. It keeps no other node idle."""
    pools = pool_set(4, 4)
    pools.allocate("unreadable", placement(("n0", {CPU: 2}), until=FOREVER))
    with pytest.raises(InsufficientResources, match="no plan says"):
        pools.match_later(request(2, cpu=4), NOW)
    assert pools.match_now(request(2, cpu=2), NOW).nodes == ("n0", "n1")


def test_no_start_is_promised_on_nodes_that_are_down() -> None:
    """What is down has no known return."""
    pools = Matcher(ShareLedger(), "lonode")
    pools.set_node(node("n0", cpu=4, is_up=False), {})
    pools.allocate("a", placement(("n0", {CPU: 4}), until=NOW + 5))
    with pytest.raises(InsufficientResources, match="down, cordoned or used by others"):
        pools.match_later(request(cpu=1), NOW)
    assert pools.is_satisfiable(request(cpu=1))


def test_backfill_must_end_before_the_reservation_it_would_delay() -> None:
    """EASY in one picture: 4 of 8 run until 100, 8 are reserved from then, 4 are free till then."""
    pools = pool_set(8)
    pools.allocate("a", placement(("n0", {CPU: 4}), until=NOW + 100))
    promised = pools.match_later(request(cpu=8, duration_s=50), NOW)
    assert promised.starts_at == NOW + 100
    pools.reserve(promised, NOW)
    assert pools.match_now(request(cpu=4, duration_s=100), NOW).until == NOW + 100
    with pytest.raises(InsufficientResources):
        pools.match_now(request(cpu=4, duration_s=101), NOW)


def test_a_resource_nobody_has_may_be_asked_for_in_amount_nothing() -> None:
    """A zero must not need a pool, in one slot group or several."""
    pools = pool_set(4)
    one = Slots(1, ((CPU, 1), ("example.com/none", 0)))
    assert pools.match_now(make((one,)), NOW).nodes == ("n0",)
    pools = pool_set(4)
    assert pools.match_now(make((one, one)), NOW).nodes == ("n0", "n0")


# --- why never ---------------------------------------------------------------------------------


def reason(pools: Matcher, asked: Jobspec) -> str:
    """The sentence for a request that is indeed impossible."""
    assert not pools.is_satisfiable(asked)
    return why_never(pools.by_shares, asked)


def racks() -> Matcher:
    """Two racks of one 32-core and one 16-core node, 64 Gi and 128 Gi."""
    pools = Matcher(ShareLedger(), "lonode")
    for number, (cpu, memory, rack) in enumerate(
        [(32_000, 64, "a"), (16_000, 128, "a"), (32_000, 64, "b"), (16_000, 128, "b")]
    ):
        pools.set_node(node(f"n{number}", cpu=cpu, memory=memory * GI, rack=rack), {})
    return pools


REASONS = {
    "names the resource and the largest": (
        request(cpu=40_000),
        "needs 40 cpu on one node; the largest of 4 nodes has 32",
    ),
    "bytes are read as people do": (
        request(cpu=1000, memory=256 * GI),
        "needs 256Gi memory on one node; the largest of 4 nodes has 128Gi",
    ),
    "a resource that no node has": (
        request(**{CPU: 1000, "nvidia.com/gpu": 2}),
        "needs 2 nvidia.com/gpu on one node; none of 4 nodes has any",
    ),
    "the largest among those the selector allows": (
        request(cpu=40_000, constraint=demand(selector=((RACK, "a"),))),
        "needs 40 cpu on one node; the largest of the 2 nodes (of 4) that it may use has 32",
    ),
    "a selector that allows none": (
        request(cpu=1, constraint=demand(selector=((RACK, "z"),))),
        "no node is allowed by the node selector or affinity (rack=z)",
    ),
    "each is there, but never together": (
        request(cpu=32_000, memory=128 * GI),
        "no single node has 32 cpu, 128Gi memory together",
    ),
    "more slots than the empty cluster holds": (
        request(7, cpu=16_000),
        "needs 7 slots of 16 cpu; the empty cluster holds 6",
    ),
    "more nodes than there are": (
        request(5, cpu=16_000, is_spread=True),
        "needs 5 nodes with 16 cpu; the cluster has 4",
    ),
    "more whole nodes than there are": (
        request(5, cpu=16_000, is_exclusive=True, is_spread=True),
        "needs 5 nodes with 16 cpu; the cluster has 4",
    ),
    "no rack is large enough": (
        request(4, cpu=16_000, within=RACK),
        "needs 4 slots of 16 cpu within one rack; none is so large",
    ),
}


@pytest.mark.parametrize("case", REASONS.values(), ids=REASONS.keys())
def test_why_never(case: tuple[Jobspec, str]) -> None:
    """The sentence names the resource, the need and the largest there is."""
    asked, expected = case
    assert reason(racks(), asked).startswith(expected)


def test_why_never_without_nodes() -> None:
    """An empty cluster says so."""
    assert reason(Matcher(ShareLedger(), "lonode"), request(cpu=1)) == "the cluster has no nodes"


def test_several_groups_that_fit_alone_but_not_together() -> None:
    """Each group has room by itself: the sentence must not claim that there is enough."""
    pools = pool_set(4)
    asked = make((Slots(1, ((CPU, 4),)), Slots(1, ((CPU, 3),))))
    assert reason(pools, asked) == (
        "needs 1 slots of 0.004 cpu and 1 slots of 0.003 cpu;"
        " each alone fits the empty cluster, but not all together"
    )


def test_memory_of_less_than_a_hundredth_gi_is_not_nothing() -> None:
    """Small amounts keep a readable figure."""
    pools = pool_set(4, memory=2**20)
    assert "needs 0.00195Gi memory" in reason(pools, request(memory=2**21))
    assert MEMORY in reason(pools, request(memory=2**21))


@pytest.mark.parametrize(
    ("policy", "expected"),
    [
        ("lonode", ["n0", "n0", "n1"]),
        ("hinode", ["n1", "n2", "n2"]),
        ("first", ["n1", "n2", "n2"]),
        ("pack", ["n0", "n1", "n1"]),
        ("spread", ["n0", "n1", "n2"]),
    ],
)
def test_each_policy_has_its_choice(policy: str, expected: list[str]) -> None:
    """n0 is half used and so not untouched. N1 and n2 are empty. Each slot takes half a node."""
    pools = Matcher(ShareLedger(), MatchPolicy.HINODE)
    for name in ("n0", "n1", "n2"):
        pools.set_node(NodeFact(name, name, {"cpu": 4000}), {})
    one = make((Slots(1, (("cpu", 2000),), demand((("metadata.name", "n0"),))),))
    pools.allocate("x", pools.match_now(one, 0))
    request = make((Slots(3, (("cpu", 2000),)),), match_policy=MatchPolicy(policy))
    if policy == "lonode":
        pools.cancel("x")

    assert list(pools.match_now(request, 0).nodes) == expected


def test_a_policy_that_takes_nodes_whole_shares_none() -> None:
    """lonodex leaves the half-used node alone, and no other job gets in afterwards."""
    pools = Matcher(ShareLedger(), "lonode")
    for name in ("n0", "n1"):
        pools.set_node(NodeFact(name, name, {"cpu": 4000}), {})
    pools.allocate("x", pools.match_now(make((Slots(1, (("cpu", 1000),)),)), 0))
    whole = make((Slots(1, (("cpu", 1000),)),), match_policy=MatchPolicy.LONODEX)
    placement = pools.match_now(whole, 0)
    pools.allocate("y", placement)

    assert placement.nodes == ("n1",)
    with pytest.raises(InsufficientResources):
        pools.match_now(make((Slots(4, (("cpu", 1000),)),)), 0)


@pytest.mark.parametrize("policy", ["lonode", "first", "pack", "spread"])
def test_a_pool_taken_whole(policy: str) -> None:
    """All gpus of a node, however many there are: one such slot on each, none where one is used."""
    matcher = Matcher(ShareLedger(), policy)
    for number, gpus in enumerate((4, 8, 2)):
        fact = NodeFact(f"n{number}", "", {CPU: 8000, "example.com/gpu": gpus})
        matcher.set_node(fact, {})
    cpu = Resource(CPU, Count(1000, 1000))
    gpu = Resource("example.com/gpu", Count(3, 3), is_exclusive=True)
    all_gpus = Jobspec(1, (Resource("slot", Count(2, 2), (cpu, gpu), label="s"),), duration_s=10)
    one = replace(gpu, count=Count(1, 1), is_exclusive=None)
    some = Jobspec(1, (Resource("slot", Count(1, 1), (cpu, one), label="s"),), duration_s=10)
    found = matcher.match_now(all_gpus, 0)
    assert {slot.node: dict(slot.resources)["example.com/gpu"] for slot in found.slots} == {
        "n0": 4,
        "n1": 8,
    }
    assert not matcher.is_satisfiable(
        replace(all_gpus, resources=(replace(all_gpus.resources[0], count=Count(3, 3)),))
    )
    matcher.allocate("all", found)
    assert matcher.match_now(some, 0).nodes == ("n2",)
    matcher.cancel("all")
    on_n0 = Placement((PlacedSlot("n0", (("example.com/gpu", 1),)),), 0, 7)
    matcher.allocate("one", on_n0)
    with pytest.raises(InsufficientResources):
        matcher.match_now(all_gpus, 0)
    assert matcher.match_later(all_gpus, 0).starts_at == 7


def test_a_stored_placement_keeps_the_kinds_of_its_slots() -> None:
    """A pod of a group takes only a slot of its kind. Without one it would wait for ever."""
    pools = pool_set(8, 8)
    unequal = make([Slots(1, ((CPU, 6),)), Slots(2, ((CPU, 2),))])
    placed = pools.match_now(unequal, NOW)
    stored = placement_on(pools.by_shares, unequal, placed.nodes, NOW)
    assert stored == placed
    assert [slot.kind for slot in stored.slots] == ["s0", "s1", "s1"]
    assert [slot.kind for slot in stored.slots] == [slot.kind for slot in placed.slots]
