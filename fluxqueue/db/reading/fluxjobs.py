"""FluxJobs as lists, page by page: the queue in the order of its turn, all of them, their starts.

Called by the view server and by ``fluxqueue db list``. Reads only. A page begins behind a key, not
behind a number of rows, so that what comes or goes meanwhile neither repeats nor hides anything.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass
from datetime import datetime
from functools import lru_cache
from typing import Any, NamedTuple

import orjson

from fluxqueue.db.queries import Q
from fluxqueue.db.reader import DatabaseReader
from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.jobspec.parse import read_stored
from fluxqueue.jobspec.shape import describe


class JobRow(NamedTuple):
    """A FluxJob. ``position``: its turn among all that wait, None where no cycle looks at it.

    ``nodes``: a hostlist of where its slots are or were. ``shape``: its request in words.
    """

    jobid: int
    place: int
    namespace: str
    name: str
    kind: str
    fluxjob: str
    user: str
    queue: str
    state: str
    reason: str
    size: int
    priority: int
    priority_parts: Mapping[str, int] | None
    shape: Any
    expected_start: datetime | None
    held_by: str | None
    blocked_by: str | None
    requeues: int
    submitted_at: datetime
    allocated_at: datetime | None
    started_at: datetime | None
    ended_at: datetime | None
    nodes: Any
    rank: int
    position: int | None = None


class StartRow(NamedTuple):
    """What waits and is expected to start. ``promised_start``: where it has a reservation.

    ``expected_by``: nine of ten such jobs start by then.
    """

    jobid: int
    namespace: str
    name: str
    user: str
    queue: str
    state: str
    size: int
    priority: int
    expected_start: datetime
    reason: str
    promised_start: datetime | None
    expected_by: datetime | None
    nodes: Any


SHAPES_MAX = 4_096
WAITS = 1
"""Rank of those that have a position."""


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
) -> list[JobRow]:
    """Return what has not ended: what runs, then what waits in the order of its turn.

    ``position`` is its turn among all that wait, None where no cycle looks at it. ``nodes`` is a
    hostlist of where its slots are or were, None where it has none. ``after``: the last one seen.
    Positions behind it are counted from its position. A page therefore costs what it shows and what
    ``narrow`` leaves out of it, wherever in the list it is.
    """
    query = Q.living_first if after is None else Q.living_behind
    rows = await reader.fetch(query, JobRow, **values_of(narrow, limit, after))
    return [_shortened(row) for row in rows]


def values_of(narrow: Narrow, limit: int | None, after: Turn | None) -> dict[str, Any]:
    """Parameters of ``living_first``, and of ``living_behind`` where there is an ``after``."""
    key = {} if after is None else {name: getattr(after, name) for name in Turn.KEY}
    before = after.position if after is not None and after.rank == WAITS else 0
    return {**narrow.values(), **key, "before": before, "limit": limit}


async def newest(
    reader: DatabaseReader, narrow: Narrow, *, name: str | None, limit: int, before: int | None
) -> list[JobRow]:
    """Return FluxJobs, the newest first, also those that have ended and are kept.

    ``name`` is that of a workload or of a FluxJob. ``before``: the jobid of the last one seen.
    """
    rows = await reader.fetch(
        Q.newest, JobRow, **narrow.values(), name=name, before=before, limit=limit
    )
    return [_shortened(row) for row in rows]


async def by_jobid(reader: DatabaseReader, jobid: int) -> JobRow | None:
    """One FluxJob."""
    rows = await reader.fetch(Q.by_jobid, JobRow, jobid=jobid)
    return _shortened(rows[0]) if rows else None


async def starts(
    reader: DatabaseReader, narrow: Narrow, *, limit: int, after: tuple[datetime, int] | None
) -> list[StartRow]:
    """Return what waits and is expected to start, in that order.

    ``promised_start`` is set where it has a reservation, with the nodes of that in ``nodes``.
    ``after``: expected start and jobid of the last one seen.
    """
    at, jobid = after or (None, None)
    rows = await reader.fetch(
        Q.starts, StartRow, **narrow.values(), at=at, jobid=jobid, limit=limit
    )
    return [row._replace(nodes=_hostlist(row.nodes)) for row in rows]


async def namespaces(reader: DatabaseReader, *, most: int) -> list[str]:
    """Return all namespaces of known FluxJobs, in order. The index looks each of them up."""
    return await reader.fetch(Q.namespaces, str, most=most)


def _shortened(row: JobRow) -> JobRow:
    shape = _shape_of(orjson.dumps(row.shape, default=float))
    return row._replace(nodes=_hostlist(row.nodes), shape=shape)


def _hostlist(nodes: list[str] | None) -> str | None:
    return compress(dict.fromkeys(nodes)) if nodes else None


@lru_cache(maxsize=SHAPES_MAX)
def _shape_of(request: bytes) -> str:
    """Return a stored request in words. Most jobs of a queue have the request of another one."""
    try:
        return describe(read_stored(orjson.loads(request)))
    except InvalidInput:  # another version wrote it
        return ""
