"""Writers and readers: what one writes the other reads, and it means the same."""

from __future__ import annotations

import json

import orjson
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fluxion.formats import jgf
from fluxion.formats.export import whole_jgf
from fluxion.formats.jgf import parse_jgf, read_jgf
from fluxion.formats.rv1 import parse_rv1, read_rv1
from fluxion.formats.writers import FORMATS, jgf_document, write
from fluxion.ledger.booking import Booking
from fluxion.ledger.resource_set import ResourceSet
from fluxion.matcher import FluxionMatcher
from fluxion.model.from_nodes import graph_from_nodes
from fluxion.model.store import ResourceGraph
from fluxqueue.errors import FluxQueueError
from fluxqueue.fluxjob.node import NodeFact
from tests.property.graph_strategies import graphs, jobspecs

QUIET = list(HealthCheck)
GPU = "nvidia.com/gpu"


def whole(graph: ResourceGraph) -> ResourceSet:
    """The set of all vertices."""
    blocks = {i: (b.shape.full, b.shape.full) for i, b in enumerate(graph.blocks)}
    return ResourceSet(graph, Booking(1, 0, 10, False, blocks, dict.fromkeys(graph.tops, True)))


def facts(graph: ResourceGraph) -> list[tuple[object, ...]]:
    return sorted(
        (
            graph.path(v), graph.type_name(v), graph.id[v], graph.uniq_id[v], graph.rank[v],
            graph.size[v], graph.units.get(v, ""), graph.type_of[v] in graph.consumable,
            sorted(graph.properties.get(v, {}).items()),
        )
        for v in range(len(graph))
    )  # fmt: skip


@settings(max_examples=60, deadline=None, suppress_health_check=QUIET)
@given(graph=graphs())
def test_jgf_round_trip(graph: ResourceGraph) -> None:
    """A graph written as JGF and read again has the same vertices with the same facts."""
    again = read_jgf(write(whole(graph), "jgf"))
    assert facts(again) == facts(graph)
    assert again.find_path(graph.path(len(graph) - 1))


@settings(max_examples=60, deadline=None, suppress_health_check=QUIET)
@given(graph=graphs(), piece=st.integers(100, 3000), is_compact=st.booleans())
def test_large_documents_read_as_small_ones(
    graph: ResourceGraph, piece: int, is_compact: bool
) -> None:
    """Pieces read as columns give the same graph as the parser, wherever the cuts fall."""
    text = write(whole(graph), "jgf")
    if is_compact:
        text = json.dumps(json.loads(text), separators=(",", ":"))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(jgf, "PIECE_BYTES", piece)
        patch.setattr(jgf, "_read_whole", None)  # must not be needed
        again = read_jgf(text) if len(text) > 2 * piece else None
    assert again is None or facts(again) == facts(graph)


@settings(max_examples=60, deadline=None, suppress_health_check=QUIET)
@given(graph=graphs(), jobspec=jobspecs(), policy=st.sampled_from(["lonode", "hinodex", "first"]))
def test_r_can_be_booked_again(graph: ResourceGraph, jobspec: object, policy: str) -> None:
    """R as JGF, booked on a fresh state (a restart), holds exactly the same vertices."""
    matcher = FluxionMatcher(graph, policy)
    try:
        found = matcher.match(jobspec, 1)  # type: ignore[arg-type]
    except FluxQueueError:
        return
    assert found is not None
    fresh = FluxionMatcher(graph, policy)
    given_again = fresh.read_given(parse_jgf(write(found, "jgf")))
    fresh.update(given_again, 1, at=found.at, duration_s=found.end - found.at)
    assert fresh.state.bookings[1] == found.booking
    assert {v: p.spans for v, p in fresh.state.planners.items()} == {
        v: p.spans for v, p in matcher.state.planners.items()
    }


@settings(max_examples=60, deadline=None, suppress_health_check=QUIET)
@given(graph=graphs(), jobspec=jobspecs())
def test_shorthand_is_shorter_and_means_the_same(graph: ResourceGraph, jobspec: object) -> None:
    """The shorthand form, expanded on the graph, is the booking. It never has more vertices."""
    matcher = FluxionMatcher(graph, "lonodex")
    try:
        found = matcher.match(jobspec, 1)  # type: ignore[arg-type]
    except FluxQueueError:
        return
    assert found is not None
    document = jgf_document(found, is_shorthand=True)
    full = jgf_document(found, is_shorthand=False)
    assert document is not None
    assert full is not None
    assert len(document["graph"]["nodes"]) <= len(full["graph"]["nodes"])
    parsed = parse_jgf(json.dumps(document))
    parsed.is_shorthand = True
    assert matcher.read_given(parsed).booking().blocks == found.booking.blocks


@settings(max_examples=60, deadline=None, suppress_health_check=QUIET)
@given(graph=graphs(), jobspec=jobspecs())
def test_rv1_says_what_is_held(graph: ResourceGraph, jobspec: object) -> None:
    """R_lite has every core, gpu and share of the set on the rank of its node. It can be read."""
    matcher = FluxionMatcher(graph, "lonode")
    try:
        found = matcher.match(jobspec, 1)  # type: ignore[arg-type]
    except FluxQueueError:
        return
    assert found is not None
    text = write(found, "rv1_nosched")
    expected: dict[int, set[tuple[str, int]]] = {}
    for v, _ in found.vertices():
        if graph.type_name(v) in ("core", "gpu"):
            node = graph.blocks[graph.block_of[v]].base
            expected.setdefault(graph.rank[node], set()).add((graph.type_name(v), graph.id[v]))
    units = dict.fromkeys(found.booking.shares, 0)
    for v, is_exclusive in found.vertices():
        if graph.type_of[v] in graph.consumable and (is_exclusive or v in units):
            units[v] = found.booking.shares.get(v, graph.size[v])
            expected.setdefault(graph.rank[graph.blocks[graph.block_of[v]].base], set())
    if not expected:
        assert text == ""
        return
    parsed = parse_rv1(text)
    assert {
        entry.rank: {(kind, number) for kind, ids in entry.children for number in ids}
        for entry in parsed.entries
    } == expected
    assert sorted(
        (entry.rank, kind, number, taken)
        for entry in parsed.entries
        for kind, pools in entry.shares
        for number, taken in pools.items()
    ) == sorted(
        (graph.rank[graph.blocks[graph.block_of[v]].base], graph.type_name(v), graph.id[v], taken)
        for v, taken in units.items()
    )
    assert (parsed.starttime, parsed.expiration) == (found.at, found.end)
    assert len(read_rv1(text)) > len(expected)


@pytest.mark.parametrize("name", list(FORMATS))
@settings(max_examples=10, deadline=None, suppress_health_check=QUIET)
@given(graph=graphs())
def test_every_format_writes_a_whole_graph(name: str, graph: ResourceGraph) -> None:
    """Each writer takes every graph. Text formats have a line per vertex."""
    text = write(whole(graph), name)
    assert text.endswith("\n")
    if name in ("simple", "pretty_simple"):
        assert len(text.splitlines()) == len(graph)
    else:
        json.loads(text)


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
