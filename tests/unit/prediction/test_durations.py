"""The three times of a job (``fluxqueue.prediction.durations``)."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from fluxqueue.graph.ledger.placement import FOREVER
from fluxqueue.graph.ledger.timeline import _planned
from fluxqueue.prediction.durations import (
    OVERRUN_GRACE_S,
    PUT_OFF_S,
    Durations,
    planned_end,
    promised_start,
)

TIMES = st.integers(0, 2_000_000)


def test_a_plan_stays_within_the_limit() -> None:
    """The limit ends the job, so no plan is beyond it. A plan is a second at least."""
    assert Durations.planned(60, 500, 900) == Durations(60, 60, 60)
    assert Durations.planned(None, 500, 90) == Durations(None, 90, 90)
    assert Durations.planned(60, -5, 0) == Durations(60, 1, 1)


def test_a_plan_that_ran_out_is_put_off_in_growing_steps_up_to_the_limit() -> None:
    """Beyond the limit the steps begin small again, because the job is ended any moment."""
    ends = [planned_end(100, now, FOREVER) - 100 for now in (100, 160, 460, 1360)]
    assert ends == list(PUT_OFF_S[:4])
    assert planned_end(100, 200, 300) == 300
    assert planned_end(100, 300, 300) == 300 + OVERRUN_GRACE_S


@given(TIMES, TIMES, st.one_of(TIMES, st.just(FOREVER)))
def test_the_timeline_plans_the_same_ends(until: int, now: int, limit: int) -> None:
    """The arrays of the timeline follow the definition."""
    limit = max(until, limit)
    untils, limits = (np.array([one], dtype=np.int64) for one in (until, limit))
    end = planned_end(until, now, limit)
    assert _planned(untils, limits, now).tolist() == [end]
    assert end > now


def test_only_limits_make_a_promise() -> None:
    """A plan may be wrong, so the promise waits for the last limit."""
    assert promised_start(50, [], 0) == 50
    assert promised_start(50, [80, 70], 10) == 90
