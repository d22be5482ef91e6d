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


_AMOUNTS = """
(SELECT jsonb_object_agg(node, amounts) FROM (
    SELECT node, jsonb_object_agg(resource, amount) AS amounts FROM (
        SELECT s.node, r.key AS resource,
               least(sum(CASE WHEN jsonb_typeof(r.value) = 'number'
                              THEN CAST(r.value AS numeric) ELSE 0 END), 1::bigint << 52)::bigint
                   AS amount
        FROM allocation_slots s, LATERAL jsonb_each(s.resources) AS r
        WHERE s.allocation_id = r1.allocation_id
        GROUP BY s.node, r.key
    ) AS each GROUP BY node
) AS of_node)
"""

# When it could start: after holds and gathering (the last return to Pending before its start),
# after its begin time, and after the jobs that it depends on.
_COULD_START = """
greatest(r1.queued_at,
    coalesce(f.set_begin_at, f.begin_at),
    (SELECT max(h.at) FROM history h
     WHERE h.uid = r1.uid AND h.event = 'Pending' AND h.at > r1.queued_at
       AND h.detail ->> 'from' IN ('Held', 'Gathering', 'Unsatisfiable')
       AND h.at <= coalesce(r1.allocated_at, now())),
    (SELECT max(t.ended_at) FROM dependencies d JOIN fluxjobs t ON t.uid = d.target_uid
     WHERE d.uid = r1.uid AND t.ended_at <= coalesce(r1.allocated_at, now())))
"""


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
