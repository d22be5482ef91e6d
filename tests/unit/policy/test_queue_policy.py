"""Policies by name, with the administrator's depths."""

from __future__ import annotations

import pytest

from fluxqueue.errors import InvalidSettings
from fluxqueue.policy.queue_policy import (
    HYBRID_RESERVATIONS,
    RESERVATIONS_MAX,
    queue_policy,
)


@pytest.mark.parametrize(
    ("name", "depth", "is_backfilling"),
    [
        ("fcfs", 0, False),
        ("easy", 1, True),
        ("hybrid", HYBRID_RESERVATIONS, True),
        ("conservative", RESERVATIONS_MAX, True),
    ],
)
def test_defaults(name: str, depth: int, is_backfilling: bool) -> None:
    """What flux-sched's qmanager calls by these names."""
    policy = queue_policy(name)
    assert (policy.reservation_depth, policy.is_backfilling) == (depth, is_backfilling)


def test_reservation_depth_is_hybrids_alone() -> None:
    """easy stays easy whatever the depth says."""
    assert queue_policy("hybrid", reservation_depth=7).reservation_depth == 7
    assert queue_policy("easy", reservation_depth=7).reservation_depth == 1
    assert queue_policy("fcfs", reservation_depth=7).reservation_depth == 0


def test_queue_depth_is_everybodys() -> None:
    """How far a cycle looks."""
    assert queue_policy("fcfs", queue_depth=5).queue_depth == 5


def test_unknown_name_is_refused_with_the_known_ones() -> None:
    """The message is the help."""
    with pytest.raises(InvalidSettings, match="easy") as refused:
        queue_policy("eazy")
    assert "conservative" in str(refused.value)


@pytest.mark.parametrize("depth", [0, -1])
def test_a_depth_that_looks_at_nothing_is_refused(depth: int) -> None:
    """Zero would stop the queue silently."""
    with pytest.raises(InvalidSettings, match="1 or more"):
        queue_policy("easy", queue_depth=depth)
    with pytest.raises(InvalidSettings, match="1 or more"):
        queue_policy("hybrid", reservation_depth=depth)
