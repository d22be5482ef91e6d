"""Requests as rows hold them: of this version, and of the version before."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.errors import InvalidJobspec
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import Taint
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.render import render
from fluxqueue.jobspec.stored import read_stored
from tests.support.jobspecs import draw

SLOT = {
    "count": 4,
    "resources": {"cpu": 2000, "memory": 1 << 34, "pods": 1},
    "selector": {"disk": "ssd"},
    "terms": [[["gen", "Gt", ["3"]], ["fast", "Exists", []]], [["metadata.name", "In", ["n1"]]]],
    "tolerations": [["gpu", "Exists", "", "NoSchedule"]],
}
FORMER: dict[str, Any] = {
    "slots": [SLOT],
    "duration_s": 60,
    "exclusive": False,
    "spread": False,
    "within": None,
    "match_policy": None,
}
POOLS = "{cpu=2000 memory=17179869184 pods=1}"


@pytest.mark.parametrize(
    ("more", "drawn"),
    [
        ({}, "task[4]"),
        ({"spread": True}, "node[4] > task[1]"),
        ({"within": "zone"}, "zone[1] > task[4]"),
        ({"within": "topology.kubernetes.io/rack"}, "rack[1] > task[4]"),
        ({"within": "kubernetes.io/hostname"}, "node[1] > task[4]"),
        ({"within": "my.org/row", "spread": True}, "my.org/row[1] > node[4] > task[1]"),
    ],
)
def test_the_form_before(more: dict[str, Any], drawn: str) -> None:
    found = read_stored({**FORMER, **more})
    assert draw(found) == drawn + POOLS
    assert (found.size, found.duration_s) == (4, 60)
    assert read_stored(render(found)) == found


def test_constraints_of_the_form_before() -> None:
    where = read_stored(FORMER).where
    labels = {"disk": "ssd", "gen": "4", "fast": ""}
    assert where.admits(NodeFact("n2", "u", {}, labels, (Taint("gpu"),)))
    assert where.admits(NodeFact("n1", "u", {}, {"disk": "ssd"}))
    assert not where.admits(NodeFact("n2", "u", {}, {"disk": "ssd"}))
    assert not where.admits(NodeFact("n2", "u", {}, labels, (Taint("other"),)))


def test_more_of_the_form_before() -> None:
    """Two kinds of slots with constraints of their own; none; whole nodes; a policy; no end."""
    two = read_stored({**FORMER, "slots": [SLOT, {**SLOT, "count": 1, "selector": {}}]})
    assert draw(two) == f"task0[4]{POOLS} & task1[1]{POOLS}"
    assert two.where_of("task0") != two.where_of("task1")
    assert read_stored({**FORMER, "slots": []}) == Jobspec(9999, (), duration_s=60)
    more = {"exclusive": True, "match_policy": "pack", "duration_s": None}
    found = read_stored({**FORMER, **more})
    assert (found.is_node_exclusive, found.match_policy, found.duration_s) == (True, "pack", 0)


@pytest.mark.parametrize("data", [{}, {"slots": [{}]}, {"slots": None}, {"resources": 5}])
def test_neither_form(data: dict[str, Any]) -> None:
    with pytest.raises(InvalidJobspec):
        read_stored(data)
