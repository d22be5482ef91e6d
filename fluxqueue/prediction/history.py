"""What is remembered of ended runs of one class of jobs: a few run times, the newest first.

A class is a set of jobs that are alike, such as those of one template. Its state is bounded.
``learned_times`` adds each run that has ended, and ``predictor`` reads it. Pure.
"""

from __future__ import annotations

from dataclasses import dataclass

RUNS_MAX = 8
"""Runs of a class that are remembered."""

FADING = 0.8
"""Weight of a run, relative to the next newer one."""

RUN_MAX_S = 31 * 86_400
"""Longer runs count as this long."""

CHANGE = 3
"""So many runs in a row show that the run time has changed, if it is by more than this factor."""

AT_ONCE_S = 10
"""A failure within this time says nothing about the run time, except that it is longer."""


@dataclass(frozen=True, slots=True)
class EndedRun:
    """One ended run in seconds. ``is_cut``: it would have run longer, as after a preemption."""

    seconds: int
    is_cut: bool = False


@dataclass(frozen=True, slots=True)
class ClassHistory:
    """The runs of one class, the newest first."""

    runs: tuple[EndedRun, ...] = ()

    def after(
        self, seconds: float, *, is_cut: bool = False, has_failed: bool = False
    ) -> ClassHistory:
        """Return the history with one more run.

        Parameters
        ----------
        seconds : The run time. An impossible one is bounded.
        is_cut : The run was cancelled or preempted.
        has_failed : The run failed. Within ``AT_ONCE_S`` that counts as cut.
        """
        bounded = min(max(1, seconds), RUN_MAX_S)  # NaN becomes 1
        run = EndedRun(round(bounded), is_cut or (has_failed and bounded <= AT_ONCE_S))
        runs = (run, *self.runs)[:RUNS_MAX]
        return ClassHistory(_since_change(runs))


def _since_change(runs: tuple[EndedRun, ...]) -> tuple[EndedRun, ...]:
    """Drop the older runs if the newest ones show that the run time has changed."""
    new, old = runs[:CHANGE], runs[CHANGE:]
    if not old or any(run.is_cut for run in runs):
        return runs
    seconds, before = [run.seconds for run in new], [run.seconds for run in old]
    is_new = min(seconds) > CHANGE * max(before) or max(seconds) * CHANGE < min(before)
    return new if is_new else runs
