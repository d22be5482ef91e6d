"""Requests that did not fit: a larger one is known not to fit, and no other one is."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fluxqueue.fluxjob.request import CPU, MEMORY
from fluxqueue.graph.match.by_shares import why_busy
from fluxqueue.graph.match.shares.ask import compile_ask
from fluxqueue.jobspec import Count, Jobspec, Resource
from fluxqueue.scheduler.failed_searches import FailedSearches
from tests.support.pool_model import request


def asked(count: int = 2, *, duration_s: int | None = 60, **needs: int) -> Jobspec:
    """A request for some slots."""
    return request(count, duration_s=duration_s, **(needs or {CPU: 2}))


def why(tried: Jobspec, other: Jobspec) -> str | None:
    """Why ``other`` does not fit if ``tried`` did not."""
    failed = FailedSearches()
    failed.add(compile_ask(tried), "because")
    return failed.why(compile_ask(other), other)


@pytest.mark.parametrize(
    "larger",
    [
        {"count": 3},
        {"duration_s": 61},
        {"duration_s": None},
        {CPU: 3},
        {"count": 9, "duration_s": 90, CPU: 4},
    ],
)
def test_a_larger_request_does_not_fit(larger: dict[str, Any]) -> None:
    """Its reason is its own."""
    other = asked(**larger)
    assert why(asked(), other) == why_busy(other)
    assert why(other, asked()) is None


def test_an_equal_request_has_the_same_reason() -> None:
    """Also as another object."""
    assert why(asked(), asked()) == "because"


@pytest.mark.parametrize(
    "other",
    [
        asked(3, duration_s=59),
        asked(1, cpu=4),
        asked(2, **{CPU: 2, MEMORY: 1}),
        replace(asked(9), is_node_exclusive=True),
    ],
)
def test_nothing_is_known_of_others(other: Jobspec) -> None:
    """Less of something, another resource, or whole nodes."""
    assert why(asked(), other) is None


def test_what_is_given_back_changes_all() -> None:
    """After that nothing is known."""
    failed = FailedSearches()
    tried = compile_ask(asked())
    failed.add(tried, "because")
    assert failed.why(tried, asked()) == "because"
    failed.clear()
    assert failed.why(tried, asked()) is None
    assert failed.known(tried) is None


def test_numbers_that_are_not_fixed_are_not_compared() -> None:
    """Such a request is smaller than its most, so only an equal one is known."""
    slot = asked().resources[0]
    moldable: Resource = replace(slot, count=Count(2, 8))
    assert compile_ask(replace(asked(), resources=(moldable,))).extent is None
    assert compile_ask(asked()).extent is not None
