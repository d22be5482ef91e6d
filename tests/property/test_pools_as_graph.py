"""The cycle's matcher and the graph matcher choose the same nodes for whole-core requests."""

from __future__ import annotations

import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import MatchPolicy, ResourceRequest, SlotRequest
from fluxqueue.graph.export import whole_jgf
from fluxqueue.graph.from_nodes import graph_from_nodes
from fluxqueue.graph.jgf import read_jgf
from fluxqueue.graph.matcher import Matcher
from fluxqueue.graph.pools import PoolSet
from fluxqueue.jobspec import parse_jobspec

CORES = st.lists(st.integers(1, 6), min_size=1, max_size=5)
JOBS = st.lists(st.tuples(st.integers(1, 5), st.integers(1, 4)), min_size=1, max_size=6)


def facts(cores: list[int]) -> list[NodeFact]:
    return [
        NodeFact(name=f"n{i}", uid=str(i), capacity={"cpu": 1000 * n}) for i, n in enumerate(cores)
    ]


def jobspec(count: int, cores: int) -> str:
    return orjson.dumps(
        {
            "version": 1,
            "resources": [
                {
                    "type": "slot",
                    "label": "task",
                    "count": count,
                    "with": [{"type": "core", "count": cores}],
                }
            ],
            "tasks": [{"command": ["app"], "slot": "task", "count": {"per_slot": 1}}],
            "attributes": {"system": {"duration": 3600}},
        }
    ).decode()


@pytest.mark.parametrize("policy", ["lonode", "hinode"])
@settings(deadline=None, max_examples=60)
@given(cores=CORES, jobs=JOBS)
def test_same_nodes_as_the_graph_matcher(
    policy: str, cores: list[int], jobs: list[tuple[int, int]]
) -> None:
    """Slot by slot, job after job, until both say in turn that a job does not fit."""
    nodes = facts(cores)
    pools = PoolSet(MatchPolicy(policy))
    for node in nodes:
        pools.set_node(node, {})
    matcher = Matcher(graph_from_nodes(nodes), policy)
    for number, (count, each) in enumerate(jobs):
        request = ResourceRequest((SlotRequest(count, (("cpu", 1000 * each),)),), duration_s=3600)
        try:
            placement = pools.match_now(request, 0)
        except InsufficientResources:
            with pytest.raises(InsufficientResources):
                matcher.match(parse_jobspec(jobspec(count, each)), number)
            continue
        pools.book(str(number), placement)
        granted = matcher.match(parse_jobspec(jobspec(count, each)), number)
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
    (down,) = graph.find_path("/cluster0/n1")
    assert not graph.is_up(down)
