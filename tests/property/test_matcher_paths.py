"""The vectorised path and the reference walk give the same answers, whatever happened before."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import TypeVar

import pytest
from hypothesis import HealthCheck, given, note, settings
from hypothesis import strategies as st

from fluxion.ledger.resource_set import ResourceSet
from fluxion.matcher import FluxionMatcher
from fluxion.model.store import ResourceGraph
from fluxqueue.errors import FluxQueueError
from fluxqueue.graph.ledger.placement import FOREVER, Placement
from fluxqueue.jobspec import Jobspec
from tests.property.graph_strategies import (
    EARLY_POLICIES,
    STATIC_POLICIES,
    graphs,
    jobspecs,
    wild_jobspecs,
)
from tests.support.matcher_verbs import VERBS, answer


@pytest.mark.cases_long("the other match policies")
@pytest.mark.parametrize("policy", [*STATIC_POLICIES, *EARLY_POLICIES, "pack", "spread"])
@settings(max_examples=25, deadline=None, suppress_health_check=list(HealthCheck))
@given(graph=graphs(), data=st.data())
def test_both_paths_agree(policy: str, graph: ResourceGraph, data: st.DataObject) -> None:
    """Same text of R, same kind of refusal, through matches, cancels, status and time."""
    fast = FluxionMatcher(graph, policy)
    slow = FluxionMatcher(graph, policy, use_reference=True)
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


@pytest.mark.parametrize("policy", ["lonode", "hinodex", "low", "pack", "spread"])
@settings(max_examples=30, deadline=None, suppress_health_check=list(HealthCheck))
@given(graph=graphs(), data=st.data())
def test_both_paths_agree_on_the_cycles_verbs(
    policy: str, graph: ResourceGraph, data: st.DataObject
) -> None:
    """Promises, unlimited durations, overrun, growth, partial release, several kinds of slots: the
    same bookings on both sides after each step, and nothing is given twice."""
    both = [
        FluxionMatcher(graph, policy, end=FOREVER, use_reference=is_slow)
        for is_slow in (False, True)
    ]
    pool = data.draw(st.lists(jobspecs(), min_size=2, max_size=4))
    now = 0
    held: dict[int, tuple[Jobspec, list[Placement]]] = {}
    for job in range(1, data.draw(st.integers(4, 16))):
        step = data.draw(st.sampled_from(["ask"] * 5 + ["cancel", "shrink", "grow", "time"]))
        asked = data.draw(st.sampled_from(pool))
        if data.draw(st.integers(0, 2)) == 0:
            more = data.draw(st.sampled_from(pool))
            asked = replace(asked, resources=asked.resources + more.resources)
        asked = replace(asked, duration_s=data.draw(st.sampled_from([0.0, 5.0, 10.0])))
        there = data.draw(st.sampled_from(sorted(held))) if held else 0
        note(f"{job} at {now}: {step} {there} {asked}")
        if step == "time":
            now += data.draw(st.integers(1, 20))
            for matcher in both:
                matcher.clear_plan()
                matcher.look(now)
        elif step == "ask":
            found = same(both, lambda matcher: matcher.match_now(asked, now))  # noqa: B023
            for matcher, one in zip(both, found, strict=False):
                matcher.allocate(job, one)
                held[job] = asked, found
            if not found and same(both, lambda matcher: matcher.is_satisfiable(asked)):  # noqa: B023
                found = same(both, lambda matcher: matcher.match_later(asked, now))  # noqa: B023
                for matcher, one in zip(both, found, strict=False):
                    matcher.reserve(one, now)
        elif there and step == "cancel":
            assert [matcher.cancel(there) for matcher in both] == [True, True]
            del held[there]
        elif there and step == "shrink":
            for matcher, one in zip(both, held[there][1], strict=True):
                matcher.shrink(there, one)
        elif there:
            request, (first, _) = held[there]
            found = same(both, lambda m: m.match_more(request, first.nodes, now, first.until))  # noqa: B023
            for matcher, one in zip(both, found, strict=False):
                matcher.extend(there, one)
        assert both[0].state.bookings == both[1].state.bookings
        check_nothing_twice(both[0])


T = TypeVar("T")


def same(both: list[FluxionMatcher], question: Callable[[FluxionMatcher], T]) -> list[T]:
    """The answers of both, which are alike. None where they refuse alike."""
    answers: list[T] = []
    refusals: list[type] = []
    for matcher in both:
        try:
            answers.append(question(matcher))
        except FluxQueueError as refusal:
            refusals.append(type(refusal))
    assert len(refusals) in {0, 2}
    assert len(set(refusals)) <= 1
    assert all(plain(one) == plain(answers[0]) for one in answers)
    return answers


def plain(answer: object) -> object:
    """What may be compared: in which order nodes are listed says nothing."""
    if not isinstance(answer, Placement):
        return answer
    return sorted(answer.slots, key=str), sorted(answer.held), answer.starts_at, answer.vertices


def check_nothing_twice(matcher: FluxionMatcher) -> None:
    """A job that holds a vertex exclusively shares it with no other as long as both are there."""
    bookings = list(matcher.state.bookings.values())
    for i, one in enumerate(bookings):
        mine = {v for v, own in ResourceSet(matcher.graph, one).vertices() if own}
        for other in bookings[i + 1 :]:
            if one.overlaps(other.at, other.end):
                theirs = {v for v, own in ResourceSet(matcher.graph, other).vertices() if own}
                assert not mine & theirs


@pytest.mark.parametrize("policy", ["lonode", "hinodex", "first", "high"])
@settings(max_examples=60, deadline=None, suppress_health_check=list(HealthCheck))
@given(graph=graphs(), wild=st.lists(wild_jobspecs, min_size=1, max_size=4), data=st.data())
def test_wild_requests_are_answered_alike(
    policy: str, graph: ResourceGraph, wild: list[Jobspec], data: st.DataObject
) -> None:
    """Senseless request trees: the same R or the same typed refusal, and no vertex given twice."""
    fast = FluxionMatcher(graph, policy)
    slow = FluxionMatcher(graph, policy, use_reference=True)
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
