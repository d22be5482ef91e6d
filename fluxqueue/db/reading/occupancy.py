"""Where work runs, ran and will run: for the map of the cluster and for its chart of time.

The view server calls it. Reads only. All nodes come in one answer, because a map shows them all.
Places come page by page.
"""

from __future__ import annotations

from collections.abc import Collection
from datetime import datetime
from typing import Any

from fluxqueue.db.reader import DatabaseReader

Row = dict[str, Any]

RUNNING, ENDED, PROMISED = "running", "ended", "promised"

_NODES = """
WITH usage AS (
    SELECT node, jsonb_object_agg(resource, jsonb_build_array(capacity, foreign_used)) AS resources
    FROM node_usage GROUP BY node
)
SELECT n.name, n.fact -> 'labels' AS labels, (n.fact ->> 'up')::boolean AS is_up,
       (n.fact ->> 'schedulable')::boolean AS is_open,
       jsonb_array_length(coalesce(n.fact -> 'taints', '[]')) AS taints,
       coalesce(u.resources, '{}') AS resources
FROM nodes n LEFT JOIN usage u ON u.node = n.name ORDER BY n.name LIMIT :limit
"""

_AMOUNTS = """
(SELECT jsonb_object_agg(node, amounts) FROM (
    SELECT node, jsonb_object_agg(resource, amount) AS amounts FROM (
        SELECT s.node, r.key AS resource, sum(CAST(r.value AS numeric)) AS amount
        FROM allocation_slots s, LATERAL jsonb_each_text(s.resources) AS r
        WHERE s.allocation_id = a.id AND (s.state <> 'returned' OR NOT a.is_live)
        GROUP BY s.node, r.key
    ) AS each GROUP BY node
) AS of_node)
"""
_MAY_SEE = "(CAST(:namespaces AS text[]) IS NULL OR f.namespace = ANY(CAST(:namespaces AS text[])))"

_PLACES = f"""
WITH found AS (
    SELECT a.id, a.uid, CASE WHEN a.is_live THEN 'running' ELSE 'ended' END AS kind,
           to_timestamp(a.starts_at) AS starts_at, to_timestamp(a.until) AS until, a.ended_at,
           a.is_exclusive, a.held, {_AMOUNTS} AS nodes
    FROM allocations a
    WHERE (a.is_live OR a.ended_at >= :since) AND a.id > :after
    UNION ALL
    SELECT CAST(f.jobid AS bigint) + {1 << 60}, r.uid, 'promised', to_timestamp(r.starts_at),
           to_timestamp(r.until), NULL, false, '{{}}',
           (SELECT jsonb_object_agg(n.node, '{{}}'::jsonb)
            FROM jsonb_array_elements_text(r.nodes) AS n (node))
    FROM reservations r JOIN fluxjobs f USING (uid)
    WHERE CAST(f.jobid AS bigint) + {1 << 60} > :after
)
SELECT p.id, p.kind, p.starts_at, p.until, p.ended_at, p.is_exclusive, p.held,
       coalesce(p.nodes, '{{}}') AS nodes,
       CASE WHEN {_MAY_SEE} THEN f.jobid END AS jobid,
       CASE WHEN {_MAY_SEE} THEN f.namespace END AS namespace,
       CASE WHEN {_MAY_SEE} THEN f.workload_name END AS name,
       CASE WHEN {_MAY_SEE} THEN f.user_name END AS user,
       CASE WHEN {_MAY_SEE} THEN f.queue END AS queue,
       CASE WHEN {_MAY_SEE} THEN f.state END AS state
FROM (SELECT * FROM found ORDER BY id LIMIT :limit) AS p JOIN fluxjobs f USING (uid)
ORDER BY p.id
"""  # noqa: S608 constants


async def all_nodes(reader: DatabaseReader, *, limit: int) -> list[Row]:
    """Return nodes in the order of their names.

    ``resources``: by name the capacity and what unmanaged pods use, in base units.
    """
    return await reader.fetch(_NODES, limit=limit)


async def coming_nodes(reader: DatabaseReader, *, limit: int) -> list[Row]:
    """Return the nodes that were asked for and have yet to come, the earliest first.

    ``spec`` is that of their pool. A pool that was deleted brings none.
    """
    return await reader.fetch(
        """
        SELECT r.pool || '/asked-' || r.number || '-' || i AS name, r.pool, p.spec,
               to_timestamp(r.asked_at) AS asked_at, to_timestamp(r.ready_at) AS expected_at
        FROM node_requests r JOIN node_pools p ON p.name = r.pool,
             generate_series(1, r.count - (SELECT count(*) FROM pool_nodes n
                                           WHERE n.request = r.number)) AS i
        WHERE r.ended IS NULL AND p.spec IS NOT NULL ORDER BY r.ready_at, r.number, i LIMIT :limit
        """,
        limit=limit,
    )


async def places(
    reader: DatabaseReader,
    namespaces: Collection[str] | None,
    *,
    since: datetime,
    limit: int,
    after: int,
) -> list[Row]:
    """Return allocations and reservations with their nodes, in the order of their numbers.

    ``nodes``: by node the amounts in base units, empty amounts for a reservation. ``held``: further
    nodes that it holds whole. Work in other namespaces than ``namespaces`` has no name and no user.

    Parameters
    ----------
    since : ended allocations count if they ended after this time and are still stored.
    after : the ``id`` of the last one seen, 0 for the first page.
    """
    return await reader.fetch(
        _PLACES,
        namespaces=None if namespaces is None else list(namespaces),
        since=since,
        limit=limit,
        after=after,
    )
