"""How a simulated site plans the run times of its jobs: as declared, as learned, or as they are.

``Engine`` asks for the plan of each job that is submitted, and tells of each run that ends. The
predictions are those of production, from the runs that have ended in virtual time.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import StrEnum
from typing import TYPE_CHECKING

from fluxqueue.prediction.durations import Durations
from fluxqueue.prediction.learned_times import LearnedTimes
from fluxqueue.prediction.predictor import Likeness
from fluxqueue.scheduler.pending_job import LearnedPlan

if TYPE_CHECKING:
    from fluxqueue.simulation.simulated_jobs import SimulatedJob


class DurationSource(StrEnum):
    """Where the plans of a simulation come from: ``fluxqueue sim --durations``."""

    DECLARED = "declared"
    LEARNED = "learned"
    PERFECT = "perfect"


@dataclass(slots=True)
class Learning:
    """What is known of run times at one moment of a simulation."""

    source: DurationSource = DurationSource.DECLARED
    _known: LearnedTimes = field(default_factory=LearnedTimes)

    def plan(self, job: SimulatedJob, default_s: int) -> LearnedPlan | None:
        """Return the plan of a job, None if it is planned as declared, or no run is like it.

        ``default_s`` is what a job without a limit is planned for if nothing is known.
        """
        if self.source == DurationSource.DECLARED:
            return None
        like = _likeness(job)
        if self.source == DurationSource.PERFECT:
            durations: Durations | None = Durations.planned(like.limit_s, job.runs_s, job.runs_s)
        else:
            durations = self._known.durations(like, default_s)
        return None if durations is None else LearnedPlan.of(job.request, durations)

    def learn(self, job: SimulatedJob) -> bool:
        """Take a run that has ended into account. Return whether plans have changed by it."""
        if self.source != DurationSource.LEARNED:
            return False
        self._known.learn(_likeness(job), job.runs_s)
        return True


def _likeness(job: SimulatedJob) -> Likeness:
    limit_s = int(job.request.duration_s) or None
    template = f"{job.cpu_m} {job.request.duration_s:g}"
    return Likeness(template, job.user, job.queue, limit_s)
