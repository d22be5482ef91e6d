"""FluxJobs as lists, page by page: the queue in the order of its turn, all of them, their starts.

Called by the view server and by ``fluxqueue db list``. Reads only. A page begins behind a key, not
behind a number of rows, so that what comes or goes meanwhile neither repeats nor hides anything.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any

import orjson

from fluxqueue.db.reader import DatabaseReader
from fluxqueue.db.tables import FALLING, LIVING, RANK, SHOWN_STATE
from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.jobspec.shape import describe
from fluxqueue.jobspec.stored import read_stored

Row = dict[str, Any]

_COLUMNS = f"""
    f.jobid, f.place, f.namespace, f.workload_name AS name, f.workload_kind AS kind,
    f.name AS fluxjob,
    f.user_name AS user, f.queue, {SHOWN_STATE} AS state, f.reason, f.size, f.priority,
    f.priority_parts, f.request, f.expected_start, f.held_by, f.blocked_by, f.requeues,
    f.submitted_at, f.allocated_at, f.started_at, f.ended_at,
    (SELECT array_agg(s.node ORDER BY s.number) FROM allocation_slots s
     WHERE s.allocation_id = (SELECT a.id FROM allocations a
                              WHERE a.uid = f.uid AND (a.is_live OR f.ended_at IS NOT NULL)
                              ORDER BY a.id DESC LIMIT 1)) AS nodes
"""  # noqa: S608 constants
SHAPES_MAX = 4_096
WAITS = 1
"""Rank of those that have a position."""

_NARROW = f"""
    (CAST(:namespaces AS text[]) IS NULL OR namespace = ANY(CAST(:namespaces AS text[])))
    AND (CAST(:queue AS text) IS NULL OR queue = :queue)
    AND (CAST(:user AS text) IS NULL OR user_name = :user)
    AND (CAST(:states AS text[]) IS NULL OR ({SHOWN_STATE}) = ANY(CAST(:states AS text[])))
"""


@dataclass(frozen=True, slots=True)
class Narrow:
    """Which FluxJobs. None is all. An empty collection is none."""

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


_TURN = f"({RANK}), ({FALLING}), place"
"""Keys of the list in its order, as ``ix_fluxjobs_turn`` has them."""


@dataclass(frozen=True, slots=True)
class Turn:
    """Where a FluxJob stands in the list of those that have not ended. ``position`` 0 is none."""

    rank: int
    priority: int
    place: int
    position: int = 0

    KEY = ("rank", "priority", "place")


async def living(
    reader: DatabaseReader,
    narrow: Narrow = ALL,
    *,
    limit: int | None = None,
    after: Turn | None = None,
) -> list[Row]:
    """Return what has not ended: what runs, then what waits in the order of its turn.

    ``position`` is its turn among all that wait, None where no cycle looks at it. ``nodes`` is a
    hostlist of where its slots are or were, None where it has none. ``after``: the last one seen.
    Positions behind it are counted from its position. A page therefore costs what it shows and what
    ``narrow`` leaves out of it, wherever in the list it is.
    """
    async with reader.begin() as tx:
        sql = living_sql(is_behind=after is not None)
        rows = await tx.fetch(sql, **values_of(narrow, limit, after))
    return _shortened(rows)


def living_sql(*, is_behind: bool) -> str:
    """Return the statement of ``living``. ``is_behind``: it begins behind one that was seen."""
    # A separate text, since no index serves a condition that may be absent.
    behind = f"AND ({_TURN}) > (:rank, -CAST(:priority AS bigint), :place)" if is_behind else ""
    return f"""
        WITH page AS MATERIALIZED (
            SELECT uid, ({RANK}) AS rank, ({FALLING}) AS falling, place FROM fluxjobs
            WHERE {LIVING} {behind} AND {_NARROW}
            ORDER BY {_TURN} LIMIT :limit
        ), turn AS (
            -- From the last one seen to the last one shown, also what is left out.
            SELECT uid, row_number() OVER (ORDER BY ({FALLING}), place) AS nth
            FROM fluxjobs WHERE {LIVING} {behind} AND ({RANK}) = {WAITS}
              AND ({_TURN}) <= (SELECT rank, falling, place FROM page
                                ORDER BY rank DESC, falling DESC, place DESC LIMIT 1)
        )
        SELECT {_COLUMNS}, rank, CAST(nth + :before AS bigint) AS position
        FROM page JOIN fluxjobs f USING (uid) LEFT JOIN turn USING (uid)
        ORDER BY rank, falling, f.place
        """  # noqa: S608 constants


def values_of(narrow: Narrow, limit: int | None, after: Turn | None) -> dict[str, Any]:
    """Parameters of ``living_sql``."""
    key = {} if after is None else {name: getattr(after, name) for name in Turn.KEY}
    before = after.position if after is not None and after.rank == WAITS else 0
    return {**narrow.values(), **key, "before": before, "limit": limit}


async def newest(
    reader: DatabaseReader, narrow: Narrow, *, name: str | None, limit: int, before: int | None
) -> list[Row]:
    """Return FluxJobs, the newest first, also those that have ended and are kept.

    ``name`` is that of a workload or of a FluxJob. ``before``: the jobid of the last one seen.
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


async def by_jobid(reader: DatabaseReader, jobid: int) -> Row | None:
    """One FluxJob."""
    async with reader.begin() as tx:
        rows = await tx.fetch(
            f"SELECT {_COLUMNS} FROM fluxjobs f WHERE jobid = :jobid",  # noqa: S608 constants
            jobid=jobid,
        )
    return _shortened(rows)[0] if rows else None


async def starts(
    reader: DatabaseReader, narrow: Narrow, *, limit: int, after: tuple[datetime, int] | None
) -> list[Row]:
    """Return what waits and is expected to start, in that order.

    ``promised_start`` is set where it has a reservation, with the nodes of that in ``nodes``.
    ``after``: expected start and jobid of the last one seen.
    """
    at, jobid = after or (None, None)
    async with reader.begin() as tx:
        rows = await tx.fetch(
            f"""
            SELECT f.jobid, f.namespace, f.workload_name AS name, f.user_name AS user, f.queue,
                   {SHOWN_STATE} AS state, f.size, f.priority, f.expected_start, f.reason,
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


async def namespaces(reader: DatabaseReader, *, most: int) -> list[str]:
    """Return all namespaces of known FluxJobs, in order. The index looks each of them up."""
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
        if "request" in row:
            row["shape"] = _shape_of(orjson.dumps(row.pop("request"), default=float))
    return list(rows)


@lru_cache(maxsize=SHAPES_MAX)
def _shape_of(request: bytes) -> str:
    """Return a stored request in words. Most jobs of a queue have the request of another one."""
    try:
        return describe(read_stored(orjson.loads(request)))
    except InvalidInput:  # another version wrote it
        return ""
