"""Both matchers: the same verbs over nodes, a cluster's graph and a Flux graph."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

import pytest

from fluxion.formats.node_document import node_document
from fluxion.formats.writers import write
from fluxion.match.search import SearchVerb
from fluxion.matcher import FluxionMatcher
from fluxion.model.from_nodes import graph_from_nodes
from fluxion.tell.vertex_reasons import why_not
from fluxqueue.errors import InsufficientResources, InvalidJobspec, Unsatisfiable
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import Taint
from fluxqueue.graph.ledger.placement import FOREVER, Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher, MatcherVerbs
from fluxqueue.graph.tell.never import why_never
from fluxqueue.jobspec import Count, Jobspec, Resource
from fluxqueue.jobspec.model import UNLIMITED

RACK = "topology.kubernetes.io/rack"
GPU = "nvidia.com/gpu"
LATER = SearchVerb.ALLOCATE_ORELSE_RESERVE


def facts(count: int = 4) -> list[NodeFact]:
    """Two racks, nodes of two cores."""
    return [NodeFact(f"n{i}", "", {"cpu": 2000}, {RACK: f"r{i // 2}"}) for i in range(count)]


def nodes() -> Matcher:
    """As the scheduling cycle makes it."""
    matcher = Matcher(ShareLedger(), "lonode")
    for fact in facts():
        matcher.set_node(fact, {})
    return matcher


def cluster_graph() -> FluxionMatcher:
    """As ``resource-query --from-cluster --shares`` makes it."""
    return FluxionMatcher(graph_from_nodes(facts(), takes_shares=True), "lonode", end=FOREVER)


def walked_graph() -> FluxionMatcher:
    """The same, vertex by vertex."""
    graph = graph_from_nodes(facts(), takes_shares=True)
    return FluxionMatcher(graph, "lonode", end=FOREVER, use_reference=True)


def flux_graph() -> FluxionMatcher:
    """As ``resource-query -L`` makes it: a vertex per core."""
    return FluxionMatcher(graph_from_nodes(facts()), "lonode", end=FOREVER)


GRAPHS = [
    (nodes, "cpu", 1000),
    (cluster_graph, "cpu", 1000),
    (walked_graph, "cpu", 1000),
    (flux_graph, "core", 1),
]
each_graph = pytest.mark.parametrize(("make", "kind", "unit"), GRAPHS)
Make = Callable[[], MatcherVerbs]


def slots(count: int, kind: str, units: int, duration_s: float = 100.0) -> Jobspec:
    parts = (Resource(kind, Count(units, units)),)
    return Jobspec(1, (Resource("slot", Count(count, count), parts, label="s"),), (), duration_s)


def below(kind: str, count: int, asked: Jobspec, **more: bool) -> Jobspec:
    top = Resource(kind, Count(count, count), asked.resources, **more)
    return Jobspec(1, (top,), (), asked.duration_s)


@each_graph
def test_the_verbs(make: Make, kind: str, unit: int) -> None:
    """Now, later, ever. Allocate, reserve, extend, shrink, cancel: one way on every graph."""
    matcher = make()
    all_of_it = slots(8, kind, unit)
    first = matcher.match_now(all_of_it, 0)
    assert sorted(set(first.nodes)) == ["n0", "n1", "n2", "n3"]
    matcher.allocate(1, first)
    with pytest.raises(InsufficientResources):
        matcher.match_now(slots(1, kind, unit), 0)
    promised = matcher.match_later(slots(2, kind, unit), 0)
    assert promised.starts_at == 100
    matcher.reserve(promised, 0)
    assert matcher.match_later(all_of_it, 0).starts_at == 200
    matcher.unreserve(promised)
    assert matcher.match_later(all_of_it, 0).starts_at == 100
    matcher.reserve(promised, 0)
    matcher.clear_plan()
    assert matcher.match_later(all_of_it, 0).starts_at == 100
    assert matcher.is_satisfiable(all_of_it)
    assert not matcher.is_satisfiable(slots(9, kind, unit))
    assert matcher.cancel(1)
    one, more = (
        matcher.match_now(slots(1, kind, unit), 0),
        matcher.match_now(slots(2, kind, unit), 0),
    )
    matcher.shrink(1, more)
    assert matcher.match_now(slots(6, kind, unit), 0)
    matcher.shrink(1, one)
    matcher.extend(1, matcher.match_now(slots(6, kind, unit), 0))
    assert matcher.match_now(slots(1, kind, unit), 0)
    with pytest.raises(InsufficientResources):
        matcher.match_now(slots(2, kind, unit), 0)


@each_graph
def test_a_level_and_nodes_below_it(make: Make, kind: str, unit: int) -> None:
    """``rack -> node[2] -> slot[2]`` lies in one rack."""
    asked = below("rack", 1, below("node", 2, slots(2, kind, unit)))
    assert set(make().match_now(asked, 0).nodes) == {"n0", "n1"}


def test_a_clusters_graph_answers_as_the_cycle() -> None:
    """Levels are passed, full racks go first, taints repel: what the walk of a Flux graph would not
    do. R lists the vertices."""
    tainted = [*facts()[:3], NodeFact("n3", "", {"cpu": 2000}, {RACK: "r1"},
                                      taints=(Taint("gpu", "", "NoSchedule"),))]  # fmt: skip
    matcher = FluxionMatcher(graph_from_nodes(tainted, takes_shares=True), "lonode")
    found = matcher.match(below("node", 3, slots(1, "cpu", 500)), 1)
    assert found is not None
    assert found.nodes() == ["n0", "n1", "n2"]
    assert "cpu0[500:x]" in write(found, "simple")
    with pytest.raises(Unsatisfiable):
        matcher.match(below("node", 4, slots(1, "cpu", 500)), 2, verb=LATER)


def test_the_walk_answers_what_the_table_does_not() -> None:
    """An exclusive rack on a cluster's graph, which R lists as a vertex. What it books counts for
    the table, and the reverse."""
    matcher = cluster_graph()
    some = Jobspec(
        1, (Resource("slot", Count(1, 5), (Resource("cpu", Count(1000, 1000)),)),), (), 9
    )
    assert matcher.match(some, 1) is not None
    with pytest.raises(InsufficientResources):
        matcher.match(slots(4, "cpu", 1000), 2)
    assert matcher.match(slots(3, "cpu", 1000), 2) is not None
    matcher.cancel(1)
    matcher.cancel(2)
    whole = below("rack", 1, below("node", 1, slots(1, "cpu", 1)), is_exclusive=True)
    rack = matcher.match(whole, 3)
    assert rack is not None
    assert rack.nodes() == ["n0", "n1"]
    assert matcher.match_now(slots(4, "cpu", 1000), 0).nodes == ("n2", "n3")
    with pytest.raises(InsufficientResources):
        matcher.match(slots(5, "cpu", 1000), 4)


def test_the_table_follows_the_graph() -> None:
    """Nodes that join, leave, go down, shrink, or are used by others. Documents and parts of R."""
    matcher = cluster_graph()
    one = slots(1, "cpu", 2000)
    graph = matcher.graph
    (n0,) = graph.find_path("/cluster0/r0/n0")
    matcher.set_status(n0, is_up=False)
    assert matcher.match_now(one, 0).nodes == ("n1",)
    matcher.set_status(n0, is_up=True)
    matcher.set_foreign(n0 + 1, 1)
    assert matcher.match_now(one, 0).nodes == ("n1",)
    matcher.set_foreign(n0 + 1, 0)
    matcher.resize(n0 + 1, 1999)
    assert matcher.match_now(one, 0).nodes == ("n1",)
    late = NodeFact("n4", "", {"cpu": 9000}, {RACK: "r1"})
    matcher.attach(node_document(graph, late, takes_shares=True))
    assert matcher.match_now(slots(1, "cpu", 9000), 0).nodes == ("n4",)
    found = matcher.match(slots(2, "cpu", 2000), 1)
    assert found is not None
    assert found.nodes() == ["n1", "n2"]
    matcher.remove_subtree(matcher.graph.find_path("/cluster0/r0/n1")[0])
    assert matcher.match_now(slots(4, "cpu", 2000), 0).nodes == ("n3", "n4")
    matcher.cancel(1)
    assert matcher.match_now(one, 0).nodes == ("n2",)


def side_by_side(*kinds: Jobspec, above: str = "") -> Jobspec:
    """Kinds of slots in one request, perhaps on one vertex."""
    tops = tuple(
        replace(top, label=label)
        for kind, label in zip(kinds, "abc", strict=False)
        for top in kind.resources
    )
    if above:
        tops = (Resource(above, Count(1, 1), tops),)
    return replace(kinds[0], resources=tops)


def held(placement: Placement, kind: str) -> dict[str, int]:
    """Units on each node."""
    found: dict[str, int] = {}
    for slot in placement.slots:
        found[slot.node] = found.get(slot.node, 0) + dict(slot.resources)[kind]
    return found


@each_graph
@pytest.mark.parametrize(
    ("above", "expected"),
    [("", {"n0": 2, "n1": 1}), ("rack", {"n0": 2, "n1": 1}), ("node", {"n0": 2})],
)
def test_several_kinds_of_slots(
    make: Make, kind: str, unit: int, above: str, expected: dict[str, int]
) -> None:
    """A launcher beside workers: anywhere, in one rack, on one node. Never one vertex for two."""
    matcher = make()
    workers = 1 if above == "node" else 2
    asked = side_by_side(slots(1, kind, unit), slots(workers, kind, unit), above=above)
    found = matcher.match_now(asked, 0)
    assert held(found, kind) == {node: units * unit for node, units in expected.items()}
    matcher.allocate(1, found)
    assert matcher.match_now(slots(8 - 1 - workers, kind, unit), 0)
    with pytest.raises(InsufficientResources):
        matcher.match_now(slots(8 - workers, kind, unit), 0)
    assert not matcher.is_satisfiable(side_by_side(slots(4, kind, unit), slots(5, kind, unit)))


@each_graph
def test_nodes_of_several_kinds_are_different_ones(make: Make, kind: str, unit: int) -> None:
    """``node -> slot`` beside ``node[3] -> slot``: four nodes, not three."""
    launcher = below("node", 1, slots(1, kind, unit))
    workers = below("node", 3, slots(1, kind, unit))
    asked = replace(launcher, resources=launcher.resources + workers.resources)
    assert set(make().match_now(asked, 0).nodes) == {"n0", "n1", "n2", "n3"}
    one_more = below("node", 4, slots(1, kind, unit))
    too_many = replace(launcher, resources=launcher.resources + one_more.resources)
    assert not make().is_satisfiable(too_many)


@each_graph
def test_without_an_end(make: Make, kind: str, unit: int) -> None:
    """Nothing is planned behind work without an end."""
    matcher = make()
    matcher.allocate(1, matcher.match_now(slots(8, kind, unit, 0.0), 0))
    with pytest.raises(InsufficientResources):
        matcher.match_later(slots(1, kind, unit), 0)
    matcher.cancel(1)
    matcher.allocate(2, matcher.match_now(slots(8, kind, unit), 0))
    matcher.reserve(matcher.match_later(slots(1, kind, unit), 0), 0)
    matcher.cancel(2)
    # What has no end must not take what is promised at some time, however late.
    with pytest.raises(InsufficientResources):
        matcher.match_now(slots(8, kind, unit, 0.0), 0)
    assert matcher.match_now(slots(8, kind, unit), 0)


def test_a_graph_that_ends() -> None:
    """Fluxion's have a last second: what waits for work without a duration is not planned."""
    matcher = FluxionMatcher(graph_from_nodes(facts(), takes_shares=True), "lonode")
    assert matcher.match(slots(8, "cpu", 1000, 0.0), 1) is not None
    with pytest.raises(InsufficientResources, match="no plan says when"):
        matcher.match(slots(1, "cpu", 1000), 2, verb=LATER)


@each_graph
def test_what_overruns_is_planned_to_end_in_growing_steps(make: Make, kind: str, unit: int) -> None:
    """It keeps what it has. Who waits for it is planned behind it, and moves ever less often."""
    matcher = make()
    matcher.allocate(1, matcher.match_now(slots(8, kind, unit), 0))
    one = slots(1, kind, unit)
    for now, start in ((50, 100), (100, 105), (104, 105), (105, 110), (110, 120), (230, 260)):
        matcher.look(now)
        assert matcher.match_later(one, now).starts_at == start
        with pytest.raises(InsufficientResources):
            matcher.match_now(one, now)
    matcher.cancel(1)
    assert matcher.match_now(one, 230)


@each_graph
def test_growth_stays_with_its_siblings(make: Make, kind: str, unit: int) -> None:
    """One slot more goes to the same rack and a node of its own, elsewhere than where it may not,
    and all of the job lasts as long as it."""
    matcher = make()
    asked = below("rack", 1, below("node", 1, slots(1, kind, unit)))
    first = matcher.match_now(asked, 0)
    assert set(first.nodes) == {"n0"}
    matcher.allocate(1, first)
    two = below("rack", 1, below("node", 2, slots(1, kind, unit)))
    more = matcher.match_more(two, first.nodes, 10, 300)
    assert set(more.nodes) == {"n1"}
    with pytest.raises(InsufficientResources):
        matcher.match_more(two, ["n0", "n1"], 10, 300)
    matcher.extend(1, more)
    assert matcher.match_later(slots(8, kind, unit), 10).starts_at == 300
    free = matcher.match_more(slots(1, kind, unit), first.nodes, 10, 300, avoid=["n0", "n1"])
    assert set(free.nodes) == {"n2"}


@each_graph
def test_what_is_tried_is_forgotten(make: Make, kind: str, unit: int) -> None:
    """Promises made and taken back inside are as before afterwards. None is taken for another."""
    matcher = make()
    matcher.allocate(1, matcher.match_now(slots(8, kind, unit), 0))
    promised = [matcher.match_later(slots(4, kind, unit), 0) for _ in range(2)]
    matcher.reserve(promised[0], 0)
    with matcher.trying():
        matcher.unreserve(promised[0])
        all_of_it = matcher.match_later(slots(8, kind, unit), 0)
        assert all_of_it.starts_at == 100
        matcher.reserve(all_of_it, 0)
    assert matcher.match_later(slots(8, kind, unit), 0).starts_at == 200
    second = matcher.match_later(slots(4, kind, unit), 0)
    matcher.reserve(second, 0)
    matcher.unreserve(promised[0])
    third = matcher.match_later(slots(4, kind, unit), 0)
    matcher.reserve(third, 0)
    matcher.unreserve(second)
    matcher.unreserve(third)
    assert matcher.match_later(slots(8, kind, unit), 0).starts_at == 100


@pytest.mark.parametrize(
    ("asked", "never", "busy"),
    [
        (slots(9, "core", 1), "needs 9 core; there are 8", "needs 9 core; there are 6 free"),
        (slots(1, "gpu", 2), "needs 2 gpu; there is 1", "needs 2 gpu; there is 1 free"),
        (
            below("node", 2, slots(1, "core", 3)),
            "0 of 4 node vertices have 3 core; 2 are needed",
            "0 of 4 node vertices have 3 free core; 2 are needed",
        ),
        (
            below("rack", 2, below("node", 1, slots(2, "core", 2))),
            "0 of 4 node vertices have 4 core; 2 are needed",
            "needs 8 core; there are 6 free",
        ),
        (
            below("rack", 2, below("node", 2, slots(1, "core", 2))),
            "each part of it fits, but not all together",
            "needs 8 core; there are 6 free",
        ),
        (
            below("rack", 2, slots(3, "core", 1)),
            "each part of it fits, but not all together",
            "1 of 2 rack vertices has 3 free core; 2 are needed",
        ),
        (
            below("cluster", 1, below("node", 1, slots(1, "core", 3))),
            "0 of 4 node vertices have 3 core; 1 is needed",
            "0 of 4 node vertices have 3 free core; 1 is needed",
        ),
        (
            below("cluster", 2, slots(1, "core", 1)),
            "needs 2 cluster; there is 1",
            "needs 2 cluster; there is 1 free",
        ),
    ],
)
def test_why_not_on_vertices(asked: Jobspec, never: str, busy: str) -> None:
    """Which type is short, or on how many of a level: on the empty graph, and now that two cores
    are taken."""
    with_a_gpu = [*facts()[:3], NodeFact("n3", "", {"cpu": 2000, GPU: 1}, {RACK: "r1"})]
    matcher = FluxionMatcher(graph_from_nodes(with_a_gpu), "lonode", end=FOREVER)
    matcher.allocate(1, matcher.match_now(slots(2, "core", 1), 0))
    assert why_not(matcher.by_vertices, asked, None) == never
    assert why_not(matcher.by_vertices, asked, 0) == busy


def test_an_unknown_type_of_vertices_is_named() -> None:
    """A cluster's graph answers for cpu and memory, whatever its vertices are called."""
    with pytest.raises(InvalidJobspec, match="no resource of type"):
        cluster_graph().match(slots(1, "fpga", 1), 1)


@pytest.mark.parametrize("make", [nodes, cluster_graph, walked_graph])
def test_slots_of_next_to_nothing_do_not_become_billions(make: Make) -> None:
    """Open counts end somewhere. What is fixed is refused, or never fits, beyond a million."""
    matcher = make()
    crumbs = Resource("slot", Count(1, UNLIMITED), (Resource("cpu", Count(1, 1)),), label="s")
    found = matcher.match_now(Jobspec(1, (crumbs,), (), 100.0), 0)
    assert sum(dict(slot.resources)["cpu"] for slot in found.slots) == 8000, "all that there is"
    for fact in facts():
        big = replace(fact, name=f"big-{fact.name}", capacity={"cpu": 1 << 33})
        if make is nodes:
            matcher.set_node(big, {})
        else:
            matcher.attach(node_document(matcher.graph, big, takes_shares=True))
    found = matcher.match_now(Jobspec(1, (crumbs,), (), 100.0), 0)
    assert sum(dict(slot.resources)["cpu"] for slot in found.slots) == 10_000
    too_many = slots(1_000_001, "cpu", 1)
    if make is nodes:
        assert not matcher.is_satisfiable(too_many)
        assert "more than 1,000,000 slots" in why_never(matcher.by_shares, too_many)
    else:
        with pytest.raises(InvalidJobspec, match="more than 1,000,000 slots"):
            matcher.match(too_many, 1)
