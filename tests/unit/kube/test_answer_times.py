"""How busy an API server is: by how much its answers are later than at its quickest."""

from __future__ import annotations

import pytest

from fluxqueue.kube.answer_times import LAST, AnswerTimes


def test_a_server_that_is_far_away_is_not_busy_for_that() -> None:
    times = AnswerTimes()
    assert times.delay_s == 0, "it has answered nothing yet"
    for _ in range(50):
        times.note(0.2)
    assert times.delay_s == pytest.approx(0)


def test_a_busy_server_answers_late_and_the_last_answers_count() -> None:
    times = AnswerTimes()
    times.note(0.01)
    for _ in range(20 * LAST):
        times.note(0.51)
    assert times.delay_s == pytest.approx(0.5)
    for _ in range(20 * LAST):
        times.note(0.02)
    assert times.delay_s == pytest.approx(0.01)


def test_one_late_answer_makes_no_busy_server() -> None:
    times = AnswerTimes()
    for _ in range(5):
        times.note(0.01)
    times.note(0.11)
    assert times.delay_s == pytest.approx(0.1 / LAST)
