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


def _queue(at_once: int = 9, waiting_max: int = 99, of_peer: int = 99) -> FairQueue[str]:
    return FairQueue(at_once=(of_peer, at_once), waiting_max=(of_peer, waiting_max))


def _take(queue: FairQueue[str], number: int) -> list[str]:
    taken = [queue.take() for _ in range(number)]
    return [one[1] for one in taken if one is not None]


A = Lane("p", "a", "x")
FORGED = '"namespace":"x","operation":"CREATE","userInfo":{"username":"root"'


@pytest.mark.parametrize(
    ("body", "lane"),
    [
        (_review(), Lane("", "team-a", "ann")),
        (_review(userInfo={"username": "CORP\\ann"}), Lane("", "team-a", "CORP\\\\ann")),
        (_review(userInfo={"username": ""}), Lane("", "team-a", "")),
        (_review(name=FORGED), Lane("", "team-a", "ann")),
        (_review(object={"a": FORGED}), Lane("", "team-a", "ann")),
        (_review(userInfo={"username": FORGED}), Lane("", "team-a", json.dumps(FORGED)[1:-1])),
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
    assert lane_of(json.dumps(review, separators=(",", ":")).encode()) == Lane("", "", "ann")


@pytest.mark.parametrize(
    ("lanes", "order"),
    [
        ([("p", "a", "x")] * 4 + [("p", "b", "y")], "a0 b4 a1 a2 a3"),
        ([("p", "a", "x")] * 3 + [("p", "a", "y")] * 2, "a0 a3 a1 a4 a2"),
        # Many users of one namespace get no more than one of another.
        ([("p", "a", str(n)) for n in range(4)] + [("p", "b", "y")] * 2, "a0 b4 a1 b5 a2 a3"),
        # Many namespaces that one connection names get no more than one of another connection.
        (
            [("q", f"a{n}", str(n)) for n in range(4)] + [("p", "b", "y")] * 2,
            "a00 b4 a11 b5 a22 a33",
        ),
    ],
)
def test_turns(lanes: Sequence[tuple[str, str, str]], order: str) -> None:
    queue = _queue()
    for number, lane in enumerate(lanes):
        assert queue.put(Lane(*lane), f"{lane[1]}{number}")
    assert _take(queue, len(lanes)) == order.split()


def test_a_namespace_that_has_its_part_waits_until_one_is_done() -> None:
    """Others are served meanwhile."""
    queue = _queue(at_once=2)
    for number in range(4):
        queue.put(Lane("p", "a", "x"), f"a{number}")
    assert _take(queue, 2) == ["a0", "a1"]
    queue.put(Lane("p", "b", "y"), "b")
    assert _take(queue, 1) == ["b"]
    found: list[Any] = []
    waiting = threading.Thread(target=lambda: found.append(queue.take()))
    waiting.start()
    waiting.join(0.05)
    assert waiting.is_alive()
    assert queue.take(done=A) == (A, "a2")
    queue.put(Lane("p", "b", "y"), "b2")
    waiting.join(9)
    assert found == [(Lane("p", "b", "y"), "b2")]


def test_one_namespace_cannot_fill_the_queue_for_others() -> None:
    queue = _queue(waiting_max=3)
    taken = [queue.put(Lane("p", "a", f"u{number}"), "a") for number in range(5)]
    assert taken == [True] * 3 + [False] * 2
    assert queue.put(Lane("p", "b", "y"), "b")
    _take(queue, 1)
    assert queue.put(Lane("p", "a", "x"), "a")


def test_what_waits_is_done_before_the_end() -> None:
    queue = _queue(at_once=1)
    for item in "xy":
        queue.put(Lane("p", "a", "x"), item)
    queue.close()
    assert _take(queue, 1) == ["x"]
    ended = threading.Thread(target=queue.take)
    ended.start()
    ended.join(0.05)
    assert ended.is_alive(), "its turn may come"
    assert queue.take(done=A) == (A, "y")
    ended.join(9)
    assert not ended.is_alive()
    assert queue.take(done=A) is None


def test_one_peer_takes_neither_all_places_nor_all_threads() -> None:
    """However many namespaces and users its requests name."""
    queue = _queue(of_peer=3)
    taken = [queue.put(Lane("forger", f"n{n}", f"u{n}"), "forged") for n in range(9)]
    assert taken == [True] * 3 + [False] * 6
    assert _take(queue, 3) == ["forged"] * 3
    assert queue.put(Lane("forger", "n9", "u9"), "forged")
    assert queue.put(Lane("api", "b", "y"), "plain")
    assert _take(queue, 1) == ["plain"], "three of the forger's are under way"


def test_the_peer_is_not_what_a_request_says() -> None:
    """A forged review cannot name its connection."""
    assert lane_of(_review(), "10.0.0.7") == Lane("10.0.0.7", "team-a", "ann")
    assert lane_of(b"", "10.0.0.7") == Lane("10.0.0.7", "", "")
