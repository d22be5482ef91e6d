"""What a PlacementReview is answered from, beside the matcher.

It reads the FluxJob that the review names, its turn, the priorities it would have, and the names of
those in its way. ``worker.review_tasks`` calls it. Reads only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import DatabaseReader, DatabaseReading, columns
from fluxqueue.db.store.queue_snapshot import PendingRow, pending_job
from fluxqueue.explain.answer import Place
from fluxqueue.explain.review_status import Named
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.prediction.learned_times import LearnedTimes
from fluxqueue.scheduler.pending_job import PendingJob


class AskedRow(NamedTuple):
    """The columns of ``AskedFluxJob`` beside its job."""

    uid: str
    state: str
    reason: str
    held_by: str | None
    blocked_by: str | None
    blocked_reason: str
    begin_at: int | None
    allocated_at: int | None
    asked_priority: int
    is_priority_granted: bool
    accepted_by: str | None
    nodes: Sequence[str]


@dataclass(frozen=True, slots=True)
class AskedFluxJob:
    """A FluxJob that a review asks about.

    ``nodes`` are those of its slots while it has some. ``begin_at`` and ``allocated_at`` are epoch
    seconds.
    """

    job: PendingJob
    state: str
    reason: str
    held_by: str | None
    blocked_by: str | None
    blocked_reason: str
    begin_at: int | None
    allocated_at: int | None
    asked_priority: int
    is_priority_granted: bool
    accepted_by: str | None
    nodes: Sequence[str]


async def has_news(database: Database) -> bool:
    """Return whether a cycle should come first: something has changed since the last one."""
    (has_news,) = await database.fetch(Q.has_news, bool)
    return has_news


async def read_asked(
    tx: Transaction,
    namespace: str,
    name: str,
    rules: Mapping[str, QueueRules],
    times: LearnedTimes,
) -> AskedFluxJob | None:
    """Return the newest FluxJob of that name, or None where it has no row."""
    row = await tx.fetch_one(Q.asked_fluxjob, AskedRow, namespace=namespace, name=name)
    if row is None:
        return None
    (pending,) = await tx.fetch(Q.pending_rows, PendingRow, uids=[row.uid])
    return AskedFluxJob(pending_job(pending, rules, times), *row[1:])


async def read_priorities(
    tx: Transaction, user: str, asked: int, *, is_granted: bool
) -> dict[str, int]:
    """Return the priority that a job of ``user`` would have in each queue (``30_priority.sql``)."""
    return dict(
        await tx.fetch(Q.priorities_of, columns, user=user, asked=asked, is_granted=is_granted)
    )


async def read_standing(
    tx: Transaction, queue: str, user: str, asked: int, *, is_granted: bool
) -> int:
    """Return what of its priority counts for preemption: all but the points of fair share."""
    (standing,) = await tx.fetch(
        Q.standing_of, int, queue=queue, user=user, asked=asked, is_granted=is_granted
    )
    return standing


async def read_place(tx: Transaction, job: PendingJob) -> Place:
    """Return its turn among all that wait in its queue, even further back than a cycle looks."""
    ((others, before),) = await tx.fetch(
        Q.place_of,
        columns,
        queue=job.queue,
        priority=job.priority,
        place=job.turn[1],
        uid=job.uid,
    )
    return Place(job.queue, job.priority, before + 1, others + 1)


async def read_names(
    reader: DatabaseReading | DatabaseReader, uids: Collection[str]
) -> dict[str, Named]:
    """Return the names of FluxJobs, by UID of their workload."""
    rows = await reader.fetch(Q.names_of, columns, uids=sorted(uids))
    return {uid: Named(*fields) for uid, *fields in rows}


async def read_node_facts(database: Database) -> list[NodeFact]:
    """Return all nodes."""
    return await database.fetch(Q.node_facts, NodeFact.from_json)
