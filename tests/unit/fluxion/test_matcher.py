"""The matcher by example: verbs, policies, time, growth, restart."""

from __future__ import annotations

import pytest

from fluxion.formats.jgf import parse_jgf
from fluxion.formats.rv1 import parse_rv1
from fluxion.formats.writers import write
from fluxion.ledger.resource_set import ResourceSet
from fluxion.match.search import GRAPH_END, SearchVerb
from fluxion.matcher import FluxionMatcher
from fluxion.model.builder import GraphBuilder, Vertex
from fluxion.model.from_nodes import graph_from_nodes
from fluxion.model.store import ResourceGraph
from fluxqueue.errors import (
    InsufficientResources,
    InvalidInput,
    InvalidJobspec,
    InvalidSettings,
    Unsatisfiable,
)
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.graph.match.policy import parse_policy
from fluxqueue.jobspec import Constraint, Count, Jobspec, NodeDemand, Resource


def cluster(*cores: int, racks: int = 1) -> ResourceGraph:
    """Nodes with so many cores, dealt out to racks in order."""
    per_rack = -(-len(cores) // racks)
    return graph_from_nodes(
        NodeFact(
            f"node{i}",
            f"uid{i}",
            {"cpu": count * 1000},
            labels={"topology.kubernetes.io/rack": f"rack{i // per_rack}", "even" if i % 2 == 0 else
                    "odd": "yes"},
        )
        for i, count in enumerate(cores)
    )  # fmt: skip


def slots(cores: int, count: int = 1, duration_s: float = 10.0, **more: object) -> Jobspec:
    core = Resource("core", Count(cores, cores))
    slot = Resource("slot", Count(count, count), (core,), label="default")
    return Jobspec(1, (slot,), duration_s=duration_s, **more)  # type: ignore[arg-type]


def nodes(count: int, cores: int, *, whole: bool = False, duration_s: float = 10.0) -> Jobspec:
    inner = slots(cores).resources
    node = Resource("node", Count(count, count), inner, is_exclusive=True if whole else None)
    return Jobspec(1, (node,), duration_s=duration_s)


def given(found: ResourceSet | None) -> list[str]:
    assert found is not None
    return found.nodes()


def test_busy_and_never_are_different() -> None:
    """EBUSY now, ENODEV never. Plain allocate does not look ahead, so it only says busy."""
    matcher = FluxionMatcher(cluster(4, 4), "lonode")
    matcher.match(slots(4, 2), 1)
    with pytest.raises(InsufficientResources):
        matcher.match(slots(1), 2)
    with pytest.raises(InsufficientResources):
        matcher.match(slots(1), 2, verb=SearchVerb.ALLOCATE_WITH_SATISFIABILITY)
    with pytest.raises(Unsatisfiable):
        matcher.match(slots(5), 2, verb=SearchVerb.ALLOCATE_WITH_SATISFIABILITY)
    with pytest.raises(InsufficientResources):
        matcher.match(slots(5), 2)
    with pytest.raises(Unsatisfiable):
        matcher.match(nodes(3, 1), 2, verb=SearchVerb.ALLOCATE_ORELSE_RESERVE)
    assert matcher.match(slots(4, 2), 2, verb=SearchVerb.SATISFIABILITY) is None
    assert list(matcher.state.bookings) == [1]


def test_reservations_are_conservative() -> None:
    """Each reservation starts when the earlier ones allow it, and cancelling one frees its time."""
    matcher = FluxionMatcher(cluster(4), "first")
    matcher.match(slots(4, duration_s=100), 1)
    starts = []
    for job in (2, 3, 4):
        found = matcher.match(slots(3, duration_s=50), job, verb=SearchVerb.ALLOCATE_ORELSE_RESERVE)
        assert found is not None
        starts.append((found.at, found.is_reserved))
    assert starts == [(100, True), (150, True), (200, True)]
    matcher.cancel(3)
    found = matcher.match(slots(2, duration_s=50), 5, verb=SearchVerb.ALLOCATE_ORELSE_RESERVE)
    assert found is not None
    assert found.at == 150


def test_time_passes() -> None:
    """At a later now, what has ended by plan is free for the future. An overrunning allocation
    still blocks the present."""
    matcher = FluxionMatcher(cluster(2), "lonode")
    matcher.match(slots(2, duration_s=10), 1)
    with pytest.raises(InsufficientResources):
        matcher.match(slots(2), 2, now=9)
    with pytest.raises(InsufficientResources):
        matcher.match(slots(2), 2, now=20)
    matcher.cancel(1)
    found = matcher.match(slots(2), 2, now=20)
    assert found is not None
    assert (found.at, found.end, found.is_reserved) == (20, 30, False)


def test_duration_is_rounded_up_and_bounded() -> None:
    """Fractions round up, 0 is the graph's lifetime, more than that is refused."""
    matcher = FluxionMatcher(cluster(3), "low")
    one = matcher.match(slots(1, duration_s=0.2), 1)
    forever = matcher.match(slots(1, duration_s=0), 2)
    assert one is not None
    assert forever is not None
    assert (one.end, forever.end) == (1, GRAPH_END)
    with pytest.raises(InvalidJobspec, match="lifetime"):
        matcher.match(slots(1, duration_s=GRAPH_END + 1.0), 3)


def test_a_request_that_holds_nothing_is_refused() -> None:
    """No slot and nothing exclusive: Fluxion fails with a random errno, here it is explained."""
    shared = Jobspec(1, (Resource("node", Count(1, 1), (Resource("core", Count(1, 1)),)),))
    matcher = FluxionMatcher(cluster(2), "first")
    with pytest.raises(InvalidJobspec, match="held exclusively"):
        matcher.match(shared, 1)
    with pytest.raises(InvalidJobspec, match="no resource of type 'fpga'"):
        matcher.match(Jobspec(1, (Resource("fpga", Count(1, 1)),)), 1)
    assert not matcher.state.bookings


def test_a_job_holds_one_thing() -> None:
    """A job id is booked once. Cancelling what is not there is refused."""
    matcher = FluxionMatcher(cluster(4), "first")
    matcher.match(slots(1), 1)
    with pytest.raises(InvalidInput, match="already"):
        matcher.match(slots(1), 1)
    with pytest.raises(InvalidInput, match="holds nothing"):
        matcher.cancel(9)


@pytest.mark.parametrize(
    ("policy", "first", "second"),
    [
        ("lonode", ["node0"], ["node0"]),
        ("hinode", ["node3"], ["node3"]),
        ("lonodex", ["node0"], ["node1"]),
        # The rack of node3 was touched, so the other rack comes first.
        ("first", ["node3"], ["node1"]),
        ("pack", ["node1"], ["node1"]),
        ("spread", ["node2"], ["node0"]),
    ],
)
def test_policies_choose_nodes(policy: str, first: list[str], second: list[str]) -> None:
    """Two slots one after the other on nodes of 5, 2, 8 and 4 cores."""
    matcher = FluxionMatcher(cluster(5, 2, 8, 4, racks=2), policy)
    assert given(matcher.match(slots(1), 1)) == first
    # spread: 7 of 8 cores are left on node2, so it is still the emptiest. Take 4 more.
    if policy == "spread":
        matcher.match(slots(4), 9)
    assert given(matcher.match(slots(1), 2)) == second


def test_pack_uses_the_fewest_nodes_and_spread_the_most() -> None:
    """Four slots: pack finds the one node that holds all, spread takes four nodes."""
    graph = cluster(3, 9, 4, 3)
    assert given(FluxionMatcher(graph, "pack").match(slots(1, 4), 1)) == ["node2"]
    assert given(FluxionMatcher(graph, "spread").match(slots(1, 4), 1)) == [
        "node0", "node1", "node2", "node3"]  # fmt: skip
    assert given(FluxionMatcher(graph, "pack").match(slots(1, 12), 1)) == ["node0", "node1"]


@pytest.mark.parametrize(("policy", "node"), [("pack", "node3"), ("spread", "node2")])
def test_occupancy_decides_below_named_racks_too(policy: str, node: str) -> None:
    """A request that names the rack goes the reference way, with the same preference."""
    graph = cluster(4, 4, 6, 6, racks=2)
    matcher = FluxionMatcher(graph, policy)
    matcher.match(slots(4), 1, policy="hinode")
    inner = nodes(1, 1).resources
    rack = Resource("rack", Count(1, 1), inner)
    matcher.set_status(graph.parent[graph.blocks[0].base], is_up=False)
    assert given(matcher.match(Jobspec(1, (rack,), duration_s=10.0), 2)) == [node]


def test_one_level_may_be_left_out_inside() -> None:
    """node -> slot -> core on nodes with sockets: Fluxion finds the cores and cannot book them."""
    builder = GraphBuilder()
    kinds = ["cluster", "node", "socket", "core", "core", "socket", "core"]
    for number, kind in enumerate(kinds):
        builder.add(Vertex(kind, id=number, uniq_id=number, rank=0 if kind == "node" else -1))
    for source, target in [(0, 1), (1, 2), (2, 3), (2, 4), (1, 5), (5, 6)]:
        builder.connect(source, target)
    for use_reference in (False, True):
        matcher = FluxionMatcher(builder.build(), "low", use_reference=use_reference)
        found = matcher.match(nodes(1, 2), 1)
        assert found is not None
        assert dict(found.vertices()) == {3: True, 4: True, 2: False, 1: False, 0: False}


def test_policy_per_request() -> None:
    """The policy may come with the request. An unknown one is refused."""
    matcher = FluxionMatcher(cluster(4, 4, 4), "lonode")
    assert given(matcher.match(slots(1), 1, policy="hinode")) == ["node2"]
    assert given(matcher.match(slots(1), 2)) == ["node0"]
    assert given(matcher.match(slots(1), 3, policy="policy=high node_centric=true")) == ["node2"]
    with pytest.raises(InvalidSettings):
        matcher.match(slots(1), 4, policy="fastest")


@pytest.mark.parametrize("text", ["", "policy=middle", "node_centric=true", "policy=low x=true"])
def test_bad_policies(text: str) -> None:
    """Custom strings need policy=high or low and known options."""
    with pytest.raises(InvalidSettings):
        parse_policy(text)


def test_custom_policy_is_the_named_one() -> None:
    """lonodex written out."""
    custom = parse_policy("policy=low node_centric=true node_exclusive=true")
    named = parse_policy("lonodex")
    assert (custom.is_high, custom.is_node_centric, custom.is_node_exclusive) == (
        named.is_high, named.is_node_centric, named.is_node_exclusive)  # fmt: skip


def test_constraints_and_properties() -> None:
    """A node property decides. Set-property is seen by the next match."""
    matcher = FluxionMatcher(cluster(2, 2, 2), "lonode")
    odd = slots(1, where=NodeDemand(Constraint("properties", ("odd",))))
    fast = slots(1, where=NodeDemand(Constraint("properties", ("fast",))))
    assert given(matcher.match(odd, 1)) == ["node1"]
    with pytest.raises(InsufficientResources):
        matcher.match(fast, 2)
    matcher.set_property(matcher.graph.find_path(_path(matcher.graph, "node2"))[0], "fast", "1")
    assert given(matcher.match(fast, 2)) == ["node2"]


def _path(graph: ResourceGraph, name: str) -> str:
    return next(graph.path(v) for v in range(len(graph)) if graph.name(v) == name)


def test_status_hides_and_shows() -> None:
    """A node or rack that is down is not matched, but counts for satisfiability."""
    matcher = FluxionMatcher(cluster(2, 2, racks=2), "lonode")
    graph = matcher.graph
    rack = graph.parent[graph.find_path(_path(graph, "node0"))[0]]
    matcher.set_status(rack, is_up=False)
    assert matcher.by_vertices.nodes_up == 1
    assert given(matcher.match(slots(1), 1)) == ["node1"]
    for verb in (
        SearchVerb.ALLOCATE,
        SearchVerb.ALLOCATE_WITH_SATISFIABILITY,
        SearchVerb.ALLOCATE_ORELSE_RESERVE,
    ):
        for request in (slots(2, 2), nodes(2, 1)):
            with pytest.raises(InsufficientResources):
                matcher.match(request, 2, verb=verb)
            assert matcher.match(request, 2, verb=SearchVerb.SATISFIABILITY) is None
    matcher.set_status(rack, is_up=True)
    assert given(matcher.match(slots(2), 2)) == ["node0"]


def test_growth_counts_at_once() -> None:
    """After an attachment a two-node job fits. Fluxion 0.54 calls it unsatisfiable."""
    matcher = FluxionMatcher(cluster(2), "lonode")
    with pytest.raises(Unsatisfiable):
        matcher.match(nodes(2, 1), 1, verb=SearchVerb.ALLOCATE_WITH_SATISFIABILITY)
    matcher.match(slots(1), 1)
    small = FluxionMatcher(cluster(2), "lonode").graph
    text = write(_whole(cluster(2, 3)), "jgf")
    matcher.attach(parse_jgf(text))
    assert len(matcher.graph) == len(small) + 4
    found = matcher.match(nodes(2, 1), 2, verb=SearchVerb.ALLOCATE_WITH_SATISFIABILITY)
    assert given(found) == ["node0", "node1"]
    assert list(matcher.state.bookings) == [1, 2]
    matcher.remove_ranks([1])
    assert len(list(matcher.graph.postorder())) == len(small)
    with pytest.raises(InsufficientResources):
        matcher.match(slots(1), 3)
    matcher.cancel(2)
    assert given(matcher.match(slots(1), 3)) == ["node0"]


def _whole(graph: ResourceGraph) -> ResourceSet:
    return FluxionMatcher(graph).find("status=up")


def test_restart_books_r_again() -> None:
    """R as JGF or as rv1exec, laid on a fresh matcher, holds the same cores. Twice is refused."""
    graph = cluster(4, 4)
    found = FluxionMatcher(graph, "lonode").match(slots(3), 7)
    assert found is not None
    for document in (parse_jgf(write(found, "jgf")),):
        fresh = FluxionMatcher(graph, "lonode")
        fresh.update(fresh.read_given(document), 7, at=0, duration_s=10)
        assert fresh.state.bookings[7] == found.booking
        with pytest.raises(InvalidInput, match="held by another job"):
            fresh.update(fresh.read_given(document), 8, at=5, duration_s=10)
        assert given(fresh.match(slots(4), 9)) == ["node1"]


def test_giving_a_part_back() -> None:
    """Partial cancel by ranks frees that node. The last part ends the job."""
    matcher = FluxionMatcher(cluster(2, 2), "lonode")
    matcher.match(slots(2, 2), 1)
    part = parse_rv1(b'{"version": 1, "execution": {"R_lite": [{"rank": "0"}]}}', needs_hosts=False)
    assert not matcher.cancel_part(1, part)
    assert given(matcher.match(slots(2), 2)) == ["node0"]
    rest = parse_rv1(b'{"version": 1, "execution": {"R_lite": [{"rank": "1"}]}}', needs_hosts=False)
    assert matcher.cancel_part(1, rest)
    assert list(matcher.state.bookings) == [2]


@pytest.mark.parametrize(
    ("expression", "count"),
    [
        ("status=up", 8),
        ("sched-now=allocated", 4),
        ("names=node[0-1]", 4),
        ("property=even", 3),
        ("jobid-alloc=1 and status=up", 4),
        ("jobid-reserved=1 or status=down", 0),
        ("(property=even or property=odd) names=node0", 3),
    ],
)
def test_find(expression: str, count: int) -> None:
    """Vertices that fit, and everything above them: cluster, rack, 2 nodes of 2 cores."""
    matcher = FluxionMatcher(cluster(2, 2), "lonode")
    matcher.match(slots(1), 1)
    assert len(list(matcher.find(expression).vertices())) == count


@pytest.mark.parametrize(
    "expression",
    [
        "",
        "status",
        "status=x",
        "(status=up",
        "status=up)",
        "and",
        "jobid-tag=x",
        "names=a[",
        "(" * 60,
    ],
)
def test_find_refuses(expression: str) -> None:
    """Expressions that cannot be read are typed errors."""
    with pytest.raises(InvalidInput):
        FluxionMatcher(cluster(1)).find(expression)


def test_the_log_of_changes_is_shortened() -> None:
    """Many matches without a rebuild: the log of changes is shortened and answers stay right."""
    matcher = FluxionMatcher(cluster(*[4] * 30), "lonode")
    slow = FluxionMatcher(matcher.graph, "lonode", use_reference=True)
    matcher.by_vertices.fast.max_log = 50
    for job in range(100):
        assert given(matcher.match(slots(1), job)) == given(slow.match(slots(1), job))
        if job % 3 == 0:
            matcher.cancel(job)
            slow.cancel(job)
    assert len(matcher.state.log) < 60
