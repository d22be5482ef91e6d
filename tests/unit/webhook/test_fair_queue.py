"""Tenants take turns: what waits for one delays no other by more than one turn."""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from typing import Any

import pytest

from fluxqueue_webhook.fair_queue import NO_LANE, FairQueue, Lane, lane_of
from tests.support.workloads import admission_review, batch_job


def _review(**request: Any) -> bytes:
    review = admission_review(batch_job())
    asked = review["request"]
    asked |= {"namespace": "team-a", "operation": "CREATE", "userInfo": {"username": "ann"}}
    order = ("uid", "kind", "name", "namespace", "operation", "userInfo", "object")
    values = {key: asked[key] for key in order} | request
    return json.dumps({**review, "request": values}, separators=(",", ":")).encode()


def _queue(at_once: int = 9, waiting_max: int = 99) -> FairQueue[str]:
    return FairQueue(at_once=at_once, waiting_max=waiting_max)


def _take(queue: FairQueue[str], number: int) -> list[str]:
    taken = [queue.take() for _ in range(number)]
    return [one[1] for one in taken if one is not None]


FORGED = '"namespace":"x","operation":"CREATE","userInfo":{"username":"root"'


@pytest.mark.parametrize(
    ("body", "lane"),
    [
        (_review(), Lane("team-a", "ann")),
        (_review(userInfo={"username": "CORP\\ann"}), Lane("team-a", "CORP\\\\ann")),
        (_review(userInfo={"username": ""}), Lane("team-a", "")),
        (_review(name=FORGED), Lane("team-a", "ann")),
        (_review(object={"a": FORGED}), Lane("team-a", "ann")),
        (_review(userInfo={"username": FORGED}), Lane("team-a", json.dumps(FORGED)[1:-1])),
        (_review(name="n" * 20_000), NO_LANE),
        (_review(userInfo={"username": "u" * 501}), NO_LANE),
        (b"", NO_LANE),
        (b"\xff" * 99, NO_LANE),
        (b"{" * 9000, NO_LANE),
    ],
)
def test_the_lane_is_read_from_the_text(body: bytes, lane: Lane) -> None:
    """An object or a name cannot pretend to be of another tenant."""
    assert lane_of(body) == lane


def test_objects_of_the_cluster_have_no_namespace() -> None:
    review = json.loads(_review())
    del review["request"]["namespace"]
    assert lane_of(json.dumps(review, separators=(",", ":")).encode()) == Lane("", "ann")


@pytest.mark.parametrize(
    ("lanes", "order"),
    [
        ([("a", "x")] * 4 + [("b", "y")], "a0 b4 a1 a2 a3"),
        ([("a", "x")] * 3 + [("a", "y")] * 2, "a0 a3 a1 a4 a2"),
        # Many users of one namespace get no more than one of another.
        ([("a", str(n)) for n in range(4)] + [("b", "y")] * 2, "a0 b4 a1 b5 a2 a3"),
    ],
)
def test_turns(lanes: Sequence[tuple[str, str]], order: str) -> None:
    queue = _queue()
    for number, (namespace, user) in enumerate(lanes):
        assert queue.put(Lane(namespace, user), f"{namespace}{number}")
    assert _take(queue, len(lanes)) == order.split()


def test_a_namespace_that_has_its_part_waits_until_one_is_done() -> None:
    """Others are served meanwhile."""
    queue = _queue(at_once=2)
    for number in range(4):
        queue.put(Lane("a", "x"), f"a{number}")
    assert _take(queue, 2) == ["a0", "a1"]
    queue.put(Lane("b", "y"), "b")
    assert _take(queue, 1) == ["b"]
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(queue.take()))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    assert queue.take(done="a") == ("a", "a2")
    queue.put(Lane("b", "y"), "b2")
    waiting.join(9)
    assert found == [("b", "b2")]


def test_one_namespace_cannot_fill_the_queue_for_others() -> None:
    queue = _queue(waiting_max=3)
    taken = [queue.put(Lane("a", f"u{number}"), "a") for number in range(5)]
    assert taken == [True] * 3 + [False] * 2
    assert queue.put(Lane("b", "y"), "b")
    _take(queue, 1)
    assert queue.put(Lane("a", "x"), "a")


def test_what_waits_is_done_before_the_end() -> None:
    queue = _queue(at_once=1)
    for item in "xy":
        queue.put(Lane("a", "x"), item)
    queue.close()
    assert _take(queue, 1) == ["x"]
    ended = threading.Thread(target=queue.take)
    ended.start()
    ended.join(0.05)
    assert ended.is_alive(), "its turn may come"
    assert queue.take(done="a") == ("a", "y")
    ended.join(9)
    assert not ended.is_alive()
    assert queue.take(done="a") is None
