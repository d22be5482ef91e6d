"""What a review reads: the queue as the last cycle left it, and the request that is asked about.

``explain.decide``, ``explain.variants`` and ``explain.review`` take these values. The worker,
simulations and benchmarks build them. Plain values, without any decision.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from decimal import Decimal

from fluxqueue.explain.answer import Change, Place, Reason
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.nodepools.plan.coming_nodes import NodeRequest, PoolState
from fluxqueue.policy.queue_policy import QueuePolicy
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.prediction.calibration import Calibration
from fluxqueue.prediction.learned_times import LearnedTimes
from fluxqueue.prediction.predictor import Likeness
from fluxqueue.scheduler.cycle_decisions import Decisions, Queues
from fluxqueue.scheduler.pending_job import PendingJob, by_ended_runs
from fluxqueue.scheduler.preemption_plan import NO_PREEMPTIONS, Preemptions

NEWCOMER = 1 << 62
"""The jobid of a request that has none yet: behind all others."""


@dataclass(frozen=True, slots=True)
class QueueSnapshot:
    """The queue as the last cycle left it.

    Parameters
    ----------
    matcher : With the allocations of that cycle, and its reservations in the plan.
    queue, decisions, policy, queues : The arguments of ``run_cycle``, and its result.
    now : Epoch seconds.
    times : What is known of run times.
    calibration : How wrong expected starts were lately.
    planned : What the last forecast planned for jobs without a reservation, by UID.
    promised : Reservations that the next cycle must keep, by UID.
    preemptions : Possible victims for the request, and preemptions for other jobs.
    pools, requests, spent : Node pools, what is under way, and what nodes cost for an hour by queue
        (``nodepools.plan.provisioning.plan_nodes``).
    """

    matcher: Matcher
    queue: Sequence[PendingJob]
    decisions: Decisions
    policy: QueuePolicy
    queues: Queues
    now: int
    planned: Mapping[str, Placement] = field(default_factory=dict)
    promised: Mapping[str, Placement] = field(default_factory=dict)
    preemptions: Preemptions = NO_PREEMPTIONS
    pools: Sequence[PoolState] = ()
    requests: Sequence[NodeRequest] = ()
    spent: Mapping[str, Decimal] = field(default_factory=dict)
    times: LearnedTimes = field(default_factory=LearnedTimes)
    calibration: Calibration = field(default_factory=Calibration)

    def rules(self, queue: str) -> QueueRules:
        """Return the rules of a queue. A queue without rules has no limits."""
        return self.queues.rules.get(queue) or QueueRules(queue)

    def depth(self, queue: str) -> int:
        """Return how many jobs of a queue a cycle examines."""
        return self.rules(queue).policy(self.policy).queue_depth

    def with_plan(self, job: PendingJob, template: str, owner: str) -> PendingJob:
        """Return a request that is not submitted as it is planned once it is."""
        if not self.rules(job.queue).learn.covers(is_declared=not job.is_planned):
            return job
        default_s = int(job.request.duration_s)
        like = Likeness(template, owner, job.queue, default_s if job.has_limit else None)
        durations = self.times.durations(like, default_s)
        if durations is None:
            return job
        request, plan = by_ended_runs(job.request, durations, is_planned=job.is_planned)
        return replace(job, request=request, learned=plan)

    def is_backfilling(self, queue: str) -> bool:
        """Return whether other jobs of this queue may start before its blocked head."""
        return self.rules(queue).policy(self.policy).is_backfilling


@dataclass(frozen=True, slots=True)
class Keeper:
    """Something other than resources that holds a request back.

    ``without`` is the change that removes it. ``not_before`` is the time when it ends by itself
    (epoch seconds), None if unknown.
    """

    reason: Reason
    message: str
    without: Change
    not_before: int | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Parameters
    ----------
    job : The request with its queue, priority and user. If it waits already, its UID is in the
        queue of the scene. If it is not submitted, its jobid is ``NEWCOMER``.
    namespace : Where it is, or would be submitted.
    is_accepted : Its queue has accepted it. It then stays, even if the queue takes no new jobs.
    place : Its turn, if known better than from the queue of the scene, which ends at the depth of a
        cycle.
    keeper : What else it waits for.
    priorities : The priority that it would have in other queues.
    """

    job: PendingJob
    namespace: str = ""
    is_accepted: bool = False
    place: Place | None = None
    keeper: Keeper | None = None
    priorities: Mapping[str, int] = field(default_factory=dict)
