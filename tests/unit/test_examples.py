"""A quick run of the tests draws fewer examples, and all where all are asked for."""

from __future__ import annotations

import os

from hypothesis import given, settings
from hypothesis import strategies as st

from tests.support.examples import ALL_VARIABLE

drawn: list[int] = []


@given(st.integers())
@settings(max_examples=90)
def test_a_property(number: int) -> None:
    drawn.append(number)


def test_of_which_a_fifth_was_drawn() -> None:
    assert len(drawn) == (90 if os.environ.get(ALL_VARIABLE) else 18)
