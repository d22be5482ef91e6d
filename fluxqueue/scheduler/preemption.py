"""Preemption: the head of a queue has others requeued, so that it starts (docs/admin/queues.md).

Called by the cycle. Whether it is worth it is asked of the matcher before anybody is touched: if
these end, does it start where and when is planned? If not, nobody is told to. While they leave,
what they give back is kept for it as a *claim*: a reservation that holds against everybody.

There are no circles: who makes way has a lower *standing*, which is the priority without the points
of fair share, so it changes by hand only. So nobody has his preemptor requeued, and nobody has
others requeued more often than he was made to start anew himself. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fluxqueue.errors import InsufficientResources
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.ledger.what_if import WhatIf
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.tell.room import is_open
from fluxqueue.jobspec import Jobspec
from fluxqueue.policy.queue_rules import PreemptionRules
from fluxqueue.scheduler.victims import fewest

NAMED_MAX = 5
"""Jobs named in one sentence."""

PER_CYCLE_MAX = 4
"""FluxJobs for which others are made to leave in one cycle; the next goes on."""


@dataclass(frozen=True, slots=True)
class Candidate:
    """Something that runs and could be requeued. ``started_at``: epoch seconds."""

    uid: str
    jobid: int
    queue: str
    standing: int
    started_at: int


@dataclass(frozen=True, slots=True)
class Victim:
    """Who makes way."""

    uid: str
    jobid: int


@dataclass(frozen=True, slots=True)
class MakingWay:
    """Who makes way for a FluxJob from ``vacate_at`` (epoch seconds) on: all of them. ``gone`` are
    the UIDs of those who have given back what it is to have."""

    victims: tuple[Victim, ...]
    vacate_at: int
    gone: frozenset[str] = frozenset()

    @property
    def leaving(self) -> tuple[str, ...]:
        """UIDs of those who have not left yet."""
        return tuple(one.uid for one in self.victims if one.uid not in self.gone)

    def describe(self) -> str:
        """Name them: ``job 7 and job 9 make way for it``."""
        names = [f"job {one.jobid}" for one in self.victims]
        if len(names) > NAMED_MAX:
            names = [*names[:NAMED_MAX], f"{len(names) - NAMED_MAX} more"]
        who = names[0] if len(names) == 1 else f"{', '.join(names[:-1])} and {names[-1]}"
        return f"{who} {'makes' if len(names) == 1 else 'make'} way for it"


@dataclass(frozen=True, slots=True)
class Preemptions:
    """What a cycle knows of preemption.

    Parameters
    ----------
    candidates : what runs and may be requeued, of all queues.
    standings : of FluxJobs that wait, by UID; who is not named has nobody requeued.
    under_way : who makes way for whom already, by the UID of the latter.
    claims : where these start, by UID.
    """

    candidates: Sequence[Candidate] = ()
    standings: Mapping[str, int] = field(default_factory=dict)
    under_way: Mapping[str, MakingWay] = field(default_factory=dict)
    claims: Mapping[str, Placement] = field(default_factory=dict)


NO_PREEMPTIONS = Preemptions()


def hold_claims(
    matcher: Matcher, preemptions: Preemptions, uids: Iterable[str], now: int
) -> dict[str, Placement]:
    """Put claims into the plan, as far as they are possible once those who make way are gone.

    Parameters
    ----------
    matcher : without a plan that could be in their way.
    uids : of those who wait, in their order.

    Returns
    -------
    By UID, what was reserved: from the time on when the others were asked to leave, or from now on.
    """
    held: dict[str, Placement] = {}
    for uid in uids:
        making_way, claim = preemptions.under_way.get(uid), preemptions.claims.get(uid)
        if making_way is None or claim is None:
            continue
        claim = _moved(claim, max(now, making_way.vacate_at))
        with matcher.ledger.without(making_way.leaving):
            is_possible = is_open(matcher.ledger, claim, now)
        if is_possible:
            matcher.reserve(claim, now)
            held[uid] = claim
    return held


def _moved(placement: Placement, starts_at: int) -> Placement:
    later_s = starts_at - placement.starts_at
    return replace(placement, starts_at=starts_at, until=placement.until + later_s)


@dataclass(frozen=True, slots=True)
class Head:
    """Who wants others to make way: under which rules, and since when it could start anyhow
    (epoch seconds; None: nobody knows)."""

    request: Jobspec
    standing: int
    rules: PreemptionRules
    starts_at: int | None


def make_way(
    matcher: Matcher, head: Head, candidates: Sequence[Candidate], now: int
) -> tuple[MakingWay, Placement] | None:
    """Find the fewest and youngest that have to make way for ``head``, and where it starts then.

    None where it would start no earlier, or not all of it. ``candidates`` are those that nobody has
    made to leave yet; the matcher is left as it was.
    """
    vacate_at = now + head.rules.grace_s
    if head.starts_at is not None and head.starts_at <= vacate_at:
        return None
    live = matcher.ledger.live
    chosen = [one for one in candidates if one.uid in live and _may_make_way(head, one, now)]
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
    placement = _moved(placement, vacate_at)
    victims = tuple(Victim(chosen[n].uid, chosen[n].jobid) for n in found)
    making_way = MakingWay(victims, vacate_at)
    with matcher.ledger.without(making_way.leaving):
        return (making_way, placement) if is_open(matcher.ledger, placement, now) else None


def claim_anew(matcher: Matcher, head: Head, making_way: MakingWay, now: int) -> Placement | None:
    """Where ``head`` starts once those have left who leave for it already, whose claim was lost
    with the database, or with a node. None where that is not enough, or no earlier.
    """
    if not making_way.leaving:
        return None
    vacate_at = max(now, making_way.vacate_at)
    if head.starts_at is not None and head.starts_at <= vacate_at:
        return None
    with matcher.ledger.without(making_way.leaving):
        try:
            placement = _moved(matcher.match_now(head.request, now), vacate_at)
        except InsufficientResources:
            return None
        return placement if is_open(matcher.ledger, placement, now) else None


def _may_make_way(head: Head, one: Candidate, now: int) -> bool:
    return (
        one.standing < head.standing
        and one.queue in head.rules.queues
        and one.started_at + head.rules.min_runtime_s <= now
    )


def _start_without(
    matcher: Matcher, request: Jobspec, what_if: WhatIf, numbers: Sequence[int], now: int
) -> Placement | None:
    """Where it starts if these are gone, delaying nobody who was promised a start."""
    with what_if.without(numbers):
        try:
            return matcher.match_now(request, now)
        except InsufficientResources:
            return None
