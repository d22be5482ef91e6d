"""What the matcher remembers between cycles: promises, and what was reported to each job.

It belongs to ``schedule.CycleRunner`` and exists as long as its matcher. After any failure both are
read again from the rows. The forecast runs after cycles that left nothing to do, in its own
transaction. It never takes more than a small share of the matcher's time.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace

from fluxqueue.db.database import Transaction
from fluxqueue.db.leadership import check_term
from fluxqueue.db.reading.review_records import read_names
from fluxqueue.db.store import outlook
from fluxqueue.graph.ledger.placement import Closure, Placement
from fluxqueue.graph.match.by_shares import placement_on
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.tell.room import Room, lost_room, room, unusable
from fluxqueue.jobspec import Jobspec
from fluxqueue.policy.queue_policy import QueuePolicy
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.prediction.calibration import Calibration, ToldStart
from fluxqueue.process.pacing import FORECAST_SHARE, TimeShare
from fluxqueue.scheduler.calendar import newly_closed
from fluxqueue.scheduler.cycle_decisions import Decisions, Queues
from fluxqueue.scheduler.drain import Drain, outlook_behind, with_drain
from fluxqueue.scheduler.forecast import Effort, Outlook, forecast
from fluxqueue.scheduler.pending_job import PendingJob
from fluxqueue.scheduler.preemption_plan import NO_PREEMPTIONS, Preemptions
from fluxqueue.scheduler.promises import Mishaps, Promises
from fluxqueue.worker.context import WorkerContext

BUDGET_S = 1.0
"""The planning time of one forecast in seconds. No cycle runs meanwhile.

It is enough for a thousand small jobs behind a full cluster of 1,000 nodes.
"""

FRONT = 20
"""A change is reported at once to this many jobs, the first of the forecast."""

PATIENCE_S = 30
"""The shortest time in seconds between two reports to each of the other jobs.

A start changes the place of all waiting jobs.
"""

BURST_INTERVALS = 4
"""The most further intervals that a forecast waits while jobs keep starting."""

RESERVED = "reserved"
"""Represents the cycle's own reason for jobs that hold a reservation."""


@dataclass(frozen=True, slots=True)
class PlanReport:
    """Hold what was reported to a FluxJob, and when.

    ``instead_of``: the reason of the cycle that it replaces. None: any reason.
    """

    instead_of: str | None
    outlook: Outlook
    at_s: int = 0

    def may_stay(self, new: Outlook, now_s: int, *, is_in_front: bool) -> bool:
        """Return whether it is not necessary, or not urgent, to report ``new`` instead."""
        is_early = not is_in_front and now_s - self.at_s < PATIENCE_S
        is_same_kind = self.outlook.wait_reason == new.wait_reason
        return (is_early and is_same_kind) or new.is_as_good_as(self.outlook, now_s)


@dataclass(slots=True)
class Cycle:
    """Hold the input and the decisions of one cycle."""

    queue: Sequence[PendingJob]
    decisions: Decisions
    queues: Queues
    policy: QueuePolicy
    now: int
    preemptions: Preemptions = NO_PREEMPTIONS


def _rules(cycle: Cycle, queue: str) -> QueueRules:
    return cycle.queues.rules.get(queue) or QueueRules(queue)


@dataclass(slots=True)
class Plans:
    """Keep the promises, reservations and reports of one matcher."""

    context: WorkerContext
    role: str
    term: int
    _promises: Promises = field(default_factory=Promises)
    _reserved: dict[str, Placement] = field(default_factory=dict)
    _requests: dict[str, Jobspec] = field(default_factory=dict)
    _stored: dict[str, outlook.StoredReservation] = field(default_factory=dict)
    _told: dict[str, PlanReport] = field(default_factory=dict)
    _room: Room | None = None
    _overran: list[str] = field(default_factory=list)
    _closed: tuple[Closure, ...] = ()
    prolonged: Sequence[str] = ()
    """The UIDs of jobs that the last changes gave a later planned end."""
    _last: Cycle | None = None
    outcomes: Counter[str] = field(default_factory=Counter)
    """The outcomes of the promises to jobs that the last cycle started."""
    told_outcomes: Counter[str] = field(default_factory=Counter)
    """The same for expected starts."""
    calibration: Calibration = field(default_factory=Calibration)
    """How wrong expected starts were lately."""
    _first_told: dict[str, ToldStart] = field(default_factory=dict)
    _behind: dict[str, Drain] = field(default_factory=dict)
    """How far the jobs behind the examined ones were looked at, by queue."""
    planned: dict[str, Placement] = field(default_factory=dict)
    """The placements that the last forecast planned for waiting jobs, by UID."""
    _since_s: float = 0.0
    _share: TimeShare = field(init=False)

    def __post_init__(self) -> None:
        clock, least_s = self.context.clock, self.context.settings.forecast_interval_s
        self._share = TimeShare(clock, FORECAST_SHARE, least_s=least_s)

    async def load(self, tx: Transaction, matcher: Matcher, now: int) -> None:
        """Read everything again, as the matcher was read again."""
        self.look(matcher, now)
        self._promises = Promises(await outlook.read_promises(tx))
        self._stored = await outlook.read_reservations(tx)
        self._reserved, self._requests = {}, {}
        told = await outlook.read_told(tx)
        self._told = {uid: PlanReport(None, one) for uid, one in told.items()}
        self._first_told, self.calibration = await outlook.read_told_starts(tx, now)
        self._room, self._last, self.planned, self._behind = None, None, {}, {}

    # --- around a cycle --------------------------------------------------------------------------

    def look(self, matcher: Matcher, now: int) -> None:
        """Note which jobs overran, and the capacity. Call this before the changes are applied."""
        self._overran = [uid for uid, one in matcher.ledger.live.items() if one.bound < now]
        self._room = room(matcher.ledger)
        self._closed = matcher.ledger.closures

    @property
    def reserved(self) -> Mapping[str, Placement]:
        """Return the reservations of the last cycle, by UID."""
        return self._reserved

    def promised(self, matcher: Matcher, queue: Sequence[PendingJob]) -> Mapping[str, Placement]:
        """Return the reservations of the cycle before, for ``run_cycle``."""
        if self._stored:
            for job in queue:
                one = self._stored.get(job.uid)
                if one is not None and len(one.nodes) == job.request.size:
                    kept = placement_on(matcher.by_shares, job.request, one.nodes, one.starts_at)
                    kept = replace(kept, is_firm=one.is_firm, kept_from=one.kept_from)
                    self._reserved[job.uid] = kept
                    self._requests[job.uid] = job.stated
            self._stored = {}
        return {
            job.uid: self._reserved[job.uid]
            for job in queue
            if self._requests.get(job.uid) == job.stated
        }

    async def note(self, tx: Transaction, matcher: Matcher, cycle: Cycle) -> None:
        """Store new promises, and the reasons for broken ones. Call this after ``run_cycle``."""
        decisions = cycle.decisions
        mishaps = await self._mishaps(tx, matcher)
        changed = self._promises.take_in(cycle.queue, decisions, now=cycle.now, mishaps=mishaps)
        await outlook.store_promises(tx, changed)
        delayed = {
            job.uid: one.starts_at
            for job, one in decisions.unpromised
            if (old := self._reserved.get(job.uid)) and not old.is_firm
            if one.starts_at > old.starts_at and self._requests[job.uid] == job.stated
        }
        await outlook.store_delays(tx, delayed, mishaps.excuse() or outlook.AHEAD)
        kept = [*decisions.reserved, *decisions.unpromised]
        self._reserved = {job.uid: placement for job, placement in kept}
        self._requests = {job.uid: job.stated for job, _ in kept}
        outcomes = (self._promises.settle(job.uid, cycle.now) for job, _ in decisions.allocated)
        self.outcomes = Counter(filter(None, outcomes))
        await self._note_starts(tx, [job for job, _ in decisions.allocated], cycle.now)
        if self._last is None:
            self._since_s = self.context.clock.monotonic_s()
        # If no job waits, there is nothing to report, so no cycle runs for a forecast alone.
        is_shown = bool(decisions.waiting or decisions.reserved or self._told)
        if not is_shown:
            self.planned = {}
        wants_forecast = is_shown and self.context.settings.forecast_depth
        self._last = cycle if wants_forecast else None

    async def _note_starts(self, tx: Transaction, started: Sequence[PendingJob], now: int) -> None:
        """Learn from true starts how wrong the expected ones were."""
        waited = [job for job in started if job.uid in self._first_told]
        self.told_outcomes.clear()
        for job in waited:
            told = self._first_told.pop(job.uid)
            self.calibration.learn(told, now, job.user)
            self.told_outcomes[told.outcome(now)] += 1
        await outlook.store_true_starts(tx, [job.uid for job in waited], now)

    async def _mishaps(self, tx: Transaction, matcher: Matcher) -> Mishaps:
        lost = (
            unusable(matcher.ledger)
            if self._room is None
            else lost_room(matcher.ledger, self._room)
        )
        closed = newly_closed(matcher.ledger, self._closed)
        blamed = [*self._overran, *self.prolonged]
        if not blamed:
            return Mishaps(lost=lost, closed=closed)
        names = await read_names(tx, blamed)
        overran, later = set(self._overran), set(self.prolonged)
        return Mishaps(
            overran=[one.jobid for uid, one in names.items() if uid in overran],
            lost=lost,
            prolonged=[one.jobid for uid, one in names.items() if uid in later],
            closed=closed,
        )

    def words(self, decisions: Decisions) -> Mapping[str, Outlook]:
        """Return the reports that stay, by UID, because the cycle's own reason is unchanged."""
        reasons = {job.uid: reason for job, reason in decisions.waiting}
        reasons |= {job.uid: RESERVED for job, _ in decisions.reserved}
        return {
            uid: one.outlook
            for uid, reason in reasons.items()
            if (one := self._told.get(uid)) and one.instead_of in {None, reason}
        }

    # --- forecasts -------------------------------------------------------------------------------

    def is_due(self) -> bool:
        """Return whether a forecast is pending, or time has overtaken what was reported."""
        if self._share.left_s:
            return False
        return self._last is not None or self._is_overtaken()

    def _is_overtaken(self) -> bool:
        now = self.context.clock.now_s()
        starts = [one.starts_at for one in self._reserved.values()]
        starts += [
            one.outlook.expected_start
            for one in self._told.values()
            if one.outlook.expected_start is not None
        ]
        return min(starts, default=now + 1) <= now

    def _is_in_a_burst(self, cycle: Cycle) -> bool:
        """Return whether jobs just started and more may follow, so decisions go first."""
        patience_s = BURST_INTERVALS * self.context.settings.forecast_interval_s
        is_patient = self.context.clock.monotonic_s() < self._since_s + patience_s
        return is_patient and bool(cycle.decisions.allocated)

    async def forecast(self, matcher: Matcher) -> None:
        """Make a forecast if one is due, and report to the jobs for which it changes something.

        Raises
        ------
        LostLeadership
            The term is over. Nothing was reported.
        """
        cycle = self._last
        if cycle is None or not self.is_due() or self._is_in_a_burst(cycle):
            return
        self._last = None
        with self._share.work():
            await self._forecast(matcher, cycle)

    async def _forecast(self, matcher: Matcher, cycle: Cycle) -> None:
        settings, clock = self.context.settings, self.context.clock
        began_s = clock.monotonic_s()
        async with self.context.database.begin() as tx:
            jobids = await outlook.read_jobids(tx)
        found = await asyncio.to_thread(
            forecast,
            matcher,
            cycle.queue,
            cycle.decisions,
            cycle.policy,
            cycle.now,
            queues=cycle.queues,
            jobids=jobids,
            effort=Effort(
                settings.forecast_depth, lambda: clock.monotonic_s() < began_s + BUDGET_S
            ),
        )
        self.planned = {
            uid: one.placement for uid, one in found.items() if one.placement is not None
        }
        rules = {job.queue: _rules(cycle, job.queue) for job in cycle.queue}
        depths = {name: one.policy(cycle.policy).queue_depth for name, one in rules.items()}
        found, drains = with_drain(cycle.queue, found, cycle.now, depths)
        found = {uid: one.calibrated(self.calibration, cycle.now) for uid, one in found.items()}
        await self._tell(cycle, found)
        for name, drain in drains.items():
            if drain.passed == depths[name]:
                drain = self._behind.get(name) or drain
                await self._tell_behind(rules[name], drain, cycle.now, found)

    async def _tell_behind(
        self, rules: QueueRules, drain: Drain, now: int, found: Mapping[str, Outlook]
    ) -> None:
        """Show the expected start to a slice of the jobs behind the first ones of a queue."""
        news: dict[str, Outlook] = {}
        async with self.context.database.begin() as tx:
            await check_term(tx, self.role, self.term)
            rows = await outlook.read_behind(tx, rules.name, drain.last)
            for row in rows:
                new = outlook_behind(row.priority, drain, rules)
                old = Outlook(row.expected_start, row.reason, new.wait_reason, row.position)
                new = new.calibrated(self.calibration, drain.now)
                if row.uid not in found and not new.is_as_good_as(old, now):
                    news[row.uid] = new
                planned_s = row.duration_s or rules.planned_s
                drain.pass_by((-row.priority, row.place), row.size * planned_s)
            await self._store(tx, news, ())
        # The next forecast goes on behind this slice, and after the last one begins anew.
        self._behind[rules.name] = drain
        if len(rows) < outlook.SLICE:
            del self._behind[rules.name]

    async def _store(
        self, tx: Transaction, news: Mapping[str, Outlook], dropped: Sequence[str]
    ) -> None:
        """Write what jobs are shown, and remember what that was first."""
        await outlook.store_outlooks(tx, news, dropped)
        for uid, one in news.items():
            if one.told is not None:
                self._first_told.setdefault(uid, one.told)

    async def _tell(self, cycle: Cycle, found: Mapping[str, Outlook]) -> None:
        reasons = {job.uid: reason for job, reason in cycle.decisions.waiting}
        reasons |= {job.uid: RESERVED for job, _ in cycle.decisions.reserved}
        told: dict[str, PlanReport] = {}
        news: dict[str, Outlook] = {}
        for place, (uid, new) in enumerate(found.items()):
            old = self._told.get(uid)
            reason = reasons[uid]
            is_old = old is not None and old.instead_of in {None, reason}
            if (
                old is not None
                and is_old
                and old.may_stay(new, cycle.now, is_in_front=place < FRONT)
            ):
                told[uid] = PlanReport(reason, old.outlook, old.at_s)
            else:
                told[uid], news[uid] = PlanReport(reason, new, cycle.now), new
        coming = cycle.decisions.provisioning
        looked_at = {job.uid for job in cycle.queue} - coming
        dropped = [uid for uid in self._told if uid not in told and uid in looked_at]
        if news or dropped:
            async with self.context.database.begin() as tx:
                await check_term(tx, self.role, self.term)
                await self._store(tx, news, dropped)
        self._told = told
