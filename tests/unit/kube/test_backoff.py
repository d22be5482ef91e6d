"""Back-off delays."""

from __future__ import annotations

import random

from fluxqueue.kube.backoff import Backoff


def test_doubles_within_its_spread_up_to_the_cap() -> None:
    """Every delay lies in [50 %, 100 %] of the doubling value, which stops at the cap."""
    backoff = Backoff(base_s=1, cap_s=8, random_source=random.Random(1))
    for full in (1, 2, 4, 8, 8, 8):
        assert full / 2 <= backoff.next_delay_s() <= full


def test_reset_starts_again() -> None:
    """After success the shortest delay is back."""
    backoff = Backoff(base_s=1, cap_s=100)
    for _ in range(6):
        backoff.next_delay_s()
    backoff.reset()
    assert backoff.next_delay_s() <= 1


def test_the_servers_wish_is_honoured() -> None:
    """Retry-After is a lower bound, also above the cap."""
    assert Backoff(base_s=0.1, cap_s=1).next_delay_s(20) == 20


def test_long_outages_do_not_overflow() -> None:
    """Thousands of failures stay at the cap."""
    backoff = Backoff(base_s=0.1, cap_s=5)
    assert all(backoff.next_delay_s() <= 5 for _ in range(5000))
