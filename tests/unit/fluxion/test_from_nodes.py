"""Kubernetes nodes as a Flux graph: levels, whole units, status, labels."""

from __future__ import annotations

from collections import Counter

import pytest

from fluxion.match.search import SearchVerb
from fluxion.matcher import FluxionMatcher
from fluxion.model.from_nodes import graph_from_nodes
from fluxqueue.errors import InvalidGraph, Unsatisfiable
from fluxqueue.fluxjob.levels import Level
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.jobspec import Count, Jobspec, Resource

ZONE, RACK = "topology.kubernetes.io/zone", "topology.kubernetes.io/rack"


def test_levels_and_units() -> None:
    """Nodes stand below their zone and rack, or below *unknown* where a label is missing. Parts of
    a core or of a memory granule are left out."""
    graph = graph_from_nodes(
        [
            NodeFact(
                "b1", "1", {"cpu": 2500, "nvidia.com/gpu": 1}, labels={ZONE: "z2", RACK: "r1"}
            ),
            NodeFact("a1", "2", {"cpu": 1000, "memory": 5 << 30}, labels={ZONE: "z1"}),
            NodeFact("c1", "3", {"cpu": 500}),
        ],
        memory_granule_bytes=2 << 30,
    )
    paths = {graph.path(v): graph.rank[v] for v in range(len(graph))}
    assert {p: r for p, r in paths.items() if r >= 0 and p[-2:] in ("b1", "a1", "c1")} == {
        "/cluster0/z2/r1/b1": 0,
        "/cluster0/z1/unknown/a1": 1,
        "/cluster0/unknown/c1": 2,
    }
    assert [p for p in paths if p.startswith("/cluster0/z2/r1/b1/")] == [
        "/cluster0/z2/r1/b1/core0",
        "/cluster0/z2/r1/b1/core1",
        "/cluster0/z2/r1/b1/gpu0",
    ]
    assert sum("/a1/memory" in p for p in paths) == 2
    assert not any("/c1/" in p for p in paths)


def test_racks_of_one_name_in_two_zones_are_two() -> None:
    """A place is its whole path. A level that no node is labelled for is not there."""
    graph = graph_from_nodes(
        [
            NodeFact(f"n{i}", str(i), {"cpu": 1000}, labels={ZONE: f"z{i % 2}", RACK: "r1"})
            for i in range(4)
        ]
    )
    kinds = Counter(graph.type_name(v) for v in range(len(graph)))
    assert (kinds["zone"], kinds["rack"], kinds["region"], kinds["unknown"]) == (2, 2, 0, 0)
    racks = [graph.path(v) for v in range(len(graph)) if graph.type_name(v) == "rack"]
    assert racks == ["/cluster0/z0/r1", "/cluster0/z1/r1"]
    slot = Resource("slot", Count(3, 3), (Resource("core", Count(1, 1)),), label="s")
    with pytest.raises(Unsatisfiable):
        FluxionMatcher(graph, "lonode").match(
            Jobspec(9999, (Resource("rack", Count(1, 1), (slot,)),)),
            1,
            verb=SearchVerb.SATISFIABILITY,
        )


def test_unknown_is_no_rack() -> None:
    """Nodes without a label do not share a rack: two of them, and one rack of one node."""
    facts = [NodeFact(f"n{i}", str(i), {"cpu": 1000}) for i in range(2)]
    facts.append(NodeFact("r", "r", {"cpu": 1000}, labels={RACK: "r1"}))
    matcher = FluxionMatcher(graph_from_nodes(facts), "lonode")
    slot = Resource("slot", Count(2, 2), (Resource("core", Count(1, 1)),), label="s")
    rack = Jobspec(9999, (Resource("rack", Count(1, 1), (slot,)),))
    with pytest.raises(Unsatisfiable):
        matcher.match(rack, 1, verb=SearchVerb.SATISFIABILITY)
    assert matcher.match(Jobspec(9999, (slot,)), 1) is not None


def test_cordoned_and_unready_nodes_are_down() -> None:
    """Neither is matched, both count for satisfiability. Labels are properties."""
    graph = graph_from_nodes(
        [
            NodeFact("n0", "0", {"cpu": 1000}, is_up=False),
            NodeFact("n1", "1", {"cpu": 1000}, is_schedulable=False),
            NodeFact("n2", "2", {"cpu": 1000}, labels={"arch": "arm"}),
        ]
    )
    matcher = FluxionMatcher(graph, "lonode")
    slot = Resource("slot", Count(1, 1), (Resource("core", Count(1, 1)),), label="s")
    found = matcher.match(Jobspec(1, (slot,), duration_s=1.0), 1)
    assert found is not None
    assert found.nodes() == ["n2"]
    assert matcher.by_vertices.nodes_up == 1
    assert graph.properties[graph.find_path("/cluster0/n2")[0]] == {"arch": "arm"}


def test_refusals() -> None:
    """Two nodes of one name and rank cannot be, nor a node of a million cores."""
    with pytest.raises(InvalidGraph, match="units of core"):
        graph_from_nodes([NodeFact("n", "1", {"cpu": 1_000_000_000})])
    with pytest.raises(InvalidGraph, match="deeper"):
        graph_from_nodes(
            [NodeFact("n", "1", {"cpu": 1000}, labels={f"l{i}": "x" for i in range(120)})],
            levels=tuple(Level(f"l{i}", ()) for i in range(120)),
        )
