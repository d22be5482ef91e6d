"""Whether what was read is a tree, told by networkx: the errors name the place.

Called by the builder for graphs whose vertices do not come in preorder (those that do cannot have
a circle). Only vertices with something below them are looked at: a leaf closes no circle, and a
networkx graph of all cores of a cluster would take half a gigabyte.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

from fluxqueue.errors import InvalidGraph


def check_tree(
    root: int, children: Mapping[int, Sequence[int]], label: Callable[[int], str]
) -> None:
    """Refuse what is no tree below ``root``; every vertex has one parent at most.

    Raises
    ------
    InvalidGraph
        A circle, with the vertices on it; or vertices that cannot be reached.
    """
    import networkx as nx  # not at the start of every worker

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
