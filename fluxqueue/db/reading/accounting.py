"""What is read of the queue's books: runs and their sums, the audit trail.

The administrator's command line and the view server call it. Triggers and ``steering`` write the
rows of ``accounting`` and ``history``. Nothing here writes.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from decimal import Decimal
from typing import Any, NamedTuple

from fluxqueue.db.queries import Q
from fluxqueue.db.reader import DatabaseReader
from fluxqueue.errors import InvalidInput

DIGITS_MAX = 18
"""Of a number that a bigint holds for certain."""

GROUPS = ("user", "queue", "namespace", "result", "day", "month")
"""What use may be summed by. Days and months are those of UTC."""


class UseRow(NamedTuple):
    """A sum of runs. What it is not summed by is None. ``wait_s``: the mean of those with nodes."""

    user: str | None
    queue: str | None
    namespace: str | None
    result: str | None
    day: str | None
    month: str | None
    runs: int
    cpu_h: Decimal
    gpu_h: Decimal
    wait_s: float | None


class RunRow(NamedTuple):
    """A run that has ended."""

    id: int
    jobid: int
    run: int
    namespace: str
    name: str
    user: str
    queue: str
    result: str
    size: int
    nodes: int
    slots: int
    queued_at: datetime
    allocated_at: datetime | None
    started_at: datetime | None
    ended_at: datetime
    cpu_s: Decimal
    gpu_s: Decimal
    reason: str


class HistoryRow(NamedTuple):
    """A line of the audit trail."""

    id: int
    at: datetime
    jobid: int
    name: str
    actor: str
    event: str
    detail: Mapping[str, Any]


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
) -> list[UseRow]:
    """Sum runs: how many, core-hours, GPU-hours, mean wait (s).

    Raises
    ------
    InvalidInput
        ``by`` names something else than ``GROUPS`` has.
    """
    if unknown := sorted(set(by) - set(GROUPS)):
        hint = f"known are {', '.join(GROUPS)}"
        raise InvalidInput(f"{unknown[0]!r} is no group", where="--by", value=unknown, hint=hint)
    async with reader.begin() as tx:
        return await tx.fetch(
            Q.use, UseRow, **period.values(), by=list(by), limit=limit, offset=offset
        )


async def latest_runs(
    reader: DatabaseReader,
    period: Period,
    *,
    result: str | None,
    limit: int,
    before: tuple[datetime, int] | None,
) -> list[RunRow]:
    """Return runs, those that ended last first.

    ``before``: end and id of the last one seen.
    """
    at, number = before or (None, None)
    async with reader.begin() as tx:
        return await tx.fetch(
            Q.latest_runs,
            RunRow,
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
) -> list[RunRow]:
    """The runs of the workloads that a name or jobid stands for, oldest first.

    ``after``: the id of the last one seen.
    """
    async with reader.begin() as tx:
        return await tx.fetch(
            Q.runs_of,
            RunRow,
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
) -> list[HistoryRow]:
    """The audit trail of the workloads that a name or jobid stands for, oldest first.

    ``after``: the id of the last line seen.
    """
    async with reader.begin() as tx:
        return await tx.fetch(
            Q.history_of,
            HistoryRow,
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
