"""The queue in numbers for the metrics: lengths, ages, backlog, drift. Reads only.

Called by the leading controller every few seconds (``controller.queue_metrics``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import NamedTuple

from fluxqueue.db.database import Database
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns


class _FluxJobsCounted(NamedTuple):
    queue: str
    state: str
    number: int
    oldest_s: float


class _ActionsCounted(NamedTuple):
    task: str
    number: int
    overdue_s: float


@dataclass(frozen=True, slots=True)
class QueueGauges:
    """Numbers by their labels, ages in seconds.

    ``fluxjobs``: by queue and state, those that have not ended. Queues that do not exist are one,
    without a name: users make up such names. ``oldest_s``: by queue and state, since submission.
    ``pending_actions``: by task. ``overdue_s``: for how long the oldest has been due. ``tasks``:
    those of procrastinate that have not ended, by state. ``lost``: slots on nodes that are down or
    gone.
    """

    fluxjobs: Mapping[tuple[str, str], int]
    oldest_s: Mapping[tuple[str, str], float]
    pending_actions: Mapping[str, int]
    overdue_s: Mapping[str, float]
    tasks: Mapping[str, int]
    drift: int
    lost: int = 0


async def read_gauges(database: Database) -> QueueGauges:
    """Read all of it as of one moment.

    Raises
    ------
    DatabaseUnavailable
        Postgres is away.
    """
    async with database.begin() as tx:
        fluxjobs = await tx.fetch(Q.count_fluxjobs, _FluxJobsCounted)
        pending_actions = await tx.fetch(Q.count_pending_actions, _ActionsCounted)
        ((todo, doing),) = await tx.fetch(Q.count_tasks, columns)
        (drift,) = await tx.fetch(Q.count_drift, int)
        (lost,) = await tx.fetch(Q.count_lost_slots, int)
    return QueueGauges(
        fluxjobs={(row.queue, row.state): row.number for row in fluxjobs},
        oldest_s={(row.queue, row.state): row.oldest_s for row in fluxjobs},
        pending_actions={row.task: row.number for row in pending_actions},
        overdue_s={row.task: row.overdue_s for row in pending_actions},
        tasks={"todo": todo, "doing": doing},
        drift=drift,
        lost=lost,
    )
