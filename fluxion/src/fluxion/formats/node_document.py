"""One more Kubernetes node as a JGF document for ``FluxionMatcher.attach``.

Called where a cluster's graph follows its nodes. Pure.
"""

from __future__ import annotations

from fluxion.formats.jgf import JgfDocument, JgfVertex
from fluxion.model.builder import vertex_of
from fluxion.model.from_nodes import graph_from_nodes
from fluxion.model.store import ResourceGraph
from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, Levels
from fluxqueue.fluxjob.node import NodeFact


def node_document(
    graph: ResourceGraph,
    fact: NodeFact,
    *,
    levels: Levels = DEFAULT_LEVELS,
    memory_granule_bytes: int = 0,
    takes_shares: bool = False,
) -> JgfDocument:
    """Return one more node for ``FluxionMatcher.attach``, with the levels above it.

    The node is what ``graph_from_nodes`` would have made. Its rank is one above the highest.
    """
    rank = max(graph.rank) + 1
    small = graph_from_nodes(
        [fact],
        levels=levels,
        cluster=graph.basename(0),
        memory_granule_bytes=memory_granule_bytes,
        takes_shares=takes_shares,
        present={graph.type_name(v) for v in graph.tops},
    )
    first = max(graph.uniq_id) + 1
    found = JgfDocument()
    for v in range(len(small)):
        vertex = vertex_of(small, v)
        vertex.path, vertex.uniq_id = small.path(v), first + v
        if small.block_of[v] >= 0:
            vertex.rank = rank
            if small.type_name(v) == "node":
                vertex.id = rank
        elif v and not graph.find_path(vertex.path):
            kind = small.type_of[v]
            vertex.id = sum(graph.type_of[top] == kind for top in graph.tops)
        found.vertices.append(JgfVertex(str(first + v), vertex))
        if v:
            found.edges.append((str(first + small.parent[v]), str(first + v)))
    return found
