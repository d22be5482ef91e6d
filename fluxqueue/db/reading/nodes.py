"""Nodes as a list: what each has, what of it is allocated, what unmanaged pods use. Reads only.

The view server calls it. The states are those of ``fluxqueue nodes``, made of the rows.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, NamedTuple

from fluxqueue.db.queries import Q
from fluxqueue.db.reader import DatabaseReader


class NodeRow(NamedTuple):
    """A node. ``resources``: name -> total, ours, others, free, in base units."""

    name: str
    state: str
    resources: Mapping[str, Any]
    labels: Mapping[str, str]


async def node_page(reader: DatabaseReader, *, limit: int, after: str | None) -> list[NodeRow]:
    """Nodes in the order of their names, ``after`` one.

    ``resources``: name -> total, ours, others, free, in base units (millicores, bytes, pieces). A
    node that one FluxJob holds whole is ours but for what others use of it.
    """
    return await reader.fetch(Q.node_page, NodeRow, limit=limit, after=after)
