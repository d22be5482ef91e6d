"""Nodes as a list: what each has, what of it is allocated, what others use. Reads only.

Called by the view server. The states are those of ``fluxqueue nodes``, made of the rows.
"""

from __future__ import annotations

from typing import Any

from fluxqueue.db.reader import Reader

Row = dict[str, Any]

_PAGE = """
WITH page AS (
    SELECT name, fact FROM nodes WHERE CAST(:after AS text) IS NULL OR name > :after
    ORDER BY name LIMIT :limit
), used AS (
    SELECT u.node, sum(u.allocated) > 0 AS has_ours,
           bool_or(u.resource = 'cpu' AND u.free <= 0) AS is_full,
           jsonb_object_agg(u.resource, jsonb_build_object(
               'total', u.capacity, 'ours', u.allocated, 'others', u.foreign_used,
               'free', greatest(u.free, 0))) AS resources
    FROM node_usage u WHERE u.node IN (SELECT name FROM page) GROUP BY u.node
)
SELECT p.name,
       CASE WHEN NOT (fact ->> 'up')::boolean THEN 'down'
            WHEN NOT (fact ->> 'schedulable')::boolean
                THEN CASE WHEN coalesce(has_ours, false) THEN 'draining' ELSE 'drained' END
            WHEN is_full THEN 'allocated'
            WHEN has_ours THEN 'mixed' ELSE 'idle' END AS state,
       coalesce(resources, '{}') AS resources, fact -> 'labels' AS labels
FROM page p LEFT JOIN used ON used.node = p.name ORDER BY p.name
"""


async def node_page(reader: Reader, *, limit: int, after: str | None) -> list[Row]:
    """Nodes in the order of their names, ``after`` one.

    ``resources``: name -> total, ours, others, free, in base units (millicores, bytes, pieces).
    """
    return await reader.fetch(_PAGE, limit=limit, after=after)
