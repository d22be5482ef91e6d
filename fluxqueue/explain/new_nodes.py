"""What new nodes would change for a request that waits: which, at what price, and from when.

``explain.review`` adds it to the answer for present nodes, so that a user can compare both. Nothing
is asked for by a question. Pure.
"""

from __future__ import annotations

from dataclasses import replace
from decimal import Decimal

from fluxqueue.explain.answer import Certainty, PlacementOutcome, PlacementVerdict, Reason
from fluxqueue.explain.question import Question, QueueSnapshot
from fluxqueue.fluxjob.provision import Provision
from fluxqueue.graph.tell.blockers import write_time
from fluxqueue.nodepools.plan.node_plan import describe_counts, describe_requests
from fluxqueue.nodepools.plan.provisioning import Supply, plan_nodes
from fluxqueue.policy.provision_rules import describe_price
from fluxqueue.scheduler.cycle_decisions import Decisions
from fluxqueue.scheduler.pending_job import PendingJob


def with_new_nodes(
    scene: QueueSnapshot, question: Question, outcome: PlacementOutcome
) -> PlacementOutcome:
    """Add to the outcome what was asked for the request, or what could be."""
    job = question.job
    if outcome.verdict is not PlacementVerdict.LATER or not scene.pools:
        return outcome
    own = [one for one in scene.requests if one.uid == job.uid]
    if own:
        ready_at = max(scene.now, *(one.ready_at for one in own))
        asked = describe_requests(own, scene.now)
        if outcome.starts_at is not None and outcome.starts_at <= ready_at:
            return replace(outcome, message=f"{outcome.message}; {asked}")
        return replace(
            outcome,
            reason=Reason.PROVISIONING,
            message=f"{asked}; on present nodes: {outcome.message}",
            starts_at=ready_at,
            expected_by=None,
            certainty=Certainty.ESTIMATED,
        )
    offer = None if job.provision is Provision.NEVER else _offer(scene, job, outcome)
    return outcome if offer is None else replace(outcome, message=f"{outcome.message}; {offer}")


def _offer(scene: QueueSnapshot, job: PendingJob, outcome: PlacementOutcome) -> str | None:
    """Return which new nodes would start ``job`` earlier, in words, or None."""
    owners = {one.uid for one in scene.requests}
    jobs = [
        *(one for one in scene.queue if one.uid in owners),
        replace(job, provision=Provision.NOW),
    ]
    plan = plan_nodes(
        scene.matcher,
        jobs,
        Decisions(),
        Supply(scene.pools, scene.requests, spent=scene.spent),
        scene.now,
        queues=scene.queues,
    )
    asks = [one for one in plan.asks if one.uid == job.uid]
    if not asks:
        return plan.why.get(job.uid)
    ready_at = max(one.ready_at for one in asks)
    if outcome.starts_at is not None and outcome.starts_at <= ready_at:
        return None
    price = sum((one.price * one.count for one in asks), Decimal(0))
    nodes = describe_counts({one.pool: one.count for one in asks}, "new ")
    at = write_time(ready_at, scene.now)
    return f"or from {at} on {nodes}, for {describe_price(price)} an hour"
