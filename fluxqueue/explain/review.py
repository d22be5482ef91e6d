"""One review: what the next cycle would decide about a request, in its place in the queue.

Called by the worker between two cycles with the matcher as the last one left it, and by simulations
and benchmarks. Pure; matcher and plan are afterwards as before, and an error leaves them in doubt:
whoever owns the matcher throws it away then, as after a cycle that failed.

The verdict is the cycle's own: the walk goes on with the request where it stood in its turn, and
what that started is taken back. Who would get no reservation is given the start that is left behind
what is planned for those before it (``scheduler.forecast``).
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from fluxqueue.errors import InsufficientResources
from fluxqueue.explain.answer import (
    Answer,
    Blocker,
    Certainty,
    Change,
    Counted,
    LevelCount,
    Outcome,
    Place,
    Reason,
    Variant,
    Verdict,
)
from fluxqueue.explain.counting import count_kinds, count_levels
from fluxqueue.graph.ledger.placement import FOREVER, UNKNOWN_END, Placement
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.tell.busy import why_not_now
from fluxqueue.graph.tell.never import why_never
from fluxqueue.graph.tell.room import is_open
from fluxqueue.graph.tell.waiting import in_the_way, why_no_plan
from fluxqueue.graph.tell.words import units
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.bounds import REVIEW_STEPS, Work
from fluxqueue.jobspec.shape import describe
from fluxqueue.policy.limits import why_refused
from fluxqueue.policy.queue_policy import QueuePolicy
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.scheduler.cycle import Decisions, PendingJob, Queues, decide_next, run_cycle
from fluxqueue.scheduler.preemption import NO_PREEMPTIONS, Preemptions

NEWCOMER = 1 << 62
"""The jobid of what has none yet: behind all others."""

REPLANNED_MAX = 8
"""Among so many promises to those behind it a cycle is tried out as a whole; of more, all are taken
as they are."""

BLOCKERS_MAX = 20
"""Who stands in the way is named up to so many."""


@dataclass(frozen=True, slots=True)
class Scene:
    """The queue as the last cycle left it.

    Parameters
    ----------
    matcher : its allocations booked, its reservations in the plan.
    queue, decisions, policy, queues : what ``run_cycle`` was given, and what it decided.
    now : epoch seconds.
    planned : what the last forecast planned for those without a reservation, by UID.
    promised : reservations that the next cycle is to keep, by UID.
    preemptions : who could make way for what is asked about, and who does for others.
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

    def rules(self, queue: str) -> QueueRules:
        """The rules of a queue; without limits where nobody has given it any."""
        return self.queues.rules.get(queue) or QueueRules(queue)

    def depth(self, queue: str) -> int:
        """How many of a queue a cycle looks at."""
        return self.rules(queue).policy(self.policy).queue_depth

    def is_backfilling(self, queue: str) -> bool:
        """Whether others of this queue may start before its blocked head."""
        return self.rules(queue).policy(self.policy).is_backfilling


@dataclass(frozen=True, slots=True)
class Keeper:
    """Something else than resources that keeps a request back, and what it is without that."""

    reason: Reason
    message: str
    without: Change
    not_before: int | None = None


@dataclass(frozen=True, slots=True)
class Question:
    """What is asked.

    Parameters
    ----------
    job : the request with its queue, priority and user; its UID is in the scene's queue where it
        waits there already, its jobid ``NEWCOMER`` where it is not submitted.
    namespace : where it is, or would be submitted.
    is_accepted : its queue has taken it in; one that takes no submissions any more keeps it.
    place : its turn, where that is known better than the scene's queue knows it (which ends at the
        depth of a cycle).
    keeper : what else it waits for.
    priorities : the priority it would have in other queues.
    """

    job: PendingJob
    namespace: str = ""
    is_accepted: bool = False
    place: Place | None = None
    keeper: Keeper | None = None
    priorities: Mapping[str, int] = field(default_factory=dict)


def answer(scene: Scene, question: Question, work: Work | None = None) -> Answer:
    """Say when and where the request starts, what stands in its way, and what would help.

    Variants that ``work`` does not suffice for are left out.

    Raises
    ------
    TooComplex
        ``work`` does not suffice for the request itself.
    """
    with scene.matcher.working(work or Work(REVIEW_STEPS, "this question")):
        return _answer(scene, question)


def _answer(scene: Scene, question: Question) -> Answer:
    from fluxqueue.explain.variants import find_variants

    request = question.job.request
    kinds, levels = _counts(scene, request)
    outcome = decide(scene, question)
    variants: tuple[Variant, ...] = ()
    if question.keeper is not None and outcome.verdict is not Verdict.NEVER:
        variants = (Variant(question.keeper.without, outcome, question.job),)
        outcome = _kept_back(question.keeper, outcome)
    elif outcome.verdict is not Verdict.NOW:
        variants = find_variants(scene, question, outcome)
    masks = scene.matcher.ledger.masks
    return Answer(
        request=describe(request),
        outcome=outcome,
        place=None
        if outcome.verdict is Verdict.NEVER
        else question.place or place(scene, question),
        kinds=kinds,
        levels=levels,
        variants=variants,
        nodes_total=int(masks.present().sum()),
        nodes_usable=int(masks.usable().sum()),
    )


def _counts(scene: Scene, request: Jobspec) -> tuple[tuple[Counted, ...], tuple[LevelCount, ...]]:
    table = scene.matcher.by_shares
    return count_kinds(table, request, scene.now), count_levels(table, request)


def _kept_back(keeper: Keeper, without: Outcome) -> Outcome:
    """It starts when what keeps it back is over, and not before it could without."""
    start, certainty = None, None
    if keeper.not_before is not None:
        start, certainty = keeper.not_before, Certainty.AT_BEST
        if without.verdict is Verdict.LATER:
            start = None if without.starts_at is None else max(start, without.starts_at)
    return Outcome(
        Verdict.LATER, keeper.reason, keeper.message, start, None if start is None else certainty
    )


def place(scene: Scene, question: Question) -> Place:
    """Its turn in its queue, as far as the scene's queue goes."""
    job = question.job
    others = [one for one in scene.queue if one.queue == job.queue and one.uid != job.uid]
    before = sum(turn(one) < turn(job) for one in others)
    return Place(job.queue, job.priority, before + 1, len(others) + 1)


def turn(job: PendingJob) -> tuple[int, int]:
    """Sort key of a queue: priority, then submission."""
    return -job.priority, job.jobid


def decide(scene: Scene, question: Question) -> Outcome:
    """What would become of the request in its place."""
    job, matcher = question.job, scene.matcher
    # A scene without named queues has none that could refuse it.
    refusal = scene.queues.rules and why_refused(
        job.queue,
        scene.queues.rules.get(job.queue),
        namespace=question.namespace,
        request=job.request,
        is_new=not question.is_accepted,
    )
    if refusal:
        return Outcome(Verdict.NEVER, Reason.REFUSED_BY_QUEUE, str(refusal))
    if not matcher.is_satisfiable(job.request):
        why = why_never(matcher.by_shares, job.request)
        return Outcome(Verdict.NEVER, Reason.UNSATISFIABLE, why)
    depth, before = scene.depth(job.queue), (question.place or place(scene, question)).position - 1
    if before >= depth:
        message = f"{before} jobs are before it in queue {job.queue}; the first {depth} are planned"
        return Outcome(Verdict.LATER, Reason.BEHIND, message)
    ahead = ahead_of(scene, job)
    with as_last_planned(scene, job.uid):
        own = ahead.decide(job)
    if own.verdict is Verdict.NOW or not 0 < len(_promised_behind(scene, job)) <= REPLANNED_MAX:
        return own
    return _replanned(scene, job)


def _promised_behind(scene: Scene, job: PendingJob) -> list[PendingJob]:
    return [
        one for one, _ in scene.decisions.reserved if one.uid != job.uid and turn(one) > turn(job)
    ]


@contextmanager
def as_last_planned(scene: Scene, uid: str) -> Iterator[None]:
    """Inside, the plan is the last cycle's without what it gave to ``uid``."""
    with scene.matcher.trying():
        for job, placement in (*scene.decisions.reserved, *scene.decisions.unpromised):
            if job.uid == uid:
                scene.matcher.unreserve(placement)
        yield


def ahead_of(scene: Scene, job: PendingJob) -> Ahead:
    """Those before a request, as the last cycle planned for them."""
    before = [one for one in scene.queue if one.uid != job.uid and turn(one) < turn(job)]
    given = {
        one.uid: where
        for one, where in (*scene.decisions.reserved, *scene.decisions.unpromised)
        if one.uid != job.uid
    }
    return Ahead(scene, before, given)


def _replanned(scene: Scene, job: PendingJob) -> Outcome:
    """The whole cycle with the request in its turn: those behind it, who have a reservation, may
    be given another that is no later."""
    queue = [one for one in scene.queue if one.uid != job.uid]
    at = bisect_left(queue, turn(job), key=turn)
    queue.insert(at, job)
    with scene.matcher.trying():
        decisions = run_cycle(
            scene.matcher,
            queue,
            scene.policy,
            scene.now,
            scene.queues,
            dict(scene.promised),
            replace(scene.preemptions, candidates=()),
        )
        try:
            plans = {one.uid: where for one, where in (*decisions.reserved, *decisions.unpromised)}
            return Ahead(scene, queue[:at], plans).read(job, decisions)
        finally:
            for started, _ in decisions.allocated:
                scene.matcher.cancel(started.uid)


def fits_now(now: int, nodes: tuple[str, ...]) -> Outcome:
    """It starts at once, there."""
    return Outcome(Verdict.NOW, Reason.FITS, "fits now", starts_at=now, nodes=nodes)


def _with_way_made(job: PendingJob, decisions: Decisions, outcome: Outcome) -> Outcome:
    """Whether others make way for it; who they are the blockers say to those who may read it."""
    making_way = decisions.making_way.get(job.uid)
    if making_way is None:
        return outcome
    count = len(making_way.victims)
    jobs = "1 job of a lower priority makes" if count == 1 else f"{count} of lower priority make"
    return replace(outcome, message=f"{outcome.message}; {jobs} way for it")


@dataclass(slots=True)
class Ahead:
    """Those before a request, and what was planned for them.

    ``given`` are the reservations of a cycle, by UID, which are in the plan already.
    """

    scene: Scene
    jobs: Sequence[PendingJob]
    given: Mapping[str, Placement]
    _plans: dict[str, Placement] = field(default_factory=dict)

    @contextmanager
    def planned(self) -> Iterator[None]:
        """Inside, what the last forecast planned for those before it is in the plan, too."""
        scene = self.scene
        ledger = scene.matcher.ledger
        with scene.matcher.trying():
            for job in self.jobs:
                known = scene.planned.get(job.uid)
                if job.uid in self.given or known is None:
                    continue
                late_s = max(0, scene.now - known.starts_at)
                known = replace(
                    known, starts_at=known.starts_at + late_s, until=known.until + late_s
                )
                if is_open(ledger, known, scene.now):
                    scene.matcher.reserve(known, scene.now)
                    self._plans[job.uid] = known
            yield

    def decide(self, job: PendingJob) -> Outcome:
        """What the walk that planned for them would have decided about ``job``."""
        decisions = self._next(job, may_reserve=True)
        try:
            return self.read(job, decisions)
        finally:
            for started, _ in decisions.allocated:
                self.scene.matcher.cancel(started.uid)

    def now(self, job: PendingJob) -> tuple[str, ...] | None:
        """The nodes on which it would start at once; None where it would not."""
        if sum(one.queue == job.queue for one in self.jobs) >= self.scene.depth(job.queue):
            return None
        decisions = self._next(job, may_reserve=False)
        for started, _ in decisions.allocated:
            self.scene.matcher.cancel(started.uid)
        return decisions.allocated[0][1].nodes if decisions.allocated else None

    def is_barred(self, job: PendingJob) -> bool:
        """Whether something else than resources keeps it back: a limit, a stopped queue."""
        return job.uid in self._next(job, may_reserve=False).barred

    def _next(self, job: PendingJob, *, may_reserve: bool) -> Decisions:
        scene = self.scene
        return decide_next(
            scene.matcher,
            self.jobs,
            scene.decisions,
            job,
            scene.policy,
            scene.now,
            scene.queues,
            may_reserve=may_reserve,
            preemptions=scene.preemptions if may_reserve else NO_PREEMPTIONS,
        )

    def read(self, job: PendingJob, decisions: Decisions) -> Outcome:
        """What a walk has decided about ``job``; who got no plan is given one behind theirs."""
        for one, where in decisions.allocated:
            if one.uid == job.uid:
                return fits_now(where.starts_at, where.nodes)
        if job.uid in decisions.barred:
            why = next(why for one, why in decisions.waiting if one.uid == job.uid)
            is_stopped = not self.scene.rules(job.queue).is_started
            return Outcome(Verdict.LATER, Reason.STOPPED if is_stopped else Reason.OVER_LIMIT, why)
        for plans, certainty in (
            (decisions.reserved, Certainty.PROMISED),
            (decisions.unpromised, Certainty.ESTIMATED),
        ):
            for one, where in plans:
                if one.uid == job.uid:
                    return _with_way_made(job, decisions, self.waits(job, where, certainty))
        with self.planned():
            return self.later(job)

    def floor(self, queue: str) -> int:
        """Where nobody overtakes, a request starts no earlier than those before it in its queue."""
        if self.scene.is_backfilling(queue):
            return 0
        return max(
            (one.starts_at for job in self.jobs if job.queue == queue and (one := self._of(job))),
            default=0,
        )

    def _of(self, job: PendingJob) -> Placement | None:
        return self.given.get(job.uid) or self._plans.get(job.uid)

    def later(self, job: PendingJob) -> Outcome:
        """The earliest start that the plan leaves."""
        matcher, scene = self.scene.matcher, self.scene
        floor = self.floor(job.queue)
        try:
            if floor >= UNKNOWN_END:
                raise InsufficientResources("those before it in its queue have no known start")
            found = matcher.match_later(job.request, scene.now, not_before=floor)
        except InsufficientResources as unknown:
            return self._no_plan(job, str(unknown))
        is_whole = all(self._of(one) is not None for one in self.jobs if self._counts(one))
        certainty = Certainty.ESTIMATED if is_whole else Certainty.AT_BEST
        return self.waits(job, found, certainty)

    def _counts(self, job: PendingJob) -> bool:
        """Who a limit keeps back, or a stopped queue, is before it in name only."""
        return job.uid not in self.scene.decisions.barred

    def _no_plan(self, job: PendingJob, unknown: str) -> Outcome:
        table = self.scene.matcher.by_shares
        why = why_no_plan(table, job.request, names_others=False)
        if why is not None:
            return Outcome(Verdict.LATER, Reason.NODES_UNUSABLE, why)
        endless = [
            Blocker(one.uid, False, len(set(where.nodes)), None)
            for one in self.jobs
            if (where := self._of(one)) and where.until >= FOREVER
        ]
        short = self._short(job)
        message = f"{short}; {unknown}" if short else unknown
        return Outcome(
            Verdict.LATER,
            Reason.BEHIND,
            message,
            blockers=tuple(endless[:BLOCKERS_MAX]),
            further_blockers=max(0, len(endless) - BLOCKERS_MAX),
        )

    def waits(self, job: PendingJob, where: Placement, certainty: Certainty) -> Outcome:
        """It waits for the nodes of ``where``; say who has them until then."""
        blockers = [*self._holders(where), *self._before(where)]
        short = self._short(job)
        reason, message = Reason.BUSY, short or ""
        if short is None:
            reason = Reason.PROMISED_TO_OTHERS
            message = "enough is free; it is kept for those before it"
            if not self.scene.is_backfilling(job.queue):
                reason = Reason.BEHIND
                message = f"enough is free; queue {job.queue} lets nobody overtake who is before it"
        if where.starts_at >= UNKNOWN_END:
            starts_at, sure = None, None
            message += "; what it waits for has no known end"
        else:
            starts_at, sure = where.starts_at, certainty
        return Outcome(
            Verdict.LATER,
            reason,
            message,
            starts_at,
            sure,
            nodes=where.nodes,
            blockers=tuple(blockers[:BLOCKERS_MAX]),
            further_blockers=max(0, len(blockers) - BLOCKERS_MAX),
        )

    def _short(self, job: PendingJob) -> str | None:
        """What there is too little of at this moment; None where enough is free."""
        table = self.scene.matcher.by_shares
        ask = table.ask(job.request)
        for times, leaf in ask.leaves():
            room, wanted = table.room_now(ask, leaf), times * leaf.count
            if room < wanted and not leaf.is_distinct:
                verb = "is" if wanted == 1 else "are"
                return f"{units(leaf, room, free=True)}; {wanted} {verb} needed"
        return why_not_now(table, job.request)

    def _holders(self, where: Placement) -> list[Blocker]:
        """What runs on the nodes, the last to end first."""
        ledger = self.scene.matcher.ledger
        way = in_the_way(self.scene.matcher.by_shares, where)
        count: dict[str, int] = {}
        for name in way.nodes:
            for key in ledger.keys_on(ledger.rows[name]):
                count[key] = count.get(key, 0) + 1
        return [
            Blocker(one.key, True, count[one.key], None if one.until >= FOREVER else one.until)
            for one in way.holders
        ]

    def _before(self, where: Placement) -> list[Blocker]:
        """Who is planned on the nodes before that."""
        nodes = set(where.nodes)
        found = []
        for job in self.jobs:
            plan = self._of(job)
            shared = nodes & set(plan.nodes) if plan is not None else ()
            is_endless = where.starts_at >= UNKNOWN_END
            if plan is not None and shared and (is_endless or plan.until <= where.starts_at):
                until = None if plan.until >= UNKNOWN_END else plan.until
                found.append(Blocker(job.uid, False, len(shared), until))
        return sorted(found, key=lambda one: -(one.until or FOREVER))
