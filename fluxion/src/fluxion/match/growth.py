"""Updates a compiled graph when one node joins, leaves or changes.

Compiling the graph again is not needed. A joining node gets the next free numbers. A subtree above
the blocks is then no range any more (``ResourceGraph.subtree``), but parents still come before
children and siblings are in edge order. A leaving node keeps its numbers, unreachable, until the
graph is compiled again. ``match.edit`` handles everything except whole nodes that are added below a
vertex with nodes. ``FluxionMatcher`` calls this. Each function checks everything before it changes
anything.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, replace

from fluxion.formats.jgf import JgfDocument, JgfVertex
from fluxion.model.builder import MAX_DEPTH, GraphBuilder, vertex_of
from fluxion.model.shapes import Block, BlockClass
from fluxion.model.store import ResourceGraph
from fluxqueue.graph.match.policy import MAX_SCORE, NODE_FACTOR


@dataclass(slots=True)
class Joining:
    """A node that can be added as it is: the vertex above it, and a graph of the two."""

    anchor: int
    small: ResourceGraph


def find_joining(
    graph: ResourceGraph, document: JgfDocument, tracked: Iterable[int]
) -> list[Joining] | None:
    """Return the nodes that ``document`` adds, or None if it adds anything else.

    Raises
    ------
    InvalidGraph
        A cycle or another defect inside a node, as ``GraphBuilder.build``.
    """
    known: dict[str, int] = {}
    fresh: dict[str, JgfVertex] = {}
    for found in document.vertices:
        assert found.vertex.path is not None
        same = [v for v in graph.find_path(found.vertex.path) if graph.rank[v] == found.vertex.rank]
        if same:
            known[found.outer_id] = same[0]
        else:
            fresh[found.outer_id] = found
    below: dict[str, list[str]] = {}
    for source, target in document.edges:
        if target in fresh and (source in known or source in fresh):
            below.setdefault(source, []).append(target)
        elif source in fresh or source not in known or target not in known:
            return None
    joining: list[Joining] = []
    seen = 0
    for outer_id, anchor in known.items():
        for target in below.get(outer_id, ()):
            one = _join_one(graph, anchor, target, fresh, below)
            if one is None or not _fits(graph, one, set(tracked)):
                return None
            joining.append(one)
            seen += len(one.small) - 1
    return joining if seen == len(fresh) else None


def _join_one(
    graph: ResourceGraph,
    anchor: int,
    top: str,
    fresh: dict[str, JgfVertex],
    below: dict[str, list[str]],
) -> Joining | None:
    builder = GraphBuilder()
    builder.graph.types = list(graph.types)
    builder.graph.type_number = dict(graph.type_number)
    root = builder.add(replace(vertex_of(graph, anchor), path=None))
    stack = [(top, root, graph.path(anchor))]
    seen: set[str] = set()
    while stack:
        outer_id, parent, above = stack.pop()
        vertex = fresh[outer_id].vertex
        name = vertex.name
        if name is None:
            name = f"{vertex.basename}{vertex.id if vertex.id != -1 else ''}"
        if outer_id in seen or vertex.path != f"{above}/{name}":
            return None
        seen.add(outer_id)
        number = builder.add(replace(vertex, path=None), f"node {outer_id}")
        builder.connect(parent, number)
        stack += [(c, number, vertex.path) for c in reversed(below.get(outer_id, ()))]
    return Joining(anchor, builder.build())


def _fits(graph: ResourceGraph, one: Joining, tracked: set[int]) -> bool:
    """Return whether this node leaves all that is compiled for the whole graph unchanged."""
    small, anchor = one.small, one.anchor
    node = graph.type_number["node"]
    siblings = graph.children.get(anchor, ())
    if graph.block_of[anchor] >= 0 or not siblings or graph.block_of[siblings[0]] < 0:
        return False
    if len(small.types) > len(graph.types) or len(small.blocks) != 1 or small.block_of[0] >= 0:
        return False
    shape = small.blocks[0].shape
    leaves = {kind for kind, below in zip(shape.types, shape.children, strict=True) if not below}
    largest = max(map(abs, small.id)) + 2
    return (
        shape.types[0] == node
        and node not in shape.types[1:]
        and leaves <= tracked
        and small.consumable == graph.consumable & set(shape.types)
        and largest * NODE_FACTOR * (len(shape.types) + 1) < MAX_SCORE
        and graph.depth(anchor) + MAX_DEPTH // 2 < MAX_DEPTH
    )


def take_in(graph: ResourceGraph, one: Joining) -> int:
    """Append the node to the graph and return the number of its block."""
    small, anchor = one.small, one.anchor
    base = len(graph.type_of)
    shift = base - 1
    texts = [graph.text_number(text) for text in small.texts]
    graph.type_of += small.type_of[1:]
    graph.parent += [anchor if p == 0 else p + shift for p in small.parent[1:]]
    graph.end += [e + shift for e in small.end[1:]]
    graph.id += small.id[1:]
    graph.uniq_id += small.uniq_id[1:]
    graph.rank += small.rank[1:]
    graph.size += small.size[1:]
    graph.basename_of += [texts[i] for i in small.basename_of[1:]]
    for v, below in small.children.items():
        if v:
            graph.children[v + shift] = [c + shift for c in below]
    for mine, theirs in _side_tables(graph, small):
        mine.update((v + shift, value) for v, value in theirs.items() if v)
    graph.down.update(v + shift for v in small.down if v)
    number = len(graph.blocks)
    graph.blocks.append(Block(base, graph.shape_like(small.blocks[0].shape)))
    graph.block_of += [number] * (len(small) - 1)
    graph.children[anchor].append(base)
    graph.note_joined(number)
    return number


def _side_tables(graph: ResourceGraph, small: ResourceGraph) -> list[tuple[dict, dict]]:  # type: ignore[type-arg]
    return [
        (graph.names, small.names),
        (graph.units, small.units),
        (graph.properties, small.properties),
        (graph.other_paths, small.other_paths),
        (graph.foreign, small.foreign),
    ]


def can_leave(graph: ResourceGraph, v: int) -> bool:
    """Return whether ``v`` is a node that can leave with only sums above it changed."""
    number = graph.block_of[v]
    if number < 0 or graph.blocks[number].base != v or graph.parent[v] < 0:
        return False
    return graph.type_name(v) == "node" and len(graph.children[graph.parent[v]]) > 1


def resized(graph: ResourceGraph, v: int, size: int) -> BlockClass:
    """Return the shape of the block of ``v`` with another size of ``v``."""
    block = graph.blocks[graph.block_of[v]]
    shape = block.shape
    sizes = list(shape.sizes)
    sizes[v - block.base] = size
    return graph.shape_like(
        BlockClass(-1, list(shape.types), list(shape.parents), list(shape.ids), sizes)
    )
