"""Circles of dependencies: those who wait for themselves by way of others never start. Pure.

Called by ``db.life.dependencies``; stands apart from ``dependency``, which the webhook imports and
which therefore knows no networkx. Nor does a process load it before somebody asks: it is a seventh
of what a controller imports.
"""

from __future__ import annotations

from collections.abc import Iterable

_BACK = ""
"""Stands for the start where a way comes back to it; no UID is empty."""


def shortest_circle(start: str, edges: Iterable[tuple[str, str]]) -> list[str]:
    """The shortest way from ``start`` along ``edges`` back to itself, both ends named.

    Empty where there is none. The same for the same edges, in whatever order they come.

    Parameters
    ----------
    edges : pairs (who waits, for whom).
    """
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph(sorted(edges))
    if start not in graph:
        return []
    graph.add_edges_from([(before, _BACK) for before in graph.predecessors(start)])
    if _BACK not in graph or not nx.has_path(graph, start, _BACK):
        return []
    return [*nx.shortest_path(graph, start, _BACK)[:-1], start]
