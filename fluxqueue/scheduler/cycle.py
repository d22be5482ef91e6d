"""One scheduling cycle: from a queue and a matcher to decisions.

The worker's ``schedule`` task calls it inside its transaction. Simulations call it on virtual time.
It is pure: it has no clock, no rows and no sockets.

The matcher keeps the allocations of the cycle. If the transaction that stores the decisions fails,
the caller must throw the matcher away.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from functools import partial
from typing import TypeAlias

from fluxqueue.errors import InsufficientResources, TooComplex
from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.fluxjob.provision import Provision
from fluxqueue.fluxjob.request import CPU, MatchPolicy
from fluxqueue.fluxjob.turns import first_in_turn
from fluxqueue.fluxjob.wait_reason import WaitReason
from fluxqueue.graph.ledger.placement import FOREVER, Placement, planned_end
from fluxqueue.graph.match.by_shares import why_busy
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.match.shares.ask import Ask
from fluxqueue.graph.tell.never import why_never
from fluxqueue.graph.tell.room import is_open
from fluxqueue.graph.tell.waiting import why_no_plan, write_time
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.shape import fewest_nodes, total, without_nodes
from fluxqueue.policy.limits import NOTHING, Amounts, LimitUse, why_too_large
from fluxqueue.policy.queue_policy import QueuePolicy
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.scheduler.allowances import Allowances, NotThisTime
from fluxqueue.scheduler.claims_in_use import describe_claim, why_in_use
from fluxqueue.scheduler.hopeless import HopelessRequests
from fluxqueue.scheduler.lack import Given, Lack
from fluxqueue.scheduler.latest_start import latest_start
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
from fluxqueue.scheduler.sweeps import (
    GROWING_MAX,
    GROWTH_MAX,
    PLANNED_EACH,
    PLANNED_MAX,
    grow,
    is_plain,
    next_slot,
)
from fluxqueue.scheduler.top_up import top_up


@dataclass(frozen=True, slots=True)
class PendingJob:
    """One job of the queue, as the cycle needs it.

    ``refused`` are nodes that did not take its pods in an earlier try. They are used only if it
    fits nowhere else. ``provision`` says whether nodes may be asked for, for this job.
    ``is_unsure``: its pods have constraints that the matcher cannot judge. ``has_limit``: its
    duration is enforced. ``is_planned``: it states none, and its queue plans it.
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

    @property
    def turn(self) -> tuple[int, int]:
        """Return its sort key in the queue: priority, then its place (``fluxjobs.place``)."""
        return -self.priority, self.place or self.jobid


TOO_COSTLY = (
    "to place it beside all that runs takes more work than one request may cost; it is tried again"
    " within two minutes"
)
DEFERRED = "costly jobs of this user have used the time of this cycle, so it waits for a later one"

Failed: TypeAlias = tuple[PendingJob, Exception]
"""A job that could not be decided, and the error."""


@dataclass(slots=True)
class Decisions:
    """What one cycle decided.

    ``allocated`` jobs start now and ``reserved`` jobs have a promised start. ``unsatisfiable`` jobs
    can never run on this cluster. ``waiting`` holds the reason of each job that waits, with the
    time if it is known.

    ``unpromised`` jobs wait as well. Nodes are kept for them from a latest start on that they
    cannot rely on. ``expected`` maps the UIDs of some of them to their planned start.

    ``barred`` are the UIDs of jobs that wait for something other than resources, such as a limit or
    a stopped queue. ``wait_reason`` maps a UID to the kind of what the job waits for. It has no
    entry for a job that waits for nodes or for its turn.

    ``making_way`` maps the UID of a reserved job to the victims that leave for it. ``preempted``
    lists those preemptions that this cycle has decided.

    ``provisioning`` are the UIDs of jobs that wait for nodes that were asked for. The caller of
    ``run_cycle`` adds them.

    ``costly`` jobs wait as well: to decide about them takes too much work while others run.

    ``quarantined`` jobs could not be decided because of a defect. Nothing is allocated to them.

    ``grown``: the further slots of running workloads.
    """

    allocated: list[tuple[PendingJob, Placement]] = field(default_factory=list)
    reserved: list[tuple[PendingJob, Placement]] = field(default_factory=list)
    unsatisfiable: list[tuple[PendingJob, str]] = field(default_factory=list)
    waiting: list[tuple[PendingJob, str]] = field(default_factory=list)
    unpromised: list[tuple[PendingJob, Placement]] = field(default_factory=list)
    expected: dict[str, int] = field(default_factory=dict)
    barred: set[str] = field(default_factory=set)
    wait_reason: dict[str, WaitReason] = field(default_factory=dict)
    making_way: dict[str, MakingWay] = field(default_factory=dict)
    preempted: list[tuple[PendingJob, MakingWay]] = field(default_factory=list)
    provisioning: set[str] = field(default_factory=set)
    costly: list[PendingJob] = field(default_factory=list)
    quarantined: list[Failed] = field(default_factory=list)
    grown: Given = field(default_factory=Given)


def split_unsatisfiable(
    matcher: Matcher,
    jobs: Iterable[PendingJob],
    answers: dict[Jobspec, str | None] | None = None,
    failed: list[Failed] | None = None,
    allowances: Allowances | None = None,
    deferred: list[PendingJob] | None = None,
) -> tuple[list[PendingJob], list[tuple[PendingJob, str]]]:
    """Separate jobs that could run on the empty cluster from jobs that never can.

    Parameters
    ----------
    answers : The reason by request, None if the request is possible. It is filled here, and stays
        valid until nodes change.
    failed : Gets the jobs that could not be judged. Without it the first error is raised.
    allowances : Limits the work of each user.
    deferred : Gets the jobs that exceed the allowance of their user. A later cycle judges them.

    Returns
    -------
    The possible jobs, and the impossible ones with the reason of each.
    """
    possible: list[PendingJob] = []
    never: list[tuple[PendingJob, str]] = []
    allowances = allowances or Allowances()
    deferred = [] if deferred is None else deferred
    answers = {} if answers is None else answers
    for job in jobs:
        # The answer to a job that may get no new nodes may differ from that to equal requests.
        is_shared = matcher.further is None or job.provision is not Provision.NEVER
        reason = answers.get(job.request, "") if is_shared else ""
        if reason == "":
            try:
                with allowances.deciding(matcher, job.user, job.request):
                    reason = _why_never(matcher, job)
                    if is_shared:
                        answers[job.request] = reason
            except NotThisTime:
                deferred.append(job)
                continue
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
    """Return why ``job`` can never run on this cluster, or None if it can."""
    may_grow = job.provision is not Provision.NEVER
    able = matcher.is_satisfiable if may_grow else matcher.by_shares.is_satisfiable
    if able(job.request):
        return None
    return why_never(matcher.by_shares, job.request)


@dataclass(frozen=True, slots=True)
class Queues:
    """The named queues of one cycle: the rules of each, and what each uses already.

    ``rules`` has the name of the queue as its key, ``use`` the queue and the user.
    """

    rules: Mapping[str, QueueRules] = field(default_factory=dict)
    use: dict[tuple[str, str], Amounts] = field(default_factory=dict)

    @property
    def are_several(self) -> bool:
        """Whether jobs of another queue may come between the jobs of one queue."""
        return len(self.rules) > 1

    def count(self, queue: str, user: str, more: Amounts) -> None:
        """Add an amount that was given outside the walk."""
        self.use[queue, user] = self.use.get((queue, user), NOTHING) + more


def run_cycle(
    matcher: Matcher,
    queue: Iterable[PendingJob],
    policy: QueuePolicy,
    now: int,
    queues: Queues | None = None,
    promised: Mapping[str, Placement] | None = None,
    preemptions: Preemptions = NO_PREEMPTIONS,
    allowances: Allowances | None = None,
    lacks: Sequence[Lack] = (),
    awaited: Mapping[str, Sequence[Placement]] | None = None,
) -> Decisions:
    """Walk all queues once, in one order, and decide about each job.

    Each queue has its own policy, its own blocked head and its own reservations. The reservations
    of one queue hold against all queues. A job over a limit blocks no other job and gets no
    promise, whatever the policy.

    Parameters
    ----------
    matcher : All nodes and everything allocated. The allocations of this cycle are added to it.
    queue : Jobs of all queues in order of priority, then of place. None is unsatisfiable.
    policy : For queues that set no policy: the number of reservations, and whether to backfill.
    now : Epoch seconds.
    queues : The rules of the named queues, and their use by queue and user. A queue without an
        entry has no limits.
    promised : Reservations of the previous cycle, by UID. A promise moves earlier, or stays. A
        latest start that is not a promise moves later for jobs ahead only, or by an overrun.
    preemptions : Running jobs that may be requeued, and victims that leave already. The matcher
        plans each victim that is chosen here to end when its preemptor may start.
    allowances : Limits the work of each user. Jobs beyond it wait, and block no other job.
    lacks : Running workloads that need more slots. They grow at their places in the order of the
        walk.
    awaited : What is held for jobs with nodes on order, by UID: nodes that have come, and slots on
        present nodes (``provisioning.hold_nodes``). Limits count these jobs as if they ran.

    Returns
    -------
    The decisions. Each cycle makes a new plan, as flux-sched does. If that would put a
    promise off, the plan is made once more around the promises that are still possible.
    """
    # 1. Walk the queue with an empty plan: the best plan for the present facts.
    waiting = list(queue)
    allowances = allowances or Allowances()
    again = allowances.copy()
    promised = promised or {}
    walk = _Walk(
        matcher, policy, now, queues or Queues(), preemptions, former=promised, awaited=awaited
    )
    turns = _in_turn(waiting, first_in_turn(lacks, lambda one: one.user, GROWING_MAX))
    decisions = _walk(matcher, waiting, turns, walk, allowances)
    # 2. Compare that plan with the promises of the previous cycle.
    kept = {
        uid: one
        for uid, one in promised.items()
        if one.is_firm and uid not in preemptions.under_way
    }
    if kept and (late := _put_off(decisions, waiting, kept)):
        # 3. Undo the first walk before the second, or its allocations would count twice.
        walk.undo()
        # 4. Walk again with the promises held from the start, so that no job ahead can take them.
        walk = _Walk(
            *(matcher, policy, now, queues or Queues(), preemptions),
            former=promised,
            keep=late,
            awaited=awaited,
        )
        decisions = _walk(matcher, waiting, turns, walk, again)
    return decisions


def _in_turn(queue: Sequence[PendingJob], lacks: Sequence[Lack]) -> list[PendingJob | Lack]:
    """Return waiting and growing jobs in one order: priority, then place."""
    turns: list[PendingJob | Lack] = [*queue]
    if lacks:
        turns = sorted([*queue, *lacks], key=lambda one: one.turn)
    return turns


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
    """Decide about one more job, in its turn behind jobs that a cycle has examined.

    This answers "what if" questions. All promises of the cycle are kept. The decision is booked or
    planned in the matcher, as after ``run_cycle``, and the caller takes it back.

    Parameters
    ----------
    matcher : As the cycle left it, with its reservations in the plan.
    before : The jobs ahead of ``job``, in order. None of them has started.
    given : The decisions of that cycle.
    policy, now, queues : As in ``run_cycle``. ``queues`` has the use before that cycle.
    may_reserve : False: ``job`` starts now or waits, without a reservation.
    preemptions : As in ``run_cycle``. A claim stays in the plan, but its victims keep their planned
        ends, because nothing preempts them.
    """
    # 1. Bring the limits, heads and reservation counts to where the cycle left them.
    walk = _Walk(matcher, policy, now, queues or Queues(), preemptions)
    walk.follow(before, given)
    if not may_reserve:
        walk.promise_nothing(job.queue)
    # 2. Decide about this one job as the cycle would.
    walk.step(job)
    # 3. The question preempts nothing: give the victims their planned ends back.
    walk.restore_ends()
    return walk.decisions


def _walk(
    matcher: Matcher,
    queue: Sequence[PendingJob],
    turns: Sequence[PendingJob | Lack],
    walk: _Walk,
    allowances: Allowances,
) -> Decisions:
    """Walk the ``queue`` with an empty plan and return the decisions.

    ``turns`` are its jobs, and the growing ones among them.
    """
    # 1. Drop the old plan: a stale reservation would block nodes that are free by now.
    matcher.clear_plan()
    # 2. Hold claims and promises before the first job: a job ahead could take their nodes.
    walk.hold(queue)
    # 3. Decide in order of effective priority, each job within its own budget of steps.
    for job in turns:
        if isinstance(job, Lack):
            walk.grow_in_turn(job, allowances)
            continue
        if walk.pass_over(job):
            continue
        try:
            with allowances.deciding(matcher, job.user, job.request):
                walk.step(job)
        except NotThisTime:
            walk.defer(job)
        except Exception as error:
            # A job that cannot be decided must not hold up the others.
            if matcher.work is not None and matcher.work.left < 0:
                raise  # the budget of the whole cycle is spent, so this job is not to blame
            # It could run on the empty cluster (``split_unsatisfiable``): the load is to blame.
            if isinstance(error, TooComplex):
                walk.put_off(job)
            else:
                walk.quarantine(job, error)
    return walk.decisions


def _put_off(
    decisions: Decisions, queue: Sequence[PendingJob], promised: Mapping[str, Placement]
) -> Mapping[str, Placement]:
    """Return the promises that a second walk must hold, empty if the first walk keeps all.

    The caller leaves out jobs with a preemption under way, because every walk holds their claims.
    """
    # An expected start is no promise, so it keeps none.
    planned = {job.uid: placement.starts_at for job, placement in decisions.reserved}
    planned |= {job.uid: 0 for job, _ in decisions.allocated}
    # A barred job gets no start, whatever is planned: its promise cannot be kept.
    kept = {
        job.uid: promised[job.uid]
        for job in queue
        if job.uid in promised and job.uid not in decisions.barred
    }
    # If one promise is late, hold them all: moving one could make another late.
    is_kept = all(planned.get(uid, FOREVER) <= old.starts_at for uid, old in kept.items())
    return {} if is_kept else kept


class _QueueLine:
    """One queue during a walk: its rules, its blocked head, the number of promises given."""

    __slots__ = (
        "blocker",
        "depth",
        "growth_planned",
        "has_limits",
        "is_backfilling",
        "promised",
        "rules",
    )

    def __init__(self, rules: QueueRules, policy: QueuePolicy, *, has_company: bool) -> None:
        self.rules = rules
        self.blocker: PendingJob | Lack | None = None
        self.promised = 0
        self.growth_planned: Counter[str] = Counter()
        self.is_backfilling = policy.is_backfilling
        self.depth = policy.reservation_depth
        # A queue without backfill reserves nothing for its head. Jobs of other queues could then
        # overtake that head forever, so it gets one reservation.
        # Preemption needs one too: ``_preempt`` is reached through ``_reserve`` only.
        if (has_company or rules.preemption is not None) and not policy.is_backfilling:
            self.depth = max(1, self.depth)
        self.has_limits = rules.has_use_limits or rules.per_job.nodes is not None


class _Walk:
    """State of one walk: the progress of each queue, and the requests known not to fit."""

    def __init__(
        self,
        matcher: Matcher,
        policy: QueuePolicy,
        now: int,
        queues: Queues,
        preemptions: Preemptions = NO_PREEMPTIONS,
        former: Mapping[str, Placement] | None = None,
        keep: Mapping[str, Placement] | None = None,
        awaited: Mapping[str, Sequence[Placement]] | None = None,
    ) -> None:
        self._awaited = awaited or {}
        self.matcher, self.policy, self.now = matcher, policy, now
        self._total = matcher.work
        self._former, self._keep = former or {}, keep or {}
        self._held: dict[str, Placement] = {}
        self._preemptions = preemptions
        self._claimed: set[str] = set()
        # Victims that leave already must not be chosen a second time.
        self._leaving = {uid for one in preemptions.under_way.values() for uid in one.leaving}
        self._ends: dict[str, int] = {}
        self.decisions = Decisions()
        self._queues = queues
        self._use = LimitUse.of(queues.use)
        self._counted: set[str] = set()
        self._lines: dict[str, _QueueLine] = {}
        self._hopeless = HopelessRequests()
        # Volume claims for one pod -> the job ahead that has a reservation with them.
        self._claims_ahead: dict[str, int] = {}
        self._unplannable: dict[Ask, tuple[str, WaitReason | None]] = {}
        # Reservations that are not firm, or have an end that is not, by UID.
        self._unfirm: dict[str, Placement] = {}

    def _line(self, name: str) -> _QueueLine:
        line = self._lines.get(name)
        if line is None:
            rules = self._queues.rules.get(name) or QueueRules(name)
            line = self._lines[name] = _QueueLine(
                rules, rules.policy(self.policy), has_company=self._queues.are_several
            )
        return line

    def undo(self) -> None:
        """Take back what this walk has booked, and restore the planned ends of its victims."""
        for job, _ in self.decisions.allocated:
            self.matcher.cancel(job.uid)
        for lack, placed in self.decisions.grown.slots:
            self.matcher.ledger.take_back(lack.uid, len(placed))
        self.restore_ends()

    def restore_ends(self) -> None:
        """Give the victims of this walk the planned ends that they had before."""
        for uid, until in self._ends.items():
            self.matcher.ledger.end_at(uid, until)

    def hold(self, queue: Sequence[PendingJob]) -> None:
        """Put claims, and the promises that are still possible, into the plan before the walk."""
        # What was brought for a gang is held before any job, of whatever priority, is examined.
        for one in self._awaited.values():
            self._hold_awaited(one)
        for job in queue:
            if job.uid in self._awaited:
                self._count_order(job, 1)
        uids = [job.uid for job in queue]
        # Claims first: victims are ending for them, so a promise must not take their nodes.
        self._held |= hold_claims(self.matcher, self._preemptions, uids, self.now)
        self._claimed = set(self._held)
        for job in queue:
            if job.uid in self._claimed:
                self._note_unfirm(job.uid, self._held[job.uid], has_limit=job.has_limit)
        for job in queue:
            old = self._keep.get(job.uid)
            if old is None or job.uid in self._held:
                continue
            # Hold promises that are due as well. If the head of an fcfs queue starts now, the jobs
            # behind it are examined for the first time. They come earlier in this walk and could
            # take the nodes.
            late_s = max(0, self.now - old.starts_at)
            old = replace(old, starts_at=old.starts_at + late_s, until=old.until + late_s)
            if is_open(self.matcher.ledger, old, self.now):
                self.matcher.reserve(old, self.now)
                self._held[job.uid] = old
                self._note_unfirm(job.uid, old, has_limit=job.has_limit)

    def _note_unfirm(self, uid: str, booked: Placement, *, has_limit: bool) -> None:
        """Note a reservation that the starts of others may depend on without a promise."""
        if not (booked.is_firm and has_limit):
            self._unfirm[uid] = booked

    def follow(self, before: Iterable[PendingJob], given: Decisions) -> None:
        """Restore the state of a walk that has passed the jobs ``before`` and decided ``given``."""
        # ``queues`` has the use before that cycle: count its allocations, or limits seem free.
        for job, placement in given.allocated:
            self._count(self._line(job.queue), job, placement)
        plans = {job.uid: where for job, where in (*given.reserved, *given.unpromised)}
        for job in before:
            line = self._line(job.queue)
            if job.uid in given.barred:
                continue
            if job.uid in plans:
                self._keep_claims(job)
            # The preemptor has left the head of its queue: it counts, but blocks no other job.
            if job.uid in given.making_way:
                self._count(line, job, plans[job.uid])
                continue
            line.blocker = line.blocker or job
            if job.uid in plans:
                self._count(line, job, plans[job.uid])
                line.promised += 1

    def promise_nothing(self, queue: str) -> None:
        """Give no more reservations in this queue: a job that cannot start now just waits."""
        self._line(queue).depth = 0

    def defer(self, job: PendingJob) -> None:
        """Leave ``job`` to a later cycle. It waits, and blocks no other job."""
        self._withdraw(job)
        self._wait(job, DEFERRED)

    def _withdraw(self, job: PendingJob) -> None:
        """Book nothing for ``job``, and let no job wait behind it."""
        # The error may have come after the allocation: take it back.
        self.matcher.cancel(job.uid)
        line = self._line(job.queue)
        if line.blocker is job:
            line.blocker = None

    def put_off(self, job: PendingJob) -> None:
        """Let ``job`` wait, and block no other job, while it is too costly to decide."""
        self._withdraw(job)
        self._wait(job, TOO_COSTLY)
        self.decisions.costly.append(job)

    def quarantine(self, job: PendingJob, error: Exception) -> None:
        """Set ``job`` aside: it could not be decided, gets nothing and blocks no other job."""
        self._withdraw(job)
        self.decisions.quarantined.append((job, error))

    def pass_over(self, job: PendingJob) -> bool:
        """Record why ``job`` waits if no search can help it, and return whether that is so.

        It is behind the head of its queue, gets no reservation, and is no smaller than a request
        that did not fit. Nearly all jobs of a deep queue are like this. ``_decide`` would say the
        same of them, at ten times the cost.
        """
        line = self._line(job.queue)
        if line.blocker is None or line.has_limits or not line.rules.is_started:
            return False
        if line.promised < line.depth or not line.is_backfilling:
            return False
        if job.uid in self._held or job.uid in self._awaited:
            return False
        ask = self.matcher.ask(job.request)
        reason = None if ask.claims else self._hopeless.why(ask, job.request)
        if reason is not None:
            self._wait(job, reason)
        return reason is not None

    def step(self, job: PendingJob) -> None:
        """Start ``job``, promise it a start, or record why it waits."""
        held = self._held.pop(job.uid, None)
        awaited = self._awaited.get(job.uid, ())
        for placement in (*awaited, *((held,) if held is not None else ())):
            # Remove its own reservation before matching: it must not be blocked by itself.
            self.matcher.unreserve(placement)
            # The nodes that it gives up may fit other requests, so both caches are stale.
            self._hopeless.clear()
            self._unplannable.clear()
        if job.uid in self._awaited:
            self._count_order(job, -1)  # as with its reservations: it must not be over by itself
        self._unfirm.pop(job.uid, None)
        self._decide(self._line(job.queue), job, held)
        allocated = self.decisions.allocated
        has_started = bool(allocated) and allocated[-1][0] is job
        if awaited and not has_started:
            self._hold_awaited(awaited)
        if job.uid in self._awaited and job.uid not in self._counted:
            self._count_order(job, 1)

    def _count_order(self, job: PendingJob, times: int) -> None:
        """Let limits count a job with nodes on order (1), or no longer (-1)."""
        line, one = self._line(job.queue), amounts_of(job)
        if line.has_limits:
            more = Amounts(times * one.jobs, times * one.nodes, times * one.cpu_m)
            self._use.add(job.queue, job.user, more)

    def _hold_awaited(self, placements: Sequence[Placement]) -> None:
        """Reserve what is held for a job that waits for new nodes."""
        for placement in placements:
            self.matcher.reserve(placement, self.now)

    def grow_in_turn(self, lack: Lack, allowances: Allowances) -> None:
        """Give a running job the further slots that fit at its place in the queue.

        What does not fit waits as a job does. Without backfill it blocks its queue. The next slot
        is planned, so that jobs behind it cannot take its nodes for ever.
        """
        line, given = self._line(lack.queue), self.decisions.grown
        # A claim in use blocks no other job: it becomes free with the end of a pod. The kinds of
        # pods of other jobs differ in their claims (``top_up``).
        reason = self._why_not_growing(line, lack)
        reason = reason or (self._why_claimed(lack) if lack.is_sweep else None)
        if reason is not None:
            given.barred[lack.uid] = reason
            return
        # The request of a sweep is that of one pod. Others name all their slots.
        ask = self.matcher.ask(lack.request)
        hopeless = self._hopeless.known(ask) if lack.is_sweep else None
        if hopeless is not None:
            given.barred[lack.uid] = hopeless
            line.blocker = line.blocker or lack
            return
        try:
            with allowances.deciding(self.matcher, lack.user, lack.request):
                placed, over = self._grow(line, lack)
                if len(placed) >= lack.count or over:
                    return
                in_use = self._why_claimed(lack) if lack.is_sweep else None
                if in_use is not None:
                    given.barred[lack.uid] = in_use
                    return
                if len(placed) >= GROWTH_MAX:
                    given.is_more = True
                    return
                if lack.is_sweep:  # the reason of others names the pods and what was lost
                    given.barred[lack.uid] = why_busy(lack.request)
                self._note_hopeless(lack)
                if self._plan_growth(line, lack) or lack.is_sweep:
                    line.blocker = line.blocker or lack
        except NotThisTime:
            given.barred[lack.uid] = DEFERRED
        except Exception as error:
            if self.matcher.work is not None and self.matcher.work.left < 0:
                raise
            given.barred[lack.uid] = str(error)  # a failure here must not stop others

    def _why_not_growing(self, line: _QueueLine, lack: Lack) -> str | None:
        # In a stopped queue what runs goes on. Each pod of a sweep is a start.
        if lack.is_sweep and not line.rules.is_started:
            return f"queue {lack.queue} is stopped"
        if line.blocker is not None and not line.is_backfilling:
            return f"waits behind job {line.blocker.jobid} (fcfs)"
        return None

    def _grow(self, line: _QueueLine, lack: Lack) -> tuple[list[Placement], str]:
        def why_over(more: Amounts) -> str | None:
            return self._use.why_over(line.rules, lack.user, more) if line.has_limits else None

        def why_over_with(has: Amounts, more: Amounts) -> str | None:
            return why_too_large(line.rules, has, more) or why_over(more)

        def count(more: Amounts) -> None:
            if line.has_limits:
                self._use.add(lack.queue, lack.user, more)

        if lack.is_sweep:
            placed, over = grow(self.matcher, lack, self.now, why_over, count)
        else:
            placed, over = top_up(self.matcher, lack, self.now, why_over_with, count)
        if placed:
            self.decisions.grown.slots.append((lack, placed))
        if over:
            self.decisions.grown.barred[lack.uid] = over
        return placed, over

    def _note_hopeless(self, lack: Lack) -> None:
        """Remember a plain request that does not fit: others like it need no search."""
        # Where its siblings stand counts for all other requests.
        if lack.is_sweep and is_plain(lack.request):
            self._hopeless.add(self.matcher.ask(lack.request), why_busy(lack.request))

    def _plan_growth(self, line: _QueueLine, lack: Lack) -> bool:
        """Keep the next slot of a growing job free, and return whether that is done.

        This is no promise, and is not counted as one.
        """
        planned = line.growth_planned
        if not line.depth or planned.total() >= PLANNED_MAX or planned[lack.user] >= PLANNED_EACH:
            return False
        planned[lack.user] += 1
        with suppress(InsufficientResources, TooComplex):
            request = next_slot(lack)
            if request is None:
                return False
            placement = self.matcher.match_later(request, self.now)
            # A slot that only comes when the job ends is of no use to it.
            is_of_use = lack.is_sweep or placement.starts_at < planned_end(lack.until, self.now)
            if placement.starts_at > self.now and is_of_use:
                booked = latest_start(
                    *(self.matcher.ledger, placement, self.now),
                    slack_s=line.rules.slack_s,
                    ahead=self._unfirm.values(),
                )
                self.matcher.reserve(booked, self.now)
                self._note_unfirm(lack.uid, booked, has_limit=lack.has_limit)
                return True
        return False

    def _decide(self, line: _QueueLine, job: PendingJob, held: Placement | None) -> None:
        """Decide about one job. The order of the steps is the order of the reasons users see."""
        # 1. A stopped queue starts nothing.
        if not line.rules.is_started:
            self._bar(job, f"queue {job.queue} is stopped", WaitReason.STOPPED)
            return
        # 2. Without backfill nothing passes the blocked head, unless a start was promised to it.
        if line.blocker is not None and not line.is_backfilling and held is None:
            self._wait(job, f"waits behind job {line.blocker.jobid} (fcfs)")
            return
        # 3. Check the limits before matching: a job over a limit must not become the blocked head.
        over = self._why_over(line, job, 0)
        if over is not None:
            self._bar(job, over)
            return
        # 4. The same for a volume claim that another pod uses: its end is no matter of nodes.
        in_use = self._why_claimed(job)
        if in_use is not None:
            self._bar(job, in_use, WaitReason.CLAIM_IN_USE)
            return
        # 5. Try to start it now, unless an equal or a smaller request has failed in this walk.
        ask = self.matcher.ask(job.request)
        reason = self._hopeless.why(ask, job.request)
        if reason is None:
            try:
                placement = self._match_now(job)
            except InsufficientResources as busy:
                reason = busy.reason
                self._hopeless.add(ask, reason)
                # The held nodes are known to be free even if this match found none.
                if held is not None and self._is_due(job, held):
                    self._start(line, job, held)
                    return
            else:
                self._start(line, job, placement)
                return
        # 6. A preemptor keeps its claim and does not block its queue.
        if held is not None and job.uid in self._claimed:
            self._claim(line, job, self._preemptions.under_way[job.uid], held)
            return
        # 7. The first job that cannot start blocks its queue. Only then may it preempt, in step 8.
        line.blocker = line.blocker or job
        # 8. Reserve a start, up to the depth of the queue. A held promise is renewed beyond it.
        if held is not None or line.promised < line.depth:
            self._reserve(line, job, reason, held)
        else:
            self._wait(job, reason)

    def _why_claimed(self, job: PendingJob | Lack) -> str | None:
        """Return which volume claim for one pod is in use, or will be by a job ahead, or None."""
        in_use = why_in_use(self.matcher, job.request)
        if in_use is not None:
            return in_use
        for name in self.matcher.ask(job.request).claims:
            ahead = self._claims_ahead.get(name, job.jobid)
            if ahead != job.jobid:
                return f"{describe_claim(name)}, and job {ahead} has a reservation with it"
        return None

    def _keep_claims(self, job: PendingJob) -> None:
        """Keep the volume claims of a job with a reservation from jobs behind it."""
        for name in self.matcher.ask(job.request).claims:
            self._claims_ahead.setdefault(name, job.jobid)

    def _match_now(self, job: PendingJob) -> Placement:
        """Place ``job`` now, if possible beside the nodes that refused it.

        Its pods may refuse each other, by anti-affinity or host ports, so they are spread.
        """
        if job.refused:
            elsewhere = without_nodes(job.request, job.refused)
            if elsewhere.match_policy is None:
                elsewhere = replace(elsewhere, match_policy=MatchPolicy.SPREAD)
            with suppress(InsufficientResources):
                return self.matcher.match_now(elsewhere, self.now)
        return self.matcher.match_now(job.request, self.now)

    def _is_due(self, job: PendingJob, held: Placement) -> bool:
        """Return whether ``held`` may start now.

        A claim may not start while one of its victims still runs. ``hold`` checked other promises
        without such an exception, so they need no second check.
        """
        if held.starts_at > self.now:
            return False
        return job.uid not in self._claimed or is_open(self.matcher.ledger, held, self.now)

    def _why_over(self, line: _QueueLine, job: PendingJob, nodes: int) -> str | None:
        """Return the limit that ``job`` exceeds on ``nodes`` nodes (0: the fewest), or None."""
        if not line.has_limits:
            return None
        return self._use.why_over(line.rules, job.user, amounts_of(job, nodes))

    def _start(self, line: _QueueLine, job: PendingJob, placement: Placement) -> None:
        """Allocate ``placement``, unless the job is over a limit with it."""
        # Check again: only the placement tells how many nodes the job takes.
        over = self._why_over(line, job, len(set(placement.nodes)))
        if over is not None:
            self._bar(job, over)
            return
        if not job.has_limit:
            placement = replace(placement, is_firm=False)
        self.matcher.allocate(job.uid, placement)
        self._count(line, job, placement)
        self.decisions.allocated.append((job, placement))

    def _count(self, line: _QueueLine, job: PendingJob, placement: Placement) -> None:
        """Add ``placement`` to the use of the queue, which limits the jobs behind it."""
        if line.has_limits:
            self._counted.add(job.uid)
            self._use.add(job.queue, job.user, amounts_of(job, len(set(placement.nodes))))

    def _reserve(
        self, line: _QueueLine, job: PendingJob, reason: str, held: Placement | None
    ) -> None:
        """Reserve the earliest start, by preemption if that is earlier, or record why it waits."""
        placement, without = self._earliest(job, reason, held)
        # Only the head may preempt: jobs behind it could otherwise pass it on freed nodes.
        work = self.matcher.work
        is_spent = work is not None and work.left < 0
        if line.blocker is job and not is_spent and self._preempt(line, job, placement):
            line.blocker = None  # its claim is as good as a start, so the next job becomes the head
            return
        if placement is None:
            self._wait(job, *without)
            return
        over = self._why_over(line, job, len(set(placement.nodes)))
        if over is not None:
            self._bar(job, over)
            return
        booked = self._latest(line, job, placement, held)
        # Reserve before the next job is examined, or that job is planned on the same nodes.
        self.matcher.reserve(booked, self.now)
        self._note_unfirm(job.uid, booked, has_limit=job.has_limit)
        self._keep_claims(job)
        self._count(line, job, booked)
        line.promised += 1
        if not line.is_backfilling:
            self.decisions.unpromised.append((job, booked))
            # The reservation keeps other queues off its nodes. It is no promise: a job ahead of it
            # in its own queue, where nothing may overtake, still goes first.
            self._wait(job, reason)
            return
        if booked.is_firm:
            self.decisions.reserved.append((job, booked))
            return
        self.decisions.unpromised.append((job, booked))
        self.decisions.expected[job.uid] = placement.starts_at
        self._wait(job, f"{reason} on {describe_expected(booked, self.now)}")

    def _latest(
        self, line: _QueueLine, job: PendingJob, planned: Placement, held: Placement | None
    ) -> Placement:
        """Return what is reserved for ``job``: ``planned``, from its latest start on."""
        former = self._former.get(job.uid)
        booked = latest_start(
            *(self.matcher.ledger, planned, self.now),
            slack_s=line.rules.slack_s,
            ahead=self._unfirm.values(),
            former=former,
            replan=partial(self._earliest_from, job),
        )
        if booked.is_firm or former is None or not former.is_firm:
            return booked
        # An earlier start that is only expected does not replace a promise.
        if held is not None:
            return held
        return former if is_open(self.matcher.ledger, former, self.now) else booked

    def _earliest_from(self, job: PendingJob, at: int) -> Placement | None:
        try:
            return self.matcher.match_later(job.request, self.now, not_before=at)
        except InsufficientResources:
            return None
        except TooComplex:
            if self._is_spent():
                raise
            return None

    def _is_spent(self) -> bool:
        """Return whether no work is left for the whole walk."""
        return self._total is not None and self._total.left < 0

    def _earliest(
        self, job: PendingJob, reason: str, held: Placement | None
    ) -> tuple[Placement | None, tuple[str, WaitReason | None]]:
        """Return the earliest start behind all that is planned, or why none is known.

        Returns
        -------
        The placement (None if no start is known), and the reason with its kind.
        """
        # The future only fills up during a walk: a request without a start stays without one.
        ask = self.matcher.ask(job.request)
        without = self._unplannable.get(ask)
        if without is not None:
            return None, without
        try:
            placement = self.matcher.match_later(job.request, self.now)
        except InsufficientResources as unknown:
            if held is None:
                why = why_no_plan(self.matcher.by_shares, job.request)
                without = f"{reason}; {why or unknown.reason}", WaitReason.UNUSABLE if why else None
                self._unplannable[ask] = without
                return None, without
            # Its promise is still possible: ``hold`` has found its nodes free.
            return held, ("", None)
        except TooComplex:
            if self._is_spent():
                raise
            # It does not fit now. Its start is not worth all this work.
            return held, (f"{reason}; its start is too costly to predict", None)
        # A promise moves earlier or stays, so the later of the two is dropped.
        if held is not None and held.starts_at < placement.starts_at:
            placement = held
        return placement, ("", None)

    def _preempt(self, line: _QueueLine, job: PendingJob, placement: Placement | None) -> bool:
        """Preempt running jobs for ``job`` if that helps. Return whether it has a claim now.

        It helps if the job then starts earlier than planned.
        """
        rules, standing = line.rules.preemption, self._preemptions.standings.get(job.uid)
        if rules is None or standing is None:
            return False
        # A start that is only expected is no reason to spare the victims.
        booked = None if placement is None else self._latest(line, job, placement, None)
        starts_at = booked.starts_at if booked is not None and booked.is_firm else None
        head = Head(job.request, standing, rules, starts_at)
        under_way = self._preemptions.under_way.get(job.uid)
        # Its claim was lost, with a node or the database. Reuse the victims that leave already:
        # choosing others would preempt twice for one job.
        if under_way is not None and job.uid not in self._claimed:
            claim = claim_anew(self.matcher, head, under_way, self.now)
            if claim is not None:
                self._claim(line, job, under_way, claim)
                return True
        if len(self.decisions.preempted) >= PER_CYCLE_MAX:
            return False
        candidates = [one for one in self._preemptions.candidates if one.uid not in self._leaving]
        found = make_way(self.matcher, head, candidates, self.now)
        # Check the limits before a victim is asked to leave: it would end for nothing.
        if found is None or self._why_over(line, job, len(set(found[1].nodes))) is not None:
            return False
        making_way, claim = found
        ledger = self.matcher.ledger
        # Plan the victims to end then, so that later jobs are planned on what they free.
        for uid in making_way.leaving:
            until = min(ledger.live[uid].until, making_way.free_at)
            self._ends[uid] = ledger.end_at(uid, until)
        self._leaving.update(making_way.leaving)
        # The victims still run, so only the future has changed: ``_hopeless`` stays valid.
        self._unplannable.clear()
        self.decisions.preempted.append((job, making_way))
        self._claim(line, job, making_way, claim)
        return True

    def _claim(
        self, line: _QueueLine, job: PendingJob, making_way: MakingWay, claim: Placement
    ) -> None:
        """Reserve what the victims leave, so that no other job gets it."""
        over = self._why_over(line, job, len(set(claim.nodes)))
        if over is not None:
            self._bar(job, over)
            return
        # Claims are made before later jobs are examined: those must plan around them.
        self.matcher.reserve(claim, self.now)
        self._note_unfirm(job.uid, claim, has_limit=job.has_limit)
        self._keep_claims(job)
        self._count(line, job, claim)
        self.decisions.reserved.append((job, claim))
        self.decisions.making_way[job.uid] = making_way

    def _bar(
        self, job: PendingJob, reason: str, wait_reason: WaitReason = WaitReason.OVER_LIMIT
    ) -> None:
        """Record that ``job`` waits for something other than resources."""
        self.decisions.barred.add(job.uid)
        self._wait(job, reason, wait_reason)

    def _wait(self, job: PendingJob, reason: str, wait_reason: WaitReason | None = None) -> None:
        """Record why ``job`` waits, and of what kind that is."""
        self.decisions.waiting.append((job, reason))
        if wait_reason is not None:
            self.decisions.wait_reason[job.uid] = wait_reason


def describe_expected(booked: Placement, now: int) -> str:
    """Return in words what is kept for a job without a promised start."""
    nodes = compress(sorted(set(booked.nodes)))
    until = write_time(booked.starts_at, now)
    return f"{nodes}, kept for it from {until} at the latest, as no limit ends what runs there"


def as_stated(job: PendingJob, rules: QueueRules | None) -> Jobspec:
    """Return the request as its queue judges it: what the site plans is no duration of the job."""
    if not job.is_planned or rules is None or rules.default_duration_s:
        return job.request
    return replace(job.request, duration_s=0.0)


def amounts_of(job: PendingJob, nodes: int = 0) -> Amounts:
    """Return what limits count of a job: jobs, nodes and millicores.

    ``nodes`` 0 counts the fewest nodes that the request can do with.
    """
    return Amounts(1, nodes or fewest_nodes(job.request), total(job.request, CPU))
