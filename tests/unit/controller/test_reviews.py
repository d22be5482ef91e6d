"""How often a user may ask."""

from __future__ import annotations

import asyncio
from contextlib import suppress
from typing import Any, cast

import pytest

from fluxqueue.clock import ManualClock
from fluxqueue.controller import reviews
from fluxqueue.controller.reviews import ALL_USERS, BURST_S, Allowance, ReviewWatch
from fluxqueue.errors import DatabaseUnavailable


def test_one_asks_so_often_in_a_minute_and_others_beside_him() -> None:
    """A burst at first, then at the rate. A refusal says when, and costs nothing."""
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


class Doors:
    """Database and API server of a watch: the one is away at first, the other notes refusals."""

    def __init__(self, away: int) -> None:
        self._away = away
        self.passed_on = asyncio.Event()
        self.refused: list[str] = []

    async def defer_review(self, namespace: str, name: str, uid: str) -> None:
        self._away -= 1
        if self._away >= 0:
            raise DatabaseUnavailable("the server closed the connection")
        self.passed_on.set()

    async def patch(self, resource: object, namespace: str, name: str, *_: Any, **__: Any) -> None:
        self.refused.append(name)
        self.passed_on.set()


async def test_a_review_that_is_tried_again_is_counted_once(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """While the database is away its asker uses up nothing, and has asked once."""
    monkeypatch.setattr(reviews, "LOOK_S", 0.001)
    doors = Doors(away=10)
    watch = ReviewWatch(
        cast("Any", doors), cast("Any", doors), ManualClock(), per_minute=2, keep_s=600
    )
    meta = {"uid": "u1", "namespace": "default", "name": "why"}
    made = {"creationTimestamp": "2030-01-01T00:00:00Z"}
    watch.see({"metadata": {**meta, **made}, "spec": {"asker": {"username": "ada"}}})
    running = asyncio.create_task(watch.run())
    async with asyncio.timeout(30):
        await doors.passed_on.wait()
    running.cancel()
    with suppress(asyncio.CancelledError):
        await running
    assert not doors.refused
    assert not watch._admitted, "what is settled is not kept"
