"""The time machine: a recorded day once more, with the production cycle and some changes.

``fluxqueue sim --from-history`` calls it, and a process of the view server for the window. Pure.
The virtual time 0 is the begin of the recorded time. Work that ran then keeps its nodes until its
recorded end. Every other job starts when and where the cycle decides, and runs for as long as it
ran in the record.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from statistics import fmean, median

from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, Levels
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.placement import FOREVER, PlacedSlot, Placement
from fluxqueue.policy.fair_share import decayed_use
from fluxqueue.policy.queue_policy import QueuePolicy
from fluxqueue.process.settings import MATCH_POLICY
from fluxqueue.simulation.recorded_day import GPU, RecordedDay, RecordedJob, is_gpu
from fluxqueue.simulation.schedule_figures import P95, percentile
from fluxqueue.simulation.simulated_jobs import SimulatedJob
from fluxqueue.simulation.simulator import Engine, RunRecord, SimulatedSite
from fluxqueue.simulation.what_changes import NONE, Changes, with_more, with_weights

ALL = "all"
SIZES = ((1, "1 node"), (4, "2 to 4 nodes"), (16, "5 to 16 nodes"))
"""Classes of size by most nodes, as the window shows them."""
LARGEST = "over 16 nodes"

Span = tuple[int, int, Sequence[PlacedSlot]]


@dataclass(frozen=True, slots=True)
class Waits:
    """Waits of some jobs, in seconds."""

    jobs: int
    mean_s: float
    median_s: float
    p95_s: float

    @classmethod
    def of(cls, waits: Sequence[float]) -> Waits:
        """Sum up waits. Without any, all figures are 0."""
        if not waits:
            return NO_WAITS
        return cls(len(waits), fmean(waits), median(waits), percentile(waits, P95))


NO_WAITS = Waits(0, 0.0, 0.0, 0.0)


@dataclass(frozen=True, slots=True)
class Outcome:
    """Figures of the recorded time, as it was or as it was replayed.

    ``waits`` are by class of size, and of ``all``. ``utilisation`` is a share of the capacity by
    resource (``cpu``, ``gpu``). ``unstarted`` jobs of the record cannot start in this replay.
    """

    name: str
    waits: Mapping[str, Waits]
    utilisation: Mapping[str, float]
    unstarted: int = 0


@dataclass(frozen=True, slots=True)
class ReplayedJob:
    """One job in both times. Times are epoch seconds."""

    job: RecordedJob
    started_s: int | None
    ended_s: int | None
    places: tuple[PlacedSlot, ...]


@dataclass(frozen=True, slots=True)
class Replay:
    """One replay: its figures, its jobs, and its nodes."""

    outcome: Outcome
    jobs: tuple[ReplayedJob, ...]
    nodes: tuple[NodeFact, ...]
    records: tuple[RunRecord, ...] = field(repr=False)


def size_class(job: RecordedJob) -> str:
    """Return the class of size of a job."""
    return next((name for most, name in SIZES if job.node_count <= most), LARGEST)


def as_recorded(day: RecordedDay) -> Outcome:
    """Return the figures of the record itself."""
    measured = [job for job in day.jobs if day.is_measured(job)]
    waits = [(job, float((job.started_s or 0) - job.submitted_s)) for job in measured]
    spans = [
        (job.started_s, day.read_s if job.ended_s is None else job.ended_s, job.places)
        for job in day.jobs
        if job.started_s is not None
    ]
    return Outcome("recorded", _by_size(waits), _utilisation(spans, day, day.nodes))


def replay(
    day: RecordedDay,
    policy: QueuePolicy,
    changes: Changes = NONE,
    *,
    name: str = "replayed",
    match_policy: str = MATCH_POLICY,
    levels: Levels = DEFAULT_LEVELS,
    tell: Callable[[int], None] | None = None,
) -> Replay:
    """Replay the day with changes.

    Parameters
    ----------
    policy : for queues that set no policy, as the settings of the worker.
    name : of the outcome.
    tell : is called with the number of jobs that have ended, after every hundredth of all.

    Raises
    ------
    InvalidInput
        The changes name a node or a queue that is not there.
    """
    nodes = with_more(_as_they_were(day), changes.nodes)
    work = _Work.of(day, {one.name for one in nodes})
    engine = Engine(
        nodes,
        work.jobs,
        policy,
        site=SimulatedSite(
            match_policy=match_policy,
            levels=levels,
            unmanaged=day.unmanaged,
            begun=work.begun,
            durations=changes.durations,
        ),
        queues=with_weights(day.queues, changes),
    )
    engine.queues.remember(_used(day, work))
    _run(engine, tell)
    jobs = tuple(
        _replayed(day, recorded, record)
        for recorded, record in zip(work.recorded, engine.records, strict=True)
    )
    return Replay(_outcome(name, day, jobs, nodes), jobs, tuple(nodes), tuple(engine.records))


def recorded_runs(day: RecordedDay) -> list[RunRecord]:
    """Return the record as runs of the simulator, for its Gantt chart."""
    known = {one.name for one in day.nodes}
    found = []
    for number, job in enumerate(day.jobs, 1):
        if job.started_s is None:
            continue
        submit_s = max(0, job.submitted_s - day.since_s)
        runs_s = _runs_s(day, job) or 1
        one = SimulatedJob(number, submit_s, job.request, runs_s, job.priority, job.user, job.queue)
        started_s = job.started_s - day.since_s
        ended_s = (day.read_s if job.ended_s is None else job.ended_s) - day.since_s
        placement = job.placement()
        there = tuple(slot for slot in placement.slots if slot.node in known)
        placement = replace(placement, slots=there, starts_at=started_s)
        spans = [(started_s, ended_s, placement)]
        found.append(RunRecord(one, max(0, started_s), ended_s, placement, spans=from_begin(spans)))
    return found


def from_begin(spans: Iterable[tuple[int, int, Placement]]) -> list[tuple[int, int, Placement]]:
    """Return the parts of spans that are not before the begin (0)."""
    return [(max(0, since), until, where) for since, until, where in spans if until > 0]


def _run(engine: Engine, tell: Callable[[int], None] | None) -> None:
    every, told = max(1, len(engine.jobs) // 100), 0
    while engine.step():
        if tell is not None and engine.ended - told >= every:
            told = engine.ended
            tell(told)


def _as_they_were(day: RecordedDay) -> list[NodeFact]:
    """Return the nodes. One that is down or closed now was open if work ran on it then."""
    used = {slot.node for job in day.jobs if job.started_s is not None for slot in job.places}
    return [
        replace(one, is_up=True, is_schedulable=True) if one.name in used else one
        for one in day.nodes
    ]


@dataclass(slots=True)
class _Work:
    """The jobs of a replay, each beside its record, and those that run from the begin."""

    recorded: list[RecordedJob] = field(default_factory=list)
    jobs: list[SimulatedJob] = field(default_factory=list)
    begun: dict[str, Placement] = field(default_factory=dict)

    @classmethod
    def of(cls, day: RecordedDay, names: set[str]) -> _Work:
        """Make the jobs. Their numbers have the order of their jobids, as turns have."""
        work = cls()
        in_order = sorted(day.jobs, key=lambda job: (job.jobid, job.submitted_s))
        for number, job in enumerate(in_order, 1):
            work._add(day, job, number, names)
        return work

    def _add(self, day: RecordedDay, job: RecordedJob, number: int, names: set[str]) -> None:
        runs_s = _runs_s(day, job)
        if runs_s is None:
            return
        one = SimulatedJob(
            number=number,
            submit_s=max(0, job.submitted_s - day.since_s),
            request=job.request,
            runs_s=runs_s,
            priority=job.priority,
            user=job.user,
            queue=job.queue if job.queue in day.queues else next(iter(day.queues)),
        )
        self.recorded.append(job)
        self.jobs.append(one)
        if job.started_s is not None and job.started_s < day.since_s:
            held = job.placement()
            there = tuple(slot for slot in held.slots if slot.node in names)
            until = held.until if held.until >= FOREVER else held.until - day.since_s
            self.begun[one.uid] = replace(
                held,
                slots=there,
                starts_at=held.starts_at - day.since_s,
                until=until,
                held=tuple(name for name in held.held if name in names),
            )


def _runs_s(day: RecordedDay, job: RecordedJob) -> int | None:
    """Return how long a job runs, None if that is not known.

    A job that runs still is taken to run until its limit. Without a limit, it ends when it was
    read. A job that has not started runs for the duration that it asks for.
    """
    if job.started_s is None:
        return int(job.request.duration_s) or None
    if job.ended_s is not None:
        return max(1, job.ended_s - job.started_s)
    return max(1, max(day.read_s, job.until_s or 0) - job.started_s)


def _used(day: RecordedDay, work: _Work) -> dict[tuple[str, str], float]:
    """Return the use before the begin, with that of jobs that run then."""
    found = dict(day.used)
    for one in work.jobs:
        placement, rules = work.begun.get(one.uid), day.queues[one.queue]
        if placement is None or rules.fair_share is None:
            continue
        pair, cores = (one.queue, one.user), one.cpu_m / 1000
        more = decayed_use(cores, placement.starts_at, 0, 0, rules.fair_share.half_life_s)
        found[pair] = found.get(pair, 0.0) + more
    return found


def _replayed(day: RecordedDay, job: RecordedJob, record: RunRecord) -> ReplayedJob:
    if record.started_s is None:
        return ReplayedJob(job, None, None, ())
    started_s = record.started_s + day.since_s
    ended_s = None if record.ended_s is None else record.ended_s + day.since_s
    placement = record.placement
    return ReplayedJob(job, started_s, ended_s, () if placement is None else placement.slots)


def _outcome(
    name: str, day: RecordedDay, jobs: Sequence[ReplayedJob], nodes: Sequence[NodeFact]
) -> Outcome:
    measured = [one for one in jobs if day.is_measured(one.job)]
    waits = [
        (one.job, float(one.started_s - one.job.submitted_s))
        for one in measured
        if one.started_s is not None
    ]
    spans = [
        (one.started_s, one.ended_s or day.until_s, one.places)
        for one in jobs
        if one.started_s is not None
    ]
    missing = sum(one.started_s is None for one in measured)
    return Outcome(name, _by_size(waits), _utilisation(spans, day, nodes), missing)


def _by_size(waits: Iterable[tuple[RecordedJob, float]]) -> dict[str, Waits]:
    by_class: dict[str, list[float]] = {}
    everything: list[float] = []
    for job, wait_s in waits:
        by_class.setdefault(size_class(job), []).append(wait_s)
        everything.append(wait_s)
    names = [*(name for _, name in SIZES), LARGEST]
    found = {name: Waits.of(by_class[name]) for name in names if name in by_class}
    return {**found, ALL: Waits.of(everything)}


def _utilisation(
    spans: Iterable[Span], day: RecordedDay, nodes: Sequence[NodeFact]
) -> dict[str, float]:
    """Return the used share of cores and GPUs within the recorded time."""
    used = {CPU: 0, GPU: 0}
    known = {one.name for one in nodes}
    for since_s, until_s, places in spans:
        within_s = min(until_s, day.until_s) - max(since_s, day.since_s)
        if within_s <= 0:
            continue
        for slot in places:
            for resource, amount in slot.resources if slot.node in known else ():
                kind = GPU if is_gpu(resource) else resource
                if kind in used:
                    used[kind] += amount * within_s
    found = {}
    for kind, amount_s in used.items():
        whole = sum(
            amount
            for one in nodes
            for resource, amount in one.capacity.items()
            if resource == kind or (kind == GPU and is_gpu(resource))
        )
        if whole:
            found[kind] = amount_s / (whole * day.span_s)
    return found
