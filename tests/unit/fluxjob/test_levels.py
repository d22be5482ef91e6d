"""Levels of a cluster: read, refused, and where nodes stand in them."""

from __future__ import annotations

import pytest

from fluxqueue.errors import InvalidSettings
from fluxqueue.fluxjob.levels import (
    DEFAULT_LEVELS,
    Level,
    check_levels,
    find_level,
    parse_levels,
    path_of,
)


def test_defaults_are_levels_that_can_be_written() -> None:
    check_levels(DEFAULT_LEVELS, "defaults")
    texts = [f"{level.name}={'|'.join(level.labels)}" for level in DEFAULT_LEVELS]
    assert parse_levels(",".join(texts)) == DEFAULT_LEVELS


def test_read() -> None:
    """Top first. Several labels of one level. A default by its name."""
    found = parse_levels("zone, row = my.org/row|other.org/row ,rack=my.org/rack")
    assert [level.name for level in found] == ["zone", "row", "rack"]
    assert found[1].labels == ("my.org/row", "other.org/row")
    assert found[0].labels == ("topology.kubernetes.io/zone",)
    assert parse_levels("none") == ()


def test_where_a_node_stands() -> None:
    """The first label that it has counts, an empty one does not."""
    levels = (Level("zone", ("z",)), Level("rack", ("a", "b")))
    assert path_of(levels, {"z": "z1", "b": "r2", "a": "r1"}) == ("z1", "r1")
    assert path_of(levels, {"b": "r2", "a": ""}) == (None, "r2")
    assert find_level(levels, "b") is find_level(levels, "rack")
    assert find_level(levels, "row") is None


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("", "'' is not a known level"),
        ("row", "'row' is not a known level"),
        ("row=", "'row=' is not a known level"),
        ("Row=my.org/row", "'Row' cannot be the name of a level"),
        ("node=my.org/node", "'node' cannot be the name of a level"),
        ("row=my org/row", "'my org/row' cannot be the label of a level"),
        ("row=my.org/row|", "'' cannot be the label of a level"),
        ("host-group=kubernetes.io/hostname", "a node is always the lowest level"),
        ("zone,zone=my.org/zone", "'zone' means two levels"),
        ("row=my.org/x,rack=my.org/x", "'my.org/x' means two levels"),
        (",".join(f"l{i}=my.org/l{i}" for i in range(17)), "has more than 16 levels"),
    ],
)
def test_refused(text: str, said: str) -> None:
    with pytest.raises(InvalidSettings) as refusal:
        parse_levels(text)
    assert said in str(refusal.value)
    assert str(refusal.value).startswith("FLUXQUEUE_LEVELS")
