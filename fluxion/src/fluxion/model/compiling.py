"""Finds the blocks of a graph, and which blocks share a shape.

This is the last step of ``GraphBuilder.build``. It works on whole columns. Pure.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from fluxion.model.shapes import Block, BlockClass
from fluxion.model.store import ResourceGraph

MAX_BLOCK = 4096
"""Largest block in a graph without nodes.

The state of a block is an integer of that many bits.
"""


class NodeColumns:
    """The columns of a graph as arrays, made once for all readers of whole columns."""

    def __init__(self, graph: ResourceGraph) -> None:
        self.kinds = np.asarray(graph.type_of, dtype=np.int64)
        self.parents = np.asarray(graph.parent, dtype=np.int64)
        self.ids = np.asarray(graph.id, dtype=np.int64)
        self.sizes = np.asarray(graph.size, dtype=np.int64)


def compile_blocks(graph: ResourceGraph, columns: NodeColumns) -> None:
    """Find the blocks and the shapes that they share, and store both in the graph.

    Blocks are the nodes. A graph without nodes is one block, or several of moderate size.
    """
    roots = _block_roots(graph)
    graph.block_of = [-1] * len(graph)
    kinds, parents = columns.kinds, columns.parents
    ids, sizes = columns.ids, columns.sizes
    known: dict[tuple[bytes, bytes, bytes, bytes], BlockClass] = {}
    covered = 0
    tops: list[int] = []
    for number, base in enumerate(roots):
        end = graph.end[base]
        tops.extend(range(covered, base))
        covered = end
        part = slice(base, end)
        below = slice(base + 1, end)
        relative = parents[below] - base
        key = (
            kinds[part].tobytes(),
            relative.tobytes(),
            ids[below].tobytes(),
            sizes[part].tobytes(),
        )
        shape = known.get(key)
        if shape is None:
            shape = BlockClass(
                len(known),
                kinds[part].tolist(),
                [-1, *relative.tolist()],
                [0, *ids[below].tolist()],
                sizes[part].tolist(),
            )
            known[key] = shape
        graph.blocks.append(Block(base, shape))
        graph.block_of[base:end] = [number] * (end - base)
    tops.extend(range(covered, len(graph)))
    graph.tops = tops
    graph.shapes = list(known.values())


def _block_roots(graph: ResourceGraph) -> Sequence[int]:
    """Return the topmost nodes, or the largest subtrees of moderate size if there are no nodes."""
    node = graph.type_number["node"]
    if node not in graph.type_of:
        return _moderate_subtrees(graph)
    roots: list[int] = []
    v = 0
    kinds, end = graph.type_of, graph.end
    while v < len(graph):
        if kinds[v] == node:
            roots.append(v)
            v = end[v]
        else:
            v += 1
    return roots


def _moderate_subtrees(graph: ResourceGraph) -> list[int]:
    roots: list[int] = []
    v = 0
    while v < len(graph):
        if graph.end[v] - v <= MAX_BLOCK:
            roots.append(v)
            v = graph.end[v]
        else:
            v += 1
    return roots
