"""Places for jobs beside closed nodes: no limit of a job may reach into a maintenance.

The walk of a cycle and the forecast call it in place of the matcher. The plan of the ledger has the
closures, so what is planned keeps clear of them by itself. A job may run longer than its plan, and
one without a limit for ever: these get no node that closes before. Pure.
"""

from __future__ import annotations

from contextlib import suppress
from dataclasses import replace

from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.request import MatchPolicy
from fluxqueue.graph.ledger.placement import FOREVER, Closure, Placement
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.tell.blockers import describe_nodes, write_time
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.shape import without_nodes
from fluxqueue.scheduler.lack import Lack
from fluxqueue.scheduler.pending_job import PendingJob


def bound_of(job: PendingJob, starts_at: int) -> int:
    """Return when a job that starts then has ended for sure: its limit and the grace of its pods.

    ``FOREVER`` if no limit ends it.
    """
    if not job.has_limit:
        return FOREVER
    if job.learned is None:
        return starts_at + job.request.held_s if job.request.held_s else FOREVER
    limit_s = job.learned.durations.limit_s
    return FOREVER if limit_s is None else starts_at + limit_s + job.request.grace_s


def closure_met(matcher: Matcher, job: PendingJob, placement: Placement) -> Closure | None:
    """Return the closure that a job would meet at this place before its limit, or None."""
    at = placement.starts_at
    return matcher.ledger.first_closure(placement.nodes, at, bound_of(job, at))


def open_now(matcher: Matcher, job: PendingJob, request: Jobspec, now: int) -> Placement:
    """Place a job now, on nodes that are open until its limit.

    If possible it is placed beside the nodes that refused it. Its pods may refuse each other, by
    anti-affinity or host ports, so they are spread then.

    Raises
    ------
    InsufficientResources
        It does not fit now. The reason names the reservation if no other work is in the way.
    """
    if job.refused:
        elsewhere = without_nodes(request, job.refused)
        if elsewhere.match_policy is None:
            elsewhere = replace(elsewhere, match_policy=MatchPolicy.SPREAD)
        with suppress(InsufficientResources):
            return _open_now(matcher, job, elsewhere, now)
    try:
        return _open_now(matcher, job, request, now)
    except InsufficientResources:
        why = why_closed(matcher, job, request, now)
        if why is None:
            raise
        raise InsufficientResources(why) from None


def _open_now(matcher: Matcher, job: PendingJob, request: Jobspec, now: int) -> Placement:
    placement = matcher.match_now(request, now)
    if closure_met(matcher, job, placement) is None:
        return placement
    closing = matcher.ledger.closing(now, bound_of(job, now))
    return matcher.match_now(without_nodes(request, closing), now)


def open_later(matcher: Matcher, job: PendingJob, now: int, *, not_before: int = 0) -> Placement:
    """Return the earliest planned start of a job whose limit meets no closure.

    Raises
    ------
    InsufficientResources
        No such start is known.
    """
    placement = matcher.match_later(job.by_plan, now, not_before=not_before)
    if not matcher.ledger.closures or closure_met(matcher, job, placement) is None:
        return placement
    bound = bound_of(job, 0)
    whole_s = 0.0 if bound >= FOREVER else float(bound - job.request.grace_s)
    whole = matcher.match_later(
        replace(job.by_plan, duration_s=whole_s), now, not_before=not_before
    )
    until = whole.starts_at + job.by_plan.held_s
    return replace(whole, until=until)


def open_until(matcher: Matcher, lack: Lack, until: int) -> int:
    """Return for how long further slots need open nodes: for ever, if no limit ends them."""
    return until if lack.has_limit or not matcher.ledger.closures else FOREVER


def why_closed(matcher: Matcher, job: PendingJob, request: Jobspec, now: int) -> str | None:
    """Return which reservation alone keeps a job from a start now, in words, or None."""
    table = matcher.by_shares
    if not matcher.ledger.closures or table.lacks_now(table.ask(request)):
        return None
    try:
        with matcher.ledger.opened():
            placement = matcher.match_now(request, now)
    except InsufficientResources:
        return None
    met = closure_met(matcher, job, placement)
    return None if met is None else describe_closure(matcher, met, placement, now)


def describe_closure(matcher: Matcher, met: Closure, placement: Placement, now: int) -> str:
    """Return in words what keeps a job from nodes that are free."""
    nodes = sorted(set(met.nodes) & set(placement.nodes))
    where = describe_nodes(matcher.by_shares, nodes, None)
    if met.starts_at <= now:
        return f"waits for {where} in maintenance {met.name} until {write_time(met.until, now)}"
    return f"would run into maintenance {met.name} on {where}, {write_time(met.starts_at, now)}"
