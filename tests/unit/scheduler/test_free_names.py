"""Nodes with given names: which names a request gets, and which request gets a node."""

from __future__ import annotations

from fluxqueue.policy.node_pool import NodePool
from fluxqueue.scheduler.coming_nodes import NodeRequest
from fluxqueue.scheduler.node_requests import RequestEnd, free_names, review_requests

POOL = NodePool("p", {"cpu": 8000}, {"pool": "p"}, 4, 60, "command", names=("a", "b", "c", "d"))


def test_names_that_did_not_come_are_tried_last() -> None:
    """Those that are being powered off even later, because a request has to wait for that."""
    assert free_names(POOL, {"a"}, (), {}) == ["b", "c", "d"]
    assert free_names(POOL, (), (), {"a": 500, "c": 300}) == ["b", "d", "c", "a"]
    assert free_names(POOL, (), {"b"}, {"a": 500}) == ["c", "d", "a", "b"]


def test_a_node_belongs_to_the_request_that_has_its_name() -> None:
    """An older request of the same pool gets nothing of it. What nobody asked for stays free."""
    older = NodeRequest(1, "p", "u1", "q", 1, 100, 160, names=("a",))
    newer = NodeRequest(2, "p", "u2", "q", 2, 110, 170, names=("b", "c"))
    review = review_requests([older, newer], {"c": "p", "d": "p"}, set(), {}, 120)
    assert review.arrived == {2: ["c"]}
    assert review.learned == {"p": [10]}


def test_the_names_that_did_not_come_are_reported() -> None:
    """Only those: a node that has come is not to blame."""
    request = NodeRequest(1, "p", "u", "q", 2, 100, 160, arrived=("a",), names=("a", "b"))
    review = review_requests([request], {}, set(), {}, 1000)
    assert review.ended[1][0] is RequestEnd.FAILED
    assert review.missing == {"p": ["b"]}
