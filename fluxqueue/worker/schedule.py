"""The ``schedule`` task: consecutive cycles, each one transaction under the matcher's term.

It runs only on the worker that holds the matcher's role (``leader``). The matcher is a cache of the
rows, and this is its only owner. After any failure it is discarded and read again, because it is
not known which of its bookings were committed.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping, Sequence, Set
from contextlib import AbstractContextManager, asynccontextmanager
from dataclasses import replace

from fluxqueue import __version__
from fluxqueue.db.database import Transaction
from fluxqueue.db.leadership import may_decide
from fluxqueue.db.reading.review_records import has_news
from fluxqueue.db.store.choices import follow_choices
from fluxqueue.db.store.decisions import store_decisions, store_growth
from fluxqueue.db.store.matcher_rows import NodeChanges, lacking, load_graph, take_changes
from fluxqueue.db.store.pending_actions import BOOKING, forgive_except, note_failures
from fluxqueue.db.store.queue_snapshot import (
    OF_EACH,
    QueueHead,
    Unreadable,
    lock_queue,
    mark_examined,
    quarantine,
    queue_head,
    set_pending_again,
    try_quarantined_again,
    unsatisfiable,
    update_impossible,
)
from fluxqueue.db.store.queues import read_rules, read_use
from fluxqueue.db.store.rule_rows import read_reservations
from fluxqueue.db.store.run_times import RunTimes
from fluxqueue.errors import DatabaseUnavailable, InvalidInput, LostLeadership
from fluxqueue.explain.question import QueueSnapshot
from fluxqueue.fluxjob.levels import parse_levels
from fluxqueue.fluxjob.wait_reason import WaitReason
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.jobspec import Jobspec
from fluxqueue.nodepools.plan.node_protection import NodeNeeds, Protect, needed_nodes
from fluxqueue.policy.limits import LimitUse
from fluxqueue.policy.queue_policy import queue_policy
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.policy.sharing.node_grants import NodeSharing
from fluxqueue.process import metrics
from fluxqueue.process.pacing import EXAMINED_MAX, BatchPacer
from fluxqueue.scheduler.allowances import Allowances
from fluxqueue.scheduler.calendar import Calendar, ReservationFigures
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Decisions, Failed, Ongoing, Queues
from fluxqueue.scheduler.node_choices import Choices, give_choices
from fluxqueue.scheduler.node_sharing import (
    SharingFigures,
    TaintChanges,
    count_sharing,
    taint_changes,
)
from fluxqueue.scheduler.pending_job import PendingJob, amounts_of
from fluxqueue.scheduler.preemption_plan import PER_CYCLE_MAX, Preemptions, hold_claims
from fluxqueue.scheduler.satisfiable import split_unsatisfiable
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.costly_jobs import CostlyJobs
from fluxqueue.worker.full_queues import FullQueues
from fluxqueue.worker.intake import Taken, past_full_users, reconsider_queues, take_in, why_full
from fluxqueue.worker.node_planning import NodePlanning
from fluxqueue.worker.plans import Cycle, Plans
from fluxqueue.worker.preempting import Preempting

logger = logging.getLogger(__name__)

ROLE = "matcher"
LOOP = "cycle"
"""The name of this loop where the times of loops are reported."""


class CycleRunner:
    """Own the matcher while its term lasts, and run one cycle after the other."""

    def __init__(self, context: WorkerContext, term: int) -> None:
        self._context = context
        self._term = term
        settings = context.settings
        self._policy = queue_policy(settings.queue_policy, queue_depth=settings.queue_depth)
        self._match_policy = settings.match_policy
        self._levels = parse_levels(settings.levels)
        self._matcher: Matcher | None = None
        self._answers: dict[Jobspec, str | None] = {}
        self._rules: dict[str, QueueRules] = {}
        self._decided: dict[str, int] = {}
        self._damaged: dict[str, str] = {}
        self._told_damaged: dict[str, str] = {}
        self._plans = Plans(context, ROLE, term)
        self._preempting = Preempting(context, ROLE, term)
        self._pace = BatchPacer(context.clock, lambda: context.client.answer_times.delay_s)
        self._sharing = NodeSharing()
        self._calendar = Calendar()
        self.nodes = NodePlanning(context.clock)
        """What is known of nodes that were asked for."""
        self._choices: Choices = {}
        # Pods that an earlier term released may still have a choice.
        self._has_choices = True
        self._last: Cycle | None = None
        self._full_queues = FullQueues(OF_EACH)
        self._costly = CostlyJobs()
        self._times = RunTimes()
        # A cycle, a forecast and a review each need the matcher alone. Two at once would mix their
        # bookings.
        self._lock = asyncio.Lock()

    @property
    def is_due(self) -> bool:
        """Return whether a cycle is due although nothing has changed.

        It is due for a forecast, because it is time for a victim to be preempted, because a
        sharing policy gives another part of a node from now on, because a reservation begins or
        ends, because nodes are under way, or because a costly job is tried again.
        """
        now_s = self._context.clock.now_s()
        is_due = self._plans.is_due() or self._preempting.is_due(now_s)
        is_due |= self._costly.is_due(now_s) or self._calendar.is_due(now_s)
        return is_due or self._sharing.is_due(now_s) or self.nodes.is_due(now_s)

    async def run(self) -> None:
        """Run cycles until none starts a job or leaves one unexamined, then make a forecast.

        The forecast reports to the waiting jobs when they can expect to start.

        Raises
        ------
        LostLeadership
            Another worker has taken the role over. Nothing of the last cycle was stored.
        """
        is_more = True
        while is_more:
            await self._pace.rest()
            with self._pace.work():
                async with self._lock:
                    is_more = await self._cycle()
                    # Preemptions use a second transaction: they lock rows in a different order.
                    await self._let_make_way()
                    # After the cycle, which takes all that has woken the matcher: a pod that was
                    # bound just before it would otherwise wait for the next change. The next cycle
                    # reads the moved slots again.
                    is_more |= await self._follow_choices()
                await self._tell_damaged()
        async with self._lock:
            await self._forecast()

    async def _tell_damaged(self) -> None:
        """Report allocations that cannot be read, in a separate transaction.

        Their FluxJobs run, so they are locked in a different order than the queue.
        """
        damaged = dict(self._damaged)
        if damaged == self._told_damaged:
            return
        await forgive_except(self._context.database, damaged, task=BOOKING)
        await note_failures(self._context.database, damaged, lasting=damaged, task=BOOKING)
        self._told_damaged = damaged

    async def _forecast(self) -> None:
        """Report to waiting jobs when they can expect to start. A failure costs no start."""
        try:
            async with self._in_doubt_after_failure():
                if self._matcher is not None:
                    await self._plans.forecast(self._matcher)
        except (LostLeadership, DatabaseUnavailable):
            raise
        except Exception:
            metrics.ROWS_SKIPPED.labels("forecast").inc()
            logger.exception("no forecast", extra={"action": "forecast"})

    async def _follow_choices(self) -> bool:
        """Book slots where kube-scheduler has bound their pods, and return whether any moved.

        In a separate transaction: their FluxJobs run, so they are locked in a different order than
        the queue.
        """
        if self._matcher is None or not self._has_choices:
            return False
        async with self._context.database.begin() as tx:
            if not await may_decide(tx, ROLE, self._term):
                return False
            landed = await follow_choices(tx, self._matcher.ledger)
        self._has_choices = landed.are_open
        return landed.moved > 0

    async def _let_make_way(self) -> None:
        """Apply the preemptions of the last cycle in a separate transaction.

        The victims are locked in a different order than the queue.
        """
        if self._last is not None and self._preempting.is_due(self._last.now):
            await self._preempting.carry_out(self._last.now)

    @asynccontextmanager
    async def _in_doubt_after_failure(self) -> AsyncIterator[None]:
        """Discard the matcher after a failure, because its contents are then uncertain."""
        try:
            yield
        except BaseException:
            self._matcher = self._last = None
            raise

    @asynccontextmanager
    async def between_cycles(self) -> AsyncIterator[QueueSnapshot]:
        """Give the matcher for questions, as the last cycle left it. No cycle runs inside.

        If something has changed since, a cycle runs first.

        Raises
        ------
        DatabaseUnavailable
            The rows are not compared with the cluster, so nothing can be said about it now.
        LostLeadership
            Another worker has taken the role over.
        """
        async with self._lock:
            if self._last is None or await has_news(self._context.database):
                await self._cycle()
            matcher, last = self._matcher, self._last
            if matcher is None or last is None:
                raise DatabaseUnavailable("the rows are not compared with the cluster yet")
            plan, live = matcher.ledger.plan, set(matcher.ledger.live)
            try:
                yield self._scene(matcher, last)
            finally:
                # A question that changed the ledger would falsify the next cycle. Only then is the
                # matcher discarded, because reading it again is expensive.
                if matcher.ledger.plan is not plan or set(matcher.ledger.live) != live:
                    self._matcher = self._last = None

    async def sharing_figures(self) -> tuple[SharingFigures, TaintChanges] | None:
        """Return what sharing policies give now, and which taints they want.

        None before the first cycle.

        A policy sees changes of unmanaged pods in a cycle only. If none is due, one is woken.
        """
        async with self._lock:
            if self._matcher is None:
                return None
            ledger = self._matcher.ledger
            found = count_sharing(self._sharing, ledger), taint_changes(self._sharing, ledger)
        if self._sharing.rules and await has_news(self._context.database):
            await self._context.database.wake_matcher()
        return found

    async def reservation_figures(self) -> Mapping[str, ReservationFigures] | None:
        """Return what reservations close now, by their names. None before the first cycle."""
        async with self._lock:
            if self._matcher is None:
                return None
            return self._calendar.figures(self._matcher.ledger, self._context.clock.now_s())

    async def node_needs(self, protect: Protect, starting: Set[str]) -> NodeNeeds | None:
        """Return which nodes autoscalers must leave alone. None if no cycle has run.

        Without pools and without an autoscaler there is none. ``starting``: jobs that do not run.
        The end of a job wakes no cycle if no other job waits, so it is woken here.
        """
        async with self._lock:
            if self._matcher is None or self._last is None:
                return None
            ledger = self._matcher.ledger
            if not self.nodes.states and not ledger.autoscaler:
                protect = Protect.NEVER
            found = needed_nodes(ledger, protect, starting, self.nodes.returning)
        if found.needed and await has_news(self._context.database):
            await self._context.database.wake_matcher()
        return found

    def _scene(self, matcher: Matcher, last: Cycle) -> QueueSnapshot:
        """Return the scene after a cycle. Jobs that it started count as running."""
        queues = Queues(last.queues.rules, dict(last.queues.use))
        started = {job.uid: placement for job, placement in last.decisions.allocated}
        for job, placement in last.decisions.allocated:
            queues.count(job.queue, job.user, amounts_of(job, len(set(placement.nodes))))
        return QueueSnapshot(
            matcher=matcher,
            queue=[job for job in last.queue if job.uid not in started],
            decisions=replace(last.decisions, allocated=[]),
            policy=last.policy,
            queues=queues,
            now=self._context.clock.now_s(),
            times=self._times.known,
            calibration=self._plans.calibration,
            planned=self._plans.planned,
            promised=self._plans.reserved,
            preemptions=last.preemptions,
            pools=self.nodes.states,
            requests=self.nodes.requests,
            spent=self.nodes.spent,
        )

    async def _cycle(self) -> bool:
        async with self._in_doubt_after_failure():
            with metrics.CYCLE_S.time():
                async with self._context.database.begin() as tx:
                    if not await may_decide(tx, ROLE, self._term):
                        self._last = None
                        return False  # the controller wakes the matcher once it has compared them
                    is_more = await self._decide(tx)
        for outcome, number in self._decided.items():
            metrics.DECISIONS.labels(outcome).inc(number)
        for outcome, number in self._plans.outcomes.items():
            metrics.PROMISES.labels(outcome).inc(number)
        for outcome, number in self._plans.told_outcomes.items():
            metrics.EXPECTED_STARTS.labels(outcome).inc(number)
        self.nodes.committed()
        return is_more

    async def _decide(self, tx: Transaction) -> bool:
        """Run one cycle. Return whether another should follow at once."""
        with _part("changes"):
            matcher, changes = await self._look(tx)
        with _part("queue"):
            queues = await self._queues(tx)
            view = await past_full_users(tx, self._head(changes), self._rules, queues)
            # All rows at once, by UID, before any change: other orders deadlock with observations.
            locked = await lock_queue(tx, view)
            unreadable = Unreadable(times=self._times.known)
            allowances = Allowances()
            failed = await self._reconsider(tx, matcher, changes, unreadable, allowances)
            now = self._context.clock.now_s()
            new = Taken()
            if locked.has_new:
                new = await take_in(
                    tx,
                    matcher,
                    self._rules,
                    self._answers,
                    unreadable,
                    locked,
                    limit=EXAMINED_MAX,
                    allowances=allowances,
                )
                failed += new.failed
            head = await queue_head(tx, view, self._rules, unreadable, locked)
            is_more_hidden = self._is_more_hidden(head, new)
            queue, never, deferred = await self._judge(tx, matcher, head, failed, allowances)
            queue, later = self._costly.split(queue, now)
            promised = self._plans.promised(matcher, queue)
            preemptions = await self._preempting.read(tx, self._rules, queue, promised)
            lacks = await lacking(tx, self._rules) if locked.has_lacking else []
        with _part("match"):
            awaited = self._keep_nodes(matcher, preemptions, queue, now)
            ongoing = Ongoing(preemptions, lacks, awaited)
            decisions = run_cycle(
                matcher, queue, self._policy, now, queues, promised, ongoing, allowances
            )
            await self.nodes.plan(tx, matcher, [*queue, *deferred, *later], decisions, queues, now)
            self._costly.note(queue, decisions.costly, now)
            self._choices = give_choices(matcher, decisions, now)
            self._has_choices |= bool(self._choices)
        queue = _without(queue, decisions.quarantined)
        # Jobs that were put off count as waiting: a long pause would put them off further.
        is_cut_short = bool(deferred) or is_more_hidden or new.looked_at == EXAMINED_MAX
        self._pace.is_awaited = is_cut_short or bool(lacks) or len(queue) > len(decisions.allocated)
        self._pace.size = len(decisions.allocated)
        self._last = Cycle(queue, decisions, queues, self._policy, now, preemptions)
        with _part("store"):
            self._report_skipped(decisions, new, view, queues)
            await self._store(tx, matcher, has_plan=locked.has_plan)
            aside = {job.uid: error for job, error in (*failed, *decisions.quarantined)}
            await self._quarantine(tx, unreadable.errors | aside)
        _log(decisions)
        self._count(decisions, len(new.impossible) + len(never))
        gone = [job for job, _ in (*decisions.allocated, *never)]
        is_more_behind = self._is_more_behind([*queue, *(job for job, _ in never)], gone)
        return (
            is_more_behind
            or is_cut_short
            or decisions.grown.is_more
            or len(decisions.preempted) >= PER_CYCLE_MAX
        )

    def _head(self, changes: NodeChanges) -> QueueHead:
        return QueueHead(
            depth=self._policy.queue_depth,
            examined_max=EXAMINED_MAX,
            have_nodes_changed=changes.have_nodes_changed,
            changed_queues=changes.queues,
            crowded=self._full_queues.to_look_past,
            owners={one.uid for one in self.nodes.requests},
        )

    async def _look(self, tx: Transaction) -> tuple[Matcher, NodeChanges]:
        """Carry what has changed since the last cycle into the matcher."""
        if self._matcher is None:
            self._preempting.forget()
        # Before the changes: a victim that ends in between would otherwise still occupy its
        # nodes in the ledger, and the claim on them would be given up as impossible.
        await self._preempting.look(tx, self._rules)
        matcher, changes = await self._bring_up_to_date(tx)
        await self._times.look(tx)
        await self.nodes.look(tx, matcher, changes, self._context.clock.now_s())
        return matcher, changes

    def _count(self, decisions: Decisions, unsatisfiable: int) -> None:
        """Remember the outcomes. They are counted once the transaction has committed."""
        self._decided = {
            "allocated": len(decisions.allocated),
            "reserved": len(decisions.reserved),
            "waiting": len(decisions.waiting),
            "unsatisfiable": unsatisfiable,
        }

    def _keep_nodes(
        self, matcher: Matcher, preemptions: Preemptions, queue: Sequence[PendingJob], now: int
    ) -> Mapping[str, Sequence[Placement]]:
        """Reserve what victims free, and what was brought for jobs. Return the latter by UID.

        Nothing is matched before. Otherwise another job could take it.
        """
        matcher.clear_plan()
        hold_claims(matcher, preemptions, [job.uid for job in queue], now)
        return self.nodes.hold(matcher, now)

    def _is_more_hidden(self, head: list[PendingJob], new: Taken) -> bool:
        """Return whether jobs of other users are behind the depth of a full queue."""
        depths = {
            name: rules.queue_depth or self._policy.queue_depth
            for name, rules in self._rules.items()
        }
        return self._full_queues.note(head, new.possible, depths)

    async def _judge(
        self,
        tx: Transaction,
        matcher: Matcher,
        head: list[PendingJob],
        failed: list[Failed],
        allowances: Allowances,
    ) -> tuple[list[PendingJob], list[tuple[PendingJob, str]], list[PendingJob]]:
        """Split the head of the queue: possible, never possible, and for a later cycle.

        Nodes may have gone since these jobs were examined further back in the queue.
        """
        deferred: list[PendingJob] = []
        queue, never = split_unsatisfiable(
            matcher, head, self._answers, failed, allowances, deferred
        )
        if never:
            await mark_examined(tx, [], never)
        return queue, never, deferred

    async def _store(self, tx: Transaction, matcher: Matcher, *, has_plan: bool) -> None:
        """Store the decisions of the last cycle, and cancel bookings that could not be stored."""
        assert self._last is not None
        decisions = self._last.decisions
        await store_growth(tx, decisions.grown, self._choices)
        await self._plans.note(tx, matcher, self._last)
        words = {**self._plans.words(decisions), **self.nodes.outlooks}
        lost = await store_decisions(
            tx,
            decisions,
            term=self._term,
            words=words,
            has_plan=has_plan,
            choices=self._choices,
        )
        await self._preempting.store(tx, decisions)
        # Race: these jobs ended meanwhile. Their bookings would block nodes that no job uses.
        for uid in lost:
            matcher.cancel(uid)

    async def _bring_up_to_date(self, tx: Transaction) -> tuple[Matcher, NodeChanges]:
        """Apply the changes to the matcher. Read the rules if a queue has changed."""
        matcher, now = self._matcher, self._context.clock.now_s()
        if matcher is None:
            matcher = Matcher(ShareLedger(self._levels), self._match_policy)
            self._sharing = NodeSharing()
            self._rules = await self._read_rules(tx)
            changes = await load_graph(tx, matcher.ledger, self._sharing, now, self._rules)
            self._damaged = {}
            await self._plans.load(tx, matcher, now)
            await try_quarantined_again(tx, __version__)
        else:
            # Before the changes: these may remove the jobs that overran and the lost capacity.
            self._plans.look(matcher, now)
            changes = await take_changes(tx, matcher.ledger, self._sharing, now, self._rules)
            if changes.queues:
                self._rules = await self._read_rules(tx)
        self._matcher, self._plans.prolonged = matcher, changes.prolonged
        self._damaged = {u: why for u, why in self._damaged.items() if u not in changes.booked}
        self._damaged |= changes.damaged
        if changes.has_calendar_changed:
            self._calendar.set_rules(*await read_reservations(tx))
        if self._calendar.close_nodes(matcher.ledger, now):
            changes = replace(changes, have_nodes_changed=True)
        return matcher, changes

    async def _read_rules(self, tx: Transaction) -> dict[str, QueueRules]:
        return await read_rules(tx, self._context.settings.default_duration_s)

    async def _queues(self, tx: Transaction) -> Queues:
        """Return the rules, and the running use of the queues that limit it."""
        bounded = [name for name, rules in self._rules.items() if rules.has_use_limits]
        return Queues(self._rules, await read_use(tx, bounded))

    async def _reconsider(
        self,
        tx: Transaction,
        matcher: Matcher,
        changes: NodeChanges,
        unreadable: Unreadable,
        allowances: Allowances,
    ) -> list[Failed]:
        """Judge jobs again if nodes or queues have changed. Return the jobs that failed.

        A job that could not run may be able to run now, and the reverse.
        """
        failed: list[Failed] = []
        if changes.have_nodes_changed:
            self._answers.clear()
            never = await unsatisfiable(tx, self._rules, unreadable)
            deferred: list[PendingJob] = []
            possible, still = split_unsatisfiable(
                matcher, never, self._answers, failed, allowances, deferred
            )
            await set_pending_again(tx, [*possible, *deferred])
            await update_impossible(tx, still)
        if changes.queues:
            await reconsider_queues(tx, self._rules, changes.queues, unreadable)
        return failed

    async def _quarantine(self, tx: Transaction, failed: Mapping[str, Exception]) -> None:
        """Quarantine jobs that could not be read or decided, until a person examines them.

        All other jobs continue.
        """
        if not failed:
            return
        await quarantine(tx, failed, __version__)
        for uid, error in failed.items():
            metrics.SET_ASIDE.inc()
            is_known = isinstance(error, InvalidInput)
            logger.error(
                "set aside",
                extra={"action": "cycle", "uid": uid, "error": str(error)},
                exc_info=None if is_known else error,
            )

    def _report_skipped(
        self, decisions: Decisions, new: Taken, view: QueueHead, queues: Queues
    ) -> None:
        """Report to new jobs that the walk has skipped why they wait."""
        if not view.full:
            return
        use = LimitUse.of(queues.use)
        for job in new.possible:
            reason = why_full(job, self._rules, use) if (job.queue, job.user) in view.full else None
            if reason is not None:
                decisions.waiting.append((job, reason))
                decisions.wait_reason[job.uid] = WaitReason.OVER_LIMIT

    def _is_more_behind(self, looked_at: list[PendingJob], gone: list[PendingJob]) -> bool:
        """Return whether a queue was examined to its depth only and has advanced since."""
        seen: dict[str, int] = {}
        for job in looked_at:
            seen[job.queue] = seen.get(job.queue, 0) + 1
        return any(
            seen[name] >= (self._rules[name].queue_depth or self._policy.queue_depth)
            for name in {job.queue for job in gone}
            if name in self._rules
        )


def _without(queue: list[PendingJob], failed: Sequence[Failed]) -> list[PendingJob]:
    gone = {job.uid for job, _ in failed}
    return [job for job in queue if job.uid not in gone] if gone else queue


def _part(name: str) -> AbstractContextManager[object]:
    return metrics.CYCLE_PART_S.labels(name).time()


def _log(decisions: Decisions) -> None:
    if decisions.allocated:
        logger.info(
            "cycle",
            extra={
                "action": "cycle",
                "allocated": len(decisions.allocated),
                "reserved": len(decisions.reserved),
                "waiting": len(decisions.waiting),
            },
        )
