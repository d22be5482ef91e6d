"""Over any levels the cycle's table gives what the walk gives, vertex by vertex.

Random clusters of zones, blocks and racks, some of whose nodes do not say where they stand, are
down, or are used by others; random requests over any of the levels, named or passed over, with
starts and cancels in between. The walk is Fluxion's, on the graph of the same nodes.
"""

from __future__ import annotations

from collections import Counter

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from fluxqueue.errors import InsufficientResources, Unsatisfiable
from fluxqueue.fluxjob.levels import Level
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.graph.ledger.resource_set import ResourceSet
from fluxqueue.graph.match.matcher import Matcher, Verb
from fluxqueue.graph.match.shares.shares_matcher import SharesMatcher
from fluxqueue.graph.model.from_nodes import graph_from_nodes
from fluxqueue.jobspec import Count, Jobspec, Resource

NAMES = ("zone", "block", "rack")
LEVELS = tuple(Level(name, (f"topology.kubernetes.io/{name}",)) for name in NAMES)
POLICIES = ["lonode", "hinode", "lonodex", "hinodex", "pack", "spread"]


@st.composite
def nodes(draw: st.DrawFn) -> list[NodeFact]:
    """Up to eight nodes; a level that one of them lacks stands for an unknown place."""
    found = []
    for number in range(draw(st.integers(2, 8))):
        labels = {
            f"topology.kubernetes.io/{name}": f"{name[0]}{draw(st.integers(0, 1))}"
            for name in NAMES
            if draw(st.integers(0, 9))
        }
        cpu = draw(st.integers(1, 4)) * 1000
        is_up = bool(draw(st.integers(0, 9)))
        found.append(NodeFact(f"n{number}", "", {"cpu": cpu}, labels, is_up=is_up))
    return found


@st.composite
def jobspecs(draw: st.DrawFn) -> Jobspec:
    """Slots, perhaps on nodes of their own, below any of the levels."""
    cpu, count = draw(st.integers(1, 2)) * 1000, draw(st.integers(1, 3))
    top = Resource("slot", Count(count, count), (Resource("cpu", Count(cpu, cpu)),), label="x")
    if draw(st.booleans()):
        count = draw(st.integers(1, 2))
        top = Resource("node", Count(count, count), (top,))
    for name in reversed(NAMES):
        if draw(st.integers(0, 2)) == 0:
            count = draw(st.integers(1, 2))
            top = Resource(name, Count(count, count), (top,))
    return Jobspec(1, (top,), duration_s=10)


def slots_by_node(found: ResourceSet, cpu: int) -> Counter[str]:
    """How many slots each node has been given."""
    graph = found.graph
    return Counter(
        {graph.name(graph.parent[v]): units // cpu for v, units in found.booking.shares.items()}
    )


def cpu_of(resource: Resource) -> int:
    """What one slot takes."""
    while not resource.is_slot:
        (resource,) = resource.with_
    return resource.with_[0].count.minimum


def agree(table: SharesMatcher, walk: Matcher, asked: Jobspec, job: int) -> bool:
    """Ask both; True if both booked."""
    try:
        placement = table.match_now(asked, 0)
    except InsufficientResources:
        refusal = InsufficientResources if table.is_satisfiable(asked) else Unsatisfiable
        with pytest.raises(refusal):
            walk.match(asked, job, verb=Verb.ALLOCATE_WITH_SATISFIABILITY)
        return False
    found = walk.match(asked, job)
    assert found is not None
    note(f"{placement.nodes}, {found.nodes()}")
    if found.booking.shares:
        theirs = slots_by_node(found, cpu_of(asked.resources[0]))
        assert Counter(placement.nodes) == theirs
    else:  # nodes taken whole
        assert set(placement.nodes) == set(found.nodes())
    table.book(str(job), placement)
    return True


@pytest.mark.parametrize("policy", POLICIES)
@settings(deadline=None, max_examples=30, suppress_health_check=list(HealthCheck))
@given(facts=nodes(), data=st.data())
def test_the_same_nodes_over_any_levels(
    policy: str, facts: list[NodeFact], data: st.DataObject
) -> None:
    """Same refusals, same racks, same nodes, same slots on each."""
    table = SharesMatcher(policy, LEVELS)
    for fact in facts:
        table.set_node(fact, {})
    graph = graph_from_nodes(facts, levels=LEVELS, takes_shares=True)
    walk = Matcher(graph, policy, "ALL:cpu,ALL:node", is_cluster=True)
    booked: list[int] = []
    for job in range(data.draw(st.integers(1, 8))):
        if booked and data.draw(st.integers(0, 3)) == 0:
            gone = booked.pop(data.draw(st.integers(0, len(booked) - 1)))
            table.cancel(str(gone))
            walk.cancel(gone)
        asked = data.draw(jobspecs())
        note(f"{job}: {asked.resources}")
        known = all(kind in graph.type_number for kind in asked.types())
        if known and agree(table, walk, asked, job):
            booked.append(job)
