"""One scheduling cycle: from a queue and a matcher to decisions.

Called by the worker's ``schedule`` task inside its transaction, and by simulations on virtual
time: no clock, no rows, no sockets. The matcher is left with the cycle's allocations booked; if
the transaction that stores the decisions fails, the caller must throw the matcher away.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import TypeAlias

from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.fluxjob.kept_back import KeptBack
from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.placement import FOREVER, UNKNOWN_END, Placement
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.match.shares.ask import Ask
from fluxqueue.graph.tell.never import why_never
from fluxqueue.graph.tell.room import is_open
from fluxqueue.graph.tell.waiting import why_no_plan
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.bounds import MATCH_STEPS, Work
from fluxqueue.jobspec.shape import fewest_nodes, total
from fluxqueue.policy.limits import NOTHING, Amounts, Use
from fluxqueue.policy.queue_policy import QueuePolicy
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.scheduler.preemption import (
    NO_PREEMPTIONS,
    PER_CYCLE_MAX,
    Head,
    MakingWay,
    Preemptions,
    claim_anew,
    hold_claims,
    make_way,
)


@dataclass(frozen=True, slots=True)
class PendingJob:
    """One FluxJob of the queue, as the cycle needs it."""

    uid: str
    jobid: int
    priority: int
    request: Jobspec
    queue: str = "default"
    user: str = ""


Failed: TypeAlias = tuple[PendingJob, Exception]
"""A FluxJob that could not be decided, and why."""


@dataclass(slots=True)
class Decisions:
    """What one cycle decided; ``waiting`` says why, and when where that is known.

    ``set_aside`` could not be decided: too complex, or a defect. Nothing is booked for them.

    Of those that wait, ``unpromised`` have nodes kept for them without a start that they could
    rely on, and ``barred`` (UIDs) are kept back by something else than resources: a limit, a
    stopped queue. ``kept_back`` (by UID) is the kind of what keeps them, where there is one. Of
    those who have a reservation, others make way for some (``making_way``, by UID), for the
    ``preempted`` since this cycle.
    """

    allocated: list[tuple[PendingJob, Placement]] = field(default_factory=list)
    reserved: list[tuple[PendingJob, Placement]] = field(default_factory=list)
    unsatisfiable: list[tuple[PendingJob, str]] = field(default_factory=list)
    waiting: list[tuple[PendingJob, str]] = field(default_factory=list)
    unpromised: list[tuple[PendingJob, Placement]] = field(default_factory=list)
    barred: set[str] = field(default_factory=set)
    kept_back: dict[str, KeptBack] = field(default_factory=dict)
    making_way: dict[str, MakingWay] = field(default_factory=dict)
    preempted: list[tuple[PendingJob, MakingWay]] = field(default_factory=list)
    set_aside: list[Failed] = field(default_factory=list)


def split_unsatisfiable(
    matcher: Matcher,
    jobs: Iterable[PendingJob],
    answers: dict[Jobspec, str | None] | None = None,
    failed: list[Failed] | None = None,
) -> tuple[list[PendingJob], list[tuple[PendingJob, str]]]:
    """Part the FluxJobs that could run on the empty cluster from those that never can.

    ``answers`` remembers the reason (None: possible) by request; it holds until nodes change.
    ``failed`` gets those that could not be judged; without it the first of them is raised.
    """
    possible: list[PendingJob] = []
    never: list[tuple[PendingJob, str]] = []
    answers = {} if answers is None else answers
    for job in jobs:
        reason = answers.get(job.request, "")
        if reason == "":
            try:
                reason = answers[job.request] = _why_never(matcher, job)
            except Exception as error:
                if failed is None:
                    raise
                failed.append((job, error))
                continue
        if reason is None:
            possible.append(job)
        else:
            never.append((job, reason))
    return possible, never


def _why_never(matcher: Matcher, job: PendingJob) -> str | None:
    with matcher.working(work_on(job, matcher.work)):
        if matcher.is_satisfiable(job.request):
            return None
        return why_never(matcher.by_shares, job.request)


def work_on(job: PendingJob, within: Work | None = None) -> Work:
    """What deciding about one FluxJob may cost."""
    return Work(
        MATCH_STEPS, f"deciding about its {len(job.request.resources)} parts", within=within
    )


@dataclass(frozen=True, slots=True)
class Queues:
    """The named queues of one cycle: whose rules each obeys, and what of each runs already."""

    rules: Mapping[str, QueueRules] = field(default_factory=dict)
    use: dict[tuple[str, str], Amounts] = field(default_factory=dict)

    @property
    def are_several(self) -> bool:
        """Whether FluxJobs of another queue may come between those of one."""
        return len(self.rules) > 1

    def count(self, queue: str, user: str, more: Amounts) -> None:
        """Something was given outside the walk."""
        self.use[queue, user] = self.use.get((queue, user), NOTHING) + more


def run_cycle(
    matcher: Matcher,
    queue: Iterable[PendingJob],
    policy: QueuePolicy,
    now: int,
    queues: Queues | None = None,
    promised: Mapping[str, Placement] | None = None,
    preemptions: Preemptions = NO_PREEMPTIONS,
) -> Decisions:
    """Walk all queues once, in one order, and decide.

    Each queue has its own policy, and with it its own blocked head and its own reservations; those
    of one queue hold against all. A FluxJob that a limit keeps from starting blocks nobody and is
    promised nothing, whatever the policy.

    Parameters
    ----------
    matcher : nodes and everything booked; allocations made here are booked in it.
    queue : FluxJobs in order (priority, then submission) over all queues, none unsatisfiable.
    policy : for queues that leave theirs open: how many reservations, and whether to look past a
        blocked FluxJob.
    now : epoch seconds.
    queues : the rules of the named queues, and what of each runs (by queue and user); those of a
        queue that it does not name are without limits.
    promised : reservations of the cycle before, by UID. The plan is made anew, as flux-sched does;
        where that would put one of them off, it is made once more around those that are still
        possible. So a start that was promised moves earlier, or stays.
    preemptions : who runs and could be requeued, and who makes way already. Who is made to from
        this cycle on is planned to end then in the matcher.
    """
    waiting = list(queue)
    walk = _Walk(matcher, policy, now, queues or Queues(), preemptions)
    decisions = _walk(matcher, waiting, walk)
    if promised and (late := _put_off(decisions, waiting, promised, preemptions)):
        walk.undo()
        walk = _Walk(matcher, policy, now, queues or Queues(), preemptions, keep=late)
        decisions = _walk(matcher, waiting, walk)
    return decisions


def decide_next(
    matcher: Matcher,
    before: Iterable[PendingJob],
    given: Decisions,
    job: PendingJob,
    policy: QueuePolicy,
    now: int,
    queues: Queues | None = None,
    *,
    may_reserve: bool = True,
    preemptions: Preemptions = NO_PREEMPTIONS,
) -> Decisions:
    """Decide about one more, in its turn behind some that a cycle has looked at before.

    For "what if" questions: all that the cycle has promised is kept. What is decided is booked, or
    in the plan, as after ``run_cycle``; the caller takes it back.

    Parameters
    ----------
    matcher : as the cycle left it, its reservations in the plan.
    before : who comes before ``job``, in order; none of them has started.
    given : what that cycle decided.
    policy, now, queues : as of ``run_cycle``; ``queues`` as they were before that cycle.
    may_reserve : False leaves the future alone.
    preemptions : as of ``run_cycle``. What others would make way for is planned, and not that they
        end: those go on.
    """
    walk = _Walk(matcher, policy, now, queues or Queues(), preemptions)
    walk.follow(before, given)
    if not may_reserve:
        walk.promise_nothing(job.queue)
    walk.step(job)
    walk.restore_ends()
    return walk.decisions


def _walk(matcher: Matcher, queue: Sequence[PendingJob], walk: _Walk) -> Decisions:
    matcher.clear_plan()
    walk.hold(queue)
    for job in queue:
        try:
            with matcher.working(work_on(job, matcher.work)):
                walk.step(job)
        except Exception as error:
            # One that cannot be decided must not hold up the others.
            if matcher.work is not None and matcher.work.left < 0:
                raise  # not it, but all of them together cost too much
            walk.set_aside(job, error)
    return walk.decisions


def _put_off(
    decisions: Decisions,
    queue: Sequence[PendingJob],
    promised: Mapping[str, Placement],
    preemptions: Preemptions,
) -> Mapping[str, Placement]:
    """The promises to be kept by a second walk; none where the first keeps them all.

    For whom others make way a claim is held in every walk.
    """
    planned = {job.uid: placement.starts_at for job, placement in decisions.reserved}
    planned |= {job.uid: 0 for job, _ in decisions.allocated}
    kept = {
        job.uid: promised[job.uid]
        for job in queue
        if job.uid in promised
        and job.uid not in decisions.barred
        and job.uid not in preemptions.under_way
    }
    is_kept = all(planned.get(uid, FOREVER) <= old.starts_at for uid, old in kept.items())
    return {} if is_kept else kept


class _Line:
    """One queue during a walk: its rules, who blocks it, how many promises it has given."""

    __slots__ = ("blocker", "depth", "has_limits", "is_backfilling", "promised", "rules")

    def __init__(self, rules: QueueRules, policy: QueuePolicy, *, has_company: bool) -> None:
        self.rules = rules
        self.blocker: PendingJob | None = None
        self.promised = 0
        self.is_backfilling = policy.is_backfilling
        self.depth = policy.reservation_depth
        # What lets nobody of its own past its blocked head must not let those of other queues
        # past it for ever either; and for whom others make way must have a place to wait for.
        if (has_company or rules.preemption is not None) and not policy.is_backfilling:
            self.depth = max(1, self.depth)
        self.has_limits = rules.has_use_limits or rules.per_job.nodes is not None


class _Walk:
    """State of one walk: what each queue has come to, and what is known not to fit."""

    def __init__(
        self,
        matcher: Matcher,
        policy: QueuePolicy,
        now: int,
        queues: Queues,
        preemptions: Preemptions = NO_PREEMPTIONS,
        keep: Mapping[str, Placement] | None = None,
    ) -> None:
        self.matcher, self.policy, self.now = matcher, policy, now
        self._keep = keep or {}
        self._held: dict[str, Placement] = {}
        self._preemptions = preemptions
        self._claimed: set[str] = set()
        self._leaving = {uid for one in preemptions.under_way.values() for uid in one.leaving}
        self._ends: dict[str, int] = {}
        self.decisions = Decisions()
        self._queues = queues
        self._use = Use.of(queues.use)
        self._lines: dict[str, _Line] = {}
        # During a walk free resources only shrink, so what did not fit once will not fit again.
        self._hopeless: dict[Ask, str] = {}
        self._unplannable: dict[Ask, tuple[str, KeptBack | None]] = {}

    def _line(self, name: str) -> _Line:
        line = self._lines.get(name)
        if line is None:
            rules = self._queues.rules.get(name) or QueueRules(name)
            line = self._lines[name] = _Line(
                rules, rules.policy(self.policy), has_company=self._queues.are_several
            )
        return line

    def undo(self) -> None:
        """Take back what it has booked, and what it has planned of what runs."""
        for job, _ in self.decisions.allocated:
            self.matcher.cancel(job.uid)
        self.restore_ends()

    def restore_ends(self) -> None:
        """Who was to make way is planned to end when he was before."""
        for uid, until in self._ends.items():
            self.matcher.ledger.end_at(uid, until)

    def hold(self, queue: Sequence[PendingJob]) -> None:
        """Before the walk: put claims, and promises that are still possible, into the plan."""
        uids = [job.uid for job in queue]
        self._held |= hold_claims(self.matcher, self._preemptions, uids, self.now)
        self._claimed = set(self._held)
        for job in queue:
            old = self._keep.get(job.uid)
            if old is None or job.uid in self._held:
                continue
            # One that is due is kept as well: of a queue that overtakes nobody, those behind a
            # head that starts now come before it, and were not looked at when it was promised.
            late_s = max(0, self.now - old.starts_at)
            old = replace(old, starts_at=old.starts_at + late_s, until=old.until + late_s)
            if is_open(self.matcher.ledger, old, self.now):
                self.matcher.reserve(old, self.now)
                self._held[job.uid] = old

    def follow(self, before: Iterable[PendingJob], given: Decisions) -> None:
        """Stand where a walk stood behind ``before``, to whom it has ``given`` this."""
        for job, placement in given.allocated:
            self._count(self._line(job.queue), job, placement)
        plans = {job.uid: where for job, where in (*given.reserved, *given.unpromised)}
        for job in before:
            line = self._line(job.queue)
            if job.uid in given.barred:
                continue
            if job.uid in given.making_way:
                self._count(line, job, plans[job.uid])
                continue
            line.blocker = line.blocker or job
            if job.uid in plans:
                self._count(line, job, plans[job.uid])
                line.promised += 1

    def promise_nothing(self, queue: str) -> None:
        """From here on what cannot start in this queue just waits."""
        self._line(queue).depth = 0

    def set_aside(self, job: PendingJob, error: Exception) -> None:
        """``job`` could not be decided: it gets nothing, and blocks nobody."""
        self.matcher.cancel(job.uid)
        line = self._line(job.queue)
        if line.blocker is job:
            line.blocker = None
        self.decisions.set_aside.append((job, error))

    def step(self, job: PendingJob) -> None:
        """Start ``job``, promise it a start, or say why it waits."""
        held = self._held.pop(job.uid, None)
        if held is not None:
            self.matcher.unreserve(held)
            # What it gives up may be room for others.
            self._hopeless.clear()
            self._unplannable.clear()
        self._decide(self._line(job.queue), job, held)

    def _decide(self, line: _Line, job: PendingJob, held: Placement | None) -> None:
        if not line.rules.is_started:
            self._bar(job, f"queue {job.queue} is stopped", KeptBack.STOPPED)
            return
        if line.blocker is not None and not line.is_backfilling and held is None:
            self._wait(job, f"waits behind job {line.blocker.jobid} (fcfs)")
            return
        over = self._why_over(line, job, 0)
        if over is not None:
            self._bar(job, over)
            return
        ask = self.matcher.ask(job.request)
        reason = self._hopeless.get(ask)
        if reason is None:
            try:
                placement = self.matcher.match_now(job.request, self.now)
            except InsufficientResources as busy:
                reason = busy.reason
                self._hopeless[ask] = reason
                if held is not None and self._is_due(job, held):
                    self._start(line, job, held)
                    return
            else:
                self._start(line, job, placement)
                return
        if held is not None and job.uid in self._claimed:
            self._claim(line, job, self._preemptions.under_way[job.uid], held)
            return
        line.blocker = line.blocker or job
        if held is not None or line.promised < line.depth:
            self._reserve(line, job, reason, held)
        else:
            self._wait(job, reason)

    def _is_due(self, job: PendingJob, held: Placement) -> bool:
        """Whether its time has come; a claim's has not as long as somebody has still to leave."""
        if held.starts_at > self.now:
            return False
        return job.uid not in self._claimed or is_open(self.matcher.ledger, held, self.now)

    def _why_over(self, line: _Line, job: PendingJob, nodes: int) -> str | None:
        if not line.has_limits:
            return None
        return self._use.why_over(line.rules, job.user, amounts_of(job, nodes))

    def _start(self, line: _Line, job: PendingJob, placement: Placement) -> None:
        # Only now it is known how many nodes it takes.
        over = self._why_over(line, job, len(set(placement.nodes)))
        if over is not None:
            self._bar(job, over)
            return
        self.matcher.allocate(job.uid, placement)
        self._count(line, job, placement)
        self.decisions.allocated.append((job, placement))

    def _count(self, line: _Line, job: PendingJob, placement: Placement) -> None:
        if line.has_limits:
            self._use.add(job.queue, job.user, amounts_of(job, len(set(placement.nodes))))

    def _reserve(self, line: _Line, job: PendingJob, reason: str, held: Placement | None) -> None:
        placement, without = self._earliest(job, reason, held)
        if line.blocker is job and self._preempt(line, job, placement):
            line.blocker = None  # it is as good as started
            return
        if placement is None:
            self._wait(job, *without)
            return
        over = self._why_over(line, job, len(set(placement.nodes)))
        if over is not None:
            self._bar(job, over)
            return
        self.matcher.reserve(placement, self.now)
        self._count(line, job, placement)
        line.promised += 1
        if not line.is_backfilling:
            self.decisions.unpromised.append((job, placement))
            # It keeps its nodes free of other queues. That is no promise: whoever comes before it
            # in its own queue, where nothing may overtake, still goes before it.
            self._wait(job, reason)
            return
        if placement.starts_at < UNKNOWN_END:
            self.decisions.reserved.append((job, placement))
            return
        self.decisions.unpromised.append((job, placement))
        nodes = compress(sorted(set(placement.nodes)))
        self._wait(job, f"{reason} on {nodes}, where running jobs have no known end")

    def _earliest(
        self, job: PendingJob, reason: str, held: Placement | None
    ) -> tuple[Placement | None, tuple[str, KeptBack | None]]:
        """Where and when it starts behind all that is planned, or why nobody knows."""
        # During a walk the future only fills up too.
        ask = self.matcher.ask(job.request)
        without = self._unplannable.get(ask)
        if without is not None:
            return None, without
        try:
            placement = self.matcher.match_later(job.request, self.now)
        except InsufficientResources as unknown:
            if held is None:
                why = why_no_plan(self.matcher.by_shares, job.request)
                without = f"{reason}; {why or unknown.reason}", KeptBack.UNUSABLE if why else None
                self._unplannable[ask] = without
                return None, without
            return held, ("", None)
        if held is not None and held.starts_at < placement.starts_at:
            placement = held
        return placement, ("", None)

    def _preempt(self, line: _Line, job: PendingJob, placement: Placement | None) -> bool:
        """Have others make way, if that lets it start earlier than is planned for it."""
        rules, standing = line.rules.preemption, self._preemptions.standings.get(job.uid)
        if rules is None or standing is None:
            return False
        head = Head(job.request, standing, rules, placement.starts_at if placement else None)
        under_way = self._preemptions.under_way.get(job.uid)
        if under_way is not None and job.uid not in self._claimed:
            claim = claim_anew(self.matcher, head, under_way, self.now)
            if claim is not None:
                self._claim(line, job, under_way, claim)
                return True
        if len(self.decisions.preempted) >= PER_CYCLE_MAX:
            return False
        candidates = [one for one in self._preemptions.candidates if one.uid not in self._leaving]
        found = make_way(self.matcher, head, candidates, self.now)
        if found is None or self._why_over(line, job, len(set(found[1].nodes))) is not None:
            return False
        making_way, claim = found
        ledger = self.matcher.ledger
        for uid in making_way.leaving:
            until = min(ledger.live[uid].until, making_way.vacate_at)
            self._ends[uid] = ledger.end_at(uid, until)
        self._leaving.update(making_way.leaving)
        self._unplannable.clear()
        self.decisions.preempted.append((job, making_way))
        self._claim(line, job, making_way, claim)
        return True

    def _claim(self, line: _Line, job: PendingJob, making_way: MakingWay, claim: Placement) -> None:
        """Nobody else gets what others leave for it."""
        over = self._why_over(line, job, len(set(claim.nodes)))
        if over is not None:
            self._bar(job, over)
            return
        self.matcher.reserve(claim, self.now)
        self._count(line, job, claim)
        self.decisions.reserved.append((job, claim))
        self.decisions.making_way[job.uid] = making_way

    def _bar(self, job: PendingJob, reason: str, kept_back: KeptBack = KeptBack.OVER_LIMIT) -> None:
        self.decisions.barred.add(job.uid)
        self._wait(job, reason, kept_back)

    def _wait(self, job: PendingJob, reason: str, kept_back: KeptBack | None = None) -> None:
        self.decisions.waiting.append((job, reason))
        if kept_back is not None:
            self.decisions.kept_back[job.uid] = kept_back


def amounts_of(job: PendingJob, nodes: int = 0) -> Amounts:
    """What limits count of a FluxJob; without ``nodes`` the fewest it can do with."""
    return Amounts(1, nodes or fewest_nodes(job.request), total(job.request, CPU))
