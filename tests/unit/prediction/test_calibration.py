"""What jobs are shown of their starts, from how wrong earlier ones were."""

from __future__ import annotations

import random

import pytest

from fluxqueue.prediction.calibration import (
    ERRORS_MAX,
    ERRORS_MIN,
    UNPROVEN,
    Calibration,
    StartFigures,
    ToldStart,
)

NOW = 1_000_000


def test_without_a_history_the_plan_is_told_and_a_wide_bound() -> None:
    """Too few errors say nothing."""
    calibration = Calibration()
    told = calibration.expect(NOW, NOW + 600)
    assert told == ToldStart(NOW, NOW + 600, NOW + 600, NOW + 660 * UNPROVEN - 60)
    for _ in range(ERRORS_MIN - 1):
        calibration.learn(told, NOW + 6000)
    assert calibration.expect(NOW, NOW + 600) == told
    calibration.learn(told, NOW + 6000)
    assert calibration.expect(NOW, NOW + 600).expected == NOW + 6000


def test_a_start_that_is_due_is_not_told_in_the_past() -> None:
    """A plan may have been overtaken by the clock."""
    told = Calibration().expect(NOW, NOW - 500)
    assert NOW <= told.expected <= told.expected_by


@pytest.mark.parametrize("factor", [0.25, 1, 6])
def test_half_start_before_and_nine_of_ten_by_the_later_time(factor: float) -> None:
    """However wrong the plans are: they may all be too short, or far too long."""
    luck = random.Random(7)
    calibration, starts = Calibration(), []
    for number in range(3000):
        at = NOW + 60 * number
        wait_s = int(luck.choice([90, 1800, 30_000]) * luck.uniform(0.8, 1.2))
        told = calibration.expect(at, at + wait_s)
        true = at + int(wait_s * factor * luck.lognormvariate(0, 0.7))
        calibration.learn(told, true)
        starts.append((told, true))
    found = StartFigures.of(starts)
    assert found.started == 3000
    assert 0.45 <= found.by_expected / found.started <= 0.55
    assert 0.90 <= found.by_latest / found.started <= 0.95


def test_a_forecast_that_has_become_bad_widens() -> None:
    """Within the errors that are kept, and without a word from anyone."""
    calibration = Calibration()
    told = calibration.expect(NOW, NOW + 3600)
    for _ in range(ERRORS_MAX):
        calibration.learn(told, NOW + 3600)
    assert calibration.expect(NOW, NOW + 3600).expected_by == NOW + 3600
    for _ in range(ERRORS_MAX // 5):
        calibration.learn(told, NOW + 5 * 3600)
    later = calibration.expect(NOW, NOW + 3600)
    assert later.expected == NOW + 3600, "most are as before"
    assert abs(later.expected_by - (NOW + 5 * 3600)) < 5
    assert calibration.expect(NOW, NOW + 60).expected == NOW + 60, "other waits are others"


def test_a_greedy_tenant_does_not_displace_the_errors_of_others() -> None:
    """However many of its jobs start, most of the errors stay those of others."""
    calibration = Calibration()
    told = calibration.expect(NOW, NOW + 3600)
    for number in range(ERRORS_MAX // 2 + 1):
        calibration.learn(told, NOW + 3600, f"modest{number}")
    for _ in range(10 * ERRORS_MAX):
        calibration.learn(told, NOW + 10 * 3600, "greedy")
    assert calibration.expect(NOW, NOW + 3600).expected == NOW + 3600


def test_a_promise_bounds_what_is_told() -> None:
    """It starts no later than promised, however wrong forecasts were."""
    told = ToldStart(NOW, NOW + 100, NOW + 300, NOW + 900).within(NOW + 200)
    assert told == ToldStart(NOW, NOW + 100, NOW + 200, NOW + 200)


def test_no_starts_no_figures() -> None:
    """An empty week is no error."""
    assert StartFigures.of([]) == StartFigures(0, 0, 0)
