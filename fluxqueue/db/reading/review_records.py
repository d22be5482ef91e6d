"""What a PlacementReview is answered from, beside the matcher.

It reads the FluxJob that the review names, its turn, the priorities it would have, and the names of
those in its way. ``worker.review_tasks`` calls it. Reads only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from fluxqueue.db.database import Database, Transaction
from fluxqueue.db.store.queue_snapshot import PENDING, pending_job
from fluxqueue.explain.answer import Place
from fluxqueue.explain.status import Named
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.policy.queue_rules import QueueRules
from fluxqueue.scheduler.pending_job import PendingJob

# What a cycle would read before it decides anything (``worker.schedule``).
_NEWS = """
SELECT EXISTS (SELECT FROM graph_changes)
    OR EXISTS (SELECT FROM fluxjobs WHERE NOT is_examined
               AND (state IN ('Pending', 'Reserved') OR held_by = 'queue')) AS has_news
"""

_WAITS = "state IN ('Pending', 'Reserved') AND is_examined AND blocked_by IS NULL"


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
    (row,) = await database.fetch(_NEWS)
    return bool(row["has_news"])


async def read_asked(
    tx: Transaction, namespace: str, name: str, rules: Mapping[str, QueueRules]
) -> AskedFluxJob | None:
    """Return the newest FluxJob of that name, or None where it has no row."""
    row = await tx.fetch_one(
        f"""
        SELECT {PENDING}, state, reason, held_by, blocked_by, blocked_reason, accepted_by,
               coalesce(set_priority, asked_priority) AS asked_priority,
               is_priority_granted OR set_priority IS NOT NULL AS is_priority_granted,
               extract(epoch FROM CASE WHEN blocked_by = 'start-retry' THEN retry_at
                                       ELSE coalesce(set_begin_at, begin_at) END)::bigint
                   AS begin_at,
               extract(epoch FROM allocated_at)::bigint AS allocated_at,
               ARRAY(SELECT s.node FROM allocations a JOIN allocation_slots s
                         ON s.allocation_id = a.id
                     WHERE a.uid = f.uid AND a.is_live AND s.state <> 'returned'
                     ORDER BY s.number) AS nodes
        FROM fluxjobs f WHERE namespace = :namespace AND name = :name
        ORDER BY is_gone, jobid DESC LIMIT 1
        """,  # noqa: S608 constants
        namespace=namespace,
        name=name,
    )
    if row is None:
        return None
    return AskedFluxJob(
        job=pending_job(row, rules),
        state=row["state"],
        reason=row["reason"],
        held_by=row["held_by"],
        blocked_by=row["blocked_by"],
        blocked_reason=row["blocked_reason"],
        begin_at=row["begin_at"],
        allocated_at=row["allocated_at"],
        asked_priority=row["asked_priority"],
        is_priority_granted=row["is_priority_granted"],
        accepted_by=row["accepted_by"],
        nodes=tuple(row["nodes"]),
    )


async def read_priorities(
    tx: Transaction, user: str, asked: int, *, is_granted: bool
) -> dict[str, int]:
    """Return the priority that a job of ``user`` would have in each queue (``30_priority.sql``)."""
    rows = await tx.fetch(
        """
        SELECT q.name, (p.parts ->> 'bounded')::bigint + (p.parts ->> 'queue')::bigint
            + (p.parts ->> 'fairShare')::bigint AS priority
        FROM fluxqueues q CROSS JOIN LATERAL fluxjob_priority_parts(
            q.name, :user, CAST(:asked AS integer), NULL, :is_granted) AS p (parts)
        """,
        user=user,
        asked=asked,
        is_granted=is_granted,
    )
    return {row["name"]: int(row["priority"]) for row in rows}


async def read_standing(
    tx: Transaction, queue: str, user: str, asked: int, *, is_granted: bool
) -> int:
    """Return what of its priority counts for preemption: all but the points of fair share."""
    row = await tx.fetch_one(
        """
        SELECT (p.parts ->> 'bounded')::bigint + (p.parts ->> 'queue')::bigint AS standing
        FROM fluxjob_priority_parts(
            :queue, :user, CAST(:asked AS integer), NULL, :is_granted) AS p (parts)
        """,
        queue=queue,
        user=user,
        asked=asked,
        is_granted=is_granted,
    )
    assert row is not None, "a function has a row"
    return int(row["standing"])


async def read_place(tx: Transaction, job: PendingJob) -> Place:
    """Return its turn among all that wait in its queue, even further back than a cycle looks."""
    row = await tx.fetch_one(
        f"""
        SELECT count(*) AS others,
               count(*) FILTER (WHERE priority > :priority
                                OR (priority = :priority AND place < :place)) AS before
        FROM fluxjobs WHERE queue = :queue AND {_WAITS} AND NOT is_deleting AND result IS NULL
            AND uid <> :uid
        """,  # noqa: S608 constants
        queue=job.queue,
        priority=job.priority,
        place=job.turn[1],
        uid=job.uid,
    )
    assert row is not None, "a count has a row"
    return Place(job.queue, job.priority, int(row["before"]) + 1, int(row["others"]) + 1)


async def read_names(database: Database, uids: Collection[str]) -> dict[str, Named]:
    """Return the names of FluxJobs, by UID of their workload."""
    rows = await database.fetch(
        "SELECT uid, jobid, namespace, workload_name FROM fluxjobs"
        " WHERE uid = ANY(CAST(:uids AS text[]))",
        uids=sorted(uids),
    )
    return {row["uid"]: Named(row["jobid"], row["namespace"], row["workload_name"]) for row in rows}


async def read_node_facts(database: Database) -> list[NodeFact]:
    """Return all nodes."""
    rows = await database.fetch("SELECT fact FROM nodes ORDER BY name")
    return [NodeFact.from_json(row["fact"]) for row in rows]
