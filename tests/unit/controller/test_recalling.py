"""What a FluxJob tells of its workload's past, where the rows are lost."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.controller.observing.recall import past_in
from fluxqueue.errors import InvalidInput
from fluxqueue.jobspec.render import render
from fluxqueue.workload import labels
from tests.support.pool_model import request

EXPECTED = (InvalidInput, ValueError, TypeError, KeyError)
"""What ``recall`` takes for nothing known."""

SPEC: dict[str, Any] = {
    "jobspec": render(request(3, cpu=2)),
    "size": 3,
    "queue": "night",
    "priority": 4,
    "durationSeconds": 90,
    "beginTime": "2031-01-01T00:00:00Z",
    "dependsOn": [{"type": "afterok", "job": "a"}, {"type": "after", "job": "7"}],
    "hold": True,
}


def test_its_spec_is_what_was_said_first() -> None:
    """In the words of the annotations that it was made from."""
    past = past_in({"spec": SPEC})
    assert past.said == {
        labels.QUEUE: "night",
        labels.PRIORITY: "4",
        labels.DURATION: "90",
        labels.BEGIN_TIME: "2031-01-01T00:00:00Z",
        labels.DEPENDS_ON: "afterok:a,after:7",
        labels.HOLD: "true",
    }
    assert past.asked is not None
    assert (past.asked.request, past.asked.size, past.asked.duration_s) == (SPEC["jobspec"], 3, 90)


def test_the_values_that_it_shows_are_later_ones() -> None:
    """Whatever else a user wrote there is left out."""
    status = {"lastGood": {labels.PRIORITY: "8", labels.CORES: "whole", labels.HOLD: 7}}
    past = past_in({"spec": SPEC, "status": status})
    assert past.said[labels.PRIORITY] == "8"
    assert past.said[labels.CORES] == "whole"
    assert past.said[labels.HOLD] == "true"


@pytest.mark.parametrize("spec", [{}, {"jobspec": 7}, {"jobspec": {"version": 1}}])
def test_one_that_is_none_of_ours(spec: dict[str, Any]) -> None:
    """Tells nothing. The caller goes on without it."""
    with pytest.raises(EXPECTED):
        past_in({"spec": spec})
