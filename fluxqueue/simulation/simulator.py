"""The engine: events in the order of virtual time, and a cycle after each instant.

``Engine.step`` moves to the next instant, so tests can check everything in between. ``simulate``
runs to the end. The cycle is the production cycle. A lost node takes its slots away, and the rest
of the job continues. ``top_up`` places lost slots again, and these begin their work again. A job
that has lost all its slots becomes pending again, as in ``db.store.reconciling``. Victims of
preemption leave when their time has come, as in ``db.store.preemption``.
"""

from __future__ import annotations

import heapq
from bisect import insort
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace

from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, Levels
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.graph.ledger.placement import Placement
from fluxqueue.graph.ledger.shares import ShareLedger
from fluxqueue.graph.match.matcher import Matcher
from fluxqueue.nodepools.pool import NodePool
from fluxqueue.policy.calendar.reservation import HORIZON_S, ReservationRule
from fluxqueue.policy.provision_rules import NO_RULES, ProvisionRules
from fluxqueue.policy.queue_policy import QueuePolicy
from fluxqueue.policy.queue_rules import DEFAULT_QUEUE, PreemptionRules, QueueRules
from fluxqueue.prediction.calibration import ToldStart
from fluxqueue.process.settings import MATCH_POLICY
from fluxqueue.scheduler.calendar import Calendar, newly_closed
from fluxqueue.scheduler.cycle import run_cycle
from fluxqueue.scheduler.cycle_decisions import Decisions, Ongoing, Queues
from fluxqueue.scheduler.forecast import forecast
from fluxqueue.scheduler.lack import Lack
from fluxqueue.scheduler.pending_job import PendingJob, bounded
from fluxqueue.scheduler.preemption_plan import (
    NO_PREEMPTIONS,
    PER_CYCLE_MAX,
    MakingWay,
    PreemptionCandidate,
    Preemptions,
    hold_claims,
)
from fluxqueue.scheduler.promises import Mishaps, Promise, Promises
from fluxqueue.scheduler.satisfiable import split_unsatisfiable
from fluxqueue.simulation.expecting import Expecting
from fluxqueue.simulation.growing import GrowingCluster
from fluxqueue.simulation.learning import DurationSource, Learning
from fluxqueue.simulation.named_queues import SimulatedQueues
from fluxqueue.simulation.simulated_jobs import NodeEvent, SimulatedJob
from fluxqueue.simulation.virtual_events import END, LEAVE, LOOK, NODE, SUBMIT, Event


@dataclass(slots=True)
class RunRecord:
    """What happened to one job. Times are seconds of virtual time, None if it did not happen."""

    job: SimulatedJob
    started_s: int | None = None
    ended_s: int | None = None
    placement: Placement | None = None
    promise: Promise | None = None
    told: tuple[ToldStart, int] | None = None
    """What it was shown of its start, and when it started."""
    is_backfilled: bool = False
    is_impossible: bool = False
    refusal: str = ""
    """Why its queue does not take it."""
    restarts: int = 0
    requeues: int = 0
    requeued_for: list[str] = field(default_factory=list)
    """UIDs of the jobs that preempted it."""
    overtaken_by: int = 0
    spans: list[tuple[int, int, Placement]] = field(default_factory=list)
    """What it held: from, until, and where."""

    @property
    def wait_s(self) -> int:
        """Return the time from submission to its (last) start, in seconds."""
        assert self.started_s is not None
        return self.started_s - self.job.submit_s

    @property
    def is_promise_kept(self) -> bool:
        """Return whether it started when first promised, or earlier."""
        if self.promise is None or self.started_s is None:
            return True
        return self.started_s <= self.promise.starts_at


@dataclass(slots=True)
class _RunningJob:
    placement: Placement
    since: int
    lacks: int = 0
    version: int = 0


@dataclass(frozen=True, slots=True)
class SimulatedSite:
    """What is true of a cluster beside its nodes.

    Parameters
    ----------
    unmanaged : what pods that fluxqueue does not place use all the time, by node, in base units.
    begun : jobs that run when the time begins (0), by UID, with what they hold. They run for
        ``runs_s`` from the start of that placement, which is before 0.
    pools, provision : nodes that can be asked for, and the rule of all queues for that.
    durations : how long jobs are planned to run.
    expects_every : one of so many waiting jobs is shown its start. 0: none.
    calendar : reservations, whose first starts are in virtual time: 1970-01-01 is its beginning.
    """

    faults: Iterable[NodeEvent] = ()
    match_policy: str = MATCH_POLICY
    levels: Levels = DEFAULT_LEVELS
    unmanaged: Mapping[str, Mapping[str, int]] = field(default_factory=dict)
    begun: Mapping[str, Placement] = field(default_factory=dict)
    pools: Sequence[NodePool] = ()
    provision: ProvisionRules = NO_RULES
    durations: DurationSource = DurationSource.DECLARED
    expects_every: int = 0
    calendar: Sequence[ReservationRule] = ()


class Engine:
    """One run: a cluster, a policy, and jobs that come and go."""

    def __init__(
        self,
        nodes: Sequence[NodeFact],
        jobs: Iterable[SimulatedJob],
        policy: QueuePolicy,
        *,
        site: SimulatedSite | None = None,
        preemption: PreemptionRules | None = None,
        leaves_s: int = 0,
        queues: Mapping[str, QueueRules] | None = None,
    ) -> None:
        site = site or SimulatedSite()
        self.policy = policy
        only = {DEFAULT_QUEUE: QueueRules(DEFAULT_QUEUE, preemption=preemption)}
        self.queues = SimulatedQueues(only if queues is None else queues)
        self.learning = Learning(site.durations)
        self.expecting = Expecting(site.expects_every)
        self.leaves_s = leaves_s
        """Seconds that the pods of a requeued job take to end."""
        self.making_way: dict[str, MakingWay] = {}
        self.leaving: dict[str, int] = {}
        """When the pods of a requeued job have ended, by UID."""
        self.facts = {fact.name: fact for fact in nodes}
        self.matcher = Matcher(ShareLedger(site.levels), site.match_policy)
        self.matcher.ledger.add_rows([fact.name for fact in nodes])
        self._unmanaged = site.unmanaged
        for fact in nodes:
            self.matcher.set_node(fact, self._unmanaged.get(fact.name, {}))
        self.calendar = Calendar()
        self.calendar.set_rules(site.calendar, {})
        self._moved_at = 0
        """When a job has begun or ended last."""
        self.growing = GrowingCluster(self.matcher, site.pools, site.provision)
        self._looks: set[int] = set()
        self.jobs = list(jobs)
        self.faults = list(site.faults)
        self.records = [RunRecord(job) for job in self.jobs]
        self.by_uid = {record.job.uid: record for record in self.records}
        self._indexes = {job.uid: index for index, job in enumerate(self.jobs)}
        self.pending: list[tuple[int, int, PendingJob]] = []
        self.running: dict[str, _RunningJob] = {}
        self.decisions = Decisions()
        self.now = 0
        self.cycles = 0
        self.ended = 0
        self._promises = Promises()
        self._lost: set[str] = set()
        self._learned_of: set[tuple[str, str]] = set()
        self._events: list[Event] = [
            *(
                Event(job.submit_s, SUBMIT, index)
                for index, job in enumerate(self.jobs)
                if job.uid not in site.begun
            ),
            *(Event(one.at_s, NODE, index) for index, one in enumerate(self.faults)),
        ]
        heapq.heapify(self._events)
        self._begin_with(site.begun)

    def _begin_with(self, begun: Mapping[str, Placement]) -> None:
        """Book the jobs that run since before the first event."""
        for uid, placement in begun.items():
            record = self.by_uid[uid]
            record.started_s, record.placement = placement.starts_at, placement
            self.matcher.allocate(uid, placement)
            self.running[uid] = _RunningJob(placement, placement.starts_at)
            self.queues.begin(record.job, placement, placement.starts_at)
            ends_s = max(0, placement.starts_at + record.job.runs_s)
            heapq.heappush(self._events, Event(ends_s, END, self._indexes[uid]))

    # --- time ------------------------------------------------------------------------------------

    def step(self) -> bool:
        """Process all events of the next instant and run one cycle.

        Return False if none is left.
        """
        if not self._events:
            return False
        self.now = self._events[0].at
        overran = self._overrunning()
        if self.queues.advance(self.now):
            self._order_anew()
        while self._events and self._events[0].at == self.now:
            self._take(heapq.heappop(self._events))
        if self._learned_of:
            self._plan_anew()
        before = self.matcher.ledger.closures
        self.calendar.close_nodes(self.matcher.ledger, self.now)
        self.cycle(overran, newly_closed(self.matcher.ledger, before))
        if self.decisions.allocated or self.running:
            self._moved_at = self.now
        # What waits for open nodes has no other event. What can never start must not wait for ever.
        is_moving = self.now - self._moved_at < HORIZON_S
        if self.pending and is_moving and self.calendar.next_s is not None:
            self._look_again(self.calendar.next_s)
        for uid in self.expecting.due(self.running):
            self._tell_start(uid)
        self._lost.clear()
        # What was to end by plan at a promised start may run on, on nodes that are not needed.
        if self.learning.source is DurationSource.LEARNED and self.decisions.reserved:
            self._look_again(min(where.starts_at for _, where in self.decisions.reserved))
        return True

    def _take(self, event: Event) -> None:
        if event.kind == SUBMIT:
            self._submit(self.records[event.number])
        elif event.kind == NODE:
            self._change_node(self.faults[event.number])
        elif event.kind == LEAVE:
            self._leave()
        elif event.kind == LOOK:
            self._looks.discard(event.at)
            self.growing.arrive(self.now)
        else:
            self._end(self.records[event.number], event.version)

    def _overrunning(self) -> list[int]:
        """Return the jobs that hold their resources past their limit, or their plan without one."""
        return [
            self.by_uid[uid].job.number
            for uid, one in self.matcher.ledger.live.items()
            if one.bound < self.now
        ]

    # --- events ----------------------------------------------------------------------------------

    def _submit(self, record: RunRecord) -> None:
        job = record.job
        record.refusal = self.queues.why_refused(job) or ""
        if record.refusal:
            return
        priority = self.queues.priority(job)
        plan = self.learning.plan(job, self.queues.planned_s(job))
        request = self.queues.planned(job)
        if plan is not None:
            request = bounded(job.request, plan.durations)
        pending = PendingJob(
            *(job.uid, job.number, priority, request, job.queue, job.user),
            has_limit=bool(job.request.duration_s),
            is_planned=not job.request.duration_s,
            learned=plan,
        )
        _, never = split_unsatisfiable(self.matcher, [pending])
        if never:
            record.is_impossible = True
        else:
            insort(self.pending, (-priority, job.number, pending))
            self.expecting.come(job.uid)

    def _order_anew(self) -> None:
        """Give the pending jobs the priorities that fair share computes now."""
        fresh = [
            replace(one, priority=self.queues.priority(self.by_uid[one.uid].job))
            for _, _, one in self.pending
        ]
        self.pending = sorted((-one.priority, one.jobid, one) for one in fresh)

    def _end(self, record: RunRecord, version: int) -> None:
        uid = record.job.uid
        running = self.running.get(uid)
        if running is None or running.version != version:
            return
        self._close_span(record, running)
        del self.running[uid]
        self.leaving.pop(uid, None)
        self.matcher.cancel(uid)
        self.queues.end(uid)
        record.ended_s = self.now
        self.ended += 1
        if self.learning.learn(record.job):
            self._learned_of.add((record.job.queue, record.job.user))

    def _plan_anew(self) -> None:
        """Plan the pending jobs of those whose runs have ended again."""
        self.pending = [
            (at, number, self._planned(one) if (one.queue, one.user) in self._learned_of else one)
            for at, number, one in self.pending
        ]
        self._learned_of.clear()

    def _planned(self, one: PendingJob) -> PendingJob:
        job = self.by_uid[one.uid].job
        plan = self.learning.plan(job, self.queues.planned_s(job))
        if plan is None or plan == one.learned:
            return one
        return replace(one, learned=plan, request=bounded(job.request, plan.durations))

    def _change_node(self, event: NodeEvent) -> None:
        fact = replace(self.facts[event.node], is_up=event.is_up)
        self.matcher.set_node(fact, self._unmanaged.get(event.node, {}))
        if event.is_up:
            return
        self._lost.add(event.node)
        for uid, running in list(self.running.items()):
            if event.node in running.placement.nodes:
                self._lose_slots(self.by_uid[uid], running, event.node)

    def _lose_slots(self, record: RunRecord, running: _RunningJob, node: str) -> None:
        self._close_span(record, running)
        left = tuple(slot for slot in running.placement.slots if slot.node != node)
        running.version += 1
        uid = record.job.uid
        if left:
            running.lacks += len(running.placement.slots) - len(left)
            running.placement = replace(running.placement, slots=left)
            self.matcher.allocate(uid, running.placement)
            for one in self.making_way.values():
                if uid in one.leaving:
                    until = min(running.placement.until, one.vacate_at)
                    self.matcher.ledger.end_at(uid, until)
            return
        self._start_anew(record)

    def _start_anew(self, record: RunRecord) -> None:
        uid = record.job.uid
        del self.running[uid]
        self.leaving.pop(uid, None)
        self.matcher.cancel(uid)
        self.queues.end(uid)
        self._promises.forget(uid)
        record.started_s = record.placement = record.promise = None
        record.restarts += 1
        self._submit(record)

    def _leave(self) -> None:
        """Requeue the jobs that were preempted and have no pods left."""
        for uid in [uid for uid, at in self.leaving.items() if at <= self.now]:
            record = self.by_uid[uid]
            self._close_span(record, self.running[uid])
            record.requeues += 1
            self._start_anew(record)

    def _close_span(self, record: RunRecord, running: _RunningJob) -> None:
        if running.since < self.now:
            record.spans.append((running.since, self.now, running.placement))
        running.since = self.now

    # --- cycles ----------------------------------------------------------------------------------

    def queue(self) -> list[PendingJob]:
        """Return the jobs that a cycle examines: by priority, then submission, up to the depth.

        The depth is that of each queue.
        """
        left = {name: self.queues.depth(name, self.policy) for name in self.queues.rules}
        found = []
        for _, _, job in self.pending:
            if left[job.queue]:
                left[job.queue] -= 1
                found.append(job)
            elif not any(left.values()):
                break
        return found

    def _is_cut(self, queue: Sequence[PendingJob]) -> bool:
        """Tell whether a queue has as many jobs in the cycle as it may have."""
        counts = Counter(job.queue for job in queue)
        return any(count >= self.queues.depth(name, self.policy) for name, count in counts.items())

    def cycle(self, overran: Sequence[int] = (), closed: Sequence[str] = ()) -> None:
        """Do what the worker's matcher does: run cycles while more jobs are behind."""
        self.matcher.clear_plan()
        self.making_way = {
            head: replace(
                one, gone=one.gone | {uid for uid in one.leaving if uid not in self.running}
            )
            for head, one in self.making_way.items()
        }
        queue, promised = self.queue(), self._promised()
        preemptions = self._preemptions(queue, promised)
        hold_claims(self.matcher, preemptions, [job.uid for job in queue], self.now)
        awaited = self.growing.begin(self.running.keys(), self.now)
        mishaps = Mishaps(overran, sorted(self._lost), closed=closed)
        while True:
            left = {uid: one for uid, one in awaited.items() if uid not in self.running}
            queues = Queues(self.queues.rules, self.queues.use())
            ongoing = Ongoing(preemptions, self._lacks(), left)
            self.decisions = run_cycle(
                self.matcher, queue, self.policy, self.now, queues, promised, ongoing
            )
            if self.growing.pools:
                self._grow(queue)
            self.cycles += 1
            self._take_further_slots()
            self._promises.take_in(queue, self.decisions, now=self.now, mishaps=mishaps)
            self._start_all(queue)
            self._make_way()
            is_behind = self._is_cut(queue) and self.decisions.allocated
            if not is_behind and len(self.decisions.preempted) < PER_CYCLE_MAX:
                return
            queue, promised = self.queue(), self._promised()
            preemptions = self._preemptions(queue, promised)

    def _tell_start(self, uid: str) -> None:
        """Tell a job that waits when it starts, as far as the jobs ahead of it say."""
        queue = self.queue()
        place = next((at for at, job in enumerate(queue) if job.uid == uid), len(queue))
        queues = Queues(self.queues.rules, self.queues.use())
        given = (self.matcher, queue[: place + 1], self.decisions, self.policy, self.now)
        self.expecting.tell(uid, forecast(*given, queues=queues).get(uid), self.now)

    def _grow(self, queue: Sequence[PendingJob]) -> None:
        """Ask for nodes, and look again when some come or may go."""
        decisions, queues = self.decisions, Queues(self.queues.rules, self.queues.use())
        times = self.growing.finish(queue, decisions, queues, self.running.keys(), self.now)
        for at in times:
            self._look_again(at)

    def _look_again(self, at: int) -> None:
        if at not in self._looks:
            self._looks.add(at)
            heapq.heappush(self._events, Event(at, LOOK, 0))

    def _to_leave(self) -> set[str]:
        return {uid for one in self.making_way.values() for uid in one.leaving}

    def _promised(self) -> dict[str, Placement]:
        decisions = self.decisions
        kept = (*decisions.reserved, *decisions.unpromised)
        return {job.uid: placement for job, placement in kept}

    def _preemptions(
        self, queue: Sequence[PendingJob], promised: dict[str, Placement]
    ) -> Preemptions:
        if all(one.preemption is None for one in self.queues.rules.values()):
            return NO_PREEMPTIONS
        to_leave = self._to_leave()
        return Preemptions(
            candidates=[
                PreemptionCandidate(
                    uid,
                    record.job.number,
                    record.job.queue,
                    self.queues.priority(record.job),
                    started_s,
                )
                for uid in self.running
                for record in [self.by_uid[uid]]
                for started_s in [record.started_s]
                if started_s is not None and uid not in self.leaving and uid not in to_leave
            ],
            standings={job.uid: job.priority for job in queue},
            under_way=self.making_way,
            claims=promised,
        )

    def _make_way(self) -> None:
        """Apply the preemptions after a cycle: victims that are spared, leave, or have left."""
        before, self.making_way = self.making_way, dict(self.decisions.making_way)
        kept = {uid for one in self.making_way.values() for uid in one.leaving}
        for one in before.values():
            for uid in set(one.leaving) - kept - self.leaving.keys():
                if uid in self.running:
                    self.matcher.ledger.end_at(uid, self.running[uid].placement.until)
        for head, one in self.making_way.items():
            if one.vacate_at > self.now:
                if head not in before:
                    heapq.heappush(self._events, Event(one.vacate_at, LEAVE, 0))
                continue
            for uid in set(one.leaving) & self.running.keys() - self.leaving.keys():
                self.by_uid[uid].requeued_for.append(head)
                self.leaving[uid] = self.now + self.leaves_s
                heapq.heappush(self._events, Event(self.leaving[uid], LEAVE, 0))

    def _lacks(self) -> list[Lack]:
        """Return the jobs that lost slots, in their order."""
        to_leave = self._to_leave()
        lacks = [
            Lack(
                uid,
                one.lacks,
                job.request,
                one.placement.nodes,
                one.placement.until,
                queue=job.queue,
                user=job.user,
                priority=self.queues.priority(job),
                jobid=job.number,
                has_limit=bool(job.request.duration_s),
            )
            for uid, one in self.running.items()
            for job in [self.by_uid[uid].job]
            if one.lacks and uid not in to_leave
        ]
        return sorted(lacks, key=lambda one: one.turn)

    def _take_further_slots(self) -> None:
        for lack, placed in self.decisions.grown.slots:
            running, record = self.running[lack.uid], self.by_uid[lack.uid]
            self._close_span(record, running)
            more = tuple(slot for one in placed for slot in one.slots)
            running.placement = replace(running.placement, slots=(*running.placement.slots, *more))
            running.lacks -= len(more)
            if not running.lacks:
                self._run(record, running)

    def _run(self, record: RunRecord, running: _RunningJob) -> None:
        """Let its last slots begin their work now. They run as long as the job was to run."""
        index = self._indexes[record.job.uid]
        heapq.heappush(
            self._events, Event(self.now + record.job.runs_s, END, index, running.version)
        )

    def _start_all(self, queue: Sequence[PendingJob]) -> None:
        started = {job.uid for job, _ in self.decisions.allocated}
        if not started:
            return
        waiting_before: list[RunRecord] = []
        for job in queue:
            record = self.by_uid[job.uid]
            if job.uid not in started:
                waiting_before.append(record)
            elif waiting_before:
                record.is_backfilled = True
                for one in waiting_before:
                    one.overtaken_by += 1
        self.pending = [one for one in self.pending if one[2].uid not in started]
        for job, placement in self.decisions.allocated:
            record = self.by_uid[job.uid]
            record.started_s, record.placement = self.now, placement
            record.promise = self._promises.kept.get(job.uid)
            self._promises.forget(job.uid)
            record.told = self.expecting.start(job.uid, self.now, job.user) or record.told
            running = _RunningJob(placement, self.now, version=record.restarts << 20)
            self.running[job.uid] = running
            self.queues.begin(record.job, placement, self.now)
            self._run(record, running)


def simulate(
    nodes: Sequence[NodeFact],
    jobs: Iterable[SimulatedJob],
    policy: QueuePolicy,
    *,
    site: SimulatedSite | None = None,
    preemption: PreemptionRules | None = None,
    queues: Mapping[str, QueueRules] | None = None,
    tell: Callable[[int], None] | None = None,
    grown: list[GrowingCluster] | None = None,
) -> list[RunRecord]:
    """Run until no event is left. Return one record per job, in the order given.

    ``queues`` are the rules by name. Without them there is one queue, with ``preemption``. ``tell``
    is called with the number of jobs that have ended, after every hundredth of all. ``grown`` gets
    what the pools of ``site`` have brought.
    """
    engine = Engine(
        nodes,
        jobs,
        policy,
        site=site,
        preemption=preemption,
        queues=queues,
    )
    every = max(1, len(engine.jobs) // 100)
    told = 0
    while engine.step():
        if tell is not None and engine.ended - told >= every:
            told = engine.ended
            tell(told)
    engine.growing.close(max((one.ended_s or 0 for one in engine.records), default=0))
    if grown is not None:
        grown.append(engine.growing)
    return engine.records
