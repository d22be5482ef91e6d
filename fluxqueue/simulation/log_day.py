"""A workload log (SWF) as a recorded time, so that the time machine can replay it.

``answering`` calls it for a file that a user chose in the window. A log has neither nodes nor a
policy. So its jobs run once on a machine of equal nodes under the policy of the cluster, and that
run is the record with which a replay is compared. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.request import CPU
from fluxqueue.graph.ledger.placement import FOREVER, PlacedSlot
from fluxqueue.policy.queue_policy import QueuePolicy
from fluxqueue.policy.queue_rules import DEFAULT_QUEUE, QueueRules
from fluxqueue.process.settings import MATCH_POLICY
from fluxqueue.simulation.engine import RunRecord, simulate
from fluxqueue.simulation.jobs import SimulatedJob, uniform_cluster
from fluxqueue.simulation.period import SPAN_MAX_S
from fluxqueue.simulation.recorded_day import RecordedDay, RecordedJob
from fluxqueue.simulation.replay import Waits
from fluxqueue.simulation.swf import SwfJob, SwfLog, to_jobs, usable_lines

NODES_MAX, CORES_MAX = 5_000, 1_024
JOBS_MAX = 12_000
"""As many as a replay of the window may have."""


@dataclass(frozen=True, slots=True)
class Machine:
    """The machine on which a log runs: equal nodes, each with some cores."""

    nodes: int
    cores: int

    @classmethod
    def read(cls, fields: Mapping[str, Any]) -> Machine:
        """Read ``nodes`` and ``cores``.

        Raises
        ------
        InvalidInput
            One of them is no whole number in its bounds.
        """
        return cls(_whole(fields, "nodes", NODES_MAX), _whole(fields, "cores", CORES_MAX))


def _whole(fields: Mapping[str, Any], key: str, most: int) -> int:
    value = fields.get(key)
    if type(value) is not int or not 1 <= value <= most:
        shown = value if isinstance(value, (str, int, float)) else None
        raise InvalidInput(
            "is not a number of a machine",
            where=key,
            value=str(shown)[:100],
            hint=f"give a whole number from 1 to {most}",
        )
    return value


def day_of(
    log: SwfLog,
    machine: Machine,
    policy: QueuePolicy,
    *,
    source: str,
    match_policy: str = MATCH_POLICY,
) -> tuple[RecordedDay, list[str]]:
    """Run the jobs of a log once, and return that as a recorded time, with notes about the log.

    The time begins with the first submission and lasts until the last job ends. It has at most the
    submissions of ``period.SPAN_MAX_S``, and later ones are left out.

    Raises
    ------
    InvalidInput
        The log has no job, or too many. ``where`` is ``source``.
    """
    every, skipped = to_jobs(log, cores_per_node=machine.cores)
    jobs = [job for job in every if job.submit_s <= SPAN_MAX_S]
    _check(jobs, source)
    lines = usable_lines(log)[: len(jobs)]
    nodes = uniform_cluster(machine.nodes, machine.cores)
    records = simulate(nodes, jobs, policy, match_policy=match_policy)
    first_s = lines[0].submit_s
    since_s = (log.header_number("UnixStartTime") or 0) + first_s
    recorded = [
        _recorded(record, line, since_s)
        for record, line in zip(records, lines, strict=True)
        if record.ended_s is not None
    ]
    if not recorded:
        raise InvalidInput(
            "has only jobs that are larger than the machine",
            where=source,
            hint="give more nodes or more cores",
        )
    last_s = max(one.submitted_s for one in recorded)
    ended_s = max(one.ended_s or 0 for one in recorded)
    day = RecordedDay(
        since_s=since_s,
        until_s=max(last_s + 1, min(ended_s, last_s + SPAN_MAX_S)),
        read_s=ended_s + 1,
        nodes=tuple(nodes),
        unmanaged={},
        queues={DEFAULT_QUEUE: QueueRules(DEFAULT_QUEUE)},
        used={},
        jobs=tuple(recorded),
    )
    return day, _notes(lines, skipped, len(every) - len(jobs), len(jobs) - len(recorded))


def _check(jobs: Sequence[SimulatedJob], source: str) -> None:
    if not jobs:
        raise InvalidInput(
            "has no job with a run time and a size",
            where=source,
            hint="choose a file in the Standard Workload Format, with 18 numbers in each line",
        )
    if len(jobs) > JOBS_MAX:
        raise InvalidInput(
            f"has more than {JOBS_MAX} jobs",
            where=source,
            hint="take fewer of its first jobs, or use fluxqueue sim --swf",
        )


def _recorded(record: RunRecord, line: SwfJob, since_s: int) -> RecordedJob:
    """Return one run as a record. Its times are epoch seconds."""
    job, placement = record.job, record.placement
    assert placement is not None
    assert record.started_s is not None
    assert record.ended_s is not None
    sums: dict[str, int] = {}
    for slot in placement.slots:
        sums[slot.node] = sums.get(slot.node, 0) + dict(slot.resources).get(CPU, 0)
    return RecordedJob(
        jobid=job.number,
        name=f"job-{line.number}",
        namespace="log",
        user=job.user,
        queue=DEFAULT_QUEUE,
        priority=job.priority,
        submitted_s=job.submit_s + since_s,
        started_s=record.started_s + since_s,
        ended_s=record.ended_s + since_s,
        until_s=None if placement.until >= FOREVER else placement.until + since_s,
        request=job.request,
        places=tuple(PlacedSlot(name, ((CPU, cpu_m),)) for name, cpu_m in sums.items()),
        node_count=len(sums),
    )


def _notes(lines: Sequence[SwfJob], skipped: int, later: int, too_large: int) -> list[str]:
    """Return what a user should know of the log: its own waits, and what is left out."""
    told = []
    waits = [float(line.wait_s) for line in lines if line.wait_s >= 0]
    if waits:
        own = Waits.of(waits)
        told.append(
            f"the log itself has {own.jobs} waits: median {own.median_s:.0f} s,"
            f" 95th percentile {own.p95_s:.0f} s"
        )
    if skipped:
        told.append(f"lines without a run time or a size, left out: {skipped}")
    if later:
        days = SPAN_MAX_S // 86_400
        told.append(f"jobs after the first {days} days, left out: {later}")
    if too_large:
        told.append(f"jobs larger than the machine, left out: {too_large}")
    return told
