"""How often a stream over which much comes is read."""

from __future__ import annotations

import pytest

from fluxqueue.kube.transport import ReadPace
from fluxqueue.process.pacing import READ_BYTES, READS_CREDIT_S, READS_EVERY_S, READS_RARER


@pytest.mark.parametrize(
    ("size", "distance_s"),
    [
        (1, READS_EVERY_S),
        (READ_BYTES, READS_EVERY_S),
        (2 * READ_BYTES, 2 * READS_EVERY_S),
        (100 * READ_BYTES, READS_RARER * READS_EVERY_S),
    ],
)
def test_after_a_few_reads_at_once_they_have_a_distance(size: int, distance_s: float) -> None:
    """The longer the more they bring, up to a bound."""
    pace, began_s = ReadPace(), 100.0
    now_s, number = began_s, 1000
    assert pace.pause_s(now_s, size) == 0.0, "the first"
    for _ in range(number - 1):
        now_s += pace.pause_s(now_s, size)
    took_s = now_s - began_s
    assert took_s == pytest.approx(number * distance_s - READS_CREDIT_S, abs=distance_s)
    assert pace.pause_s(now_s, size) == distance_s
    now_s += READS_CREDIT_S + distance_s
    assert pace.pause_s(now_s, size) == 0.0, "after it was left alone for a while"
