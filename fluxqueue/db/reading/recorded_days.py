"""A time of the cluster with all its jobs, for a replay (``fluxqueue sim --from-history``).

The command line and the view server call it. Reads only. The result is JSON, which
``simulation.recorded_day`` reads, because a file can hold the same.
"""

from __future__ import annotations

from typing import Any

from fluxqueue.db.queries import Q
from fluxqueue.db.reader import DatabaseReader, columns, value
from fluxqueue.errors import InvalidInput

FORM = "fluxqueue-history/1"


async def read_day(
    reader: DatabaseReader, *, since_s: int, until_s: int, limit: int
) -> dict[str, Any]:
    """Return all that a replay of ``[since_s, until_s)`` needs. Times are epoch seconds.

    Raises
    ------
    InvalidInput
        There are more jobs than ``limit``.
    DatabaseUnavailable
        Postgres went away, or takes too long.
    """
    async with reader.begin() as tx:
        ((horizon, now_s),) = await tx.fetch(
            Q.replay_horizon, columns, since=since_s, until=until_s
        )
        jobs = await tx.fetch(Q.replay_jobs, value, since=since_s, horizon=horizon, limit=limit + 1)
        nodes = await tx.fetch(Q.node_facts, value)
        queues = await tx.fetch(Q.queue_specs, value)
        unmanaged = dict(await tx.fetch(Q.replay_unmanaged, columns))
        used = await tx.fetch(Q.replay_used, value, since=since_s)
    if len(jobs) > limit:
        raise InvalidInput(
            f"there are more than {limit} jobs until then",
            where="until",
            hint="replay a shorter time",
        )
    return {
        "form": FORM,
        "since": since_s,
        "until": until_s,
        "read": now_s,
        "nodes": nodes,
        "unmanaged": unmanaged,
        "queues": queues,
        "used": used,
        "jobs": jobs,
    }
