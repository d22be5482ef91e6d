"""Circles of dependencies: a job that waits for itself by way of others never starts. Pure.

``db.store.dependencies`` calls it. It is separate from ``dependency``, because the webhook imports
that module and must not load networkx. Networkx is a seventh of what a controller imports, so it is
loaded at the first use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable

_BACK = ""
"""The node for the start when a path returns to it. No UID is empty."""


def shortest_circle(start: str, edges: Iterable[tuple[str, str]]) -> list[str]:
    """Return the shortest path from ``start`` along ``edges`` back to itself.

    Parameters
    ----------
    edges : Pairs (waiting job, job that it waits for).

    Returns
    -------
    The names on the path, with ``start`` at both ends. Empty if there is no circle. The order of
    the edges does not change the result.
    """
    import networkx as nx

    graph: nx.DiGraph[str] = nx.DiGraph(sorted(edges))
    if start not in graph:
        return []
    graph.add_edges_from([(before, _BACK) for before in graph.predecessors(start)])
    if _BACK not in graph or not nx.has_path(graph, start, _BACK):
        return []
    return [*nx.shortest_path(graph, start, _BACK)[:-1], start]


def shortest_circles(
    starts: Collection[str], edges: Iterable[tuple[str, str]]
) -> dict[str, list[str]]:
    """Return the shortest circle of each start that is in one.

    The graph is read once for all starts, so a long chain of jobs costs no more for many of them.

    Parameters
    ----------
    edges : As for ``shortest_circle``.
    """
    import networkx as nx

    known = sorted(set(edges))
    graph: nx.DiGraph[str] = nx.DiGraph(known)
    found: dict[str, list[str]] = {}
    alone = {one for one, other in known if one == other}
    for members in nx.strongly_connected_components(graph):
        inside = members.intersection(starts)
        if not inside or (len(members) == 1 and not members & alone):
            continue
        # A circle never leaves its component.
        own = [(one, other) for one, other in known if one in members and other in members]
        if own:
            found.update((start, shortest_circle(start, own)) for start in sorted(inside))
    return found
