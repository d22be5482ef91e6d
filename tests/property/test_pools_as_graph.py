"""The cycle's matcher and the graph matcher are one matcher in two forms.

``SharesMatcher`` answers for nodes x resources what ``Matcher`` answers on the graph of the same
nodes with consumable pools: same nodes for the same requests, same refusals, the same earliest
starts, whatever was booked, promised and given back before. ``docs/matcher.md`` says for what.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, replace
from functools import partial

import orjson
import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from fluxqueue.errors import InsufficientResources, Unsatisfiable
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import MatchPolicy
from fluxqueue.graph.formats.export import whole_jgf
from fluxqueue.graph.formats.jgf import read_jgf
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.ledger.resource_set import ResourceSet
from fluxqueue.graph.match.matcher import Matcher, Verb
from fluxqueue.graph.match.shares.shares_matcher import SharesMatcher
from fluxqueue.graph.model.from_nodes import graph_from_nodes
from fluxqueue.jobspec import Count, Jobspec, Resource
from tests.support.asked import Slots
from tests.support.asked import asked as make

QUIET = list(HealthCheck)
GPU = "nvidia.com/gpu"
SAME_CHOICE = ["lonode", "hinode", "lonodex", "hinodex", "pack", "spread"]
"""Policies that choose the same nodes for every request."""
SAME_WHEN_FLAT = ["first", "firstnodex"]
"""Policies that do so for work that starts now, where no level stands above the nodes."""


@dataclass(frozen=True)
class Cluster:
    """Nodes, and what others use of them."""

    nodes: tuple[NodeFact, ...]
    foreign: dict[str, dict[str, int]]

    def flat(self) -> Cluster:
        """The same without racks."""
        return replace(self, nodes=tuple(replace(node, labels={}) for node in self.nodes))

    def pools(self, policy: str) -> SharesMatcher:
        pools = SharesMatcher(MatchPolicy(policy))
        for node in self.nodes:
            pools.set_node(node, self.foreign.get(node.name, {}))
        return pools

    def matcher(self, policy: str) -> Matcher:
        graph = graph_from_nodes(self.nodes, takes_shares=True, foreign=self.foreign)
        return Matcher(graph, policy, "ALL:cpu,ALL:node")


@st.composite
def clusters(draw: st.DrawFn) -> Cluster:
    """Up to five nodes: odd millicores and bytes, some gpus, some use by others, some down."""
    nodes = []
    foreign: dict[str, dict[str, int]] = {}
    for i in range(draw(st.integers(1, 5))):
        capacity = {
            "cpu": draw(st.integers(200, 4100)),
            "memory": draw(st.integers(1 << 20, 1 << 34)),
        }
        if draw(st.booleans()):
            capacity[GPU] = draw(st.integers(1, 3))
        labels = {"topology.kubernetes.io/rack": f"r{draw(st.integers(0, 1))}"}
        is_up = draw(st.integers(0, 9)) > 0
        nodes.append(NodeFact(f"n{i}", str(i), capacity, labels, is_up=is_up))
        if draw(st.integers(0, 3)) == 0:
            foreign[f"n{i}"] = {
                "cpu": draw(st.integers(0, capacity["cpu"])),
                "memory": draw(st.integers(0, capacity["memory"])),
            }
    return Cluster(tuple(nodes), foreign)


@dataclass(frozen=True)
class Asked:
    """One request, in the words of both."""

    needs: tuple[tuple[str, int], ...]
    count: int
    duration_s: int
    is_spread: bool = False
    is_exclusive: bool = False
    policy: str | None = None
    """Its own match policy."""

    def request(self) -> Jobspec:
        return make(
            (Slots(self.count, self.needs),),
            duration_s=self.duration_s,
            is_spread=self.is_spread,
            is_exclusive=self.is_exclusive,
            match_policy=None if self.policy is None else MatchPolicy(self.policy),
        )

    def jobspec(self) -> Jobspec:
        parts = tuple(Resource(name, Count(n, n)) for name, n in self.needs)
        slots = 1 if self.is_spread else self.count
        top = Resource("slot", Count(slots, slots), parts, label="task")
        if self.is_spread:
            count = Count(self.count, self.count)
            top = Resource("node", count, (top,), is_exclusive=self.is_exclusive or None)
        return Jobspec(1, (top,), duration_s=self.duration_s)


@st.composite
def requests(draw: st.DrawFn, *, is_spread: bool | None = None) -> Asked:
    needs = {"cpu": draw(st.integers(1, 2500))}
    if draw(st.booleans()):
        needs["memory"] = draw(st.integers(1, 1 << 33))
    if draw(st.integers(0, 4)) == 0:
        needs[GPU] = draw(st.integers(1, 2))
    spread = draw(st.booleans()) if is_spread is None else is_spread
    return Asked(
        tuple(sorted(needs.items())),
        draw(st.integers(1, 5)),
        draw(st.sampled_from([5, 10, 20])),
        spread,
        spread and draw(st.integers(0, 3)) == 0,
    )


def known(matcher: Matcher, asked: Asked) -> bool:
    """A type that no node has is a jobspec error in Flux's words, and never fits in ours."""
    return all(name in matcher.graph.type_number for name, _ in asked.needs)


def slots_of(found: ResourceSet, asked: Asked) -> Counter[str]:
    """Slots per node, from the units of the first resource; one for a node taken whole."""
    graph, (name, each) = found.graph, asked.needs[0]
    counted: Counter[str] = Counter()
    for number in found.booking.blocks:
        base = graph.blocks[number].base
        units = sum(
            taken
            for v, taken in found.booking.shares.items()
            if graph.block_of[v] == number and graph.type_name(v) == name
        )
        counted[graph.name(base)] = units // each or 1
    return counted


def same(placement: Placement, found: ResourceSet | None, asked: Asked) -> None:
    assert found is not None
    note(f"{placement.nodes} from {placement.starts_at}, {found.nodes()} from {found.at}")
    assert placement.starts_at == found.at
    ours, theirs = Counter(placement.nodes), slots_of(found, asked)
    if found.booking.shares:
        assert ours == theirs
        expected = {
            (node, name): count * units for node, count in ours.items() for name, units in
            asked.needs
        }  # fmt: skip
        graph = found.graph
        assert expected == {
            (graph.name(graph.parent[v]), graph.type_name(v)): units
            for v, units in found.booking.shares.items()
        }
    else:
        assert ours.keys() == theirs.keys()


def agree(pools: SharesMatcher, matcher: Matcher, asked: Asked, job: int, *, later: bool) -> bool:
    """Ask both; True if both booked, now or (with ``later``) as a reservation."""
    request = asked.request()
    match = partial(matcher.match, asked.jobspec(), job, policy=asked.policy)
    if not pools.is_satisfiable(request):
        with pytest.raises(Unsatisfiable):
            match(verb=Verb.SATISFIABILITY)
        with pytest.raises(Unsatisfiable):
            match(verb=Verb.ALLOCATE_ORELSE_RESERVE)
        return False
    assert match(verb=Verb.SATISFIABILITY) is None
    try:
        placement = pools.match_now(request, 0)
    except InsufficientResources:
        with pytest.raises(InsufficientResources):
            match()
        return later and agree_later(pools, matcher, asked, job)
    same(placement, match(), asked)
    pools.book(str(job), placement)
    return True


def agree_later(pools: SharesMatcher, matcher: Matcher, asked: Asked, job: int) -> bool:
    try:
        placement = pools.match_later(asked.request(), 0)
    except InsufficientResources:
        with pytest.raises(InsufficientResources):
            matcher.match(
                asked.jobspec(), job, verb=Verb.ALLOCATE_ORELSE_RESERVE, policy=asked.policy
            )
        return False
    found = matcher.match(
        asked.jobspec(), job, verb=Verb.ALLOCATE_ORELSE_RESERVE, policy=asked.policy
    )
    same(placement, found, asked)
    pools.reserve(placement, 0)
    return False  # a reservation is not given back one by one in the cycle


@pytest.mark.parametrize("policy", [*SAME_CHOICE, *SAME_WHEN_FLAT])
@settings(deadline=None, max_examples=40, suppress_health_check=QUIET)
@given(cluster=clusters(), data=st.data())
def test_same_nodes_for_shares(policy: str, cluster: Cluster, data: st.DataObject) -> None:
    """Fractions of nodes, with use by others, slot by slot and one slot a node, with cancels."""
    if policy in SAME_WHEN_FLAT:
        cluster = cluster.flat()
    pools, matcher = cluster.pools(policy), cluster.matcher(policy)
    booked: list[int] = []
    for job in range(data.draw(st.integers(1, 12))):
        if booked and data.draw(st.integers(0, 3)) == 0:
            gone = booked.pop(data.draw(st.integers(0, len(booked) - 1)))
            pools.cancel(str(gone))
            matcher.cancel(gone)
        asked = data.draw(requests())
        note(f"{job}: {asked}")
        if known(matcher, asked) and agree(pools, matcher, asked, job, later=False):
            booked.append(job)


@settings(deadline=None, max_examples=100, suppress_health_check=QUIET)
@given(cluster=clusters().map(Cluster.flat), data=st.data())
def test_same_nodes_when_each_request_has_its_policy(cluster: Cluster, data: st.DataObject) -> None:
    """Policies mixed: what one has placed counts for the next, in both."""
    pools, matcher = cluster.pools("lonode"), cluster.matcher("lonode")
    policies = st.sampled_from([*SAME_CHOICE, *SAME_WHEN_FLAT])
    booked: list[int] = []
    for job in range(data.draw(st.integers(2, 8))):
        if booked and data.draw(st.integers(0, 3)) == 0:
            gone = booked.pop(data.draw(st.integers(0, len(booked) - 1)))
            pools.cancel(str(gone))
            matcher.cancel(gone)
        asked = replace(data.draw(requests()), policy=data.draw(policies))
        note(f"{job}: {asked}")
        if known(matcher, asked) and agree(pools, matcher, asked, job, later=False):
            booked.append(job)


@pytest.mark.parametrize("policy", SAME_CHOICE)
@settings(deadline=None, max_examples=40, suppress_health_check=QUIET)
@given(cluster=clusters(), data=st.data())
def test_same_reservations(policy: str, cluster: Cluster, data: st.DataObject) -> None:
    """What does not fit now starts at the same second on the same nodes in both plans, whatever
    else is running and promised."""
    pools, matcher = cluster.pools(policy), cluster.matcher(policy)
    for job in range(data.draw(st.integers(2, 12))):
        asked = data.draw(requests())
        note(f"{job}: {asked}")
        if known(matcher, asked):
            agree(pools, matcher, asked, job, later=True)


def whole_nodes(names: str, *, racks: str = "") -> Cluster:
    """Nodes of four cores, each in the rack below its name."""
    label = "topology.kubernetes.io/rack"
    return Cluster(
        tuple(
            NodeFact(f"n{name}", name, {"cpu": 4000}, {label: f"r{racks[i]}"} if racks else {})
            for i, name in enumerate(names)
        ),
        {},
    )


def chosen_by_both(
    pools: SharesMatcher, matcher: Matcher, asked: Asked, job: int, *, at: int = 0
) -> tuple[list[str], list[str]]:
    """Nodes that each chose and booked, both from second ``at`` on."""
    found = matcher.match(asked.jobspec(), job, verb=Verb.ALLOCATE_ORELSE_RESERVE)
    assert found is not None
    if at:
        placement = pools.match_later(asked.request(), 0)
        pools.reserve(placement, 0)
    else:
        placement = pools.match_now(asked.request(), 0)
        pools.book(str(job), placement)
    assert placement.starts_at == found.at == at
    return sorted(placement.nodes), sorted(found.nodes())


def test_first_goes_from_rack_to_rack_in_the_graph_only() -> None:
    """The one difference for work that starts now: with racks the graph weighs these first, and
    goes on in the untouched one; the cycle knows nodes only, and takes the highest untouched."""
    cluster = whole_nodes("0123", racks="0011")
    pools, matcher = cluster.pools("first"), cluster.matcher("first")
    asked = Asked((("cpu", 1000),), 1, 10)

    assert chosen_by_both(pools, matcher, asked, 1) == (["n3"], ["n3"])
    assert chosen_by_both(pools, matcher, asked, 2) == (["n2"], ["n1"])


def test_first_weighs_the_future_in_the_cycle_only() -> None:
    """The one difference for promises: what the graph weighs is what is free now, whenever the
    work starts; in the cycle it is what is free then, with what was promised before."""
    cluster = whole_nodes("01")
    pools, matcher = cluster.pools("first"), cluster.matcher("first")
    all_of_it, some = Asked((("cpu", 4000),), 2, 10), Asked((("cpu", 1000),), 1, 10)

    assert chosen_by_both(pools, matcher, all_of_it, 1) == (["n0", "n1"], ["n0", "n1"])
    assert chosen_by_both(pools, matcher, some, 2, at=10) == (["n1"], ["n1"])
    assert chosen_by_both(pools, matcher, some, 3, at=10) == (["n0"], ["n1"])


def cores(count: int, each: int) -> Jobspec:
    core = Resource("core", Count(each, each))
    slot = Resource("slot", Count(count, count), (core,), label="task")
    return Jobspec(1, (slot,), duration_s=3600)


@pytest.mark.parametrize("policy", ["first", "lonode", "hinode", "pack", "spread"])
@settings(deadline=None, max_examples=60)
@given(
    sizes=st.lists(st.integers(1, 6), min_size=1, max_size=5),
    jobs=st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=6),
)
def test_same_nodes_for_whole_cores(
    policy: str, sizes: list[int], jobs: list[tuple[int, int]]
) -> None:
    """On Fluxion's own graph, with a vertex per core: slot by slot, until both refuse in turn."""
    nodes = [NodeFact(f"n{i}", str(i), {"cpu": 1000 * n}) for i, n in enumerate(sizes)]
    pools = SharesMatcher(MatchPolicy(policy))
    for node in nodes:
        pools.set_node(node, {})
    matcher = Matcher(graph_from_nodes(nodes), policy)
    for number, (count, each) in enumerate(jobs):
        request = make((Slots(count, (("cpu", 1000 * each),)),), duration_s=3600)
        try:
            placement = pools.match_now(request, 0)
        except InsufficientResources:
            with pytest.raises(InsufficientResources):
                matcher.match(cores(count, each), number)
            continue
        pools.book(str(number), placement)
        granted = matcher.match(cores(count, each), number)
        assert granted is not None
        assert sorted(set(placement.nodes)) == sorted(granted.nodes())


def test_whole_jgf_reads_back() -> None:
    """What is exported is a graph that loads, with levels, status and properties."""
    labels = {"topology.kubernetes.io/zone": "a"}
    nodes = [
        NodeFact("n0", "0", {"cpu": 2500, "memory": 4 << 30, "nvidia.com/gpu": 1}, labels),
        NodeFact("n1", "1", {"cpu": 4000}, {}, is_up=False),
    ]

    graph = read_jgf(orjson.dumps(whole_jgf(graph_from_nodes(nodes))))

    assert "/cluster0/a/n0/core1" in graph.all_paths()
    assert "/cluster0/a/n0/core2" not in graph.all_paths()
    assert "/cluster0/a/n0/gpu0" in graph.all_paths()
    (down,) = graph.find_path("/cluster0/unknown/n1")
    assert not graph.is_up(down)


def test_pools_read_back() -> None:
    """Consumable pools survive the export: types, sizes, units, and what others use."""
    nodes = [NodeFact("n0", "0", {"cpu": 2500, "memory": 4 << 30, GPU: 1})]
    built = graph_from_nodes(nodes, takes_shares=True, foreign={"n0": {"cpu": 300}})

    graph = read_jgf(orjson.dumps(whole_jgf(built)))

    assert {graph.types[kind] for kind in graph.consumable} == {"cpu", "memory", GPU}
    (cpu,) = graph.find_path("/cluster0/n0/cpu0")
    assert (graph.size[cpu], graph.units[cpu], graph.foreign[cpu]) == (2500, "m", 300)
