"""Fair share: the decay is exact, the factor is Slurm's, and points move in steps."""

from __future__ import annotations

import pytest

from fluxqueue.policy.fair_share import decay, decayed_use, factors, to_points
from fluxqueue.policy.queue_rules import FairShare, QueueRules


def test_past_use_counts_half_after_each_half_life() -> None:
    """And does not grow where a clock goes backwards."""
    assert decay(800, 100, 100) == 400
    assert decay(800, 300, 100) == 100
    assert decay(800, -5, 100) == 800


def test_use_is_the_same_whatever_the_intervals() -> None:
    """Summed up at once or every seven seconds: an integral has no steps."""
    half_life = 100.0
    whole = decayed_use(4, 0, 700, 1000, half_life)
    used, at = 0.0, 0.0
    while at < 1000:
        later = min(1000, at + 7)
        used = decay(used, later - at, half_life) + decayed_use(
            4, at, min(later, 700), later, half_life
        )
        at = later
    assert used == pytest.approx(whole, rel=1e-9)


def test_use_without_decay_is_cpu_seconds() -> None:
    """With a half-life that is long against the run."""
    assert decayed_use(3, 10, 20, 20, 1e9) == pytest.approx(30, rel=1e-6)
    assert decayed_use(3, 20, 10, 30, 100) == 0
    assert decayed_use(3, 10, 50, 20, 1e9) == pytest.approx(30, rel=1e-6), "the future counts not"


def test_exactly_ones_share_is_a_half() -> None:
    """Two queues of equal weight, one user each, equal use: F = 2 ** -1."""
    used = {("a", "x"): 10.0, ("b", "y"): 10.0}
    assert factors(used, [], {"a": 1, "b": 1}) == {("a", "x"): 0.5, ("b", "y"): 0.5}


def test_without_any_use_everybody_has_all() -> None:
    """Those that wait are counted in, those of other queues are not."""
    found = factors({}, [("a", "x"), ("a", "y"), ("off", "z")], {"a": 1})
    assert found == {("a", "x"): 1.0, ("a", "y"): 1.0}
    assert factors({}, [], {"a": 1}) == {}


def test_weights_of_queues() -> None:
    """A queue of three times the weight may use three times as much for the same factor."""
    found = factors({("a", "x"): 30.0, ("b", "y"): 10.0}, [], {"a": 3, "b": 1})
    assert found["a", "x"] == found["b", "y"] == 0.5


def test_slurms_effective_use_of_two_users() -> None:
    """By hand: the queue used all. X has 3/4 of it, y 1/4. Each has half a share of it.

    UE(x) = 0.75 + (1 - 0.75) / 2 = 0.875, F = 2 ** (-0.875 / 0.5). UE(y) = 0.625.
    """
    found = factors({("a", "x"): 75.0, ("a", "y"): 25.0}, [], {"a": 1})
    assert found["a", "x"] == pytest.approx(2 ** (-0.875 / 0.5))
    assert found["a", "y"] == pytest.approx(2 ** (-0.625 / 0.5))


def test_points_move_in_steps() -> None:
    """A hundredth of the weight. Without fair share there are none."""
    rules = QueueRules("q", fair_share=FairShare(100, 1000))
    assert to_points(0.5, rules) == 500
    assert to_points(0.5004, rules) == 500
    assert to_points(1.0, rules) == 1000
    assert to_points(0.5, QueueRules("q")) == 0
