"""Estimated starts of waiting jobs, and the reason why each one waits.

The worker's matcher calls it after a cycle that left nothing to do. Simulations call it as well. It
plans the rest of the queue behind the reservations of the cycle, in queue order, and then drops
that plan. An estimate binds nothing: only a reservation is a promise. Pure.

Each job is planned at the earliest start behind the jobs ahead of it. Without backfill it also
starts no earlier than those.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fluxqueue.errors import InsufficientResources
from fluxqueue.fluxjob.wait_reason import WaitReason
from fluxqueue.graph.ledger.placement import FOREVER, Placement
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.graph.tell.blockers import (
    describe_holders,
    describe_nodes,
    enumerate_some,
    in_the_way,
    why_no_plan,
    write_time,
)
from fluxqueue.graph.tell.busy import why_not_now
from fluxqueue.graph.tell.words import only_level
from fluxqueue.jobspec import Jobspec
from fluxqueue.policy.queue_policy import QueuePolicy
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.prediction.calibration import Calibration, ToldStart
from fluxqueue.scheduler.allowances import Allowances
from fluxqueue.scheduler.closed_nodes import open_later, why_closed
from fluxqueue.scheduler.cycle_decisions import Decisions, Queues
from fluxqueue.scheduler.pending_job import PendingJob

DEPTH = 1000
"""Jobs of each queue that get an estimate."""

EXPLAINED = 20
"""Jobs of each queue that get the nodes they wait for. Jobs behind get their place only."""

TOLERANCE_S = 30
TOLERANCE_SHARE = 0.1
"""An estimate is updated only if it moved by more than the larger of both."""


@dataclass(frozen=True, slots=True)
class Outlook:
    """What the status of a waiting job shows.

    ``expected_start`` is in epoch seconds, None if unknown. ``wait_reason`` is the kind of what the
    job waits for, None for nodes or its turn. ``position`` is its place in its queue from 1,
    rounded behind the first places. ``placement`` is what was planned for it, if anything was.
    ``promised`` is the start that it was promised. ``is_skipped``: there was no time to plan it.
    ``told`` is what it is shown of its start.
    """

    expected_start: int | None
    reason: str
    wait_reason: WaitReason | None = None
    position: int | None = None
    placement: Placement | None = field(default=None, compare=False, repr=False)
    promised: int | None = field(default=None, compare=False)
    is_skipped: bool = field(default=False, compare=False)
    told: ToldStart | None = field(default=None, compare=False)

    @property
    def expected_by(self) -> int | None:
        """Return when nine of ten such jobs have started, None if unknown."""
        return None if self.told is None else self.told.expected_by

    def calibrated(self, by: Calibration, now: int) -> Outlook:
        """Return it as earlier starts have proven: with the time by which half of them were."""
        if self.expected_start is None:
            return self
        told = by.expect(now, self.expected_start)
        if self.promised is not None:
            told = told.within(self.promised)
        return replace(self, expected_start=told.expected, told=told)

    def is_as_good_as(self, told: Outlook, now: int) -> bool:
        """Return whether a status that shows ``told`` needs no update."""
        said = (self.reason, self.wait_reason, self.position)
        if said != (told.reason, told.wait_reason, told.position):
            return False
        if self.expected_start is None or told.expected_start is None:
            return self.expected_start == told.expected_start
        moved_s = abs(self.expected_start - told.expected_start)
        slack_s = max(TOLERANCE_S, TOLERANCE_SHARE * (self.expected_start - now))
        return moved_s == 0 or (moved_s <= slack_s and told.expected_start > now)


@dataclass(frozen=True, slots=True)
class Effort:
    """How much a forecast may cost.

    ``depth``: jobs of each queue that are planned. ``may_go_on``: asked before each plan. After the
    first False nothing more is planned, and the remaining jobs get their place only.
    """

    depth: int = DEPTH
    may_go_on: Callable[[], bool] = lambda: True


def forecast(
    matcher: Matcher,
    queue: Sequence[PendingJob],
    decisions: Decisions,
    policy: QueuePolicy,
    now: int,
    *,
    queues: Queues | None = None,
    jobids: Mapping[str, int] | None = None,
    effort: Effort | None = None,
) -> dict[str, Outlook]:
    """Estimate starts for the first waiting jobs of each queue.

    Parameters
    ----------
    matcher : As the cycle left it: allocations made, reservations in the plan. It is the same
        afterwards.
    queue, decisions, policy, queues : The arguments of ``run_cycle``, and its result.
    now : The time of the cycle in epoch seconds.
    jobids : The jobids of running jobs by UID, to name them in reasons.
    effort : How many jobs are planned, and for how long.

    Returns
    -------
    The outlook by UID. Jobs that wait for something other than resources, such as a limit or a
    stopped queue, have none. No plan over durations can tell when that ends.
    """
    effort = effort or Effort()
    named = jobids or {}
    plan = _Plan(matcher, decisions, policy, now, queues or Queues(), named, effort.may_go_on)
    waiting = plan.select(queue, effort.depth)
    if not waiting:
        return {}
    with matcher.trying():
        return {job.uid: outlook for job, outlook in plan.walk(waiting)}


@dataclass(slots=True)
class _ForecastLine:
    """The progress of the forecast in one queue."""

    is_backfilling: bool
    place: int = 0
    looked_at: int = 0
    first: PendingJob | None = None
    floor: int = 0
    """The earliest start of further jobs without backfill, in epoch seconds."""


@dataclass(frozen=True, slots=True)
class _Planned:
    job: PendingJob
    placement: Placement
    nodes: frozenset[str]


@dataclass(slots=True)
class _Plan:
    matcher: Matcher
    decisions: Decisions
    policy: QueuePolicy
    now: int
    queues: Queues
    jobids: Mapping[str, int]
    may_go_on: Callable[[], bool]
    _allowances: Allowances = field(default_factory=Allowances)
    _is_over: bool = False
    _lines: dict[str, _ForecastLine] = field(default_factory=dict)
    _planned: list[_Planned] = field(default_factory=list)
    _given: dict[str, Placement] = field(default_factory=dict)
    _failed: dict[Jobspec, str] = field(default_factory=dict)
    _unusable: set[Jobspec] = field(default_factory=set)

    def select(self, queue: Sequence[PendingJob], depth: int) -> list[PendingJob]:
        """Return the jobs that wait for resources, at most ``depth`` of each queue."""
        beside = {job.uid for job, _ in self.decisions.allocated} | self.decisions.barred
        beside |= self.decisions.making_way.keys()  # their reason names the victims
        beside |= self.decisions.provisioning  # their reason names the nodes that come
        chosen: list[PendingJob] = []
        counts: dict[str, int] = {}
        for job in queue:
            if job.uid not in beside and counts.get(job.queue, 0) < depth:
                counts[job.queue] = counts.get(job.queue, 0) + 1
                chosen.append(job)
        return chosen

    def walk(self, waiting: Sequence[PendingJob]) -> Iterator[tuple[PendingJob, Outlook]]:
        """Plan one job after the other."""
        self._given = {job.uid: placement for job, placement in self.decisions.kept}
        promised = {job.uid for job, _ in self.decisions.reserved}
        # The matcher holds these reservations already, so they count as planned from the start.
        for job, placement in self.decisions.kept:
            self._planned.append(_Planned(job, placement, frozenset(placement.nodes)))
        for job in waiting:
            line = self._line(job.queue)
            try:
                with self._allowances.deciding(self.matcher, job.user, job.request):
                    found = self._step(line, job, is_promised=job.uid in promised)
            except Exception:  # noqa: BLE001  one estimate less, and all other jobs get theirs
                found = Outlook(None, self._behind(line, job))
            yield job, replace(found, position=rounded(line.place) + 1)
            line.place += 1

    def _line(self, name: str) -> _ForecastLine:
        line = self._lines.get(name)
        if line is None:
            rules = self.queues.rules.get(name) or QueueRules(name)
            line = self._lines[name] = _ForecastLine(rules.policy(self.policy).is_backfilling)
        return line

    def _step(self, line: _ForecastLine, job: PendingJob, *, is_promised: bool) -> Outlook:
        """Plan one job behind all that is planned, and return its outlook."""
        placement = self._given.get(job.uid)
        if placement is None:
            self._is_over = self._is_over or not self.may_go_on()
            if self._is_over or line.floor >= FOREVER:
                return Outlook(None, self._behind(line, job), is_skipped=line.floor < FOREVER)
            try:
                placement = self._place(line, job)
            except InsufficientResources as unknown:
                # Without backfill no job behind may start earlier, so their starts are unknown too.
                line.floor = line.floor if line.is_backfilling else FOREVER
                words = self._prefix(line, job) + unknown.reason
                is_unusable = job.by_plan in self._unusable
                return Outlook(None, words, WaitReason.UNUSABLE if is_unusable else None)
            self.matcher.reserve(placement, self.now)
        reason = self._reason(line, job, placement)
        if job.uid not in self._given:
            self._planned.append(_Planned(job, placement, frozenset(placement.nodes)))
        if not line.is_backfilling:
            line.first = line.first or job
            line.floor = max(line.floor, placement.starts_at)
        start = self.decisions.expected.get(job.uid, placement.planned_start)
        promised = placement.starts_at if is_promised else None
        if is_promised:
            late = placement.kept_from is not None
            latest = f" by {write_time(placement.starts_at, self.now)}" if late else ""
            reason = f"has a reservation{latest}; {reason}"
        elif job.uid in self.decisions.expected:
            latest = write_time(placement.starts_at, self.now)
            reason = f"expected to start by {latest}, not promised; {reason}"
        return Outlook(start, reason, placement=placement, promised=promised)

    def _place(self, line: _ForecastLine, job: PendingJob) -> Placement:
        """Return the earliest start behind all that is planned.

        Raises
        ------
        InsufficientResources
            No start is known. A request that failed once fails again without a search.
        """
        reason = self._failed.get(job.by_plan)
        if reason is not None:
            raise InsufficientResources(reason)
        try:
            return open_later(self.matcher, job, self.now, not_before=line.floor)
        except InsufficientResources as error:
            unusable = why_no_plan(self.matcher.by_shares, job.by_plan)
            if unusable is not None:
                self._unusable.add(job.by_plan)
            reason = unusable or error.reason
            self._failed[job.by_plan] = reason
            raise InsufficientResources(reason) from error

    # --- reasons ---------------------------------------------------------------------------------

    def _reason(self, line: _ForecastLine, job: PendingJob, placement: Placement) -> str:
        if line.first is not None and line.place > 0:
            return self._behind(line, job)
        if line.place >= EXPLAINED:
            return self._behind(line, job)
        reason = self._what_for(line, job, placement)
        if self._level(job) is not None:
            return reason  # it names the one place already
        short = why_not_now(self.matcher.by_shares, job.request)
        return reason if short is None else f"{short}; {reason}"

    def _what_for(self, line: _ForecastLine, job: PendingJob, placement: Placement) -> str:
        closed = why_closed(self.matcher, job, job.by_plan, self.now)
        if closed is not None:
            return self._prefix(line, job) + closed
        way = in_the_way(self.matcher.by_shares, placement)
        before = [
            one
            for one in self._planned
            if one.placement.until <= placement.starts_at and one.nodes & set(placement.nodes)
        ]
        last_running = max((one.until for one in way.holders), default=0)
        if before and max(one.placement.until for one in before) > last_running:
            where = describe_nodes(self.matcher.by_shares, placement.nodes, self._level(job))
            before.sort(key=lambda one: -one.placement.until)
            names = enumerate_some([f"job {one.job.jobid}" for one in before])
            return f"{self._prefix(line, job)}waits for {where} behind {names}"
        if not way.holders:
            return self._behind(line, job)
        where = describe_nodes(self.matcher.by_shares, way.nodes, self._level(job))
        return f"waits for {where} held by {describe_holders(way.holders, self.now, self.jobids)}"

    def _level(self, job: PendingJob) -> str | None:
        """Return the level of the cluster that the request is bound to, or None."""
        return only_level(self.matcher.ask(job.request))

    def _behind(self, line: _ForecastLine, job: PendingJob) -> str:
        if line.first is not None:
            return f"waits behind job {line.first.jobid} ({self._policy_name(job)})"
        return self._prefix(line, job).removesuffix("; ") or "waits for its turn"

    def _prefix(self, line: _ForecastLine, job: PendingJob) -> str:
        if not line.place:
            return ""
        jobs = "1 job" if line.place == 1 else f"{roughly(line.place)} jobs"
        return f"priority {job.priority} behind {jobs}; "

    def _policy_name(self, job: PendingJob) -> str:
        rules = self.queues.rules.get(job.queue) or QueueRules(job.queue)
        return rules.policy(self.policy).name


def roughly(count: int) -> str:
    """Write a count that changes rarely: exact up to 20, then rounded to tens, hundreds, ..."""
    return str(count) if count <= EXPLAINED else f"about {rounded(count)}"


def rounded(count: int) -> int:
    return count if count <= EXPLAINED else round(count, 1 - len(str(count)))
