"""How often somebody may ask."""

from __future__ import annotations

import pytest

from fluxqueue.controller.reviews import ALL_USERS, BURST_S, Allowance


def test_one_asks_so_often_in_a_minute_and_others_beside_him() -> None:
    """A burst at first, then at the rate; who is refused is told when, and loses nothing by it."""
    allowance = Allowance(60)
    burst = sum(allowance.take("ada", 0.0) == 0 for _ in range(1000))
    assert burst == BURST_S + 1
    wait_s = allowance.take("ada", 0.0)
    assert 0 < wait_s <= 1
    assert allowance.take("bob", 0.0) == 0
    assert allowance.take("ada", wait_s) == 0
    assert allowance.take("ada", wait_s) > 0
    taken = sum(allowance.take("ada", wait_s + n / 10) == 0 for n in range(600))
    assert 58 <= taken <= 61


def test_all_together_ask_ten_times_as_much() -> None:
    allowance = Allowance(60)
    burst = sum(allowance.take("", 0.0) == 0 for _ in range(1000))
    assert burst == pytest.approx(BURST_S * ALL_USERS, abs=1)


def test_who_may_ask_as_if_he_never_had_is_forgotten() -> None:
    allowance = Allowance(60)
    allowance.take("ada", 0.0)
    allowance.forget(0.5)
    assert allowance._due_s
    allowance.forget(2.0)
    assert not allowance._due_s
