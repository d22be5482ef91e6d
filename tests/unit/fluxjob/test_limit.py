"""How long an allocated job holds its nodes, and what overrunning means."""

from __future__ import annotations

import pytest

from fluxqueue.fluxjob.limit import (
    SLACK_S,
    Limit,
    OverrunAction,
    OverrunRules,
    granted_end,
    is_beyond,
    judge_overrun,
    limit_now,
)

R = OverrunAction


@pytest.mark.parametrize(
    ("stored", "seen", "counts"),
    [
        (Limit(20, 30, True), Limit(36_000, 30, True), 36_000),  # raised
        (Limit(20, 30, True), Limit(5, 30, True), 5),  # lowered
        (Limit(20, 30, True), Limit(None, 30, False), None),  # removed
        (Limit(20, 30, True), Limit(20, 30, False), None),  # removed. Only a wish is left
        (Limit(None, 30, False), Limit(20, 30, False), None),  # wished for after the start
        (Limit(60, 30, False), Limit(20, 30, False), 60),  # a lower wish: nothing enforces it
        (Limit(60, 30, False), Limit(90, 30, False), 90),
        (Limit(60, 30, False), Limit(20, 30, True), 20),  # enforced from now on
        (Limit(1, 0, True), Limit(2**31 - 1, 2**31 - 1, True), 2**31 - 1),
    ],
)
def test_an_enforced_limit_counts_and_a_wish_never_shortens(
    stored: Limit, seen: Limit, counts: int | None
) -> None:
    found = limit_now(stored, seen, 0)
    assert (found.duration_s, found.grace_s) == (counts, seen.grace_s)


def test_a_limit_that_is_lowered_below_what_has_passed_ends_then() -> None:
    """And later observations of it move nothing."""
    lowered = limit_now(Limit(600, 30, True), Limit(2, 30, True), 100)
    assert lowered.duration_s == 100
    assert limit_now(lowered, Limit(2, 30, True), 150) == lowered
    assert limit_now(lowered, Limit(300, 30, True), 150).duration_s == 300
    first = limit_now(Limit(None, 30), Limit(2, 30, True), 100)
    assert (first.duration_s, limit_now(first, Limit(2, 30, True), 150)) == (100, first)


def test_pods_that_are_observed_to_end_later_count_beyond_a_slack() -> None:
    limit = Limit(20, 30, True)
    assert not is_beyond(limit, 100, None)
    assert not is_beyond(limit, 100, 150 + SLACK_S)
    assert is_beyond(limit, 100, 151 + SLACK_S)
    assert not is_beyond(Limit(None), 100, 10**9)


@pytest.mark.parametrize(
    ("duration_s", "most_s", "end"),
    [(20, None, 150), (20, 60, 150), (90, 60, 190), (None, 60, 190), (None, None, None)],
)
def test_a_job_is_granted_at_most_what_its_queue_allows(
    duration_s: int | None, most_s: int | None, end: int | None
) -> None:
    assert granted_end(Limit(duration_s, 30), 100, most_s) == end


@pytest.mark.parametrize(
    ("action", "can_requeue", "can_cancel", "follows"),
    [
        (R.REPORT, True, True, R.REPORT),
        (R.REQUEUE, True, True, R.REQUEUE),
        (R.REQUEUE, False, True, R.CANCEL),
        (R.REQUEUE, False, False, R.REPORT),
        (R.CANCEL, True, True, R.CANCEL),
        (R.CANCEL, True, False, R.REPORT),
    ],
)
def test_what_follows_an_overrun(
    action: OverrunAction, can_requeue: bool, can_cancel: bool, follows: OverrunAction
) -> None:
    rules = OverrunRules(action, 60)

    def at(now: int) -> OverrunAction | None:
        return judge_overrun(rules, 100, now, can_requeue=can_requeue, can_cancel=can_cancel)

    assert (at(99), at(160), at(161)) == (None, None, follows)
