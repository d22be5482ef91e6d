"""What is read of the queue's books: runs and their sums, the audit trail, the queue as a list.

Called by the command line. Rows of ``accounting`` and ``history`` are written by triggers and by
``steering``; nothing here writes.
"""

from __future__ import annotations

from collections.abc import Sequence
from datetime import datetime
from typing import Any

from fluxqueue.db.database import Database
from fluxqueue.db.tables import LIVING
from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.hostlist import compress

Row = dict[str, Any]

DIGITS_MAX = 18
"""Of a number that a bigint holds for certain."""

GROUPS = {"user": "user_name", "queue": "queue", "namespace": "namespace", "result": "result"}
"""What use may be summed by, and the column of each."""


async def use(
    database: Database,
    *,
    since: datetime | None = None,
    until: datetime | None = None,
    by: Sequence[str] = ("user", "queue", "namespace"),
    namespace: str | None = None,
) -> list[Row]:
    """Sum the runs that ended in [since, until): runs, core-hours, GPU-hours, mean wait (s).

    Raises
    ------
    InvalidInput
        ``by`` names something else than user, queue, namespace, result.
    """
    if unknown := sorted(set(by) - set(GROUPS)):
        hint = f"known are {', '.join(GROUPS)}"
        raise InvalidInput(f"{unknown[0]!r} is no group", where="--by", value=unknown, hint=hint)
    columns = [GROUPS[one] for one in by]
    named = ", ".join(f"{GROUPS[one]} AS {_quoted(one)}" for one in by)
    grouped = f" GROUP BY {', '.join(columns)} ORDER BY {', '.join(columns)}" if columns else ""
    async with database.begin() as tx:
        return await tx.fetch(
            f"SELECT {named}{', ' if named else ''}count(*) AS runs,"  # noqa: S608
            " coalesce(sum(cpu_s), 0) / 3600 AS cpu_h, coalesce(sum(gpu_s), 0) / 3600 AS gpu_h,"
            " CAST(avg(extract(epoch FROM allocated_at - queued_at)) AS float8) AS wait_s"
            " FROM accounting"
            " WHERE (CAST(:since AS timestamptz) IS NULL OR ended_at >= :since)"
            " AND (CAST(:until AS timestamptz) IS NULL OR ended_at < :until)"
            f" AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace){grouped}",
            since=since,
            until=until,
            namespace=namespace,
        )


def _quoted(name: str) -> str:
    return f'"{name}"'


async def runs(database: Database, namespace: str, reference: str) -> list[Row]:
    """All runs of the workloads that a name or jobid stands for, oldest first."""
    async with database.begin() as tx:
        return await tx.fetch(
            "SELECT jobid, run, namespace, name, user_name AS user, queue, result, size, nodes,"
            " slots, queued_at, allocated_at, started_at, ended_at, cpu_s, gpu_s, reason"
            " FROM accounting WHERE namespace = :namespace"
            " AND (name = :reference OR jobid = :jobid) ORDER BY jobid, run",
            namespace=namespace,
            reference=reference,
            jobid=_jobid(reference),
        )


async def history(database: Database, namespace: str, reference: str) -> list[Row]:
    """The audit trail of the workloads that a name or jobid stands for, oldest first."""
    async with database.begin() as tx:
        return await tx.fetch(
            "SELECT h.at, h.jobid, f.workload_name AS name, h.actor, h.event, h.detail"
            " FROM history h JOIN fluxjobs f USING (uid) WHERE f.namespace = :namespace"
            " AND (f.workload_name = :reference OR f.name = :reference OR f.jobid = :jobid)"
            " ORDER BY h.id",
            namespace=namespace,
            reference=reference,
            jobid=_jobid(reference),
        )


def _jobid(reference: str) -> int | None:
    """The jobid that a reference may be; a number may be a name as well."""
    is_number = reference.isascii() and reference.isdigit() and len(reference) <= DIGITS_MAX
    return int(reference) if is_number else None


async def living(
    database: Database, *, namespace: str | None = None, queue: str | None = None
) -> list[Row]:
    """All FluxJobs that have not ended: what runs, then what waits in the order of its turn.

    ``nodes`` is a hostlist of where its slots are or were, None where it has none.
    """
    async with database.begin() as tx:
        rows = await tx.fetch(
            f"""
            SELECT jobid, namespace, workload_name AS name, workload_kind AS kind,
                   user_name AS user, queue, state, size, priority, expected_start, held_by,
                   blocked_by, requeues, submitted_at, started_at, reason,
                   (SELECT array_agg(s.node ORDER BY s.number)
                    FROM allocations a JOIN allocation_slots s ON s.allocation_id = a.id
                    WHERE a.uid = fluxjobs.uid AND a.is_live) AS nodes
            FROM fluxjobs WHERE {LIVING}
              AND (CAST(:namespace AS text) IS NULL OR namespace = :namespace)
              AND (CAST(:queue AS text) IS NULL OR queue = :queue)
            ORDER BY state NOT IN ('Running', 'Allocated'),
                     state NOT IN ('Pending', 'Reserved'), blocked_by IS NOT NULL,
                     priority DESC, jobid
            """,  # noqa: S608 constants
            namespace=namespace,
            queue=queue,
        )
    for row in rows:
        row["nodes"] = row["nodes"] and compress(dict.fromkeys(row["nodes"]))
    return rows
