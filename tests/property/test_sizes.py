"""Counts of moldable jobspecs: the arithmetic gives what trying all of them gives."""

from __future__ import annotations

from itertools import product

import hypothesis.strategies as st
import pytest
from hypothesis import assume, given

from fluxqueue.errors import TooComplex
from fluxqueue.jobspec import Count, Jobspec, Resource
from fluxqueue.jobspec.bounds import Work
from fluxqueue.jobspec.change import smaller_sizes, with_size
from fluxqueue.jobspec.shape import moldable_counts, of_size, with_counts
from fluxqueue.jobspec.sizes import Sizes, members

CORE = Resource("core", Count(1, 1))


@st.composite
def counts(draw: st.DrawFn) -> Count:
    operator = draw(st.sampled_from("++*^="))
    low = draw(st.integers(2 if operator == "^" else 1, 4))
    if operator == "=":
        return Count(low, low)
    operand = draw(st.integers(1 if operator == "+" else 2, 4))
    return Count(low, low + draw(st.integers(0, 9)), operator, operand)


def slots() -> st.SearchStrategy[Resource]:
    return st.builds(lambda count: Resource("slot", count, (CORE,), label="s"), counts())


trees = st.recursive(
    slots(),
    lambda below: st.builds(
        lambda count, parts: Resource("node", count, tuple(parts)),
        counts(),
        st.lists(below, min_size=1, max_size=2),
    ),
    max_leaves=4,
)
jobspecs = st.builds(
    lambda parts: Jobspec(1, tuple(parts)), st.lists(trees, min_size=1, max_size=3)
)


def tried(jobspec: Jobspec, size: int) -> Jobspec | None:
    """What ``of_size`` means, by trying all counts."""
    choices = product(*(list(members(one, size))[::-1] for one in moldable_counts(jobspec)))
    every = (with_counts(jobspec, numbers) for numbers in choices)
    return next((one for one in every if one.size == size), None)


@given(jobspecs, st.integers(0, 30))
def test_counts_are_those_that_trying_gives(jobspec: Jobspec, size: int) -> None:
    assume(len(moldable_counts(jobspec)) <= 4)
    assert of_size(jobspec, size) == tried(jobspec, size)


@given(jobspecs)
def test_smaller_sizes_are_those_that_can_be_given(jobspec: Jobspec) -> None:
    assume(jobspec.size < 200)
    can = [n for n in range(1, jobspec.size) if with_size(jobspec, n) is not None]
    assert list(smaller_sizes(jobspec)) == can


@given(jobspecs, st.integers(1, 2000), st.integers(0, 400))
def test_work_ends_where_it_is_bounded(jobspec: Jobspec, size: int, steps: int) -> None:
    work = Work(steps, "this")
    try:
        Sizes(size, work).counts_for(jobspec.resources)
    except TooComplex:
        assert work.left < 0
    else:
        assert work.left >= 0


def test_a_deadline_ends_the_work_early() -> None:
    asked = []

    def is_over() -> bool:
        asked.append(None)
        return len(asked) > 2

    work = Work(1 << 40, "this", is_over)

    def go_on() -> None:
        for _ in range(1_000_000):
            work.spend()

    with pytest.raises(TooComplex, match="this takes more work"):
        go_on()
    assert len(asked) == 3
