"""Where the nodes stand in the levels of the cluster, counted in the database.

Read by the worker that shows the levels on the FluxQueues: of 10,000 nodes a line for each rack.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from fluxqueue.db.database import Database
from fluxqueue.fluxjob.levels import Level
from fluxqueue.fluxjob.tree import Path

# Of several labels of a level the first that a node has counts, as in ``Level.place``.
_PATHS = """
SELECT p.path, count(*) AS nodes
FROM nodes n, LATERAL (
    SELECT coalesce(array_agg(
        (SELECT n.fact -> 'labels' ->> k.label
         FROM jsonb_array_elements_text(l.labels) WITH ORDINALITY AS k (label, i)
         WHERE n.fact -> 'labels' ->> k.label <> '' ORDER BY k.i LIMIT 1)
        ORDER BY l.depth), '{}') AS path
    FROM jsonb_array_elements(CAST(:levels AS jsonb)) WITH ORDINALITY AS l (labels, depth)) p
GROUP BY p.path
"""


async def read_paths(database: Database, levels: Sequence[Level]) -> dict[Path, int]:
    """How many nodes stand at each path of ``levels``."""
    labels = orjson.dumps([[*level.labels, level.name] for level in levels]).decode()
    rows = await database.fetch(_PATHS, levels=labels)
    return {tuple(row["path"]): row["nodes"] for row in rows}
