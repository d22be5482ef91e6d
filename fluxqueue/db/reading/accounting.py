"""What is read of the queue's books: runs and their sums, the audit trail.

The administrator's command line and the view server call it. Triggers and ``steering`` write the
rows of ``accounting`` and ``history``. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fluxqueue.db.reader import DatabaseReader
from fluxqueue.errors import InvalidInput

Row = dict[str, Any]

DIGITS_MAX = 18
"""Of a number that a bigint holds for certain."""

GROUPS = {
    "user": "user_name",
    "queue": "queue",
    "namespace": "namespace",
    "result": "result",
    "day": "to_char(ended_at AT TIME ZONE 'UTC', 'YYYY-MM-DD')",
    "month": "to_char(ended_at AT TIME ZONE 'UTC', 'YYYY-MM')",
}
"""What use may be summed by, and its expression on a row. Days are those of UTC."""

_NARROW = """
    (CAST(:since AS timestamptz) IS NULL OR ended_at >= :since)
    AND (CAST(:until AS timestamptz) IS NULL OR ended_at < :until)
    AND (CAST(:namespaces AS text[]) IS NULL OR namespace = ANY(CAST(:namespaces AS text[])))
    AND (CAST(:user AS text) IS NULL OR user_name = :user)
    AND (CAST(:queue AS text) IS NULL OR queue = :queue)
"""
_RUNS = """
SELECT id, jobid, run, namespace, name, user_name AS user, queue, result, size, nodes, slots,
       queued_at, allocated_at, started_at, ended_at, cpu_s, gpu_s, reason
FROM accounting
"""


@dataclass(frozen=True, slots=True)
class Period:
    """Which runs: those of these that ended in [since, until). None is all."""

    since: datetime | None = None
    until: datetime | None = None
    namespaces: Collection[str] | None = None
    user: str | None = None
    queue: str | None = None

    def values(self) -> dict[str, Any]:
        """Parameters of the condition."""
        return {
            "since": self.since,
            "until": self.until,
            "namespaces": None if self.namespaces is None else list(self.namespaces),
            "user": self.user,
            "queue": self.queue,
        }


async def use(
    reader: DatabaseReader,
    period: Period,
    *,
    by: Sequence[str] = ("user", "queue", "namespace"),
    limit: int | None = None,
    offset: int = 0,
) -> list[Row]:
    """Sum runs: how many, core-hours, GPU-hours, mean wait (s).

    Raises
    ------
    InvalidInput
        ``by`` names something else than ``GROUPS`` has.
    """
    if unknown := sorted(set(by) - set(GROUPS)):
        hint = f"known are {', '.join(GROUPS)}"
        raise InvalidInput(f"{unknown[0]!r} is no group", where="--by", value=unknown, hint=hint)
    columns = [GROUPS[one] for one in dict.fromkeys(by)]
    named = ", ".join(f"{GROUPS[one]} AS {_quoted(one)}" for one in dict.fromkeys(by))
    grouped = f" GROUP BY {', '.join(columns)} ORDER BY {', '.join(columns)}" if columns else ""
    async with reader.begin() as tx:
        return await tx.fetch(
            f"SELECT {named}{', ' if named else ''}count(*) AS runs,"  # noqa: S608
            " coalesce(sum(cpu_s), 0) / 3600 AS cpu_h, coalesce(sum(gpu_s), 0) / 3600 AS gpu_h,"
            " CAST(avg(extract(epoch FROM allocated_at - queued_at)) AS float8) AS wait_s"
            f" FROM accounting WHERE {_NARROW}{grouped} LIMIT :limit OFFSET :offset",
            **period.values(),
            limit=limit,
            offset=offset,
        )


def _quoted(name: str) -> str:
    return f'"{name}"'


async def latest_runs(
    reader: DatabaseReader,
    period: Period,
    *,
    result: str | None,
    limit: int,
    before: tuple[datetime, int] | None,
) -> list[Row]:
    """Return runs, those that ended last first.

    ``before``: end and id of the last one seen.
    """
    at, number = before or (None, None)
    async with reader.begin() as tx:
        return await tx.fetch(
            f"{_RUNS} WHERE {_NARROW} AND (CAST(:result AS text) IS NULL OR result = :result)"
            " AND (CAST(:at AS timestamptz) IS NULL OR (ended_at, id) < (:at, :number))"
            " ORDER BY ended_at DESC, id DESC LIMIT :limit",
            **period.values(),
            result=result,
            at=at,
            number=number,
            limit=limit,
        )


async def runs(
    reader: DatabaseReader,
    namespace: str,
    reference: str,
    *,
    limit: int | None = None,
    after: int = 0,
) -> list[Row]:
    """The runs of the workloads that a name or jobid stands for, oldest first.

    ``after``: the id of the last one seen.
    """
    async with reader.begin() as tx:
        return await tx.fetch(
            f"{_RUNS} WHERE namespace = :namespace"
            " AND (name = :reference OR jobid = :jobid) AND id > :after ORDER BY id LIMIT :limit",
            namespace=namespace,
            reference=reference,
            jobid=_jobid(reference),
            limit=limit,
            after=after,
        )


async def history(
    reader: DatabaseReader,
    namespace: str,
    reference: str,
    *,
    limit: int | None = None,
    after: int = 0,
) -> list[Row]:
    """The audit trail of the workloads that a name or jobid stands for, oldest first.

    ``after``: the id of the last line seen.
    """
    async with reader.begin() as tx:
        return await tx.fetch(
            "SELECT h.id, h.at, h.jobid, f.workload_name AS name, h.actor, h.event, h.detail"
            " FROM history h JOIN fluxjobs f USING (uid) WHERE f.namespace = :namespace"
            " AND (f.workload_name = :reference OR f.name = :reference OR f.jobid = :jobid)"
            " AND h.id > :after ORDER BY h.id LIMIT :limit",
            namespace=namespace,
            reference=reference,
            jobid=_jobid(reference),
            limit=limit,
            after=after,
        )


def _jobid(reference: str) -> int | None:
    """Return the jobid that a reference may be. A number may be a name as well."""
    is_number = reference.isascii() and reference.isdigit() and len(reference) <= DIGITS_MAX
    return int(reference) if is_number else None
