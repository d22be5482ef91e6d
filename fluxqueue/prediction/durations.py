"""The three times of a job, which are never mixed: its limit, its plan and its promise.

- The *limit* ends the job: ``activeDeadlineSeconds``, ``fluxqueue/duration``, ``maxDuration``.
- The *plan* says how long the job is expected to hold its slots. It is never beyond the limit.
- The *promise* is a guaranteed start. It exists only where limits bound all that comes before it.

Every place that plans reads the plan, and every place that promises reads the limit. The scheduler,
the ledger and the simulator import this module. It must not know jobs, nodes or clocks.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from itertools import accumulate

OVERRUN_GRACE_S = 5
"""A job past its limit is planned to end this much after it, then twice as much, and so on."""

STEPS_S = (60, 300, 900, 1800, 3600, 7200, 18_000, 36_000, 72_000, 180_000, 360_000)
"""How much longer a job is planned each time that its plan has run out (Tsafrir et al., 2007)."""

PUT_OFF_S = tuple(accumulate(STEPS_S))
"""How long after its plan a job is planned to end, after each of these steps."""


@dataclass(frozen=True, slots=True)
class Durations:
    """How long a job may run and is planned to run, in seconds.

    ``limit_s`` is None if nothing ends the job. Half of all such jobs run for at most
    ``typical_s``, and nine of ten for at most ``long_s``. A job jumps ahead by its typical time.
    Once it runs, its slots are planned for its long time.
    """

    limit_s: int | None
    typical_s: int
    long_s: int

    @classmethod
    def planned(cls, limit_s: int | None, typical_s: float, long_s: float) -> Durations:
        """Return a plan within the limit: at least a second, and the long time not the shorter."""
        most = long_s if limit_s is None else min(long_s, limit_s)
        long = max(1, round(most))
        return cls(limit_s, max(1, min(round(typical_s), long)), long)

    @property
    def bound_s(self) -> int:
        """Return how long it may hold its slots for all that is known: its limit, or its plan."""
        return self.long_s if self.limit_s is None else self.limit_s


def planned_end(until: int, now: int, limit: int) -> int:
    """Return when a live allocation is planned to end (epoch seconds).

    A plan that has run out is put off in growing steps up to the limit, and beyond the limit in
    steps that double. So a reservation behind it moves less and less often.

    Parameters
    ----------
    until : The end by plan.
    limit : When a limit ends it. A time that never comes if nothing does.
    """
    if until > now:
        return until
    if now < limit:
        late_s, last = now - until, PUT_OFF_S[-1]
        step = next((one for one in PUT_OFF_S if one > late_s), 0)
        return min(limit, until + (step or last << (late_s // last).bit_length()))
    return limit + (OVERRUN_GRACE_S << ((now - limit) // OVERRUN_GRACE_S).bit_length())


def promised_start(planned: int, bounds: Iterable[int], slack_s: int) -> int:
    """Return the start that can be promised if limits bound all that comes before it.

    Parameters
    ----------
    planned : The start by plan (epoch seconds).
    bounds : When limits end all that the start waits for.
    slack_s : How much later the job may start because of jobs that jump by their plan.
    """
    return max((planned, *bounds)) + slack_s
