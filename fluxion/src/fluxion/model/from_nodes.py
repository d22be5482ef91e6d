"""A Flux graph from Kubernetes nodes.

Its levels are cluster -> topology levels -> node -> cores, gpus, memory. ``resource-query
--from-cluster`` and ``fluxqueue graph`` call it. They answer what-if questions in Flux's words,
over whole vertices or over shares of pools. The scheduling cycle uses such shares too
(``graph.match.shares``). Columns are filled node by node, not vertex by vertex: 10,000 nodes of 64
cores take a fraction of a second.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable, Mapping

from fluxion.model.builder import GraphBuilder, Vertex
from fluxion.model.store import ClusterNodes, ResourceGraph
from fluxqueue.errors import InvalidGraph
from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, UNKNOWN, Levels, levels_in_use, path_of
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.graph.ledger.shares import collection_paused

GPU_RESOURCES = ("nvidia.com/gpu", "amd.com/gpu", "gpu.intel.com/i915")
UNITS = {"cpu": "m", "memory": "B", "ephemeral-storage": "B"}
MAX_UNITS = 100_000
"""Most units of one resource that a node may have as vertices."""


def graph_from_nodes(
    facts: Iterable[NodeFact],
    *,
    levels: Levels = DEFAULT_LEVELS,
    cluster: str = "cluster",
    memory_granule_bytes: int = 0,
    takes_shares: bool = False,
    foreign: Mapping[str, Mapping[str, int]] | None = None,
    present: Collection[str] = (),
) -> ResourceGraph:
    """Build the graph. The nodes get the ranks 0, 1, ... in the order given.

    Parameters
    ----------
    levels
        The topology levels from the top down. A level that no node is labelled for is left out. If
        some nodes have the label, a node without it stands below a vertex of type ``unknown``.
    memory_granule_bytes
        Size of one memory vertex. 0 leaves memory out. Flux allocates only whole vertices.
    takes_shares
        Give every node one consumable pool per resource instead of cores, gpus and granules. A pool
        has the Kubernetes name of its resource and base units (``cpu`` in millicores, ``memory`` in
        bytes). Jobs take shares of the pools. This is the data model of the scheduling cycle.
    foreign
        With ``takes_shares``: what unmanaged pods use, by node, in base units.
    present
        Names of levels to keep even if none of ``facts`` is labelled for them.

    Raises
    ------
    InvalidGraph
        Two nodes have the same name in the same place, or a node has more than 100,000 units of a
        resource.
    """
    with collection_paused():
        used = foreign or {}
        facts = list(facts)
        labelled = levels_in_use(levels, facts)
        used_levels = tuple(one for one in levels if one in labelled or one.name in present)

        def fill(builder: GraphBuilder, node: int, fact: NodeFact, rank: int) -> None:
            if takes_shares:
                _add_pools(builder, node, fact, rank, used.get(fact.name, {}))
            else:
                _add_units(builder, node, fact, rank, memory_granule_bytes)

        graph = _build(facts, used_levels, cluster, fill)
        if takes_shares:
            graph.cluster = ClusterNodes(levels, {fact.name: fact for fact in facts})
        return graph


def _build(
    facts: Iterable[NodeFact],
    levels: Levels,
    cluster: str,
    fill: Callable[[GraphBuilder, int, NodeFact, int], None],
) -> ResourceGraph:
    builder = GraphBuilder()
    root = builder.add(Vertex("cluster", basename=cluster))
    groups: dict[tuple[str, ...], int] = {(): root}
    counters: dict[str, int] = {}

    def place_of(ranked: tuple[int, NodeFact]) -> tuple[tuple[str, ...], int]:
        rank, fact = ranked
        return tuple(place or "" for place in path_of(levels, fact.labels)), rank

    # Nodes of one place stand together, so numbers are in preorder and compiling is quick.
    for rank, fact in sorted(enumerate(facts), key=place_of):
        parent = _level_vertex(builder, groups, counters, fact, levels)
        fill(builder, _add_node(builder, parent, fact, rank), fact, rank)
    return builder.build()


def _level_vertex(
    builder: GraphBuilder,
    groups: dict[tuple[str, ...], int],
    counters: dict[str, int],
    fact: NodeFact,
    levels: Levels,
) -> int:
    place: tuple[str, ...] = ()
    parent = groups[place]
    for level, name in zip(levels, path_of(levels, fact.labels), strict=True):
        kind = level.name
        if name is None:
            if place[-1:] == (UNKNOWN,):
                continue
            kind, name = UNKNOWN, UNKNOWN
        place = (*place, kind, name)
        known = groups.get(place)
        if known is None:
            number = counters[kind] = counters.get(kind, -1) + 1
            uniq_id = len(builder.kinds)
            known = builder.add(Vertex(kind, id=number, uniq_id=uniq_id, name=name), name)
            builder.connect(parent, known)
            groups[place] = known
        parent = known
    return parent


def _add_node(builder: GraphBuilder, parent: int, fact: NodeFact, rank: int) -> int:
    node = builder.add(
        Vertex(
            "node",
            id=rank,
            uniq_id=len(builder.kinds),
            name=fact.name,
            rank=rank,
            is_up=fact.is_up and fact.is_schedulable,
            properties=dict(fact.labels),
        ),
        fact.name,
    )
    builder.connect(parent, node)
    return node


def _add_pools(
    builder: GraphBuilder, node: int, fact: NodeFact, rank: int, used: Mapping[str, int]
) -> None:
    """Add one pool per resource.

    Unmanaged pods may use more of a resource than the node has. Then nothing of it is left.
    """
    for name, size in sorted(fact.capacity.items()):
        if size > 0:
            pool = Vertex(
                name,
                uniq_id=len(builder.kinds),
                rank=rank,
                size=size,
                unit=UNITS.get(name, ""),
                is_consumable=True,
                foreign=min(used.get(name, 0), size),
            )
            builder.connect(node, builder.add(pool, fact.name))


def _add_units(
    builder: GraphBuilder, node: int, fact: NodeFact, rank: int, memory_granule_bytes: int
) -> None:
    for kind, count in _units(fact, memory_granule_bytes).items():
        if count > MAX_UNITS:
            raise InvalidGraph(f"has {count} units of {kind}", where=f"node {fact.name}")
        first = len(builder.kinds)
        numbers = list(range(first, first + count))
        builder.kinds += [builder.intern_type(kind)] * count
        builder.basenames += [builder.intern_text(kind)] * count
        builder.ids += range(count)
        builder.uniq_ids += numbers
        builder.ranks += [rank] * count
        builder.sizes += [1] * count
        builder.parents += [node] * count
        builder.children.setdefault(node, []).extend(numbers)


def _units(fact: NodeFact, memory_granule_bytes: int) -> Mapping[str, int]:
    """Return the number of whole vertices by type. Parts of a core or granule are not offered."""
    found = {"core": fact.capacity.get("cpu", 0) // 1000}
    found["gpu"] = sum(fact.capacity.get(name, 0) for name in GPU_RESOURCES)
    if memory_granule_bytes:
        found["memory"] = fact.capacity.get("memory", 0) // memory_granule_bytes
    return {kind: count for kind, count in found.items() if count > 0}
