"""A request with one thing different."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxqueue.fluxjob.request import CPU, MEMORY, NodeRequirement, Operator
from fluxqueue.jobspec import Constraint, Count, Jobspec, NodeDemand, Resource
from fluxqueue.jobspec.change import (
    demands,
    describe_demand,
    sharing_nodes,
    with_amount,
    with_size,
    without_demand,
    without_top_level,
)
from fluxqueue.jobspec.constraint import MATCH_EXPRESSIONS
from fluxqueue.jobspec.shape import describe, equal_slots, slot_needs, within

PLAIN = equal_slots(8, {CPU: 2000, MEMORY: 1 << 30})


def below(*levels: tuple[str, int]) -> Jobspec:
    """Slots below levels, top first. The last count is that of the slots."""
    (slot,) = PLAIN.resources
    *above, (_, count) = levels
    tree = replace(slot, count=Count(count, count))
    for kind, number in reversed(above):
        tree = Resource(kind, Count(number, number), (tree,))
    return replace(PLAIN, resources=(tree,))


@pytest.mark.parametrize(
    ("levels", "size", "expected"),
    [
        ((("slot", 8),), 5, (("slot", 5),)),
        ((("rack", 1), ("slot", 8)), 5, (("rack", 1), ("slot", 5))),
        ((("node", 4), ("slot", 2)), 6, (("node", 3), ("slot", 2))),
        ((("node", 4), ("slot", 2)), 5, None),
        ((("rack", 1), ("node", 4), ("slot", 1)), 3, (("rack", 1), ("node", 3), ("slot", 1))),
        ((("node", 1), ("slot", 1)), 3, None),
        ((("node", 1), ("slot", 4)), 2, (("node", 1), ("slot", 2))),
        ((("slot", 8),), 0, None),
    ],
)
def test_another_size(
    levels: tuple[tuple[str, int], ...], size: int, expected: tuple[tuple[str, int], ...] | None
) -> None:
    """What is asked for on each node and in each place stays."""
    found = with_size(below(*levels), size)
    assert found == (None if expected is None else below(*expected))
    assert found is None or found.size == size


def test_of_several_kinds_no_size_is_told() -> None:
    (slot,) = PLAIN.resources
    assert with_size(replace(PLAIN, resources=(slot, replace(slot, label="b"))), 4) is None


def test_another_amount_and_another_place() -> None:
    less = with_amount(within(PLAIN, "rack"), CPU, 500)
    assert {dict(one)[CPU] for one in slot_needs(less)} == {500}
    assert {dict(one)[MEMORY] for one in slot_needs(less)} == {1 << 30}
    assert without_top_level(less) == with_amount(PLAIN, CPU, 500)
    assert without_top_level(PLAIN) is None
    assert without_top_level(below(("rack", 2), ("slot", 4))) is None


def test_sharing_nodes() -> None:
    assert sharing_nodes(PLAIN) is None
    assert sharing_nodes(replace(PLAIN, is_node_exclusive=True)) == PLAIN
    spread = below(("node", 4), ("slot", 2))
    (node,) = spread.resources
    alone = replace(spread, resources=(replace(node, is_exclusive=True),))
    assert sharing_nodes(alone) == spread
    assert describe(alone) == describe(spread)


def test_demands_are_taken_away_one_by_one() -> None:
    """Nested ands and lists of expressions are demands by themselves. An or is one."""
    expressions = tuple(NodeRequirement(key, Operator.IN, ("x",)) for key in "ab")
    either = Constraint("or", operands=(Constraint("hostlist", hosts=frozenset({"n1"})),) * 2)
    both = Constraint(
        "and", operands=(Constraint(MATCH_EXPRESSIONS, requirements=expressions), either)
    )
    asked = replace(PLAIN, where=NodeDemand(both))
    parts = demands(both)
    assert [describe_demand(one) for one in parts] == [
        "a=x",
        "b=x",
        "(hostlist n1) or (hostlist n1)",
    ]
    left = without_demand(asked, parts[0])
    assert demands(left.where.constraint) == parts[1:]
    for one in parts[1:]:
        left = without_demand(left, one)
    assert left == PLAIN
