"""What an observation does to the row of a FluxJob, case by case and over all combinations."""

from __future__ import annotations

import itertools
from dataclasses import replace
from typing import Any

import pytest

from fluxqueue.fluxjob.holders import (
    ANNOTATION,
    AUTHOR,
    BY_COMPLEXITY,
    BY_DEPENDENCY,
    BY_QUARANTINE,
    BY_QUEUE,
    BY_START,
    CHANGED,
    CHANGED_REASON,
    LOST_NODE,
    NOT_STARTED,
    PAUSED,
    SUSPENDED,
)
from fluxqueue.fluxjob.lifecycle import (
    FailedTry,
    Requeued,
    RowChange,
    StoredRow,
    on_first_seen,
    on_requeued,
    on_seen,
)
from fluxqueue.fluxjob.observation import WorkloadSeen
from fluxqueue.fluxjob.states import TRANSITIONS, FluxJobState
from tests.support.rows import workload

S = FluxJobState
BY_ANNOTATION = "held by its annotation fluxqueue/hold"
BY_SUSPENSION = "suspended by its author"
BY_PAUSE = "paused by its author: it waits until spec.parallelism is above 0"


def seen(**facts: Any) -> WorkloadSeen:
    return workload("w", **{"generation": 1, **facts})


def after(
    row: StoredRow, *, needs_look: bool = False, is_reshaped: bool = False, **facts: Any
) -> RowChange:
    return on_seen(row, seen(**facts), needs_look=needs_look, is_reshaped=is_reshaped)


def what(change: RowChange) -> tuple[str, str | None, str]:
    return str(change.state), change.held_by, change.reason


@pytest.mark.parametrize(
    ("facts", "expected", "must_release"),
    [
        ({}, ("Pending", None, ""), False),
        ({"is_suspended": False}, ("Pending", None, ""), True),
        ({"is_suspended": False, "is_suspendable": False}, ("Pending", None, ""), False),
        ({"held_by": AUTHOR}, ("Held", AUTHOR, BY_SUSPENSION), False),
        ({"held_by": AUTHOR, "has_hold": True}, ("Held", AUTHOR, BY_ANNOTATION), False),
        ({"is_paused": True}, ("Held", AUTHOR, BY_PAUSE), False),
        ({"is_paused": True, "has_hold": True}, ("Held", AUTHOR, BY_ANNOTATION), False),
        ({"is_suspended": False, "result": "Failed"}, ("Pending", None, ""), False),
        ({"is_suspended": False, "is_deleting": True}, ("Pending", None, ""), False),
    ],
)
def test_the_first_observation(
    facts: dict[str, Any], expected: tuple[str, str | None, str], must_release: bool
) -> None:
    change = on_first_seen(seen(**facts))
    assert what(change) == expected
    assert change.must_release is must_release
    assert change.must_reconcile is ("result" in facts or "is_deleting" in facts)


@pytest.mark.parametrize("state", [S.GATHERING, S.PENDING, S.RESERVED, S.UNSATISFIABLE])
@pytest.mark.parametrize("hold", [ANNOTATION, SUSPENDED])
def test_a_hold_takes_it_out_of_the_queue_and_back(state: FluxJobState, hold: str) -> None:
    facts = {"has_hold": True} if hold == ANNOTATION else {"held_by": SUSPENDED}
    held = after(StoredRow(state, is_examined=True), **facts)
    reason = BY_ANNOTATION if hold == ANNOTATION else BY_SUSPENSION
    assert what(held) == ("Held", AUTHOR, reason)
    row = StoredRow(S.HELD, reason, AUTHOR, author_hold=held.author_hold, is_examined=True)
    let_in = after(row, is_suspended=hold == ANNOTATION)
    assert what(let_in) == ("Pending", None, "")
    assert not let_in.is_examined


@pytest.mark.parametrize("state", [S.PENDING, S.RESERVED, S.UNSATISFIABLE])
@pytest.mark.parametrize("is_gated", [False, True])
def test_a_pause_takes_it_out_of_the_queue_and_back(state: FluxJobState, is_gated: bool) -> None:
    waits = {"waits_gated": is_gated, "is_suspended": not is_gated, "generation": 2}
    held = after(StoredRow(state, is_examined=True), is_paused=True, **waits)
    assert (what(held), held.author_hold) == (("Held", AUTHOR, BY_PAUSE), PAUSED)
    raised = after(StoredRow(S.HELD, BY_PAUSE, AUTHOR, author_hold=PAUSED), **waits)
    assert (what(raised), raised.author_hold) == (("Pending", None, ""), None)


@pytest.mark.parametrize("state", [S.ALLOCATED, S.RUNNING])
@pytest.mark.parametrize("is_suspended", [True, False])
def test_a_pause_ends_the_pods_of_what_was_released(
    state: FluxJobState, is_suspended: bool
) -> None:
    """Also if the observation is older than the release, which then has to be taken back."""
    paused = after(StoredRow(state), is_paused=True, is_suspended=is_suspended, generation=2)
    assert (paused.state, paused.author_hold, paused.vacate_by) == (state, PAUSED, PAUSED)
    assert (paused.must_release, paused.reason) == (
        True,
        "paused by its author: its slots return as its pods end",
    )
    leaving = StoredRow(state, vacate_by=PAUSED, author_hold=PAUSED)
    assert not after(leaving, is_paused=True, is_suspended=True, generation=3).must_release
    assert after(leaving, is_suspended=True, generation=3).author_hold is None, "raised again"


def test_what_its_author_resumes_and_pauses_at_once_does_not_run() -> None:
    row = StoredRow(S.RUNNING, released_generation=2, vacate_by=AUTHOR, author_hold=SUSPENDED)
    paused = after(row, is_paused=True, is_suspended=False, generation=4)
    assert (paused.author_hold, paused.vacate_by, paused.must_release) == (PAUSED, PAUSED, True)


@pytest.mark.parametrize("by", [PAUSED, "bob", None])
def test_a_paused_job_is_held_after_its_pods_have_ended(by: str | None) -> None:
    is_asked = by == "bob"
    assert on_requeued(PAUSED, by) == Requeued(S.HELD, AUTHOR, BY_PAUSE, is_asked=is_asked)


@pytest.mark.parametrize("is_gated", [False, True])
def test_a_suspension_by_its_author_outlives_a_pause(is_gated: bool) -> None:
    row = StoredRow(S.HELD, BY_SUSPENSION, AUTHOR, author_hold=SUSPENDED)
    for is_paused in (True, False):
        still = after(row, is_paused=is_paused, waits_gated=is_gated, generation=4)
        assert (what(still), still.author_hold) == (("Held", AUTHOR, BY_SUSPENSION), SUSPENDED)


def test_a_users_hold_outlives_the_authors() -> None:
    row = StoredRow(S.HELD, "held by bob", "bob")
    held = after(row, has_hold=True)
    assert what(held) == ("Held", "bob", "held by bob")
    assert held.author_hold == ANNOTATION
    assert what(after(replace(row, author_hold=ANNOTATION))) == ("Held", "bob", "held by bob")


@pytest.mark.parametrize("by", [BY_QUEUE, BY_DEPENDENCY])
def test_another_hold_stays_until_its_cause_ends(by: str) -> None:
    assert what(after(StoredRow(S.HELD, "why", by))) == ("Held", by, "why")


@pytest.mark.parametrize("by", [BY_COMPLEXITY, BY_QUARANTINE])
def test_another_request_ends_quarantine(by: str) -> None:
    row = StoredRow(S.HELD, "is set aside", by, is_examined=True)
    same = after(row)
    assert what(same) == ("Held", by, "is set aside")
    assert not same.leaves_quarantine
    other = after(replace(row, is_same_request=False))
    assert what(other) == ("Pending", None, "")
    assert other.leaves_quarantine
    assert not other.is_examined
    # A hold by the author counts, whatever else changes in the same moment.
    held = after(replace(row, is_same_request=False), has_hold=True)
    assert what(held) == ("Held", AUTHOR, BY_ANNOTATION)


@pytest.mark.parametrize("state", [S.ALLOCATED, S.RUNNING])
def test_its_author_suspends_and_resumes_what_was_released(state: FluxJobState) -> None:
    row = StoredRow(state, released_generation=2)
    ours = after(row, generation=2)
    assert ours.vacate_by is None
    again = after(row, generation=3, is_suspended_again=True)
    assert again.vacate_by is None
    stopped = after(row, generation=3)
    assert (stopped.vacate_by, stopped.author_hold) == (AUTHOR, SUSPENDED)
    assert stopped.reason == f"{BY_SUSPENSION}; goes back to the queue as its pods end"
    leaving = replace(row, vacate_by=AUTHOR, author_hold=SUSPENDED, reason=stopped.reason)
    resumed = after(leaving, generation=4, is_suspended=False)
    assert (resumed.vacate_by, resumed.released_generation, resumed.reason) == (None, 4, "")
    assert not resumed.must_release


@pytest.mark.parametrize("vacate_by", [None, AUTHOR])
def test_an_edit_between_suspending_and_resuming_needs_a_new_decision(
    vacate_by: str | None,
) -> None:
    row = StoredRow(S.RUNNING, released_generation=2, vacate_by=vacate_by, is_same_request=False)
    change = after(row, generation=5, is_suspended=False, is_reshaped=vacate_by is None)
    assert (change.vacate_by, change.reason) == (CHANGED, CHANGED_REASON)
    assert (change.must_release, change.must_reconcile) == (True, True)


def test_pods_that_are_larger_than_their_template_are_placed_again() -> None:
    """Before one of them is bound. What waits, or vacates already, only asks for more."""
    row = StoredRow(S.ALLOCATED, released_generation=2, is_same_request=False)
    change = after(row, generation=2, is_suspended=False, growth="1 cpu")
    assert change.vacate_by == CHANGED
    assert change.reason == (
        "each of its pods asks for 1 cpu more than its template, so it is placed again"
    )
    assert (change.must_release, change.must_reconcile) == (True, True)
    right = replace(row, is_same_request=True)
    assert after(right, generation=2, is_suspended=False, growth="1 cpu").vacate_by is None
    waiting = replace(row, state=S.PENDING, released_generation=None)
    assert after(waiting, growth="1 cpu").vacate_by is None
    leaving = replace(row, vacate_by="bob")
    assert after(leaving, generation=3, growth="1 cpu").vacate_by == "bob"


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"wanted": 2, "running": 1}, False),
        ({"wanted": 2, "running": 2}, True),
        ({"wanted": 0, "running": 0}, False),
    ],
)
def test_it_has_started_when_all_of_its_pods_run(facts: dict[str, Any], expected: bool) -> None:
    """Once it has started it stays so until it is requeued."""
    row = StoredRow(S.RUNNING, released_generation=2)
    assert after(row, generation=2, is_suspended=False, **facts).is_started is expected
    assert after(replace(row, is_started=True), generation=2, **facts).is_started
    assert not after(replace(row, vacate_by="bob", is_started=True), generation=2).is_started
    assert not after(replace(row, state=S.PENDING), wanted=1, running=1).is_started


@pytest.mark.parametrize("author_hold", [None, SUSPENDED])
def test_a_start_that_failed_is_tried_again_or_held(author_hold: str | None) -> None:
    """Its author's hold goes before."""
    again = on_requeued(author_hold, NOT_STARTED, FailedTry(1, 3, "words"))
    last = on_requeued(author_hold, NOT_STARTED, FailedTry(3, 3, "words"))
    if author_hold is not None:
        assert (again.held_by, last.held_by) == (AUTHOR, AUTHOR)
        return
    assert (again.state, again.delay_s, again.is_asked) == (S.PENDING, 10, False)
    assert (last.state, last.held_by, last.delay_s) == (S.HELD, BY_START, 0)
    assert last.reason == "its pods did not start in 3 tries: words"


@pytest.mark.parametrize("vacate_by", ["bob", "job 7", CHANGED])
def test_what_is_requeued_is_suspended_again_when_its_author_resumes_it(vacate_by: str) -> None:
    row = StoredRow(S.RUNNING, released_generation=2, vacate_by=vacate_by)
    assert after(row, generation=3, is_suspended=False).must_release
    assert not after(row, generation=2, is_suspended=False).must_release


def test_an_observation_from_before_the_release_keeps_the_node() -> None:
    row = StoredRow(S.ALLOCATED, released_generation=3, pinned_to="n1")
    assert after(row, generation=2).pinned_to == "n1"
    assert after(row, generation=3).pinned_to is None


def test_the_first_look_after_the_release_notes_its_generation() -> None:
    assert after(StoredRow(S.ALLOCATED), is_suspended=False, generation=4).released_generation == 4
    assert (
        after(StoredRow(S.ALLOCATED), is_suspended=True, generation=4).released_generation is None
    )
    assert after(StoredRow(S.PENDING), is_suspended=False, generation=4).released_generation is None


def test_how_it_ended_is_kept_while_it_is_deleted() -> None:
    row = StoredRow(S.RUNNING, released_generation=1, result="Completed")
    assert after(row, is_deleting=True).result == "Completed"
    assert after(row, is_deleting=True, result="Failed").result == "Failed"
    # Restarted by its controller: a result that is seen no more never was its end.
    assert after(row).result is None


@pytest.mark.parametrize("changed", ["is_same_request", "is_same_turn"])
def test_what_changes_its_turn_is_examined_anew(changed: str) -> None:
    row = StoredRow(S.PENDING, is_examined=True)
    assert after(row).is_examined
    assert not after(replace(row, **{changed: False})).is_examined
    found = after(StoredRow(S.UNSATISFIABLE, "no node", is_examined=True, is_same_request=False))
    assert what(found) == ("Pending", None, "")


@pytest.mark.parametrize(
    ("vacate_by", "reason", "is_asked"),
    [
        (None, "a node it was given is lost", False),
        (LOST_NODE, "a node it was given is lost", False),
        (PAUSED, "paused by its author, and continued before its pods had ended", False),
        (CHANGED, CHANGED_REASON, False),
        ("bob", "requeued by bob", True),
        ("job 7", "preempted for job 7", True),
    ],
)
def test_how_what_was_requeued_waits(vacate_by: str | None, reason: str, is_asked: bool) -> None:
    assert on_requeued(None, vacate_by) == Requeued(S.PENDING, None, reason, is_asked)
    for hold, its_reason in ((ANNOTATION, BY_ANNOTATION), (SUSPENDED, BY_SUSPENSION)):
        assert on_requeued(hold, vacate_by) == Requeued(S.HELD, AUTHOR, its_reason, is_asked)


def test_no_observation_leads_where_no_transition_goes() -> None:
    """All states, holds, vacations and facts that matter: 240,000 combinations."""
    rows = itertools.product(
        S,
        [None, AUTHOR, BY_DEPENDENCY, BY_QUARANTINE, "bob"],
        [None, AUTHOR, CHANGED, "bob"],
        [None, 2],
        [True, False],
    )
    flags = (
        *("is_suspended", "has_hold", "is_deleting", "is_suspendable", "is_suspended_again"),
        "is_paused",
    )
    facts = [
        seen(**dict(zip(flags, bits, strict=True)), held_by=held_by, generation=generation)
        for bits in itertools.product([True, False], repeat=len(flags))
        for held_by, generation in ((None, 3), (AUTHOR, 1))
    ]
    for state, held_by, vacate_by, released_generation, is_same in rows:
        row = StoredRow(
            state,
            held_by=held_by,
            vacate_by=vacate_by,
            released_generation=released_generation,
            is_same_request=is_same,
        )
        for one in facts:
            change = on_seen(row, one, needs_look=False, is_reshaped=not is_same)
            assert change.state is state or change.state in TRANSITIONS[state]
            # What its author holds never waits in the queue.
            assert not (change.author_hold and change.state in {S.PENDING, S.RESERVED})
            if state.is_final:
                assert (change.must_reconcile, change.must_release) == (False, False)


@pytest.mark.parametrize(
    ("facts", "state", "must_release"),
    [
        ({"is_suspended": False}, "Pending", False),
        # Suspended at its admission, and asked to wait gated since.
        ({"is_suspended": True, "generation": 1}, "Pending", True),
        # Suspended for a requeue.
        ({"is_suspended": True, "generation": 5, "is_suspended_again": True}, "Pending", True),
        # Suspended by its author.
        ({"is_suspended": True, "generation": 5}, "Held", False),
        ({"is_suspended": True, "generation": 5, "is_deleting": True}, "Held", False),
    ],
)
def test_what_waits_with_gated_pods_is_resumed_while_it_waits(
    facts: dict[str, Any], state: str, must_release: bool
) -> None:
    """A suspension is its author's, unless fluxqueue has made it."""
    change = after(StoredRow(S.PENDING), waits_gated=True, **facts)
    assert str(change.state) == state
    assert change.must_release is must_release


def test_the_author_of_gated_pods_takes_a_hold_back() -> None:
    """It waits again, without any help."""
    held = StoredRow(S.HELD, held_by=AUTHOR, author_hold=SUSPENDED)
    change = after(held, waits_gated=True, is_suspended=False, generation=6)
    assert what(change) == ("Pending", None, "")
    assert not change.must_release


@pytest.mark.parametrize(
    ("facts", "expected", "must_release"),
    [
        ({"is_suspended": False}, ("Pending", None, ""), False),
        ({"is_suspended": True, "generation": 1}, ("Pending", None, ""), True),
        (
            {"is_suspended": True, "generation": 4, "is_suspended_again": True},
            ("Pending", None, ""),
            True,
        ),
        # Suspended by its author before the controller saw it, or while no controller ran.
        ({"is_suspended": True, "generation": 2}, ("Held", AUTHOR, BY_SUSPENSION), False),
        (
            {"is_suspended": True, "generation": 2, "has_hold": True},
            ("Held", AUTHOR, BY_ANNOTATION),
            False,
        ),
        (
            {"is_suspended": True, "generation": 3, "is_paused": True},
            ("Held", AUTHOR, BY_SUSPENSION),
            False,
        ),
    ],
)
def test_the_first_observation_of_gated_pods(
    facts: dict[str, Any], expected: tuple[str, str | None, str], must_release: bool
) -> None:
    """It is resumed, and not suspended, unless its author has suspended it."""
    change = on_first_seen(seen(waits_gated=True, **facts))
    assert what(change) == expected
    assert change.must_release is must_release
