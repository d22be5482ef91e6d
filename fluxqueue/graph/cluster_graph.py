"""A Flux containment graph of a Kubernetes cluster: cluster -> levels -> node -> core, gpu, memory.

Called by ``fluxqueue graph`` (export, picture) and ``resource-query --from-cluster`` (what if).
Vertices are whole things, so a node's free millicores become the whole cores that are left; the
scheduling cycle itself takes exact shares (``pools``). Node ids are positions in the given order,
which is the order in which ``pools`` fills nodes. Pure.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from fluxqueue.errors import InvalidGraph
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.fluxjob.request import CPU, MEMORY
from fluxqueue.graph.builder import GraphBuilder, Vertex
from fluxqueue.graph.store import ResourceGraph
from fluxqueue.graph.writers import jgf_vertex

MILLICORES = 1000
GIB = 1 << 30
MEMORY_VERTICES_MAX = 64
"""A node's memory is at most this many vertices, so that a terabyte is not a thousand of them."""

DEFAULT_LEVELS = ("topology.kubernetes.io/region", "topology.kubernetes.io/zone")
NO_VALUE = "none"
"""Name of the vertex for nodes that lack a level's label while others have it."""


def build_cluster_graph(
    nodes: Sequence[NodeFact],
    used: Mapping[str, Mapping[str, int]],
    *,
    levels: Sequence[str] = DEFAULT_LEVELS,
    is_whole: bool = False,
) -> ResourceGraph:
    """Build the graph of what is free (or, with ``is_whole``, of all there is).

    Parameters
    ----------
    nodes : in the order in which their ids are to count.
    used : node name -> resource -> base units taken by anybody.
    levels : node labels that become vertices between cluster and node, outermost first; one that
        no node carries is left out.

    Raises
    ------
    InvalidGraph
        There are no nodes.
    """
    if not nodes:
        raise InvalidGraph("the cluster has no nodes", where="nodes")
    maker = _Maker(used, is_whole=is_whole)
    present = [level for level in levels if any(level in node.labels for node in nodes)]
    for number, node in enumerate(nodes):
        maker.add_node(number, node, maker.place_of(node, present))
    return maker.builder.build()


class _Maker:
    """Adds vertices with running ids and remembers the level vertices it has made."""

    def __init__(self, used: Mapping[str, Mapping[str, int]], *, is_whole: bool) -> None:
        self.builder = GraphBuilder()
        self._used, self._is_whole = used, is_whole
        self._count = 0
        self._levels: dict[tuple[str, ...], int] = {}
        self._level_ids: dict[str, int] = {}
        self._root = self._add(Vertex("cluster"), None)

    def _add(self, vertex: Vertex, parent: int | None) -> int:
        vertex.uniq_id = self._count
        self._count += 1
        number = self.builder.add(vertex)
        if parent is not None:
            self.builder.connect(parent, number)
        return number

    def place_of(self, node: NodeFact, levels: Sequence[str]) -> int:
        """The vertex a node hangs below: one per combination of the levels' values."""
        parent, key = self._root, tuple[str, ...]()
        for level in levels:
            value = node.labels.get(level, NO_VALUE)
            key = (*key, value)
            if key not in self._levels:
                kind = level.rsplit("/", 1)[-1]
                number = self._level_ids[kind] = self._level_ids.get(kind, -1) + 1
                vertex = Vertex(kind, id=number, basename=value, name=value)
                self._levels[key] = self._add(vertex, parent)
            parent = self._levels[key]
        return parent

    def add_node(self, number: int, node: NodeFact, parent: int) -> None:
        """Add a node with its cores, GPUs and memory."""
        vertex = Vertex(
            "node",
            id=number,
            rank=number,
            basename=node.name,
            name=node.name,
            is_up=node.is_up and node.is_schedulable,
            properties=dict(node.labels),
        )
        place = self._add(vertex, parent)
        free = self._free(node)
        for core in range(max(0, free.get(CPU, 0)) // MILLICORES):
            self._add(Vertex("core", id=core, rank=number), place)
        gpus = sum(max(0, n) for name, n in free.items() if name.endswith("/gpu"))
        for gpu in range(gpus):
            self._add(Vertex("gpu", id=gpu, rank=number), place)
        self._add_memory(place, number, max(0, free.get(MEMORY, 0)) // GIB)

    def _add_memory(self, place: int, rank: int, gib: int) -> None:
        each = max(1, -(-gib // MEMORY_VERTICES_MAX))
        for pool in range(gib // each):
            self._add(Vertex("memory", id=pool, rank=rank, size=each, unit="GiB"), place)

    def _free(self, node: NodeFact) -> dict[str, int]:
        taken = {} if self._is_whole else self._used.get(node.name, {})
        return {name: amount - taken.get(name, 0) for name, amount in node.capacity.items()}


def whole_jgf(graph: ResourceGraph) -> dict[str, object]:
    """The whole graph as JGF, which any Fluxion loads."""
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


def _with_status(graph: ResourceGraph, v: int) -> dict[str, object]:
    element = jgf_vertex(graph, v, is_exclusive=False)
    if not graph.is_up(v):
        element["metadata"]["status"] = 1
    return element
