"""What the next cycle would decide about one request, in its place in the queue.

``explain.review`` calls it for the request itself, ``explain.variants`` for changed ones. The
verdict is the cycle's own: the walk continues with the request in its turn, and what it starts is
undone. A request without a reservation gets the start that is left behind the plans of the jobs
ahead of it (``scheduler.forecast``). Pure. Matcher and plan are the same afterwards.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field, replace

from fluxqueue.errors import InsufficientResources
from fluxqueue.explain.answer import (
    Blocker,
    Certainty,
    Place,
    PlacementOutcome,
    PlacementVerdict,
    Reason,
)
from fluxqueue.explain.question import Question, QueueSnapshot
from fluxqueue.graph.ledger.placement import FOREVER, Placement
from fluxqueue.graph.tell.blockers import in_the_way, why_no_plan
from fluxqueue.graph.tell.busy import why_not_now
from fluxqueue.graph.tell.never import why_never
from fluxqueue.graph.tell.room import is_open
from fluxqueue.graph.tell.words import units
from fluxqueue.policy.limits import why_refused
from fluxqueue.scheduler.cycle import Examined, decide_next, run_cycle
from fluxqueue.scheduler.cycle_decisions import Decisions, Ongoing
from fluxqueue.scheduler.pending_job import PendingJob, as_stated
from fluxqueue.scheduler.preemption_plan import NO_PREEMPTIONS

REPLANNED_MAX = 8
"""Up to this number of promises behind the request, a whole cycle is tried out.

With more of them, all promises are taken as they are.
"""

BLOCKERS_MAX = 20
"""Blockers that are named. The rest is counted."""


def place(scene: QueueSnapshot, question: Question) -> Place:
    """Return its turn in its queue, as far as the queue of the scene goes."""
    job = question.job
    others = [one for one in scene.queue if one.queue == job.queue and one.uid != job.uid]
    before = sum(turn(one) < turn(job) for one in others)
    return Place(job.queue, job.priority, before + 1, len(others) + 1)


def turn(job: PendingJob) -> tuple[int, int]:
    """Return the sort key of a queue: priority, then submission."""
    return job.turn


def decide(scene: QueueSnapshot, question: Question) -> PlacementOutcome:
    """Return what the next cycle would decide about the request."""
    job, matcher = question.job, scene.matcher
    # A scene without named queues has no queue that could refuse it.
    refusal = scene.queues.rules and why_refused(
        job.queue,
        scene.queues.rules.get(job.queue),
        namespace=question.namespace,
        request=as_stated(job, scene.queues.rules.get(job.queue)),
        is_new=not question.is_accepted,
    )
    if refusal:
        return PlacementOutcome(PlacementVerdict.NEVER, Reason.REFUSED_BY_QUEUE, str(refusal))
    if not matcher.is_satisfiable(job.request):
        why = why_never(matcher.by_shares, job.request)
        return PlacementOutcome(PlacementVerdict.NEVER, Reason.UNSATISFIABLE, why)
    # A cycle examines the first jobs of a queue only, so it would not decide about this one.
    depth, before = scene.depth(job.queue), (question.place or place(scene, question)).position - 1
    if before >= depth:
        message = (
            f"{before} jobs are ahead in queue {job.queue}, and only the first {depth} are planned"
        )
        return PlacementOutcome(PlacementVerdict.LATER, Reason.BEHIND, message)
    ahead = ahead_of(scene, job)
    with as_last_planned(scene, job.uid):
        own = ahead.decide(job)
    # Jobs behind it may get another reservation, no later than theirs, which frees nodes. Only a
    # whole cycle finds that, so it is tried if the promises behind are few.
    if (
        own.verdict is PlacementVerdict.NOW
        or not 0 < len(_promised_behind(scene, job)) <= REPLANNED_MAX
    ):
        return own
    return _replanned(scene, job)


def _promised_behind(scene: QueueSnapshot, job: PendingJob) -> list[PendingJob]:
    """Return the jobs behind ``job`` that have a reservation."""
    return [
        one for one, _ in scene.decisions.reserved if one.uid != job.uid and turn(one) > turn(job)
    ]


@contextmanager
def as_last_planned(scene: QueueSnapshot, uid: str) -> Iterator[None]:
    """Use the plan of the last cycle inside, without what it gave to ``uid``."""
    with scene.matcher.trying():
        for job, placement in scene.decisions.kept:
            if job.uid == uid:
                scene.matcher.unreserve(placement)
        yield


def ahead_of(scene: QueueSnapshot, job: PendingJob) -> JobsAhead:
    """Return the jobs ahead of a request, with the plans that the last cycle made for them."""
    before = [one for one in scene.queue if one.uid != job.uid and turn(one) < turn(job)]
    given = {one.uid: where for one, where in scene.decisions.kept if one.uid != job.uid}
    return JobsAhead(scene, before, given)


def _replanned(scene: QueueSnapshot, job: PendingJob) -> PlacementOutcome:
    """Run a whole cycle with the request in its turn, and return its outcome.

    Jobs behind it with a reservation may get another one with the same start or an earlier one.
    """
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
            Ongoing(replace(scene.preemptions, candidates=())),
        )
        try:
            plans = {one.uid: where for one, where in decisions.kept}
            return JobsAhead(scene, queue[:at], plans).read(job, decisions)
        finally:
            for started, _ in decisions.allocated:
                scene.matcher.cancel(started.uid)


def fits_now(now: int, nodes: tuple[str, ...]) -> PlacementOutcome:
    """Return the outcome of a request that starts at once on ``nodes``."""
    return PlacementOutcome(
        PlacementVerdict.NOW, Reason.FITS, "fits now", starts_at=now, nodes=nodes
    )


def _with_way_made(
    job: PendingJob, decisions: Decisions, outcome: PlacementOutcome
) -> PlacementOutcome:
    """Add to the message how many victims would be preempted for ``job``.

    The blockers name the victims, for users that may read them.
    """
    making_way = decisions.making_way.get(job.uid)
    if making_way is None:
        return outcome
    count = len(making_way.victims)
    jobs = "1 job of a lower priority is" if count == 1 else f"{count} jobs of lower priority are"
    return replace(outcome, message=f"{outcome.message}; {jobs} preempted for it")


@dataclass(slots=True)
class JobsAhead:
    """The jobs ahead of a request, and what was planned for them.

    ``given`` are the reservations of a cycle by UID, which are in the plan already.
    """

    scene: QueueSnapshot
    jobs: Sequence[PendingJob]
    given: Mapping[str, Placement]
    _plans: dict[str, Placement] = field(default_factory=dict)

    @contextmanager
    def planned(self) -> Iterator[None]:
        """Add inside what the last forecast planned for the jobs ahead."""
        scene = self.scene
        ledger = scene.matcher.ledger
        with scene.matcher.trying():
            for job in self.jobs:
                known = scene.planned.get(job.uid)
                if job.uid in self.given or known is None:
                    continue
                # An estimate that is due moves to now: its job has not started.
                late_s = max(0, scene.now - known.starts_at)
                known = replace(
                    known, starts_at=known.starts_at + late_s, until=known.until + late_s
                )
                if is_open(ledger, known, scene.now):
                    scene.matcher.reserve(known, scene.now)
                    self._plans[job.uid] = known
            yield

    def decide(self, job: PendingJob) -> PlacementOutcome:
        """Return what the walk that planned for these jobs would have decided about ``job``."""
        decisions = self._next(job, may_reserve=True)
        try:
            return self.read(job, decisions)
        finally:
            for started, _ in decisions.allocated:
                self.scene.matcher.cancel(started.uid)

    def now(self, job: PendingJob) -> tuple[str, ...] | None:
        """Return the nodes on which ``job`` would start at once, or None."""
        if sum(one.queue == job.queue for one in self.jobs) >= self.scene.depth(job.queue):
            return None
        decisions = self._next(job, may_reserve=False)
        for started, _ in decisions.allocated:
            self.scene.matcher.cancel(started.uid)
        return decisions.allocated[0][1].nodes if decisions.allocated else None

    def is_barred(self, job: PendingJob) -> bool:
        """Return whether a limit or a stopped queue holds ``job`` back, and not resources."""
        return job.uid in self._next(job, may_reserve=False).barred

    def _next(self, job: PendingJob, *, may_reserve: bool) -> Decisions:
        scene = self.scene
        after = Examined(
            self.jobs,
            scene.decisions,
            scene.policy,
            scene.now,
            scene.queues,
            scene.preemptions if may_reserve else NO_PREEMPTIONS,
        )
        return decide_next(scene.matcher, job, after, may_reserve=may_reserve)

    def read(self, job: PendingJob, decisions: Decisions) -> PlacementOutcome:
        """Return the outcome of ``job`` in ``decisions``, or plan it behind the jobs ahead."""
        for one, where in decisions.allocated:
            if one.uid == job.uid:
                return fits_now(where.starts_at, where.nodes)
        if job.uid in decisions.barred:
            why = next(why for one, why in decisions.waiting if one.uid == job.uid)
            kind = decisions.wait_reason[job.uid]
            return PlacementOutcome(PlacementVerdict.LATER, Reason(kind.value), why)
        for plans, certainty in (
            (decisions.reserved, Certainty.PROMISED),
            ([*decisions.unpromised, *decisions.pulled], Certainty.ESTIMATED),
        ):
            for one, where in plans:
                if one.uid == job.uid:
                    start = decisions.expected.get(job.uid, where.starts_at)
                    where = replace(where, starts_at=start)
                    return _with_way_made(job, decisions, self.waits(job, where, certainty))
        with self.planned():
            return self.later(job)

    def floor(self, queue: str) -> int:
        """Return the earliest start that the jobs ahead allow in a queue (epoch seconds).

        Without backfill the request starts no earlier than any of them. With backfill it is 0.
        """
        if self.scene.is_backfilling(queue):
            return 0
        return max(
            (one.starts_at for job in self.jobs if job.queue == queue and (one := self._of(job))),
            default=0,
        )

    def _of(self, job: PendingJob) -> Placement | None:
        return self.given.get(job.uid) or self._plans.get(job.uid)

    def later(self, job: PendingJob) -> PlacementOutcome:
        """Return the earliest start that the plan leaves."""
        matcher, scene = self.scene.matcher, self.scene
        floor = self.floor(job.queue)
        try:
            found = matcher.match_later(job.by_plan, scene.now, not_before=floor)
        except InsufficientResources as unknown:
            return self._no_plan(job, str(unknown))
        is_whole = all(self._of(one) is not None for one in self.jobs if self._counts(one))
        certainty = Certainty.ESTIMATED if is_whole else Certainty.AT_BEST
        return self.waits(job, found, certainty)

    def _counts(self, job: PendingJob) -> bool:
        """Return whether ``job`` can delay the request. A barred job cannot."""
        return job.uid not in self.scene.decisions.barred

    def _no_plan(self, job: PendingJob, unknown: str) -> PlacementOutcome:
        table = self.scene.matcher.by_shares
        why = why_no_plan(table, job.request, names_others=False)
        if why is not None:
            return PlacementOutcome(PlacementVerdict.LATER, Reason.NODES_UNUSABLE, why)
        short = self._short(job)
        message = f"{short}; {unknown}" if short else unknown
        return PlacementOutcome(PlacementVerdict.LATER, Reason.BEHIND, message)

    def waits(self, job: PendingJob, where: Placement, certainty: Certainty) -> PlacementOutcome:
        """Return the outcome of a request that waits for the nodes of ``where``, with blockers."""
        blockers = [*self._holders(where), *self._before(where)]
        short = self._short(job)
        reason, message = Reason.BUSY, short or ""
        if short is None:
            reason = Reason.PROMISED_TO_OTHERS
            message = "enough is free, but it is kept for jobs ahead"
            if not self.scene.is_backfilling(job.queue):
                reason = Reason.BEHIND
                message = f"enough is free, but in queue {job.queue} no job passes the jobs ahead"
        planned = where.planned_start
        told = self.scene.calibration.expect(self.scene.now, planned)
        if certainty is Certainty.PROMISED:
            told = replace(told, expected=planned, expected_by=where.starts_at)
        return PlacementOutcome(
            PlacementVerdict.LATER,
            reason,
            message,
            told.expected,
            certainty,
            expected_by=told.expected_by,
            nodes=where.nodes,
            blockers=tuple(blockers[:BLOCKERS_MAX]),
            further_blockers=max(0, len(blockers) - BLOCKERS_MAX),
        )

    def _short(self, job: PendingJob) -> str | None:
        """Return what is short at this moment, or None if enough is free."""
        table = self.scene.matcher.by_shares
        ask = table.ask(job.request)
        for times, leaf in ask.leaves():
            room, wanted = table.room_now(ask, leaf), times * leaf.count
            if room < wanted and not leaf.is_distinct:
                verb = "is" if wanted == 1 else "are"
                return f"{units(leaf, room, free=True)}; {wanted} {verb} needed"
        return why_not_now(table, job.request)

    def _holders(self, where: Placement) -> list[Blocker]:
        """Return the running jobs on the nodes, the last to end first."""
        ledger = self.scene.matcher.ledger
        way = in_the_way(self.scene.matcher.by_shares, where)
        count: dict[str, int] = {}
        for name in way.nodes:
            for key in ledger.keys_on(ledger.rows[name]):
                count[key] = count.get(key, 0) + 1
        return [
            Blocker(one.key, True, count[one.key], None if one.limit == FOREVER else one.limit)
            for one in way.holders
        ]

    def _before(self, where: Placement) -> list[Blocker]:
        """Return the jobs that are planned on the nodes before that start."""
        nodes = set(where.nodes)
        found = []
        for job in self.jobs:
            plan = self._of(job)
            shared = nodes & set(plan.nodes) if plan is not None else ()
            if plan is not None and shared and plan.until <= where.starts_at:
                # Its end by ended runs is a prediction, which is shown to its owner only.
                until = plan.until if job.learned is None else None
                found.append(Blocker(job.uid, False, len(shared), until))
        return sorted(found, key=lambda one: -(one.until or FOREVER))
