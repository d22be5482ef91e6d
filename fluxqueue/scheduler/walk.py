"""One walk over all queues: what has been decided so far, and how the next job is decided.

``cycle`` makes a walk and steps it through the queue. ``growing_walk`` adds the turns of running
workloads that need more slots. Pure, as ``cycle``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from functools import partial

from fluxqueue.errors import InsufficientResources, TooComplex
from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.fluxjob.wait_reason import WaitReason
from fluxqueue.graph.ledger.placement import FOREVER, Placement
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.match.shares.ask import Ask
from fluxqueue.graph.tell.blockers import why_no_plan, write_time
from fluxqueue.graph.tell.room import is_open
from fluxqueue.jobspec import Jobspec
from fluxqueue.policy.limits import Amounts, LimitUse
from fluxqueue.policy.queue_policy import QueuePolicy
from fluxqueue.policy.queue_rules import SHORTEST, QueueRules
from fluxqueue.scheduler.claims_in_use import describe_claim, why_in_use
from fluxqueue.scheduler.closed_nodes import closure_met, open_later, open_now
from fluxqueue.scheduler.cycle_decisions import NOTHING_ONGOING, Decisions, Ongoing, Queues
from fluxqueue.scheduler.failed_searches import FailedSearches
from fluxqueue.scheduler.lack import Lack
from fluxqueue.scheduler.latest_start import StartSlack, latest_start, renew, renewal_turn
from fluxqueue.scheduler.pending_job import PendingJob, amounts_of
from fluxqueue.scheduler.preemption_plan import (
    PER_CYCLE_MAX,
    Head,
    MakingWay,
    claim_anew,
    hold_claims,
    make_way,
)
from fluxqueue.scheduler.queue_line import QueueLine

TOO_COSTLY = (
    "to place it beside all that runs takes more work than one request may cost; it is tried again"
    " within two minutes"
)
DEFERRED = "costly jobs of this user have used the time of this cycle, so it waits for a later one"


class QueueWalk:
    """State of one walk: the progress of each queue, and the requests known not to fit."""

    def __init__(
        self,
        matcher: Matcher,
        policy: QueuePolicy,
        now: int,
        queues: Queues,
        ongoing: Ongoing = NOTHING_ONGOING,
        former: Mapping[str, Placement] | None = None,
        keep: Mapping[str, Placement] | None = None,
    ) -> None:
        self._awaited, self._preemptions = ongoing.awaited, ongoing.preemptions
        self.matcher, self.policy, self.now = matcher, policy, now
        self._total = matcher.work
        self._former, self._keep = former or {}, keep or {}
        self._held: dict[str, Placement] = {}
        self._claimed: set[str] = set()
        # Victims that leave already must not be chosen a second time.
        self._leaving = {uid for one in self._preemptions.under_way.values() for uid in one.leaving}
        self._ends: dict[str, int] = {}
        self.decisions = Decisions()
        self._queues = queues
        self._use = LimitUse.of(queues.use)
        self._counted: set[str] = set()
        self._lines: dict[str, QueueLine] = {}
        self._failed = FailedSearches()
        # Volume claims for one pod -> the job ahead that has a reservation with them.
        self._claims_ahead: dict[str, int] = {}
        self._unplannable: dict[Ask, tuple[str, WaitReason | None]] = {}
        # The earliest promised start. What may run longer than that uses no promised node.
        self._first_promise = FOREVER
        # Reservations that are not firm, or have an end that is not, by UID.
        self._unfirm: dict[str, Placement] = {}

    def _line(self, name: str) -> QueueLine:
        line = self._lines.get(name)
        if line is None:
            rules = self._queues.rules.get(name) or QueueRules(name)
            line = self._lines[name] = QueueLine(
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
        kept = [job for job in queue if job.uid in self._keep and job.uid not in self._held]
        for job in sorted(kept, key=lambda job: renewal_turn(self._keep[job.uid])):
            old = self._keep[job.uid]
            # Hold promises that are due as well. If the head of an fcfs queue starts now, the jobs
            # behind it are examined for the first time. They come earlier in this walk and could
            # take the nodes.
            late_s = max(0, self.now - old.starts_at)
            old = replace(old, starts_at=old.starts_at + late_s, until=old.until + late_s)
            renewed = renew(self.matcher.ledger, old, self.now)
            if renewed is not None:
                self._book(renewed)
                self._held[job.uid] = renewed
                self._note_unfirm(job.uid, renewed, has_limit=job.has_limit)

    def _book(self, placement: Placement) -> None:
        """Reserve ``placement``, and note what it promises."""
        self.matcher.reserve(placement, self.now)
        if placement.is_firm:
            self._first_promise = min(self._first_promise, placement.starts_at)
        elif placement.kept_from is not None:
            self._first_promise = self.now  # its slack is used up

    def jumps_shortest(self, job: PendingJob) -> bool:
        """Return whether ``job`` is behind a blocked job, and the shortest of these comes first."""
        line = self._line(job.queue)
        is_behind = line.blocker is not None and line.is_backfilling
        return is_behind and job.learned is not None and line.rules.jumpers == SHORTEST

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
        if not (line.has_pulled or job.learned is None):
            return False
        if job.uid in self._held or job.uid in self._awaited:
            return False
        request = self._for_now(job)
        ask = self.matcher.ask(request)
        reason = None if ask.claims else self._failed.why(ask, request)
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
            self._failed.clear()
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

    def _decide(self, line: QueueLine, job: PendingJob, held: Placement | None) -> None:
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
        request = self._for_now(job)
        ask = self.matcher.ask(request)
        reason = self._failed.why(ask, request)
        if reason is None:
            try:
                placement = open_now(self.matcher, job, request, self.now)
            except InsufficientResources as busy:
                reason = busy.reason
                self._failed.add(ask, reason)
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
            return
        # 9. The first of the jobs that may jump: small ones would keep it from its nodes forever.
        if not line.has_pulled and job.learned is not None:
            self._pull(line, job, reason)
        self._wait(job, reason)

    def _for_now(self, job: PendingJob) -> Jobspec:
        """Return the request with the time for which a start now must fit.

        That is its plan if limits end it before every promised start, and else all its time.
        """
        if job.learned is None:
            return job.request
        latest = self.now + job.learned.durations.bound_s + job.request.grace_s
        return job.learned.request if latest <= self._first_promise else job.request

    def _pull(self, line: QueueLine, job: PendingJob, reason: str) -> None:
        """Keep nodes for ``job`` for this cycle only, from its planned start on."""
        placement, _ = self._earliest(job, reason, None)
        if placement is not None:
            self.matcher.reserve(placement, self.now)
            self.decisions.pulled.append((job, placement))
            line.has_pulled = True

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

    def _is_due(self, job: PendingJob, held: Placement) -> bool:
        """Return whether ``held`` may start now.

        A claim may not start while one of its victims still runs. ``hold`` checked other promises
        without such an exception, so they need no second check.
        """
        if held.starts_at > self.now or closure_met(self.matcher, job, held) is not None:
            return False
        return job.uid not in self._claimed or is_open(self.matcher.ledger, held, self.now)

    def _why_over(self, line: QueueLine, job: PendingJob, nodes: int) -> str | None:
        """Return the limit that ``job`` exceeds on ``nodes`` nodes (0: the fewest), or None."""
        if not line.has_limits:
            return None
        return self._use.why_over(line.rules, job.user, amounts_of(job, nodes))

    def _start(self, line: QueueLine, job: PendingJob, placement: Placement) -> None:
        """Allocate ``placement``, unless the job is over a limit with it."""
        # Check again: only the placement tells how many nodes the job takes.
        over = self._why_over(line, job, len(set(placement.nodes)))
        if over is not None:
            self._bar(job, over)
            return
        placement = as_planned(job, placement)
        self.matcher.allocate(job.uid, placement)
        self._count(line, job, placement)
        self.decisions.allocated.append((job, placement))

    def _count(self, line: QueueLine, job: PendingJob, placement: Placement) -> None:
        """Add ``placement`` to the use of the queue, which limits the jobs behind it."""
        if line.has_limits:
            self._counted.add(job.uid)
            self._use.add(job.queue, job.user, amounts_of(job, len(set(placement.nodes))))

    def _reserve(
        self, line: QueueLine, job: PendingJob, reason: str, held: Placement | None
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
        self._book(booked)
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
        self, line: QueueLine, job: PendingJob, planned: Placement, held: Placement | None
    ) -> Placement:
        """Return what is reserved for ``job``: ``planned``, from its latest start on."""
        if planned is held and held.kept_from is not None:
            return held
        former = self._former.get(job.uid)
        booked = latest_start(
            *(self.matcher.ledger, planned, self.now),
            slack=_slack(line.rules, job),
            ahead=self._unfirm.values(),
            former=former,
            replan=partial(self._earliest_from, job.by_plan),
            replan_whole=partial(self._earliest_from, job.request),
        )
        if former is None or not former.is_firm:
            return booked
        if booked.is_firm and booked.starts_at <= former.starts_at:
            return booked
        # An earlier start that is only expected does not replace a promise.
        if held is not None:
            return held
        return renew(self.matcher.ledger, former, self.now) or booked

    def _earliest_from(self, request: Jobspec, at: int) -> Placement | None:
        try:
            return self.matcher.match_later(request, self.now, not_before=at)
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
        ask = self.matcher.ask(job.by_plan)
        without = self._unplannable.get(ask)
        if without is not None:
            return None, without
        try:
            placement = open_later(self.matcher, job, self.now)
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
        if held is not None and (held.kept_from or held.starts_at) < placement.starts_at:
            placement = held
        return placement, ("", None)

    def _preempt(self, line: QueueLine, job: PendingJob, placement: Placement | None) -> bool:
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
        # Check all else before a victim is asked to leave: it would end for nothing.
        if found is None or closure_met(self.matcher, job, found[1]) is not None:
            return False
        if self._why_over(line, job, len(set(found[1].nodes))) is not None:
            return False
        making_way, claim = found
        ledger = self.matcher.ledger
        # Plan the victims to end then, so that later jobs are planned on what they free.
        for uid in making_way.leaving:
            until = min(ledger.live[uid].until, making_way.free_at)
            self._ends[uid] = ledger.end_at(uid, until)
        self._leaving.update(making_way.leaving)
        # The victims still run, so only the future has changed: ``_failed`` stays valid.
        self._unplannable.clear()
        self.decisions.preempted.append((job, making_way))
        self._claim(line, job, making_way, claim)
        return True

    def _claim(
        self, line: QueueLine, job: PendingJob, making_way: MakingWay, claim: Placement
    ) -> None:
        """Reserve what the victims leave, so that no other job gets it."""
        over = self._why_over(line, job, len(set(claim.nodes)))
        if over is not None:
            self._bar(job, over)
            return
        # Claims are made before later jobs are examined: those must plan around them.
        self._book(claim)
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


def _slack(rules: QueueRules, job: PendingJob) -> StartSlack:
    """Return how far later jobs may delay ``job``. By default that is as long as it may run."""
    if job.learned is None:
        return StartSlack(rules.slack_s())
    bound_s = job.learned.durations.bound_s
    slack_s = rules.slack_s(bound_s)
    return StartSlack(slack_s, slack_s, bound_s + job.request.grace_s)


def as_planned(job: PendingJob, placement: Placement) -> Placement:
    """Return the placement of a job that starts: when it is planned to end, and by which limit."""
    if job.learned is None:
        return placement if job.has_limit else replace(placement, is_firm=False)
    at, grace_s = placement.starts_at, job.request.grace_s
    durations = job.learned.durations
    until = at + durations.long_s + grace_s
    if not job.has_limit or durations.limit_s is None:
        return replace(placement, until=until, is_firm=False)
    return replace(placement, until=until, ends_by=at + durations.limit_s + grace_s)


def describe_expected(booked: Placement, now: int) -> str:
    """Return in words what is kept for a job without a promised start."""
    nodes = compress(sorted(set(booked.nodes)))
    until = write_time(booked.starts_at, now)
    return f"{nodes}, kept for it from {until} at the latest, as no limit ends what runs there"
