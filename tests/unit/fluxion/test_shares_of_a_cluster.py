"""Consumable pools by example: what is taken, shown, read back, given back in part."""

from __future__ import annotations

import json

import pytest

from fluxion.formats.jgf import parse_jgf
from fluxion.formats.rv1 import parse_rv1
from fluxion.formats.writers import write
from fluxion.ledger.resource_set import ResourceSet
from fluxion.match.search import SearchVerb
from fluxion.matcher import FluxionMatcher
from fluxion.model.from_nodes import graph_from_nodes
from fluxqueue.errors import InsufficientResources, InvalidGraph, InvalidInput
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.jobspec import Count, Jobspec, Resource


def matcher(*cpu_m: int, policy: str = "lonode") -> FluxionMatcher:
    facts = [NodeFact(f"node{i}", str(i), {"cpu": n, "memory": 1000}) for i, n in enumerate(cpu_m)]
    return FluxionMatcher(graph_from_nodes(facts, takes_shares=True), policy)


def slots(cpu_m: int, memory: int = 0, count: int = 1, duration_s: float = 10.0) -> Jobspec:
    parts = [Resource("cpu", Count(cpu_m, cpu_m))]
    if memory:
        parts.append(Resource("memory", Count(memory, memory)))
    slot = Resource("slot", Count(count, count), tuple(parts), label="default")
    return Jobspec(1, (slot,), duration_s=duration_s)


def booked(found: ResourceSet | None) -> dict[str, int]:
    assert found is not None
    return {found.graph.path(v): units for v, units in found.booking.shares.items()}


def test_shares_add_up_until_nothing_is_left() -> None:
    """Three jobs of 1,500 on nodes of 4,000 and 2,000. The fourth is busy, not impossible."""
    one = matcher(4000, 2000)
    nodes = [one.match(slots(1500), job).nodes() for job in range(3)]  # type: ignore[union-attr]
    assert nodes == [["node0"], ["node0"], ["node1"]]
    with pytest.raises(InsufficientResources):
        one.match(slots(1500), 3)
    one.cancel(0)
    assert booked(one.match(slots(2500), 4)) == {"/cluster0/node0/cpu0": 2500}


def test_a_share_is_reserved_in_time() -> None:
    """What will be free is reserved. A short job fits in front of it, a long one does not."""
    one = matcher(4000)
    one.match(slots(3000, duration_s=100), 1)
    later = one.match(slots(2000, duration_s=50), 2, verb=SearchVerb.ALLOCATE_ORELSE_RESERVE)
    assert later is not None
    assert (later.at, later.is_reserved) == (100, True)
    assert one.match(slots(1000, duration_s=100), 3) is not None
    with pytest.raises(InsufficientResources):
        one.match(slots(1, duration_s=50), 4)


def test_whole_nodes_and_shares_exclude_each_other() -> None:
    """A node on which a share is taken is not free as a whole, and the other way round."""
    one = matcher(4000, 4000)
    one.match(slots(1), 1)
    whole = one.match(slots(1), 2, policy="lonodex")
    assert whole is not None
    assert whole.nodes() == ["node1"]
    assert not whole.booking.shares
    with pytest.raises(InsufficientResources):
        one.match(slots(4000), 3)


def test_how_a_share_is_written() -> None:
    """simple shows the units taken, JGF the share beside the size, R_lite shares by pool."""
    found = matcher(4000).match(slots(1500, memory=10), 1)
    assert found is not None
    assert "cpu0[1500:x]" in write(found, "simple")
    nodes = json.loads(write(found, "jgf"))["graph"]["nodes"]
    cpu = next(n["metadata"] for n in nodes if n["metadata"]["type"] == "cpu")
    assert (cpu["size"], cpu["share"], cpu["exclusive"]) == (4000, 1500, True)
    (entry,) = json.loads(write(found, "rlite"))
    assert entry["shares"] == {"cpu": {"0": 1500}, "memory": {"0": 10}}


@pytest.mark.parametrize("format_name", ["jgf", "rv1_nosched"])
def test_restart_books_shares_again(format_name: str) -> None:
    """An R, read on a fresh matcher, holds the same units. More than is left is refused."""
    found = matcher(4000).match(slots(2500), 7)
    assert found is not None
    text = write(found, format_name)
    fresh = matcher(4000)
    read = parse_jgf if format_name == "jgf" else parse_rv1
    fresh.update(fresh.read_given(read(text)), 7, at=0, duration_s=10)
    assert fresh.state.bookings[7] == found.booking
    with pytest.raises(InvalidInput, match="only 1500 units left"):
        fresh.update(fresh.read_given(read(text)), 8, at=5, duration_s=10)
    assert booked(fresh.match(slots(1500), 9)) == {"/cluster0/node0/cpu0": 1500}


def test_a_part_of_a_share_is_given_back() -> None:
    """Partial cancel by JGF frees the units listed. By ranks it frees all that is there."""
    one = matcher(4000, 4000)
    found = one.match(slots(3000, count=2), 1)
    assert found is not None
    part = json.loads(write(found, "jgf"))
    pools = [n for n in part["graph"]["nodes"] if n["metadata"]["type"] == "cpu"][:1]
    pools[0]["metadata"]["share"] = 1000
    listed = parse_jgf(json.dumps({"graph": {"nodes": pools, "edges": []}}))
    assert not one.cancel_part(1, listed)
    assert sorted(one.state.bookings[1].shares.values()) == [2000, 3000]
    rank = parse_rv1(b'{"version": 1, "execution": {"R_lite": [{"rank": "1"}]}}', needs_hosts=False)
    assert not one.cancel_part(1, rank)
    assert list(one.state.bookings[1].shares.values()) == [2000]
    assert one.match(slots(4000), 2) is not None


def test_size_and_use_by_others_change() -> None:
    """A smaller pool and foreign use leave less. Running jobs keep theirs. Never is not said."""
    one = matcher(4000)
    (cpu,) = one.graph.find_path("/cluster0/node0/cpu0")
    one.match(slots(1000), 1)
    one.set_foreign(cpu, 2000)
    with pytest.raises(InsufficientResources):
        one.match(slots(1500), 2, verb=SearchVerb.ALLOCATE_WITH_SATISFIABILITY)
    one.set_foreign(cpu, 0)
    one.resize(cpu, 2000)
    assert one.match(slots(1000), 2) is not None
    one.resize(cpu, 500)
    assert sum(one.state.bookings[job].shares[cpu] for job in (1, 2)) == 2000
    with pytest.raises(InvalidInput, match="no consumable pool"):
        one.resize(0, 5)
    with pytest.raises(InvalidInput, match="out of range"):
        one.resize(cpu, -1)


@pytest.mark.parametrize("way", ["the walk for a cluster", "the walk", "tables of vertices"])
def test_a_pool_that_others_use_is_not_taken_whole(way: str) -> None:
    """All that a node has of something, where a pod of others has a part of it: not now, and not
    never."""
    facts = [NodeFact(f"node{i}", str(i), {"cpu": 4000}) for i in range(2)]
    graph = graph_from_nodes(facts, takes_shares=True)
    if way == "tables of vertices":
        graph.cluster = None
    one = FluxionMatcher(graph, "lonode", use_reference=way == "the walk")
    all_of_it = Resource("cpu", Count(1, 1), is_exclusive=True)
    asked = Jobspec(1, (Resource("slot", Count(1, 1), (all_of_it,), label="s"),), duration_s=10)
    for number in range(2):
        one.set_foreign(one.graph.find_path(f"/cluster0/node{number}/cpu0")[0], 1 - number)
    found = one.match(asked, 1)
    assert found is not None
    assert found.nodes() == ["node1"]
    with pytest.raises(InsufficientResources):
        one.match(asked, 2)
    assert one.is_satisfiable(asked)


@pytest.mark.parametrize(
    "shares", [[], {"cpu": 3}, {"cpu": {"x": 3}}, {"cpu": {"0": 0}}, {"cpu": {"0": 1.5}}]
)
def test_bad_shares_are_refused(shares: object) -> None:
    """An R with a share that cannot be is a typed error that names the place."""
    lite = [{"rank": "0", "children": {}, "shares": shares}]
    text = json.dumps({"version": 1, "execution": {"R_lite": lite, "nodelist": ["node0"]}})
    with pytest.raises(InvalidGraph, match="shares"):
        parse_rv1(text)


def test_a_consumable_pool_contains_nothing() -> None:
    """Types with children, and types that are not there, cannot be declared."""
    graph = matcher(1000).graph
    for name in ("node", "fpga"):
        with pytest.raises(InvalidGraph):
            graph.declare_consumable([name])
