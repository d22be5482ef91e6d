"""PodDisruptionBudgets: how many pods may go."""

from __future__ import annotations

from typing import Any

import pytest

from localcluster.controllers.disruption_controller import budget_status
from localcluster.obj import Obj

STAMP = "2026-01-01T00:00:00Z"


def _pods(ready: int, not_ready: int = 0) -> list[Obj]:
    words = ["True"] * ready + ["False"] * not_ready
    return [
        {"metadata": {}, "status": {"conditions": [{"type": "Ready", "status": word}]}}
        for word in words
    ]


@pytest.mark.parametrize(
    ("spec", "pods", "scale", "allowed", "desired"),
    [
        ({"minAvailable": 1}, _pods(1), None, 0, 1),
        ({"minAvailable": 1}, _pods(3), None, 2, 1),
        ({"minAvailable": 2}, _pods(2, not_ready=2), None, 0, 2),
        ({"minAvailable": "50%"}, _pods(5), 5, 2, 3),
        ({"maxUnavailable": 1}, _pods(3), 3, 1, 2),
        ({"maxUnavailable": 1}, _pods(2), 3, 0, 2),
        ({"maxUnavailable": "30%"}, _pods(4), 4, 2, 2),
        ({"maxUnavailable": 1}, _pods(3), None, 0, 0),
        ({"minAvailable": 0}, [], None, 0, 0),
    ],
)
def test_what_a_budget_allows(
    spec: Obj, pods: list[Obj], scale: int | None, allowed: int, desired: int
) -> None:
    """Numbers, percentages rounded up, and nothing where no controller says how many there are."""
    status = budget_status({"metadata": {"generation": 3}, "spec": spec}, pods, scale, STAMP)
    assert (status["disruptionsAllowed"], status["desiredHealthy"]) == (allowed, desired)
    assert status["observedGeneration"] == 3
    (condition,) = status["conditions"]
    assert condition["status"] == ("True" if allowed else "False")


def test_the_condition_keeps_its_time_while_it_says_the_same() -> None:
    """A second look at the same pods writes nothing new."""
    budget: dict[str, Any] = {"metadata": {}, "spec": {"minAvailable": 1}}
    first = budget_status(budget, _pods(2), None, STAMP)
    again = budget_status({**budget, "status": first}, _pods(2), None, "2027-01-01T00:00:00Z")
    assert again == first
