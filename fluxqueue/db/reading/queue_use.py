"""Queues as people look at them: rules, what waits and runs, fair shares, and waits over time.

The view server calls it. Reads only.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from fluxqueue.db.queries import Q
from fluxqueue.db.reader import DatabaseReader
from fluxqueue.db.reading.accounting import Period


class QueueUseRow(NamedTuple):
    """What a user has in a queue. ``cpu_m``: millicores of running slots.

    ``used_h``: core-hours as the fair share counts them, decayed.
    """

    queue: str
    user: str
    running: int
    waiting: int
    held: int
    cpu_m: Decimal
    nodes: int
    factor: float | None
    points: int | None
    used_h: float | None


class WaitRow(NamedTuple):
    """Ended runs of one size within one step of time, waits in seconds."""

    at: datetime
    size_class: str
    runs: int
    cpu_h: Decimal
    gpu_h: Decimal
    wait_s: float | None
    wait_p95_s: float | None


class PromisesRow(NamedTuple):
    """Promised starts of the runs that ended within one step of time."""

    at: datetime
    promised: int
    kept: int
    excused: int


class UtilisationRow(NamedTuple):
    """Work within one step of time."""

    at: datetime
    cpu_h: Decimal
    gpu_h: Decimal


class QueueRulesRow(NamedTuple):
    """A queue with the spec in force. ``fault``: why a newer one is not."""

    name: str
    spec: Mapping[str, Any]
    priority: int
    fault: str | None


STEPS = {"hour": "1 hour", "day": "1 day"}
"""Lengths of time that runs are summed by."""


PROMISE_TOLERANCE_S = 5
"""As ``scheduler.promises`` has it. A test compares both."""


async def rules(reader: DatabaseReader) -> list[QueueRulesRow]:
    """Return the queues with the spec that is in force, and why a newer one is not."""
    return await reader.fetch(Q.rules, QueueRulesRow)


async def use_by_user(
    reader: DatabaseReader, namespaces: list[str] | None, *, limit: int, offset: int
) -> list[QueueUseRow]:
    """Return for each user of each queue what waits and runs, and the fair share.

    ``cpu_m``: millicores of running slots. ``used_h``: core-hours as the fair share counts them,
    decayed. Users without work are shown to callers that see all namespaces only.
    """
    return await reader.fetch(
        Q.use_by_user, QueueUseRow, namespaces=namespaces, limit=limit, offset=offset
    )


async def waits(
    reader: DatabaseReader, period: Period, *, step: str, limit: int, offset: int
) -> list[WaitRow]:
    """Return sums of ended runs by time and size: number, core-hours, median and p95 wait (s).

    ``step`` is a key of ``STEPS``. ``at`` is the begin of the time that it sums.
    """
    return await reader.fetch(
        Q.waits, WaitRow, **period.values(), step=STEPS[step], limit=limit, offset=offset
    )


async def promises(
    reader: DatabaseReader, period: Period, *, step: str, limit: int, offset: int
) -> list[PromisesRow]:
    """Return how many runs had a promised start, and of how many it was kept or excused.

    ``step`` and ``at`` are as in ``waits``. A job that starts at its promise or earlier keeps it.
    """
    return await reader.fetch(
        Q.promises,
        PromisesRow,
        **period.values(),
        step=STEPS[step],
        tolerance_s=PROMISE_TOLERANCE_S,
        limit=limit,
        offset=offset,
    )


async def utilisation(
    reader: DatabaseReader, period: Period, *, step: str, limit: int, offset: int
) -> list[UtilisationRow]:
    """Return the core-hours and GPU-hours of ended and running work within each step of time.

    ``step`` and ``at`` are as in ``waits``. Without a begin, it is that of the last 31 days.
    """
    return await reader.fetch(
        Q.utilisation,
        UtilisationRow,
        **period.values(),
        step=STEPS[step],
        limit=limit,
        offset=offset,
    )
