"""One edge in every state, edges together, and what users read."""

from __future__ import annotations

import pytest

from fluxqueue.fluxjob.dependency import (
    DependencyKind,
    DependencyOutcome,
    Edge,
    Target,
    judge,
    outcome,
)
from fluxqueue.fluxjob.states import FluxJobState

K, S = DependencyKind, FluxJobState
YES, NEVER = DependencyOutcome.SATISFIED, DependencyOutcome.NEVER
ENDINGS = {
    K.AFTEROK: {
        S.COMPLETED: YES,
        S.FAILED: NEVER,
        S.CANCELLED: NEVER,
    },
    K.AFTERNOTOK: {
        S.COMPLETED: NEVER,
        S.FAILED: YES,
        S.CANCELLED: YES,
    },
    K.AFTERANY: dict.fromkeys((S.COMPLETED, S.FAILED, S.CANCELLED), YES),
    K.SINGLETON: dict.fromkeys((S.COMPLETED, S.FAILED, S.CANCELLED), YES),
    K.AFTER: dict.fromkeys((S.COMPLETED, S.FAILED, S.CANCELLED), NEVER),
}


def edge(kind: DependencyKind, state: FluxJobState, *, has_started: bool = False) -> Edge:
    """An edge to job 7, named a."""
    return Edge(kind, "a", Target(7, state, has_started))


@pytest.mark.parametrize("kind", K)
def test_each_kind_waits_for_an_end_of_its_own(kind: DependencyKind) -> None:
    """Whatever waits or is placed is waited for. Each end starts the job, or never will."""
    for state in S:
        expected = ENDINGS[kind].get(state, DependencyOutcome.WAITING)
        if kind is K.AFTER and state is S.RUNNING:
            expected = DependencyOutcome.SATISFIED
        assert outcome(edge(kind, state)) is expected, state


@pytest.mark.parametrize("state", S)
def test_after_is_satisfied_by_what_has_started(state: FluxJobState) -> None:
    """However it went on."""
    assert outcome(edge(K.AFTER, state, has_started=True)) is DependencyOutcome.SATISFIED


def test_satisfied_stays_satisfied_and_unknown_is_told() -> None:
    """A target that was forgotten since does not matter. One that never was does."""
    assert outcome(Edge(K.AFTEROK, "a", None, is_satisfied=True)) is DependencyOutcome.SATISFIED
    assert judge([Edge(K.AFTEROK, "a")]).reason == "depends on a, which does not exist yet"
    assert judge([Edge(K.SINGLETON, "a")]).reason == ""


def test_every_edge_must_be_satisfied_and_the_first_hopeless_one_is_named() -> None:
    """With the way out."""
    done, runs = edge(K.AFTEROK, S.COMPLETED), edge(K.AFTEROK, S.RUNNING)
    failed = edge(K.AFTEROK, S.FAILED)
    assert judge([done]).reason == ""
    assert judge([done, runs]).reason == "depends on a (job 7), which is Running"
    verdict = judge([runs, failed, done])
    assert verdict.is_never
    assert verdict.reason.startswith("can never run: afterok:a (job 7 is Failed); submit a new job")


def test_many_edges_make_a_short_reason() -> None:
    """Three are named."""
    reason = judge([Edge(K.AFTEROK, f"x{n}") for n in range(9)]).reason
    assert reason.count("does not exist") == 3
    assert reason.endswith("and 6 more")


def test_a_circle_is_named() -> None:
    """All the way round."""
    verdict = judge([edge(K.AFTERANY, S.PENDING)], ["b", "a", "b"])
    assert verdict.is_never
    assert verdict.reason.startswith("waits for itself: b -> a -> b;")
