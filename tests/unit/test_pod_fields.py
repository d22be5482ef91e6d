"""The page about fields of pods names each of them, once, and says what becomes of it."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
from localcluster.types.table import builtin_node

PAGE = Path(__file__).parents[2] / "docs" / "user" / "pod-fields.md"
EFFECTS = {"counted", "left", "refused", "none"}
TYPES = ("PodSpec", "Container", "PodAffinityTerm", "TopologySpreadConstraint", "Volume")


def rows_of(type_name: str) -> list[tuple[list[str], str]]:
    """The fields of each row of a type's table, and the effect."""
    text = PAGE.read_text(encoding="utf-8")
    begin, end = f"<!-- fields of {type_name} -->", f"<!-- end of {type_name} -->"
    lines = text.partition(begin)[2].partition(end)[0].strip().splitlines()[2:]
    cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return [(re.findall(r"`(\w+)`", cell[0]), cell[1]) for cell in cells]


@pytest.mark.parametrize("type_name", TYPES)
def test_the_table_has_every_field_of_the_api_once(type_name: str) -> None:
    """A new version of Kubernetes with a new field fails here until the page says what it does."""
    rows = rows_of(type_name)
    named = [field for fields, _ in rows for field in fields]
    assert sorted(named) == sorted(builtin_node(type_name).fields)
    assert {effect for _, effect in rows} <= EFFECTS
