"""Nodes, and where work runs, ran and will run: for lists, the map and the chart of time.

The view server calls it, and the worker that shows the levels on the FluxQueues. Reads only. All
nodes of a map come in one answer, because it shows them all. Nodes of a list and places come page
by page.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from datetime import datetime
from typing import Any, NamedTuple

from fluxqueue.db.queries import Q
from fluxqueue.db.reader import DatabaseReader, columns
from fluxqueue.fluxjob.levels import Level
from fluxqueue.fluxjob.tree import Path


class NodeRow(NamedTuple):
    """A node of a list, in a state as of ``fluxqueue nodes``.

    ``resources``: name -> total, ours, others, free, in base units (millicores, bytes, pieces). A
    node that one FluxJob holds whole is ours but for what others use of it.
    """

    name: str
    state: str
    resources: Mapping[str, Any]
    labels: Mapping[str, str]


class MapNodeRow(NamedTuple):
    """A node on the map. ``resources``: by name the capacity and the unmanaged use, in base units.

    ``path``: its place in each level. The view server knows the levels.
    """

    name: str
    labels: Mapping[str, str] | None
    is_up: bool
    is_open: bool
    taints: int
    resources: Mapping[str, Sequence[float]]
    path: Sequence[str] = ()


class ComingNodeRow(NamedTuple):
    """A node that was asked for. ``spec`` is that of its pool, which says what it will be like."""

    name: str
    pool: str
    spec: Mapping[str, Any]
    asked_at: datetime
    expected_at: datetime
    path: Sequence[str] = ()
    resources: Mapping[str, Sequence[float]] = {}


class PlaceRow(NamedTuple):
    """An allocation or a reservation. What the caller may not see has no name."""

    id: int
    kind: str
    starts_at: datetime
    until: datetime | None
    ended_at: datetime | None
    is_exclusive: bool
    held: Sequence[str]
    nodes: Mapping[str, Mapping[str, float]]
    jobid: int | None
    namespace: str | None
    name: str | None
    user: str | None
    queue: str | None
    state: str | None


RUNNING, ENDED, PROMISED = "running", "ended", "promised"


async def node_page(reader: DatabaseReader, *, limit: int, after: str | None) -> list[NodeRow]:
    """Return nodes in the order of their names, ``after`` one."""
    return await reader.fetch(Q.node_page, NodeRow, limit=limit, after=after)


async def read_paths(reader: DatabaseReader, levels: Sequence[Level]) -> dict[Path, int]:
    """Return how many nodes stand at each path of ``levels``: of 10,000 a line for each rack."""
    labels = [[*level.labels, level.name] for level in levels]
    rows = await reader.fetch(Q.count_paths, columns, levels=labels)
    return {tuple(path): nodes for path, nodes in rows}


async def all_nodes(reader: DatabaseReader, *, limit: int) -> list[MapNodeRow]:
    """Return nodes in the order of their names.

    ``resources``: by name the capacity and what unmanaged pods use, in base units.
    """
    return await reader.fetch(Q.map_nodes, MapNodeRow, limit=limit)


async def coming_nodes(reader: DatabaseReader, *, limit: int) -> list[ComingNodeRow]:
    """Return the nodes that were asked for and have yet to come, the earliest first.

    ``spec`` is that of their pool. A pool that was deleted brings none.
    """
    return await reader.fetch(Q.coming_nodes, ComingNodeRow, limit=limit)


async def places(
    reader: DatabaseReader,
    namespaces: Collection[str] | None,
    *,
    since: datetime,
    limit: int,
    after: int,
) -> list[PlaceRow]:
    """Return allocations and reservations with their nodes, in the order of their numbers.

    ``nodes``: by node the amounts in base units, empty amounts for a reservation. ``held``: further
    nodes that it holds whole. Work in other namespaces than ``namespaces`` has no name and no user.

    Parameters
    ----------
    since : ended allocations count if they ended after this time and are still stored.
    after : the ``id`` of the last one seen, 0 for the first page.
    """
    return await reader.fetch(
        Q.places,
        PlaceRow,
        namespaces=None if namespaces is None else list(namespaces),
        since=since,
        limit=limit,
        after=after,
    )
