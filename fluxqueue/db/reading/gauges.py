"""The queue in numbers for the metrics: lengths, ages, backlog, drift. Reads only.

Called by the leading controller every few seconds (``controller.gauges``).
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from fluxqueue.db.database import Database
from fluxqueue.db.leadership import DUE
from fluxqueue.db.tables import LIVING
from fluxqueue.db.task_statements import COUNT_TASKS

_FLUXJOBS = f"""
SELECT coalesce(q.name, '') AS queue, state, count(*) AS number,
    CAST(extract(epoch FROM now() - min(submitted_at)) AS float8) AS oldest_s
FROM (SELECT * FROM fluxjobs WHERE {LIVING}) f LEFT JOIN fluxqueues q ON q.name = f.queue
GROUP BY q.name, state
"""  # noqa: S608 constants
_PENDING_ACTIONS = f"""
SELECT task, count(*) AS number,
    CAST(greatest(extract(epoch FROM now() - min({DUE})), 0) AS float8) AS overdue_s
FROM pending_actions o GROUP BY task
"""  # noqa: S608 constant
_LOST = """
SELECT count(*) AS number FROM allocation_slots s
JOIN allocations a ON a.id = s.allocation_id AND a.is_live LEFT JOIN nodes n ON n.name = s.node
WHERE s.state = 'held' AND NOT coalesce((n.fact ->> 'up')::boolean, false)
"""
_DRIFT = "SELECT count(*) AS number FROM drift"


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
        fluxjobs = await tx.fetch(_FLUXJOBS)
        pending_actions = await tx.fetch(_PENDING_ACTIONS)
        tasks = await tx.fetch_one(COUNT_TASKS)
        drift = await tx.fetch_one(_DRIFT)
        lost = await tx.fetch_one(_LOST)
    return QueueGauges(
        fluxjobs={(row["queue"], row["state"]): row["number"] for row in fluxjobs},
        oldest_s={(row["queue"], row["state"]): row["oldest_s"] for row in fluxjobs},
        pending_actions={row["task"]: row["number"] for row in pending_actions},
        overdue_s={row["task"]: row["overdue_s"] for row in pending_actions},
        tasks={} if tasks is None else dict(tasks),
        drift=drift["number"] if drift is not None else 0,
        lost=lost["number"] if lost is not None else 0,
    )
