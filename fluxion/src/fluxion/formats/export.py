"""A whole graph as JGF, which any Fluxion can load.

``writers`` writes what one job was given. ``fluxqueue graph`` calls this module. Pure.
"""

from __future__ import annotations

from typing import Any

from fluxion.formats.writers import jgf_vertex
from fluxion.model.store import ResourceGraph

DOWN = 1
"""Fluxion's ``status`` of a vertex that may not be used. The status "up" is left out."""


def whole_jgf(graph: ResourceGraph) -> dict[str, Any]:
    """Return every vertex with its status, and every edge."""
    vertices = list(graph.postorder())
    return {
        "graph": {
            "nodes": [_with_status(graph, v) for v in vertices],
            "edges": [
                {"source": str(graph.uniq_id[graph.parent[v]]), "target": str(graph.uniq_id[v])}
                for v in vertices
                if graph.parent[v] >= 0
            ],
        }
    }


def _with_status(graph: ResourceGraph, v: int) -> dict[str, Any]:
    element = jgf_vertex(graph, v, is_exclusive=False)
    if v in graph.foreign:
        element["metadata"]["foreign"] = graph.foreign[v]
    if not graph.is_up(v):
        element["metadata"]["status"] = DOWN
    return element
