"""Graph readers against broken and hostile documents: a typed error with place and reason."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fluxion.formats.grug import read_grug
from fluxion.formats.jgf import parse_jgf, read_jgf
from fluxion.formats.rv1 import read_rv1
from fluxion.matcher import FluxionMatcher
from fluxqueue.errors import InvalidGraph


def node(number: int, kind: str, path: str, **more: Any) -> dict[str, Any]:
    meta = {"type": kind, "id": number, "rank": -1, "paths": {"containment": path}, **more}
    return {"id": str(number), "metadata": meta}


def edge(source: int, target: int) -> dict[str, str]:
    return {"source": str(source), "target": str(target)}


def jgf(nodes: list[Any], edges: list[Any]) -> str:
    return json.dumps({"graph": {"nodes": nodes, "edges": edges}})


ROOT = node(0, "cluster", "/cluster0")
ONE = node(1, "node", "/cluster0/node1")
TWO = node(2, "node", "/cluster0/node2")


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not JSON"),
        ("[]", "JGF is an object"),
        ("{}", "graph"),
        ('{"graph": {"nodes": {}, "edges": []}}', "graph.nodes"),
        ('{"graph": {"nodes": []}}', "graph.edges"),
        (jgf([], []), "no vertices"),
        (jgf([ROOT, ONE, ONE], [edge(0, 1)]), "repeats the id"),
        (jgf([ROOT, ONE], [edge(0, 7)]), "not in the graph"),
        (jgf([ROOT, ONE], []), "2 roots"),
        (jgf([ROOT, ONE, TWO], [edge(0, 1), edge(0, 2), edge(1, 2)]), "one other only"),
        (jgf([ROOT, ONE, TWO], [edge(1, 2), edge(2, 1)]), "has a cycle"),
        (jgf([ONE, TWO], [edge(1, 2), edge(2, 1)]), "no root"),
        (jgf([ROOT, ONE], [edge(0, 1), edge(1, 1)]), "one other only"),
        (jgf([ROOT], [edge(0, 0)]), "contains itself"),
        (
            jgf([ROOT, ONE, node(2, "node", "/cluster0/node1", name="node1", id=1)],
                [edge(0, 1), edge(0, 2)]),
            "one path",
        ),
        (jgf([ROOT, {"id": 1}], []), "string 'id'"),
        (jgf([ROOT, {"id": "1"}], []), "graph.nodes[1].metadata"),
        (jgf([ROOT, node(1, "", "/c/x")], [edge(0, 1)]), "type"),
        (jgf([ROOT, node(1, "node", "x")], [edge(0, 1)]), "paths.containment"),
        (jgf([ROOT, node(1, "node", "/c/x", size=-1)], [edge(0, 1)]), "size"),
        (jgf([ROOT, node(1, "node", "/c/x", size=1 << 63)], [edge(0, 1)]), "size"),
        (jgf([ROOT, node(1, "node", "/c/x", rank="0")], [edge(0, 1)]), "rank"),
        (jgf([ROOT, node(1, "node", "/c/x", properties=["a"])], [edge(0, 1)]), "properties"),
        (jgf([ROOT, node(1, "node", "/c/x", exclusive=1)], [edge(0, 1)]), "exclusive"),
        (jgf([ROOT], [7]), "an edge is an object"),
        (jgf([ROOT], [{"source": "0"}]), "source and target"),
        (
            jgf(
                [node(i, "node", "/" + "n/" * i + f"node{i}") for i in range(300)],
                [edge(i, i + 1) for i in range(299)],
            ),
            "deeper than 100",
        ),
        ("[" * 100_000, "not JSON"),
        ('{"graph": ' * 10_000, "not JSON"),
    ],
)  # fmt: skip
def test_jgf_refusals(text: str, words: str) -> None:
    """Broken JSON, missing keys, wrong types, cycles, two roots, dangling edges, one path twice."""
    with pytest.raises(InvalidGraph) as failure:
        read_jgf(text)
    assert words in str(failure.value)


GRUG_HEAD = (
    '<graphml><key id="root" for="node" attr.name="root"><default>0</default></key>'
    '<key id="type" for="node" attr.name="type"/>'
    '<key id="multi_scale" for="edge" attr.name="multi_scale"/>'
    '<key id="gen_method" for="edge" attr.name="gen_method"/>'
)


def grug(scale: str = "2", method: str = "MULTIPLY", target: str = "n") -> str:
    return (
        GRUG_HEAD + '<graph><node id="c"><data key="root">1</data><data key="type">cluster</data>'
        '</node><node id="n"><data key="type">node</data></node>'
        f'<edge source="c" target="{target}"><data key="multi_scale">{scale}</data>'
        f'<data key="gen_method">{method}</data></edge></graph></graphml>'
    )


BOMB = (
    '<!DOCTYPE lolz [<!ENTITY a "x"><!ENTITY b "&a;&a;&a;&a;">]>'
    + GRUG_HEAD
    + '<graph><node id="c"><data key="type">&b;</data></node></graph></graphml>'
)
FILE = '<!DOCTYPE x [<!ENTITY a SYSTEM "file:///etc/passwd">]>' + GRUG_HEAD + "</graphml>"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "not XML"),
        ("<graphml>", "not XML"),
        ("<graphml/>", "no recipe"),
        (BOMB, "document type"),
        (FILE, "document type"),
        ("<a>" * 10_000, "deeper than 16"),
        (grug("x"), "whole number"),
        (grug("-1"), "vertices"),
        (grug("999999999999"), "5000000"),
        (grug(method="DIVIDE"), "unknown method"),
        (grug(target="q"), "unknown node"),
        (grug("0").replace('<data key="root">1</data>', ""), "no vertices"),
        (GRUG_HEAD + '<graph><node id="a"/><node id="a"/></graph></graphml>', "repeated"),
        (GRUG_HEAD + '<graph><node id="a"><data key="z">1</data></node></graph></graphml>', "key"),
    ],
)
def test_grug_refusals(text: str, words: str) -> None:
    """Broken XML, entity and file bombs, depth, wrong numbers, unknown ends."""
    with pytest.raises(InvalidGraph) as failure:
        read_grug(text)
    assert words in str(failure.value)


def test_grug_makes_the_graph() -> None:
    """The recipe that the refusals vary is a good one."""
    graph = read_grug(grug())
    assert [graph.path(v) for v in range(3)] == ["/cluster0", "/cluster0/node0", "/cluster0/node1"]
    assert graph.rank == [-1, 0, 1]


@pytest.mark.parametrize(
    "execution",
    [
        {},
        {"R_lite": [{"rank": "0"}]},
        {"R_lite": [{"rank": "0-3"}], "nodelist": ["a"]},
        {"R_lite": [{"rank": "3-0"}], "nodelist": ["a"]},
        {"R_lite": [{"rank": "0", "children": {"core": 7}}], "nodelist": ["a"]},
        {"R_lite": [{"rank": "0", "children": {"core": "0-99999999"}}], "nodelist": ["a"]},
        {"R_lite": [{"rank": "0"}], "nodelist": ["a["]},
        {"R_lite": [{"rank": "0"}], "nodelist": ["a"], "properties": {"p": 1}},
        {"R_lite": [{"rank": "0"}], "nodelist": ["a"], "starttime": "now"},
    ],
)
def test_rv1_refusals(execution: dict[str, Any]) -> None:
    """R without its parts, with wrong idsets, hostlists and numbers."""
    with pytest.raises(InvalidGraph) as failure:
        read_rv1(json.dumps({"version": 1, "execution": execution}))
    assert failure.value.where


@pytest.mark.parametrize(
    "addition",
    [
        jgf([ROOT, node(5, "node", "/cluster0/node5")], [edge(0, 9)]),
        jgf([ROOT, node(5, "node", "/cluster0/node5")], []),
        jgf([node(5, "cluster", "/other0")], []),
        jgf([ROOT, node(5, "node", "/cluster0/node5"), node(6, "node", "/cluster0/node6")],
            [edge(5, 6), edge(6, 5)]),
    ],
)  # fmt: skip
def test_a_refused_attachment_changes_nothing(addition: str) -> None:
    """Dangling edges, orphans, a second root, a cycle: refused, and the graph is as before."""
    matcher = FluxionMatcher(read_jgf(jgf([ROOT, ONE], [edge(0, 1)])))
    graph, state = matcher.graph, matcher.state
    with pytest.raises(InvalidGraph):
        matcher.attach(parse_jgf(addition))
    assert matcher.graph is graph
    assert matcher.state is state
    assert len(graph) == 2


def test_large_documents_in_pieces_equal_whole_ones(monkeypatch: pytest.MonkeyPatch) -> None:
    """A document read in pieces gives the same graph, also when objects nest like the pieces."""
    nodes = [ROOT] + [node(i, "node", f"/cluster0/node{i}") for i in range(1, 200)]
    nodes += [
        node(i, "core", f"/cluster0/node{i - 200}/core{i}", properties={"id": "}, {"})
        for i in range(201, 400)
    ]
    edges = [edge(0, i) for i in range(1, 200)] + [edge(i - 200, i) for i in range(201, 400)]
    text = jgf(nodes, edges)
    whole = read_jgf(text)
    monkeypatch.setattr("fluxion.formats.jgf.PIECE_BYTES", 500)
    pieces = read_jgf(text)
    assert pieces.all_paths() == whole.all_paths()
    assert pieces.properties == whole.properties
    assert pieces.uniq_id == whole.uniq_id
    with pytest.raises(InvalidGraph, match="not JSON"):
        read_jgf(text[:-40])
