"""Where the nodes stand in the levels of the cluster, counted in the database.

Read by the worker that shows the levels on the FluxQueues: of 10,000 nodes a line for each rack.
"""

from __future__ import annotations

from collections.abc import Sequence

import orjson

from fluxqueue.db.database import Database
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import columns
from fluxqueue.fluxjob.levels import Level
from fluxqueue.fluxjob.tree import Path


async def read_paths(database: Database, levels: Sequence[Level]) -> dict[Path, int]:
    """How many nodes stand at each path of ``levels``."""
    labels = orjson.dumps([[*level.labels, level.name] for level in levels]).decode()
    rows = await database.fetch(Q.count_paths, columns, levels=labels)
    return {tuple(path): nodes for path, nodes in rows}
