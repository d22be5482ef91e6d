"""Lists of completion indexes: as status writes them, merged, counted, and as Postgres ranges."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxqueue.fluxjob.indexes import (
    INDEX_MAX,
    Range,
    as_multirange,
    count_below,
    is_in,
    merge,
    read_indexes,
)

BOUND = 24
RANGES = st.lists(
    st.tuples(st.integers(0, 20), st.none() | st.integers(1, 5)).map(
        lambda one: (one[0], None if one[1] is None else one[0] + one[1])
    ),
    max_size=6,
)


@pytest.mark.parametrize(
    ("text", "ranges"),
    [
        ("", []),
        ("3", [(3, 4)]),
        ("0-4", [(0, 5)]),
        ("1,3-5,7", [(1, 2), (3, 6), (7, 8)]),
        ("0-2000000000", [(0, 2_000_000_001)]),
        (f"2,x,-1,5-3,{INDEX_MAX},99999999999,4", [(2, 3), (4, 5)]),
    ],
)
def test_a_list_is_read_as_far_as_it_can_be(text: str, ranges: list[Range]) -> None:
    """Other texts are left out. A long range costs nothing."""
    assert read_indexes(text) == ranges


@pytest.mark.parametrize(
    ("ranges", "text"),
    [
        ([], "{}"),
        ([(3, 4)], "{[3,4)}"),
        ([(4, 6), (0, 2), (2, 3), (5, 9)], "{[0,3),[4,9)}"),
        ([(8, None), (1, 2), (7, 8), (20, 21)], "{[1,2),[7,)}"),
    ],
)
def test_written_as_postgres_writes_it(ranges: list[Range], text: str) -> None:
    """In one form only, so that it can be compared."""
    assert as_multirange(ranges) == text


@given(ranges=RANGES)
def test_merging_keeps_the_members(ranges: list[Range]) -> None:
    """The same members, apart from each other and ascending, and so they are counted."""
    members = {n for n in range(BOUND) if is_in(n, ranges)}
    merged = merge(ranges)
    assert {n for n in range(BOUND) if is_in(n, merged)} == members
    assert count_below(ranges, BOUND) == len(members)
    for (_, end), (low, _) in itertools.pairwise(merged):
        assert end is not None
        assert end < low
