"""One scheduling cycle: from a queue and a matcher to decisions.

The worker's ``schedule`` task calls it inside its transaction. Simulations call it on virtual time.
It is pure: it has no clock, no rows and no sockets.

The matcher keeps the allocations of the cycle. If the transaction that stores the decisions fails,
the caller must throw the matcher away.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from operator import itemgetter

from fluxqueue.errors import TooComplex
from fluxqueue.fluxjob.turns import first_in_turn
from fluxqueue.graph.ledger.placement import FOREVER, Placement
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.policy.queue_policy import QueuePolicy
from fluxqueue.scheduler.allowances import Allowances, NotThisTime
from fluxqueue.scheduler.cycle_decisions import NOTHING_ONGOING, Decisions, Ongoing, Queues
from fluxqueue.scheduler.growing_walk import GrowingWalk
from fluxqueue.scheduler.lack import Lack
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.scheduler.preemption_plan import (
    NO_PREEMPTIONS,
    Preemptions,
)
from fluxqueue.scheduler.sweeps import (
    GROWING_MAX,
)
from fluxqueue.scheduler.walk import QueueWalk


def run_cycle(
    matcher: Matcher,
    queue: Iterable[PendingJob],
    policy: QueuePolicy,
    now: int,
    queues: Queues | None = None,
    promised: Mapping[str, Placement] | None = None,
    ongoing: Ongoing = NOTHING_ONGOING,
    allowances: Allowances | None = None,
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
    ongoing : What goes on beside the queue.
    allowances : Limits the work of each user. Jobs beyond it wait, and block no other job.

    Returns
    -------
    The decisions. Each cycle makes a new plan, as flux-sched does. If that would put a
    promise off, the plan is made once more around the promises that are still possible.
    """
    # 1. QueueWalk the queue with an empty plan: the best plan for the present facts.
    waiting = list(queue)
    allowances = allowances or Allowances()
    again = allowances.copy()
    promised = promised or {}
    given = (matcher, policy, now, queues or Queues(), ongoing)
    walk = GrowingWalk(*given, former=promised)
    turns = _in_turn(waiting, first_in_turn(ongoing.lacks, lambda one: one.user, GROWING_MAX))
    decisions = _walk(matcher, waiting, turns, walk, allowances)
    # 2. Compare that plan with the promises of the previous cycle.
    kept = {
        uid: one
        for uid, one in promised.items()
        if one.is_firm and uid not in ongoing.preemptions.under_way
    }
    if kept and (late := _put_off(decisions, waiting, kept)):
        # 3. Undo the first walk before the second, or its allocations would count twice.
        walk.undo()
        # 4. Walk again with the promises held from the start, so that no job ahead can take them.
        walk = GrowingWalk(*given, former=promised, keep=late)
        decisions = _walk(matcher, waiting, turns, walk, again)
    return decisions


def _in_turn(queue: Sequence[PendingJob], lacks: Sequence[Lack]) -> list[PendingJob | Lack]:
    """Return waiting and growing jobs in one order: priority, then place."""
    turns: list[PendingJob | Lack] = [*queue]
    if lacks:
        turns = sorted([*queue, *lacks], key=lambda one: one.turn)
    return turns


@dataclass(frozen=True, slots=True)
class Examined:
    """A cycle that was walked: its input, and what it decided.

    Parameters
    ----------
    before : The jobs ahead of the next one, in order. None of them has started.
    decisions : Those of the cycle.
    policy, now, queues : As in ``run_cycle``. ``queues`` has the use before that cycle.
    preemptions : As in ``Ongoing``. A claim stays in the plan, but its victims keep their planned
        ends, because nothing preempts them.
    """

    before: Iterable[PendingJob]
    decisions: Decisions
    policy: QueuePolicy
    now: int
    queues: Queues
    preemptions: Preemptions = NO_PREEMPTIONS


def decide_next(
    matcher: Matcher, job: PendingJob, after: Examined, *, may_reserve: bool = True
) -> Decisions:
    """Decide about one more job, in its turn behind jobs that a cycle has examined.

    This answers "what if" questions. All promises of the cycle are kept. The decision is booked or
    planned in the matcher, as after ``run_cycle``, and the caller takes it back.

    Parameters
    ----------
    matcher : As the cycle left it, with its reservations in the plan.
    may_reserve : False: ``job`` starts now or waits, without a reservation.
    """
    # 1. Bring the limits, heads and reservation counts to where the cycle left them.
    ongoing = Ongoing(after.preemptions)
    walk = QueueWalk(matcher, after.policy, after.now, after.queues, ongoing)
    walk.follow(after.before, after.decisions)
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
    walk: GrowingWalk,
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
    for job in _shortest_jumpers_first(turns, walk):
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


def _shortest_jumpers_first(
    turns: Sequence[PendingJob | Lack], walk: GrowingWalk
) -> Iterator[PendingJob | Lack]:
    """Yield ``turns`` in order, but jobs behind a blocked one by their plan, the shortest first.

    The walk goes on meanwhile. Jobs of a higher priority still come first.
    """
    jumpers: list[tuple[int, PendingJob]] = []
    priority = None
    for job in turns:
        if job.priority != priority:
            yield from _in_order_of_plan(jumpers)
            priority, jumpers = job.priority, []
        if isinstance(job, PendingJob) and job.learned is not None and walk.jumps_shortest(job):
            jumpers.append((job.learned.durations.typical_s, job))
        else:
            yield job
    yield from _in_order_of_plan(jumpers)


def _in_order_of_plan(jumpers: list[tuple[int, PendingJob]]) -> Iterator[PendingJob]:
    jumpers.sort(key=itemgetter(0))
    return map(itemgetter(1), jumpers)


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
