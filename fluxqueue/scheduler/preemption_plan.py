"""Preemption: running jobs are requeued so that the head of a queue can start.

The cycle calls it, and docs/admin/queues.md describes it. The matcher first answers whether the
head starts if certain jobs end. If it does not, nothing is preempted. While the victims leave, a
*claim* keeps their capacity for the preemptor. A claim is a reservation that holds against all
other jobs.

Preemption has no cycles. A victim has a lower *standing* than its preemptor. The standing is the
priority without the points of fair share, so it changes by hand only. So no victim can preempt its
preemptor, and no job preempts more often than it has to start. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fluxqueue.errors import InsufficientResources
from fluxqueue.graph.ledger.if_ended import WhatIf
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.tell.room import is_open
from fluxqueue.jobspec import Jobspec
from fluxqueue.policy.queue_rules import PreemptionRules
from fluxqueue.scheduler.victims import fewest

NAMED_MAX = 5
"""Jobs named in one sentence."""

PER_CYCLE_MAX = 4
"""Preemptors that get victims in one cycle. The next cycle continues."""


@dataclass(frozen=True, slots=True)
class PreemptionCandidate:
    """A running job that may be requeued. ``started_at``: epoch seconds.

    ``grace_s``: how long its pods may take to end.
    """

    uid: str
    jobid: int
    queue: str
    standing: int
    started_at: int
    grace_s: int = 0


@dataclass(frozen=True, slots=True)
class Victim:
    """A job that is preempted."""

    uid: str
    jobid: int


@dataclass(frozen=True, slots=True)
class MakingWay:
    """One preemption: all its victims, from ``vacate_at`` (epoch seconds) on.

    ``gone`` are the UIDs of victims that have given back what the preemptor needs. ``grace_s`` is
    the longest time that the pods of a victim may take to end.
    """

    victims: tuple[Victim, ...]
    vacate_at: int
    gone: frozenset[str] = frozenset()
    grace_s: int = 0

    @property
    def free_at(self) -> int:
        """When what they hold is free at the latest (epoch seconds)."""
        return self.vacate_at + (self.grace_s if self.leaving else 0)

    @property
    def leaving(self) -> tuple[str, ...]:
        """UIDs of the victims that have not left yet."""
        return tuple(one.uid for one in self.victims if one.uid not in self.gone)

    def describe(self) -> str:
        """Name the victims: ``job 7 and job 9 are preempted for it``."""
        names = [f"job {one.jobid}" for one in self.victims]
        if len(names) > NAMED_MAX:
            names = [*names[:NAMED_MAX], f"{len(names) - NAMED_MAX} more"]
        who = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        return f"{who} {'is' if len(names) == 1 else 'are'} preempted for it"


@dataclass(frozen=True, slots=True)
class Preemptions:
    """What a cycle knows of preemption.

    Parameters
    ----------
    candidates : Running jobs of all queues that may be requeued.
    standings : Standing of waiting jobs, by UID. A job without an entry preempts nothing.
    under_way : Preemptions that have begun, by the UID of the preemptor.
    claims : Where these preemptors start, by UID.
    """

    candidates: Sequence[PreemptionCandidate] = ()
    standings: Mapping[str, int] = field(default_factory=dict)
    under_way: Mapping[str, MakingWay] = field(default_factory=dict)
    claims: Mapping[str, Placement] = field(default_factory=dict)


NO_PREEMPTIONS = Preemptions()


def hold_claims(
    matcher: Matcher, preemptions: Preemptions, uids: Iterable[str], now: int
) -> dict[str, Placement]:
    """Put claims into the plan that are possible once their victims are gone.

    Parameters
    ----------
    matcher : Without a plan that could be in the way of the claims.
    uids : UIDs of the waiting jobs, in their order.

    Returns
    -------
    The reserved placements by UID. Each starts when the pods of its victims have ended, or now.
    """
    held: dict[str, Placement] = {}
    if not preemptions.under_way:
        return held
    for uid in uids:
        making_way, claim = preemptions.under_way.get(uid), preemptions.claims.get(uid)
        if making_way is None or claim is None:
            continue
        # A claim cannot start in the past: ``is_open`` would refuse it.
        claim = _moved(claim, max(now, making_way.free_at))
        # The victims still hold the capacity: judge as if they were gone.
        with matcher.ledger.without(making_way.leaving):
            is_possible = is_open(matcher.ledger, claim, now)
        if is_possible:
            matcher.reserve(claim, now)
            held[uid] = claim
    return held


def _moved(placement: Placement, starts_at: int) -> Placement:
    """Return ``placement`` with another start and the same duration."""
    later_s = starts_at - placement.starts_at
    return replace(placement, starts_at=starts_at, until=placement.until + later_s)


@dataclass(frozen=True, slots=True)
class Head:
    """A job that may preempt, and the rules of its queue.

    ``starts_at`` is its planned start without preemption (epoch seconds), None if unknown.
    """

    request: Jobspec
    standing: int
    rules: PreemptionRules
    starts_at: int | None


def make_way(
    matcher: Matcher, head: Head, candidates: Sequence[PreemptionCandidate], now: int
) -> tuple[MakingWay, Placement] | None:
    """Find the fewest and youngest victims for ``head``, and where it starts without them.

    Parameters
    ----------
    candidates : Running jobs that no other preemption has chosen.

    Returns
    -------
    The preemption and its claim, or None if the head would start no earlier, or not as a whole. The
    matcher is left as it was.
    """
    vacate_at = now + head.rules.grace_s
    # The grace of the victims would end after the planned start: nothing is gained.
    if head.starts_at is not None and head.starts_at <= vacate_at:
        return None
    live = matcher.ledger.live
    chosen = [one for one in candidates if one.uid in live and _may_make_way(head, one, now)]
    # The youngest come first, because they lose the least work.
    chosen.sort(key=lambda one: (-one.started_at, -one.jobid))
    if not chosen:
        return None
    what_if = WhatIf(matcher.ledger, [one.uid for one in chosen])

    def enough(numbers: Sequence[int]) -> Sequence[int] | None:
        where = _start_without(matcher, head.request, what_if, numbers, now)
        return None if where is None else what_if.on({*where.nodes, *where.held}, numbers)

    found = fewest(len(chosen), enough, matcher.by_shares.relief(head.request, what_if))
    if found is None:
        return None
    placement = _start_without(matcher, head.request, what_if, found, now)
    assert placement is not None, "it was found possible"
    victims = tuple(Victim(chosen[n].uid, chosen[n].jobid) for n in found)
    making_way = MakingWay(victims, vacate_at, grace_s=max(chosen[n].grace_s for n in found))
    if head.starts_at is not None and head.starts_at <= making_way.free_at:
        return None
    placement = _moved(placement, making_way.free_at)
    # ``match_now`` saw a start now. The claim starts later, when a reservation may be in the way.
    with matcher.ledger.without(making_way.leaving):
        return (making_way, placement) if is_open(matcher.ledger, placement, now) else None


def claim_anew(matcher: Matcher, head: Head, making_way: MakingWay, now: int) -> Placement | None:
    """Return where ``head`` starts once the victims that leave for it are gone.

    Its claim was lost with the database or with a node. None if the victims are not enough, or if
    it would start no earlier.
    """
    if not making_way.leaving:
        return None
    free_at = max(now, making_way.free_at)
    if head.starts_at is not None and head.starts_at <= free_at:
        return None
    with matcher.ledger.without(making_way.leaving):
        try:
            placement = _moved(matcher.match_now(head.request, now), free_at)
        except InsufficientResources:
            return None
        return placement if is_open(matcher.ledger, placement, now) else None


def _may_make_way(head: Head, one: PreemptionCandidate, now: int) -> bool:
    """Return whether the head may preempt it, by standing, queue and minimum run time."""
    return (
        one.standing < head.standing
        and one.queue in head.rules.queues
        and one.started_at + head.rules.min_runtime_s <= now
    )


def _start_without(
    matcher: Matcher, request: Jobspec, what_if: WhatIf, numbers: Sequence[int], now: int
) -> Placement | None:
    """Return where ``request`` starts without these victims, delaying no promised start."""
    with what_if.without(numbers):
        try:
            return matcher.match_now(request, now)
        except InsufficientResources:
            return None
