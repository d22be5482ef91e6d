"""What a jobspec comes to: kinds of slots, words, and what a preferred level lets try."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxqueue.jobspec import Count, Jobspec, Resource
from fluxqueue.jobspec.shape import (
    describe,
    fewest_nodes,
    levels_named,
    relaxations,
    slot_kinds,
    slot_needs,
    takes_whole_nodes,
    total,
)
from tests.support.jobspecs import draw

LEVELS = ("zone", "block", "rack")


def slot(count: int, cpu: int = 8000, label: str = "s") -> Resource:
    pools = (Resource("cpu", Count(cpu, cpu), unit="m"), Resource("pods", Count(1, 1)))
    return Resource("slot", Count(count, count), pools, label=label)


def above(kind: str, count: int, *below: Resource, exclusive: bool | None = None) -> Resource:
    return Resource(kind, Count(count, count), below, exclusive)


def asked(*resources: Resource, prefer: str = "") -> Jobspec:
    return Jobspec(9999, resources, prefer_within=prefer)


RACKS = asked(above("rack", 2, above("node", 4, slot(2))))
TWO_KINDS = asked(above("rack", 1, slot(1, 16000, "launcher"), above("node", 3, slot(1))))


def test_kinds_of_slots() -> None:
    (kind,) = slot_kinds(RACKS)
    assert (kind.count, kind.node_count, kind.above) == (16, 8, (("rack", 2), ("node", 4)))
    assert [(one.label, one.count, one.node_count) for one in slot_kinds(TWO_KINDS)] == [
        ("launcher", 1, 0),
        ("s", 3, 3),
    ]
    assert [dict(needs)["cpu"] for needs in slot_needs(TWO_KINDS)] == [16000, 8000, 8000, 8000]


def test_sums() -> None:
    assert (total(RACKS, "cpu"), fewest_nodes(RACKS), RACKS.size) == (128_000, 8, 16)
    assert (total(TWO_KINDS, "cpu"), fewest_nodes(TWO_KINDS)) == (40_000, 3)
    assert (fewest_nodes(asked(slot(9))), fewest_nodes(asked())) == (1, 0)
    assert levels_named(asked(above("zone", 1, *TWO_KINDS.resources))) == ("zone", "rack")


def test_whole_nodes() -> None:
    assert not takes_whole_nodes(RACKS)
    assert takes_whole_nodes(replace(RACKS, is_node_exclusive=True))
    assert takes_whole_nodes(asked(above("rack", 1, slot(2), exclusive=True)))


@pytest.mark.parametrize(
    ("jobspec", "words"),
    [
        (asked(slot(1)), "1 slot of 8 cpu"),
        (asked(above("zone", 1, slot(4))), "4 slots of 8 cpu, in one zone"),
        (
            RACKS,
            "16 slots of 8 cpu, 2 on each of 4 nodes in each of 2 racks",
        ),
        (
            TWO_KINDS,
            "1 slot of 16 cpu, in one rack and 3 slots of 8 cpu, 1 on each of 3 nodes in one rack",
        ),
        (asked(), "nothing"),
        (asked(above("node", 0, slot(1))), "0 slots of 8 cpu, 0 on each of 0 nodes"),
    ],
)
def test_words(jobspec: Jobspec, words: str) -> None:
    assert describe(jobspec) == words


TREE = "{cpu=8000 pods=1}"


@pytest.mark.parametrize(
    ("jobspec", "tried"),
    [
        (asked(slot(4)), ["s[4]"]),
        (asked(slot(4), prefer="hall"), ["s[4]"]),
        (
            asked(slot(4), prefer="rack"),
            ["rack[1] > s[4]", "block[1] > s[4]", "zone[1] > s[4]", "s[4]"],
        ),
        (
            asked(slot(4), prefer="node"),
            ["node[1] > s[4]", "rack[1] > s[4]", "block[1] > s[4]", "zone[1] > s[4]", "s[4]"],
        ),
        (
            asked(above("zone", 1, slot(4)), prefer="rack"),
            ["zone[1] > rack[1] > s[4]", "zone[1] > block[1] > s[4]", "zone[1] > s[4]"],
        ),
        (
            asked(above("rack", 2, slot(2)), prefer="block"),
            ["block[1] > rack[2] > s[2]", "zone[1] > rack[2] > s[2]", "rack[2] > s[2]"],
        ),
        (
            asked(above("rack", 2, slot(2)), prefer="rack"),
            ["block[1] > rack[2] > s[2]", "zone[1] > rack[2] > s[2]", "rack[2] > s[2]"],
        ),
        (asked(above("node", 4, slot(1)), prefer="node"), None),
    ],
)
def test_a_preferred_level(jobspec: Jobspec, tried: list[str] | None) -> None:
    """As low in the tree as possible, then one level up, and at last wherever it fits."""
    found = relaxations(jobspec, LEVELS)
    if tried is None:
        tried = [f"{level}[1] > node[4] > s[1]" for level in reversed(LEVELS)]
        tried.append("node[4] > s[1]")
    assert [draw(one) for one in found] == [text + TREE for text in tried]
    assert not any(one.prefer_within for one in found)
