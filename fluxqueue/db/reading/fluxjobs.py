"""FluxJobs as lists, page by page: the queue in the order of its turn, all of them, their starts.

Called by the view server and by ``fluxqueue db list``. Reads only. A page begins behind a key, not
behind a number of rows, so that what comes or goes meanwhile neither repeats nor hides anything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from fluxqueue.db.reader import Reader
from fluxqueue.db.tables import LIVING
from fluxqueue.fluxjob.hostlist import compress

Row = dict[str, Any]

_COLUMNS = """
    f.jobid, f.namespace, f.workload_name AS name, f.workload_kind AS kind, f.name AS fluxjob,
    f.user_name AS user, f.queue, f.state, f.reason, f.size, f.priority, f.expected_start,
    f.held_by, f.blocked_by, f.requeues, f.submitted_at, f.allocated_at, f.started_at, f.ended_at,
    (SELECT array_agg(s.node ORDER BY s.number) FROM allocation_slots s
     WHERE s.allocation_id = (SELECT a.id FROM allocations a
                              WHERE a.uid = f.uid AND (a.is_live OR f.ended_at IS NOT NULL)
                              ORDER BY a.id DESC LIMIT 1)) AS nodes
"""
_RANK = """
    CASE WHEN state IN ('Running', 'Allocated') THEN 0
         WHEN state IN ('Pending', 'Reserved') AND blocked_by IS NULL THEN 1
         WHEN state IN ('Pending', 'Reserved') THEN 2 ELSE 3 END
"""
"""What runs, what is in its turn, what waits for others or for its time, the rest."""

_NARROW = """
    (CAST(:namespaces AS text[]) IS NULL OR namespace = ANY(CAST(:namespaces AS text[])))
    AND (CAST(:queue AS text) IS NULL OR queue = :queue)
    AND (CAST(:user AS text) IS NULL OR user_name = :user)
    AND (CAST(:states AS text[]) IS NULL OR state = ANY(CAST(:states AS text[])))
"""


@dataclass(frozen=True, slots=True)
class Narrow:
    """Which FluxJobs; None is all. An empty collection is none."""

    namespaces: Collection[str] | None = None
    queue: str | None = None
    user: str | None = None
    states: Collection[str] | None = None

    def values(self) -> dict[str, Any]:
        """Parameters of the condition."""
        return {
            "namespaces": None if self.namespaces is None else list(self.namespaces),
            "queue": self.queue,
            "user": self.user,
            "states": None if self.states is None else list(self.states),
        }


ALL = Narrow()


async def living(
    reader: Reader,
    narrow: Narrow = ALL,
    *,
    limit: int | None = None,
    after: tuple[int, int, int] | None = None,
) -> list[Row]:
    """What has not ended: what runs, then what waits in the order of its turn.

    ``position`` is its turn among all that wait, None where no cycle looks at it; ``nodes`` is a
    hostlist of where its slots are or were, None where it has none; ``after``: rank, priority and
    jobid of the last one seen.
    """
    rank, priority, jobid = after or (None, None, None)
    async with reader.begin() as tx:
        rows = await tx.fetch(
            f"""
            WITH turn AS (
                SELECT uid, jobid, namespace, queue, user_name, state, priority, rank,
                       row_number() OVER (PARTITION BY rank ORDER BY priority DESC, jobid) AS place
                FROM fluxjobs, LATERAL (SELECT {_RANK} AS rank) AS r WHERE {LIVING}
            ), page AS (
                SELECT uid, rank, place FROM turn
                WHERE {_NARROW} AND (CAST(:rank AS int) IS NULL
                    OR (rank, -priority, jobid) > (:rank, -CAST(:priority AS int), :jobid))
                ORDER BY rank, priority DESC, jobid LIMIT :limit
            )
            SELECT {_COLUMNS}, rank, CASE WHEN rank = 1 THEN place END AS position
            FROM page JOIN fluxjobs f USING (uid) ORDER BY rank, f.priority DESC, f.jobid
            """,  # noqa: S608 constants
            **narrow.values(),
            rank=rank,
            priority=priority,
            jobid=jobid,
            limit=limit,
        )
    return _shortened(rows)


async def newest(
    reader: Reader, narrow: Narrow, *, name: str | None, limit: int, before: int | None
) -> list[Row]:
    """FluxJobs, the newest first, also those that have ended and are kept.

    ``name`` is that of a workload or of a FluxJob; ``before``: the jobid of the last one seen.
    """
    async with reader.begin() as tx:
        rows = await tx.fetch(
            f"""
            SELECT {_COLUMNS} FROM fluxjobs f
            WHERE {_NARROW} AND (CAST(:before AS bigint) IS NULL OR jobid < :before)
              AND (CAST(:name AS text) IS NULL OR workload_name = :name OR name = :name)
            ORDER BY jobid DESC LIMIT :limit
            """,  # noqa: S608 constants
            **narrow.values(),
            name=name,
            before=before,
            limit=limit,
        )
    return _shortened(rows)


async def by_jobid(reader: Reader, jobid: int) -> Row | None:
    """One FluxJob."""
    async with reader.begin() as tx:
        rows = await tx.fetch(
            f"SELECT {_COLUMNS} FROM fluxjobs f WHERE jobid = :jobid",  # noqa: S608 constants
            jobid=jobid,
        )
    return _shortened(rows)[0] if rows else None


async def starts(
    reader: Reader, narrow: Narrow, *, limit: int, after: tuple[datetime, int] | None
) -> list[Row]:
    """What waits and is expected to start, in that order.

    ``promised_start`` is set where it has a reservation, with the nodes of that in ``nodes``;
    ``after``: expected start and jobid of the last one seen.
    """
    at, jobid = after or (None, None)
    async with reader.begin() as tx:
        rows = await tx.fetch(
            f"""
            SELECT f.jobid, f.namespace, f.workload_name AS name, f.user_name AS user, f.queue,
                   f.state, f.size, f.priority, f.expected_start, f.reason,
                   to_timestamp(r.starts_at) AS promised_start,
                   (SELECT array_agg(node) FROM jsonb_array_elements_text(r.nodes) AS n (node))
                       AS nodes
            FROM fluxjobs f LEFT JOIN reservations r USING (uid)
            WHERE {LIVING} AND state IN ('Pending', 'Reserved') AND expected_start IS NOT NULL
              AND {_NARROW}
              AND (CAST(:at AS timestamptz) IS NULL OR (expected_start, jobid) > (:at, :jobid))
            ORDER BY expected_start, jobid LIMIT :limit
            """,  # noqa: S608 constants
            **narrow.values(),
            at=at,
            jobid=jobid,
            limit=limit,
        )
    return _shortened(rows)


async def namespaces(reader: Reader, *, most: int) -> list[str]:
    """Namespaces that any FluxJob is known of, in order; each is looked up by the index."""
    rows = await reader.fetch(
        """
        WITH RECURSIVE found (namespace) AS (
            (SELECT namespace FROM fluxjobs ORDER BY namespace LIMIT 1)
            UNION ALL
            SELECT (SELECT f.namespace FROM fluxjobs f WHERE f.namespace > found.namespace
                    ORDER BY f.namespace LIMIT 1)
            FROM found WHERE found.namespace IS NOT NULL
        ) SELECT namespace FROM found WHERE namespace IS NOT NULL LIMIT :most
        """,
        most=most,
    )
    return [row["namespace"] for row in rows]


def _shortened(rows: Sequence[Row]) -> list[Row]:
    for row in rows:
        row["nodes"] = row["nodes"] and compress(dict.fromkeys(row["nodes"]))
    return list(rows)
