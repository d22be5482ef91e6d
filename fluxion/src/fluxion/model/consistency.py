"""Checks with networkx that an input is a tree. The errors name the place.

The builder calls it for graphs with vertices that are not in preorder. Graphs in preorder cannot
have a cycle. Only vertices with children are checked: a leaf closes no cycle, and a networkx graph
of all cores of a cluster would take half a gigabyte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fluxqueue.errors import InvalidGraph


def check_tree(
    root: int, children: Mapping[int, Sequence[int]], label: Callable[[int], str]
) -> None:
    """Raise unless the vertices below ``root`` form a tree.

    Every vertex has at most one parent when this is called.

    Raises
    ------
    InvalidGraph
        There is a cycle (the message shows its vertices), or vertices cannot be reached.
    """
    import networkx as nx  # Imported here because it would slow the start of every worker.

    skeleton: nx.DiGraph[int] = nx.DiGraph()
    skeleton.add_node(root)
    for above, below in children.items():
        skeleton.add_node(above)
        skeleton.add_edges_from((above, v) for v in below if v in children)
    if nx.is_arborescence(skeleton):
        return
    if not nx.is_directed_acyclic_graph(skeleton):
        circle = [v for v, _ in nx.find_cycle(skeleton)]
        shown = " > ".join(label(v) for v in (*circle, circle[0]))
        raise InvalidGraph(f"has a cycle: {shown}", where="graph", value=label(min(circle)))
    reached = nx.descendants(skeleton, root) | {root}
    lost = min(set(skeleton) - reached)
    raise InvalidGraph("cannot be reached from the root", where="graph", value=label(lost))
