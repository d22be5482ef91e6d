"""A job of the queue, as a cycle needs it. The worker and the simulator make them. Pure."""

from __future__ import annotations

from dataclasses import dataclass, replace

from fluxqueue.fluxjob.provision import Provision
from fluxqueue.fluxjob.request import CPU
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.shape import fewest_nodes, total
from fluxqueue.policy.limits import Amounts
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.prediction.durations import Durations


@dataclass(frozen=True, slots=True)
class LearnedPlan:
    """How long a job is planned to run by ended runs, and its request for that time."""

    durations: Durations
    request: Jobspec

    @classmethod
    def of(cls, request: Jobspec, durations: Durations) -> LearnedPlan:
        """Return the plan of a request."""
        return cls(durations, replace(request, duration_s=float(durations.typical_s)))


@dataclass(frozen=True, slots=True)
class PendingJob:
    """One job of the queue, as the cycle needs it.

    ``refused`` are nodes that did not take its pods in an earlier try. They are used only if it
    fits nowhere else. ``provision`` says whether nodes may be asked for, for this job.
    ``is_unsure``: its pods have constraints that the matcher cannot judge. ``has_limit``: its
    duration is enforced. ``is_planned``: it states none, and its queue plans it. ``learned`` is its
    plan by ended runs. Without one it is planned for the duration of ``request``.
    """

    uid: str
    jobid: int
    priority: int
    request: Jobspec
    queue: str = "default"
    user: str = ""
    refused: tuple[str, ...] = ()
    provision: Provision = Provision.WHEN_NEEDED
    is_unsure: bool = False
    has_limit: bool = True
    is_planned: bool = False
    place: int = 0
    learned: LearnedPlan | None = None

    @property
    def stated(self) -> Jobspec:
        """Return its request as its author stated it: its plan is no part of it."""
        return replace(self.request, duration_s=0.0) if self.is_planned else self.request

    @property
    def by_plan(self) -> Jobspec:
        """Return its request for as long as it is planned to run."""
        return self.request if self.learned is None else self.learned.request

    @property
    def turn(self) -> tuple[int, int]:
        """Return its sort key in the queue: priority, then its place (``fluxjobs.place``)."""
        return -self.priority, self.place or self.jobid


def by_ended_runs(
    request: Jobspec, durations: Durations, *, is_planned: bool
) -> tuple[Jobspec, LearnedPlan]:
    """Return a request for as long as it may run, and its plan. ``is_planned``: it states none."""
    if is_planned:
        request = bounded(replace(request, duration_s=0.0), durations)
    return request, LearnedPlan.of(request, durations)


def bounded(request: Jobspec, durations: Durations) -> Jobspec:
    """Return a request for as long as it may run: its own duration, or its plan if it has none."""
    if request.duration_s:
        return request
    return replace(request, duration_s=float(durations.bound_s))


def as_stated(job: PendingJob, rules: QueueRules | None) -> Jobspec:
    """Return the request as its queue judges it: what the site plans is no duration of the job."""
    if rules is None or rules.default_duration_s:
        return job.request
    return job.stated


def amounts_of(job: PendingJob, nodes: int = 0) -> Amounts:
    """Return what limits count of a job: jobs, nodes and millicores.

    ``nodes`` 0 counts the fewest nodes that the request can do with.
    """
    return Amounts(1, nodes or fewest_nodes(job.request), total(job.request, CPU))
