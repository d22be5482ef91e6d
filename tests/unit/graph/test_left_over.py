"""A ledger of what is left on some nodes answers as one that was made node by node."""

from __future__ import annotations

import numpy as np
import pytest

from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.exclusive_use import port_use
from fluxqueue.fluxjob.levels import Level
from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.placement import FOREVER
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from tests.support.pool_model import RACK, node, placement, request

SEEN = port_use([("TCP", 8080, "0.0.0.0")])
LEVELS = (Level(RACK, (RACK,)),)


def _rest() -> tuple[ShareLedger, Matcher]:
    """Four nodes, of which one is left out: what is left on the others, in another order."""
    ledger = ShareLedger(LEVELS)
    matcher = Matcher(ledger, "lonode")
    for number, name in enumerate("abcd"):
        others = {CPU: number, **(SEEN if name == "c" else {})}
        matcher.set_node(node(name, rack=f"r{number % 2}"), others)
    matcher.allocate("x", placement(("a", {CPU: 2}), until=50))
    matcher.reserve(placement(("b", {CPU: 3}), starts_at=50, until=80), 0)
    rows = np.array([2, 0, 1])
    free = np.maximum(ledger.free_during(np.sort(rows), 60, FOREVER), 0)
    left = ledger.left_over(rows, free[np.argsort(np.argsort(rows))])
    return left, Matcher(left, "lonode")


def test_it_has_what_is_left() -> None:
    """Amounts, order and places, and the ledger that it came from stays as it is."""
    left, matcher = _rest()
    cpu = left.columns[CPU]
    assert left.names == ["c", "a", "b"]
    assert left.now.free[:, cpu].tolist() == [2, 4, 0]
    assert matcher.match_now(request(2, **{CPU: 2}), 0).nodes == ("c", "a")
    matcher.allocate("y", matcher.match_now(request(1, **{CPU: 2}), 0))
    with pytest.raises(InsufficientResources):
        matcher.match_now(request(3, **{CPU: 2}), 0)
    matcher.cancel("y")
    assert matcher.is_satisfiable(request(3, **{CPU: 4}))
    assert not matcher.is_satisfiable(request(4, **{CPU: 4}))


def test_ports_that_are_asked_for_later_are_in_use() -> None:
    """A port without a column is known for each node, and nodes can be added."""
    _, matcher = _rest()
    asked = request(1, **{CPU: 1, **SEEN})
    assert matcher.match_now(asked, 0).nodes == ("a",)
    with pytest.raises(InsufficientResources):
        matcher.match_now(request(2, **{CPU: 1, **SEEN}), 0)
    matcher.set_node(node("new"), {})
    assert len(matcher.match_now(request(2, **{CPU: 1, **SEEN}), 0).nodes) == 2
