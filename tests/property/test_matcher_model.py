"""The matcher against exhaustive search on small graphs, and its invariants after any history."""

from __future__ import annotations

import itertools
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from fluxion.ledger.resource_set import ResourceSet
from fluxion.ledger.vertices import VertexLedger
from fluxion.match.search import SearchVerb
from fluxion.matcher import FluxionMatcher
from fluxion.model.store import ResourceGraph
from fluxqueue.errors import FluxQueueError, InsufficientResources
from fluxqueue.jobspec import Count, Jobspec, Resource
from tests.property.graph_strategies import (
    EARLY_POLICIES,
    STATIC_POLICIES,
    counts,
    graphs,
    jobspecs,
)

QUIET = list(HealthCheck)
ALL_POLICIES = [*STATIC_POLICIES, *EARLY_POLICIES, "pack", "spread"]


def held(found: ResourceSet) -> set[int]:
    return {v for v, is_exclusive in found.vertices() if is_exclusive}


def free_children(matcher: FluxionMatcher, start: int, end: int) -> dict[int, dict[str, list[int]]]:
    """Free vertices by type below each vertex, found by looking at every booking."""
    graph = matcher.graph
    taken: set[int] = set()
    for booking in matcher.state.bookings.values():
        if booking.overlaps(start, end):
            taken |= held(ResourceSet(graph, booking))
    found: dict[int, dict[str, list[int]]] = {}
    for v in range(1, len(graph)):
        above = graph.parent[v]
        is_free = v not in taken
        while above >= 0 and is_free:
            is_free = above not in taken
            above = graph.parent[above]
        if is_free:
            by_type = found.setdefault(graph.parent[v], {})
            by_type.setdefault(graph.type_name(v), []).append(v)
    return found


def check_no_overlap(state: VertexLedger) -> None:
    """No vertex is held by two jobs at one time, and the planners equal a recount."""
    graph = state.graph
    bookings = list(state.bookings.values())
    for one, other in itertools.combinations(bookings, 2):
        if one.overlaps(other.at, other.end):
            assert not held(ResourceSet(graph, one)) & held(ResourceSet(graph, other))
    check_shares(state)
    for v, planner in state.planners.items():
        for booking in bookings:
            mine = [u for u in held(ResourceSet(graph, booking)) if v < u < graph.end[v]]
            units = {u: graph.size[u] for u in mine}
            units |= {u: n for u, n in booking.shares.items() if v < u < graph.end[v]}
            counts = tuple(
                sum(n for u, n in units.items() if graph.type_of[u] == kind)
                for kind in planner.types
            )
            assert planner.spans.get(booking.job, (0, 0, (0,) * len(counts)))[2] == counts


def check_shares(state: VertexLedger) -> None:
    """Never more units of a pool are taken than it has, and none of a pool that is held whole."""
    graph = state.graph
    bookings = list(state.bookings.values())
    for now in {booking.at for booking in bookings}:
        taken: dict[int, int] = {}
        for booking in bookings:
            if booking.at <= now < booking.end:
                whole = {v: graph.size[v] for v in held(ResourceSet(graph, booking))}
                for v, units in (whole | booking.shares).items():
                    if graph.type_of[v] in graph.consumable:
                        taken[v] = taken.get(v, 0) + units
        assert all(units <= graph.size[v] for v, units in taken.items())


def snapshot(state: VertexLedger) -> list[Any]:
    return [
        [dict(spans) for spans in state.block_spans],
        {v: dict(jobs) for v, jobs in state.top_jobs.items() if jobs},
        {v: (list(p.points), [list(c) for c in p.used], dict(p.spans)) for v, p in
         state.planners.items()},
        {v: dict(jobs) for v, jobs in state.pool_jobs.items() if jobs},
        {t: dict(blocks) for t, blocks in state.events.items()},
        list(state.event_times),
        state.exclusive_tops,
        dict(state.bookings),
    ]  # fmt: skip


def fill(matcher: FluxionMatcher, data: st.DataObject, first: int, count: int) -> list[int]:
    """Match random jobspecs. Returns the jobs that hold something."""
    pool = data.draw(st.lists(jobspecs(), min_size=1, max_size=3))
    booked = []
    for job in range(first, first + count):
        verb = data.draw(st.sampled_from([SearchVerb.ALLOCATE, SearchVerb.ALLOCATE_ORELSE_RESERVE]))
        try:
            matcher.match(data.draw(st.sampled_from(pool)), job, verb=verb)
        except FluxQueueError:
            continue
        booked.append(job)
    return booked


@pytest.mark.cases_long("the other match policies")
@pytest.mark.parametrize("policy", ALL_POLICIES)
@settings(max_examples=15, deadline=None, suppress_health_check=QUIET)
@given(graph=graphs(), data=st.data())
def test_nothing_is_given_twice_and_cancel_restores(
    policy: str, graph: ResourceGraph, data: st.DataObject
) -> None:
    """No overlap in time after any matches. Cancelling them in any order restores the state."""
    matcher = FluxionMatcher(graph, policy)
    fill(matcher, data, 1, 5)
    check_no_overlap(matcher.state)
    before = snapshot(matcher.state)
    booked = fill(matcher, data, 100, 6)
    check_no_overlap(matcher.state)
    for job in data.draw(st.permutations(booked)):
        matcher.cancel(job)
    assert snapshot(matcher.state) == before


@st.composite
def core_slots(draw: st.DrawFn) -> Jobspec:
    size = draw(st.integers(1, 3))
    low = draw(st.integers(1, 3))
    count = draw(st.sampled_from([Count(low, low), Count(low, low + 4, "+", 2)]))
    slot = Resource("slot", count, (Resource("core", Count(size, size)),), label="default")
    return Jobspec(1, (slot,), duration_s=10.0)


@pytest.mark.parametrize("policy", ALL_POLICIES)
@settings(max_examples=20, deadline=None, suppress_health_check=QUIET)
@given(graph=graphs(), data=st.data())
def test_slots_of_cores_match_exhaustive_search(
    policy: str, graph: ResourceGraph, data: st.DataObject
) -> None:
    """All or nothing: a match succeeds exactly if a search of all parents finds enough slots, it
    takes the largest allowed number, and each slot's cores have one parent."""
    matcher = FluxionMatcher(graph, policy)
    fill(matcher, data, 1, data.draw(st.integers(0, 6)))
    jobspec = data.draw(core_slots())
    if policy in ("lonodex", "hinodex", "firstnodex"):
        return  # whole nodes: covered by the comparison of the two paths
    need = jobspec.resources[0].with_[0].count.minimum
    free = free_children(matcher, 0, 10)
    slots = sum(len(by_type.get("core", ())) // need for by_type in free.values())
    wanted = jobspec.resources[0].count.largest_within(slots)
    try:
        found = matcher.match(jobspec, 500)
    except InsufficientResources:
        assert not wanted
        return
    assert found is not None
    cores = held(found)
    if policy == "first":
        assert jobspec.resources[0].count.minimum * need <= len(cores) <= wanted * need
    else:
        assert len(cores) == wanted * need
    parents = [graph.parent[core] for core in cores]
    assert all(parents.count(parent) % need == 0 for parent in parents)
    assert all(core in free[graph.parent[core]]["core"] for core in cores)


@st.composite
def share_slots(draw: st.DrawFn) -> Jobspec:
    parts = [Resource("memory", draw(counts))]
    if draw(st.booleans()):
        parts.append(Resource("core", Count(1, 1)))
    number = draw(st.integers(1, 3))
    slot = Resource("slot", Count(number, number), tuple(parts), label="default")
    return Jobspec(1, (slot,), duration_s=draw(st.sampled_from([5.0, 10.0])))


def units_left(matcher: FluxionMatcher, v: int, start: int, end: int) -> int:
    """Units of a pool that no job takes at any second of a window, by looking at each."""
    graph = matcher.graph
    most = 0
    for now in range(start, end):
        taken = 0
        for booking in matcher.state.bookings.values():
            if booking.at <= now < booking.end:
                is_whole = v in held(ResourceSet(graph, booking))
                taken += graph.size[v] if is_whole else booking.shares.get(v, 0)
        most = max(most, taken)
    return graph.size[v] - most


@pytest.mark.parametrize("policy", ["low", "high", "lonode", "hinode", "first"])
@settings(max_examples=25, deadline=None, suppress_health_check=QUIET)
@given(graph=graphs(), data=st.data())
def test_shares_match_exhaustive_search(
    policy: str, graph: ResourceGraph, data: st.DataObject
) -> None:
    """A slot of units of a consumable pool fits exactly if some parent has them left throughout
    the window. Units of one slot come from the pools of one parent."""
    if not graph.consumable:
        return
    matcher = FluxionMatcher(graph, policy)
    fill(matcher, data, 1, data.draw(st.integers(0, 6)))
    jobspec = data.draw(share_slots())
    slot = jobspec.resources[0]
    end = int(jobspec.duration_s)
    free = free_children(matcher, 0, end)
    slots = 0
    for by_type in free.values():
        if not all(part.type in by_type for part in slot.with_):
            continue
        fitting = []
        for part in slot.with_:
            units = len(by_type[part.type])
            if part.type == "memory":
                units = sum(units_left(matcher, v, 0, end) for v in by_type["memory"])
            each = part.count.largest_within(units)
            fitting.append(units // each if each else 0)
        slots += min(fitting)
    wanted = slot.count.minimum
    try:
        found = matcher.match(jobspec, 500)
    except InsufficientResources:
        assert slots < wanted
        return
    assert slots >= wanted
    assert found is not None
    check_no_overlap(matcher.state)
    parents: dict[int, int] = {}
    for v, units in found.booking.shares.items():
        parents[graph.parent[v]] = parents.get(graph.parent[v], 0) + units
    memory = next(part.count for part in slot.with_ if part.type == "memory")
    assert sum(parents.values()) >= wanted * memory.minimum
    if memory.minimum == memory.maximum:
        assert all(units % memory.minimum == 0 for units in parents.values())
        assert sum(parents.values()) == wanted * memory.minimum


@pytest.mark.parametrize("policy", ["low", "high", "lonode", "hinode"])
@settings(max_examples=20, deadline=None, suppress_health_check=QUIET)
@given(graph=graphs(), data=st.data())
def test_one_slot_is_the_best_of_all(
    policy: str, graph: ResourceGraph, data: st.DataObject
) -> None:
    """For one slot of cores the chosen cores have the best score among all that are possible."""
    matcher = FluxionMatcher(graph, policy)
    fill(matcher, data, 1, data.draw(st.integers(0, 4)))
    need = data.draw(st.integers(1, 3))
    slot = Resource("slot", Count(1, 1), (Resource("core", Count(need, need)),), label="s")
    free = free_children(matcher, 0, 10)

    def score(cores: tuple[int, ...]) -> int:
        node = cores[0]
        while graph.type_name(node) != "node":
            node = graph.parent[node]
        tie = abs(graph.uniq_id[node] % 10000 - 1)
        factor = (graph.id[node] + 2) * 10000 + tie if "node" in policy else 0
        return sum(graph.id[core] + factor for core in cores)

    choices = [
        cores
        for by_type in free.values()
        for cores in itertools.combinations(by_type.get("core", ()), need)
    ]
    try:
        found = matcher.match(Jobspec(1, (slot,), duration_s=10.0), 500)
    except InsufficientResources:
        assert not choices
        return
    assert found is not None
    best = min(map(score, choices)) if policy.startswith("lo") else max(map(score, choices))
    assert score(tuple(sorted(held(found)))) == best


@settings(max_examples=40, deadline=None, suppress_health_check=QUIET)
@given(graph=graphs(), data=st.data())
def test_reservation_is_the_earliest_start(graph: ResourceGraph, data: st.DataObject) -> None:
    """No second before a reservation's start would have done, by the reference walk."""
    matcher = FluxionMatcher(graph, "lonode")
    fill(matcher, data, 1, 8)
    jobspec = data.draw(core_slots())
    try:
        found = matcher.match(jobspec, 500, verb=SearchVerb.WITHOUT_ALLOCATING_FUTURE)
    except FluxQueueError:
        return
    assert found is not None
    for now in range(found.at):
        with pytest.raises(InsufficientResources):
            matcher.match(jobspec, 501, now=now, verb=SearchVerb.WITHOUT_ALLOCATING)
