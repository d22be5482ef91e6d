"""The vectorised path and the reference walk give the same answers, whatever happened before."""

from __future__ import annotations

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from fluxqueue.errors import FluxQueueError
from fluxqueue.graph.formats.writers import write
from fluxqueue.graph.ledger.resource_set import ResourceSet
from fluxqueue.graph.match.matcher import Matcher, Verb
from fluxqueue.graph.model.store import ResourceGraph
from fluxqueue.jobspec import Jobspec
from tests.property.graph_strategies import (
    EARLY_POLICIES,
    STATIC_POLICIES,
    graphs,
    jobspecs,
    wild_jobspecs,
)

VERBS = [
    Verb.ALLOCATE,
    Verb.ALLOCATE,
    Verb.ALLOCATE_ORELSE_RESERVE,
    Verb.ALLOCATE_WITH_SATISFIABILITY,
    Verb.WITHOUT_ALLOCATING,
    Verb.SATISFIABILITY,
]


def answer(matcher: Matcher, jobspec: Jobspec, job: int, now: int, verb: Verb) -> str:
    """What a match gave, as text that can be compared."""
    try:
        found = matcher.match(jobspec, job, now=now, verb=verb)
    except FluxQueueError as failure:
        return f"{type(failure).__name__}"
    return "satisfiable" if found is None else f"{found.at} {found.end}\n{write(found, 'simple')}"


@pytest.mark.parametrize("policy", [*STATIC_POLICIES, *EARLY_POLICIES, "pack", "spread"])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(graph=graphs(), data=st.data())
def test_both_paths_agree(policy: str, graph: ResourceGraph, data: st.DataObject) -> None:
    """Same text of R, same kind of refusal, through matches, cancels, status and time."""
    fast = Matcher(graph, policy)
    slow = Matcher(graph, policy, use_reference=True)
    pool = data.draw(st.lists(jobspecs(), min_size=1, max_size=3))
    now = 0
    for job in range(1, data.draw(st.integers(6, 24))):
        step = data.draw(st.sampled_from(["match"] * 7 + ["cancel", "cancel", "time", "status"]))
        if step == "cancel" and fast.state.bookings:
            gone = data.draw(st.sampled_from(sorted(fast.state.bookings)))
            fast.cancel(gone)
            slow.cancel(gone)
        elif step == "time":
            now += data.draw(st.integers(1, 7))
        elif step == "status":
            v = data.draw(st.integers(1, len(graph) - 1))
            is_up = v in graph.down
            fast.set_status(v, is_up=is_up)
            slow.set_status(v, is_up=is_up)
            slow.by_vertices.nodes_up = fast.by_vertices.nodes_up  # one graph, two counters
        else:
            jobspec, verb = data.draw(st.sampled_from(pool)), data.draw(st.sampled_from(VERBS))
            note(f"{job} at {now}: {verb} {jobspec}")
            assert answer(fast, jobspec, job, now, verb) == answer(slow, jobspec, job, now, verb)
    assert fast.by_vertices.order.weights == slow.by_vertices.order.weights
    assert fast.state.bookings == slow.state.bookings


@pytest.mark.parametrize("policy", ["lonode", "hinodex", "first", "high"])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(graph=graphs(), wild=st.lists(wild_jobspecs, min_size=1, max_size=4), data=st.data())
def test_wild_requests_are_answered_alike(
    policy: str, graph: ResourceGraph, wild: list[Jobspec], data: st.DataObject
) -> None:
    """Senseless request trees: the same R or the same typed refusal, and no vertex given twice."""
    fast = Matcher(graph, policy)
    slow = Matcher(graph, policy, use_reference=True)
    for job, jobspec in enumerate(wild * 2, start=1):
        verb = data.draw(st.sampled_from(VERBS))
        note(f"{verb} {jobspec}")
        assert answer(fast, jobspec, job, 0, verb) == answer(slow, jobspec, job, 0, verb)
    held: set[int] = set()
    shared: set[int] = set()
    for booking in fast.state.bookings.values():
        if booking.at == 0:
            mine = {v for v, own in ResourceSet(graph, booking).vertices() if own}
            assert not mine & held
            assert not mine & shared
            assert not booking.shares.keys() & held
            held |= mine
            shared |= booking.shares.keys()
