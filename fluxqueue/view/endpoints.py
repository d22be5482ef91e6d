"""The table of endpoints: for each path its parameters, its items and how they are read.

``server`` serves this table and ``openapi`` documents it. Each read asks for one item more than the
page shows, to learn whether there are more.
"""

from __future__ import annotations

from collections.abc import Awaitable, Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime
from enum import StrEnum
from typing import Any

from fluxqueue.db.reader import DatabaseReader
from fluxqueue.db.reading import accounting, fluxjobs, occupancy, queue_use
from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.states import SHOWN
from fluxqueue.view import answer_fields
from fluxqueue.view.answer_fields import Item
from fluxqueue.view.parameters import (
    CONTINUED,
    LIMITED,
    Parameter,
    ViewQuery,
    key_of,
    moment,
    word,
    words,
)

ROOT = "/api/v1"


class Needs(StrEnum):
    """What a caller must be allowed to see."""

    FLUXJOBS = "list fluxjobs in the requested namespaces (default: all that you may see)"
    ONE_NAMESPACE = "list fluxjobs in that namespace"
    NODES = "list nodes"
    PLACES = "list nodes. Jobs of namespaces whose fluxjobs you may not list have no name"


@dataclass(frozen=True, slots=True)
class ViewEndpoint:
    """A list.

    ``read`` returns rows. ``key`` returns the values of a row after which the next page begins. A
    list without it is continued by the number of items that were shown.
    """

    path: str
    summary: str
    item: Item
    parameters: Sequence[Parameter]
    read: Callable[[DatabaseReader, ViewQuery, int], Awaitable[Sequence[Any]]]
    key: Callable[[Any], Sequence[Any]] | None = None
    needs: Needs = Needs.FLUXJOBS


NAMESPACES = words("namespace", "Only these namespaces")
NAMESPACE = word("namespace", "The namespace", is_required=True)
QUEUE = word("queue", "Only this queue")
USER = word("user", "Only jobs of this user")
STATES = words("state", "Only these states", list(SHOWN))
BY = words(
    "by", "Fields to group by", tuple(accounting.GROUPS), default=("user", "queue", "namespace")
)
SINCE = moment("since", "Only runs that ended since this time or age")
UNTIL = moment("until", "Only runs that ended before this time or age")
OF_JOB = word("job", "Name of a workload or FluxJob, or a jobid", is_required=True)
ENDED_SINCE = moment("since", "Also allocations that ended since this time or age")
STEP = word("step", f"Length of time: {' or '.join(queue_use.STEPS)} (default: hour)")
RECORDED = (
    word("from", "Begin: a time or an age (default: 1d)"),
    word("until", "End: a time or an age (default: now)"),
)
"""The recorded time of a workload log."""
PAGED = (LIMITED, CONTINUED)
FAR_FUTURE = datetime(9999, 1, 1, tzinfo=UTC)


def _narrow(asked: ViewQuery) -> fluxjobs.Narrow:
    return fluxjobs.Narrow(
        asked.namespaces, asked.get("queue"), asked.get("user"), asked.get("state")
    )


def _period(asked: ViewQuery) -> accounting.Period:
    since, until = asked.get("since"), asked.get("until")
    return accounting.Period(since, until, asked.namespaces, asked.get("user"), asked.get("queue"))


def offset_of(asked: ViewQuery) -> int:
    """Return how many items of a list without a key were shown before."""
    (offset,) = key_of(asked, int) or (0,)
    return max(0, int(offset))


async def _queue(reader: DatabaseReader, asked: ViewQuery, limit: int) -> Sequence[Any]:
    key = key_of(asked, int, int, int, int)
    after = fluxjobs.Turn(*key) if key else None
    return await fluxjobs.living(reader, _narrow(asked), limit=limit, after=after)


async def _jobs(reader: DatabaseReader, asked: ViewQuery, limit: int) -> Sequence[Any]:
    (before,) = key_of(asked, int) or (None,)
    return await fluxjobs.newest(
        reader, _narrow(asked), name=asked.get("name"), limit=limit, before=before
    )


async def _forecast(reader: DatabaseReader, asked: ViewQuery, limit: int) -> Sequence[Any]:
    after = key_of(asked, datetime, int)
    return await fluxjobs.starts(reader, _narrow(asked), limit=limit, after=after)


async def _nodes(reader: DatabaseReader, asked: ViewQuery, limit: int) -> Sequence[Any]:
    (after,) = key_of(asked, str) or (None,)
    return await occupancy.node_page(reader, limit=limit, after=after)


async def _history(reader: DatabaseReader, asked: ViewQuery, limit: int) -> Sequence[Any]:
    (after,) = key_of(asked, int) or (0,)
    return await accounting.history(
        reader, asked.get("namespace"), asked.get("job"), limit=limit, after=after
    )


async def _runs_of(reader: DatabaseReader, asked: ViewQuery, limit: int) -> Sequence[Any]:
    (after,) = key_of(asked, int) or (0,)
    return await accounting.runs(
        reader, asked.get("namespace"), asked.get("job"), limit=limit, after=after
    )


async def _runs(reader: DatabaseReader, asked: ViewQuery, limit: int) -> Sequence[Any]:
    before = key_of(asked, datetime, int)
    return await accounting.latest_runs(
        reader,
        _period(asked),
        result=asked.get("result"),
        limit=limit,
        before=before,
    )


async def _accounting(reader: DatabaseReader, asked: ViewQuery, limit: int) -> Sequence[Any]:
    by = asked.get("by")
    offset = offset_of(asked)
    return await accounting.use(reader, _period(asked), by=by, limit=limit, offset=offset)


async def _places(reader: DatabaseReader, asked: ViewQuery, limit: int) -> Sequence[Any]:
    (after,) = key_of(asked, int) or (0,)
    since = asked.get("since") or FAR_FUTURE
    return await occupancy.places(reader, asked.namespaces, since=since, limit=limit, after=after)


async def _queue_use(reader: DatabaseReader, asked: ViewQuery, limit: int) -> Sequence[Any]:
    seen = None if asked.namespaces is None else list(asked.namespaces)
    return await queue_use.use_by_user(reader, seen, limit=limit, offset=offset_of(asked))


async def _rules(reader: DatabaseReader, _: ViewQuery, limit: int) -> Sequence[Any]:
    return (await queue_use.rules(reader))[:limit]


async def _waits(reader: DatabaseReader, asked: ViewQuery, limit: int) -> Sequence[Any]:
    return await _by_step(queue_use.waits, reader, asked, limit)


async def _promises(reader: DatabaseReader, asked: ViewQuery, limit: int) -> Sequence[Any]:
    return await _by_step(queue_use.promises, reader, asked, limit)


async def _utilisation(reader: DatabaseReader, asked: ViewQuery, limit: int) -> Sequence[Any]:
    return await _by_step(queue_use.utilisation, reader, asked, limit)


async def _by_step(
    read: Callable[..., Awaitable[Sequence[Any]]],
    reader: DatabaseReader,
    asked: ViewQuery,
    limit: int,
) -> Sequence[Any]:
    step = asked.get("step") or "hour"
    if step not in queue_use.STEPS:
        raise InvalidInput(
            "is not known", where="step", value=step, hint=f"one of {', '.join(queue_use.STEPS)}"
        )
    return await read(reader, _period(asked), step=step, limit=limit, offset=offset_of(asked))


ENDPOINTS = (
    ViewEndpoint(
        "/queue",
        "Jobs that have not ended: running jobs, then waiting jobs by turn",
        answer_fields.QUEUED,
        (NAMESPACES, QUEUE, USER, STATES, *PAGED),
        _queue,
        lambda row: (row.rank, row.priority, row.jobid, row.position or 0),
    ),
    ViewEndpoint(
        "/jobs",
        "All stored FluxJobs, the newest first",
        answer_fields.JOB,
        (NAMESPACES, QUEUE, USER, STATES, word("name", "Only this name"), *PAGED),
        _jobs,
        lambda row: (row.jobid,),
    ),
    ViewEndpoint(
        "/forecast",
        "Waiting jobs with their expected start, the earliest first",
        answer_fields.START,
        (NAMESPACES, QUEUE, USER, *PAGED),
        _forecast,
        lambda row: (row.expected_start.isoformat(), row.jobid),
    ),
    ViewEndpoint(
        "/nodes",
        "Nodes with their use",
        answer_fields.NODE,
        PAGED,
        _nodes,
        lambda row: (row.name,),
        Needs.NODES,
    ),
    ViewEndpoint(
        "/history",
        "The history of a workload with the actors, oldest first",
        answer_fields.LINE,
        (NAMESPACE, OF_JOB, *PAGED),
        _history,
        lambda row: (row.id,),
        Needs.ONE_NAMESPACE,
    ),
    ViewEndpoint(
        "/history/runs",
        "The ended runs of a workload, oldest first",
        answer_fields.RUN,
        (NAMESPACE, OF_JOB, *PAGED),
        _runs_of,
        lambda row: (row.id,),
        Needs.ONE_NAMESPACE,
    ),
    ViewEndpoint(
        "/accounting",
        "Sums of ended runs: number, core-hours, GPU-hours, mean wait",
        answer_fields.SUM,
        (BY, NAMESPACES, QUEUE, USER, SINCE, UNTIL, *PAGED),
        _accounting,
    ),
    ViewEndpoint(
        "/accounting/runs",
        "Single ended runs, the latest end first",
        answer_fields.RUN,
        (NAMESPACES, QUEUE, USER, SINCE, UNTIL, word("result", "Only this result"), *PAGED),
        _runs,
        lambda row: (row.ended_at.isoformat(), row.id),
    ),
    ViewEndpoint(
        "/places",
        "Nodes that jobs have, were promised, or had since a time",
        answer_fields.PLACE,
        (NAMESPACES, ENDED_SINCE, *PAGED),
        _places,
        lambda row: (row.id,),
        Needs.PLACES,
    ),
    ViewEndpoint(
        "/queues",
        "The queues with their rules",
        answer_fields.QUEUE_RULES,
        (LIMITED,),
        _rules,
        lambda row: (row.name,),
    ),
    ViewEndpoint(
        "/queues/use",
        "What each user has in each queue, and the fair shares",
        answer_fields.QUEUE_USE,
        (NAMESPACES, *PAGED),
        _queue_use,
    ),
    ViewEndpoint(
        "/accounting/waits",
        "Waits and use by time and number of nodes",
        answer_fields.WAIT,
        (NAMESPACES, QUEUE, USER, SINCE, UNTIL, STEP, *PAGED),
        _waits,
    ),
    ViewEndpoint(
        "/accounting/promises",
        "Promised starts of ended runs by time: kept, and excused",
        answer_fields.PROMISES,
        (NAMESPACES, QUEUE, USER, SINCE, UNTIL, STEP, *PAGED),
        _promises,
    ),
    ViewEndpoint(
        "/accounting/utilisation",
        "Core-hours and GPU-hours of work by time, of running work as well",
        answer_fields.UTILISATION,
        (NAMESPACES, QUEUE, USER, SINCE, UNTIL, STEP, *PAGED),
        _utilisation,
    ),
)

CHANGES = (NAMESPACES, QUEUE, USER)
"""Parameters of ``/changes``, which is not a list."""
