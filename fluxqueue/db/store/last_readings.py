"""What a workload said, and asked for, when it could be read last: from its row.

Read by the controller for a workload that its author has spoilt since, where the process has not
seen it before (``controller.observing.recall``). Reads only.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from typing import Any

from fluxqueue.db.database import Database
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns


@dataclass(frozen=True, slots=True)
class LastRequest:
    """What a workload asks for, as rows store it. ``size`` has no pods that are yet to come."""

    request: Mapping[str, Any]
    size: int
    duration_s: int | None = None
    further: Mapping[str, Any] | None = None


@dataclass(frozen=True, slots=True)
class Past:
    """What a workload said by annotation, and asked for. None: that is not known."""

    said: Mapping[str, str] = field(default_factory=dict)
    asked: LastRequest | None = None


async def read_past(database: Database, uids: Collection[str]) -> dict[str, Past]:
    """Read the past of workloads by their UIDs. Those without a row are left out."""
    rows = await database.fetch(Q.past_readings, columns, uids=sorted(uids))
    return {uid: Past(said, LastRequest(*asked)) for uid, said, *asked in rows}
