"""What became of requests: which of them gets a node, and what is learned of its pool."""

from __future__ import annotations

from fluxqueue.nodepools.plan.coming_nodes import NodeRequest
from fluxqueue.nodepools.plan.node_requests import RequestEnd, review_requests


def test_a_node_belongs_to_the_oldest_request_of_its_pool() -> None:
    """Another pool gets nothing of it. What was not asked for stays free."""
    older = NodeRequest(1, "p", "u1", "q", 1, 100, 160)
    newer = NodeRequest(2, "p", "u2", "q", 1, 110, 170)
    other = NodeRequest(3, "o", "u3", "q", 1, 90, 150)
    review = review_requests([newer, older, other], {"a": "p", "b": "p", "c": "p"}, set(), {}, 120)
    assert review.arrived == {1: ["a"], 2: ["b"]}
    assert review.learned == {"p": [20, 10]}
    assert [one.number for one in review.requests] == [3, 1, 2]


def test_a_late_request_fails_with_the_number_of_missing_nodes() -> None:
    late = NodeRequest(1, "p", "u", "q", 2, 100, 160, arrived=("a",))
    review = review_requests([late], {}, set(), {}, 1000)
    assert review.ended[1] == (RequestEnd.FAILED, "1 of 2 nodes have not come in time")
    assert review.failures.keys() == {"p"}
