"""Nodes that join, leave and change are taken in without compiling the graph again, and every
answer afterwards is that of a graph that was."""

from __future__ import annotations

import copy

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from fluxion.formats.jgf import JgfDocument, JgfVertex
from fluxion.match.search import SearchVerb
from fluxion.matcher import FluxionMatcher
from fluxion.model.builder import Vertex, vertex_of
from fluxion.model.store import ResourceGraph
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.parse import parse_jobspec
from tests.property.graph_strategies import graphs, jobspecs
from tests.support.matcher_verbs import VERBS, answer


@st.composite
def joining_nodes(draw: st.DrawFn, graph: ResourceGraph, rack: int, number: int) -> JgfDocument:
    """A subgraph: the rack, everything above it, and one node more below it."""
    document = JgfDocument()
    v = rack
    while v >= 0:
        vertex = vertex_of(graph, v)
        vertex.path = graph.path(v)
        document.vertices.append(JgfVertex(str(graph.uniq_id[v]), vertex))
        if graph.parent[v] >= 0:
            ends = str(graph.uniq_id[graph.parent[v]]), str(graph.uniq_id[v])
            document.edges.append(ends)
        v = graph.parent[v]
    uniq_id = 5000 + 100 * number
    node = Vertex("node", id=100 + number, uniq_id=uniq_id, rank=100 + number)
    node.basename, node.path = "node", f"{graph.path(rack)}/node{node.id}"
    node.is_up = draw(st.integers(0, 4)) > 0
    node.properties = draw(st.sampled_from([{}, {"fast": ""}]))
    document.vertices.append(JgfVertex(str(uniq_id), node))
    document.edges.append((str(graph.uniq_id[rack]), str(uniq_id)))
    is_consumable = "memory" in {graph.types[kind] for kind in graph.consumable}
    below = [("core", 1)] * draw(st.integers(1, 5))
    if is_consumable:
        below += [("memory", draw(st.integers(1, 7)))]
    for i, (kind, size) in enumerate(below):
        part = Vertex(kind, id=i, uniq_id=uniq_id + 1 + i, basename=kind, size=size)
        part.path, part.is_consumable = f"{node.path}/{kind}{i}", kind == "memory"
        document.vertices.append(JgfVertex(str(part.uniq_id), part))
        document.edges.append((str(uniq_id), str(part.uniq_id)))
    return document


class Pair:
    """The same history on two matchers: updated in place, and compiled anew each time."""

    def __init__(self, graph: ResourceGraph, policy: str) -> None:
        self.both = (
            FluxionMatcher(graph, policy),
            FluxionMatcher(copy.deepcopy(graph), policy, use_reference=True),
        )
        self.fast, self.slow = self.both

    def find(self, path: str) -> list[tuple[FluxionMatcher, int]]:
        return [(matcher, matcher.graph.find_path(path)[0]) for matcher in self.both]

    def paths(self, kind: str) -> list[str]:
        graph = self.fast.graph
        return [graph.path(v) for v in graph.postorder() if graph.type_name(v) == kind]


def change(pair: Pair, step: str, number: int, data: st.DataObject) -> None:
    """One change of the cluster, to both."""
    if step == "join":
        graph = pair.fast.graph
        racks = [graph.find_path(path)[0] for path in pair.paths("rack")]
        document = data.draw(joining_nodes(graph, data.draw(st.sampled_from(racks)), number))
        for matcher in pair.both:
            matcher.attach(copy.deepcopy(document))
    elif step == "leave" and len(pair.paths("node")) > 1:
        for matcher, v in pair.find(data.draw(st.sampled_from(pair.paths("node")))):
            matcher.remove_subtree(v)
    elif step == "status":
        path = data.draw(st.sampled_from(pair.paths("node") + pair.paths("rack")))
        is_up = data.draw(st.booleans())
        for matcher, v in pair.find(path):
            matcher.set_status(v, is_up=is_up)
    elif step in ("resize", "foreign") and pair.fast.graph.consumable and pair.paths("memory"):
        path, units = data.draw(st.sampled_from(pair.paths("memory"))), data.draw(st.integers(0, 7))
        for matcher, v in pair.find(path):
            (matcher.resize if step == "resize" else matcher.set_foreign)(v, units)


@pytest.mark.parametrize("policy", ["low", "lonode", "hinodex", "first", "firstnodex"])
@settings(max_examples=8, deadline=None, suppress_health_check=list(HealthCheck))
@given(graph=graphs(), data=st.data())
def test_updated_graphs_answer_as_compiled_ones(
    policy: str, graph: ResourceGraph, data: st.DataObject
) -> None:
    """Same R, same refusals, same sums, through joins, leaves, statuses, sizes and use by others
    between matches and cancels."""
    pair = Pair(graph, policy)
    fast, slow = pair.both
    pool = data.draw(st.lists(jobspecs(), min_size=1, max_size=3))
    steps = ["match"] * 5 + ["cancel", "join", "join", "leave", "status", "resize", "foreign"]
    for job in range(1, data.draw(st.integers(4, 20))):
        step = data.draw(st.sampled_from(steps))
        note(f"{job}: {step}")
        if step == "match":
            jobspec, verb = data.draw(st.sampled_from(pool)), data.draw(st.sampled_from(VERBS))
            note(f"{verb} {jobspec}")
            assert answer(fast, jobspec, job, 0, verb) == answer(slow, jobspec, job, 0, verb)
        elif step == "cancel" and fast.state.bookings:
            gone = data.draw(st.sampled_from(sorted(fast.state.bookings)))
            fast.cancel(gone)
            slow.cancel(gone)
        else:
            change(pair, step, job, data)
        assert fast.by_vertices.nodes_up == slow.by_vertices.nodes_up
    totals = [
        {
            (m.graph.path(v), m.graph.types[kind]): total
            for v, planner in m.state.planners.items()
            for kind, total in zip(planner.types, planner.totals, strict=True)
            if total
        }
        for m in pair.both
    ]
    assert totals[0] == totals[1]
    for jobspec in pool:
        verb = SearchVerb.WITHOUT_ALLOCATING_FUTURE
        assert answer(fast, jobspec, 900, 0, verb) == answer(slow, jobspec, 900, 0, verb)


def test_a_node_joins_without_compiling() -> None:
    """The graph object stays, and so do the numbers of what was there."""
    from fluxion.formats.node_document import node_document
    from fluxion.model.from_nodes import graph_from_nodes
    from fluxqueue.fluxjob.node import NodeFact

    facts = [NodeFact(f"n{i}", str(i), {"cpu": 2000}) for i in range(3)]
    matcher = FluxionMatcher(graph_from_nodes(facts))
    graph, before = matcher.graph, list(matcher.graph.postorder())
    matcher.attach(node_document(graph, NodeFact("n3", "3", {"cpu": 3000})))
    assert matcher.graph is graph
    assert set(before) < set(graph.postorder())
    assert graph.path(graph.blocks[3].base) == "/cluster0/n3"
    assert matcher.by_vertices.nodes_up == 4
    matcher.remove_subtree(graph.find_path("/cluster0/n3")[0])
    assert list(graph.postorder()) == before
    assert graph.find_path("/cluster0/n3") == []


def test_a_reservation_knows_a_node_that_joined_and_was_booked() -> None:
    """The table of reservations was made before the node joined, and moves to another time."""
    from fluxion.formats.node_document import node_document
    from fluxion.model.from_nodes import graph_from_nodes
    from fluxqueue.fluxjob.node import NodeFact

    def one_core(duration_s: int) -> Jobspec:
        slot = "{type: slot, count: 1, label: a, with: [{type: core, count: 1}]}"
        return parse_jobspec(
            f"{{version: 9999, resources: [{slot}], tasks: [],"
            f" attributes: {{system: {{duration: {duration_s}}}}}}}"
        )

    matcher = FluxionMatcher(graph_from_nodes([NodeFact("n0", "0", {"cpu": 1000})]))
    later = SearchVerb.ALLOCATE_ORELSE_RESERVE
    assert matcher.match(one_core(10), 1, now=0, verb=SearchVerb.ALLOCATE).at == 0
    assert matcher.match(one_core(10), 2, now=0, verb=later).at == 10
    matcher.attach(node_document(matcher.graph, NodeFact("n1", "1", {"cpu": 1000})))
    assert matcher.match(one_core(15), 3, now=0, verb=SearchVerb.ALLOCATE).nodes() == ["n1"]
    assert matcher.match(one_core(10), 4, now=0, verb=later).at == 15
