"""The resource graph: a containment tree compiled to flat arrays in preorder.

``GraphBuilder`` builds it from what the readers find. The matcher, the writers and ``find`` read
it. A vertex is its preorder number, so a subtree is a range. The vertices of one *block* (a node
with all vertices below it) are the bits of one integer. This module holds what a graph *is*. What
is booked on it is in ``ledger.vertices``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fluxion.model.shapes import Block, BlockClass, ShapeKey
from fluxqueue.errors import InvalidGraph
from fluxqueue.fluxjob.levels import Levels
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.graph.arrays import Vector

FIXED_TYPES = (
    "cluster",
    "core",
    "socket",
    "gpu",
    "node",
    "rack",
    "slot",
    "xor_slot",
    "ssd",
    "storage_node",
)
"""Fluxion's first interned types.

Further types follow in order of appearance. The order decides the order of types in a pruning
filter and in R_lite (flux-sched, resource/schema/data_std.cpp).
"""


@dataclass(frozen=True, slots=True)
class ClusterNodes:
    """The Kubernetes nodes, by name, and the levels that a graph of shares was built from."""

    levels: Levels
    facts: Mapping[str, NodeFact]


class ResourceGraph:
    """The compiled tree. Arrays are indexed by vertex, and vertex 0 is the root.

    ``end[v]`` is one past the last vertex of the subtree of ``v``. ``block_of[v]`` is -1 for
    vertices outside all blocks. ``consumable`` are the types of which a job takes a share. A graph
    that was read from Fluxion's formats has none unless they are declared. ``foreign`` is what
    unmanaged pods use of a pool: it is not free now, but may be later. ``gone`` are blocks that
    were removed. Their numbers stay until the graph is compiled again. ``version`` counts the
    changes since it was compiled. ``cluster`` is set if the graph was built from the nodes of a
    cluster in shares (``fluxion.model.from_nodes``).
    """

    def __init__(self) -> None:
        self.types: list[str] = list(FIXED_TYPES)
        self.type_number: dict[str, int] = {t: i for i, t in enumerate(FIXED_TYPES)}
        self.texts: list[str] = []
        self.type_of: list[int] = []
        self.parent: list[int] = []
        self.end: list[int] = []
        self.id: list[int] = []
        self.uniq_id: list[int] = []
        self.rank: list[int] = []
        self.size: list[int] = []
        self.basename_of: list[int] = []
        self.children: dict[int, list[int]] = {}
        self.names: dict[int, str] = {}
        self.paths: dict[int, str] = {}
        self.units: dict[int, str] = {}
        self.properties: dict[int, dict[str, str]] = {}
        self.other_paths: dict[int, dict[str, str]] = {}
        self.down: set[int] = set()
        self.consumable: set[int] = set()
        self.foreign: dict[int, int] = {}
        self.gone: set[int] = set()
        self.cluster: ClusterNodes | None = None
        self.version = 0
        self.block_of: list[int] = []
        self.blocks: list[Block] = []
        self.shapes: list[BlockClass] = []
        self.tops: list[int] = []
        self._by_path: dict[str, list[int]] | None = None
        self._by_rank: dict[int, list[int]] | None = None
        self._by_name: dict[int, dict[str, list[int]]] = {}
        self.has_joined = False
        self._walk_order: tuple[int, Vector] | None = None
        self._text_numbers: dict[str, int] = {}
        self._shape_index: dict[ShapeKey, BlockClass] = {}

    def __len__(self) -> int:
        return len(self.type_of)

    def type_name(self, v: int) -> str:
        return self.types[self.type_of[v]]

    def basename(self, v: int) -> str:
        return self.texts[self.basename_of[v]]

    def name(self, v: int) -> str:
        """Return the vertex's own name, or basename and id (without the id when it is -1)."""
        own = self.names.get(v)
        if own is not None:
            return own
        number = self.id[v]
        return self.basename(v) + (str(number) if number != -1 else "")

    def path(self, v: int) -> str:
        """Return the containment path, such as ``/cluster0/rack0/node3``."""
        parts: list[str] = []
        while v >= 0:
            own = self.paths.get(v)
            if own is not None:
                parts.append(own)
                break
            parts.append("/" + self.name(v))
            v = self.parent[v]
        return "".join(reversed(parts))

    def depth(self, v: int) -> int:
        """Return the number of levels from the root, which has depth 1."""
        depth = 0
        while v >= 0:
            depth += 1
            v = self.parent[v]
        return depth

    def find_path(self, path: str) -> list[int]:
        """Return the vertices at ``path``. There are several only if their ranks differ."""
        if self.paths:
            return self._path_index().get(path, [])
        top, slash, rest = path[1:].partition("/")
        if not path.startswith("/") or top != self.name(0):
            return []
        return sorted(self._descend(0, rest.split("/"))) if slash else [0]

    def _path_index(self) -> dict[str, list[int]]:
        """Return the index of all paths, needed if a vertex states an unusual path."""
        if self._by_path is None:
            self._by_path = {}
            for v, own in enumerate(self.all_paths()):
                if self.block_of[v] not in self.gone:
                    self._by_path.setdefault(own, []).append(v)
        return self._by_path

    def _descend(self, v: int, parts: list[str]) -> Iterator[int]:
        """Yield the vertices below ``v`` at the path ``parts``.

        A name may contain slashes itself.
        """
        for length in range(1, len(parts) + 1):
            name = "/".join(parts[:length])
            for child in self._named_children(v).get(name, ()):
                if length == len(parts):
                    yield child
                else:
                    yield from self._descend(child, parts[length:])

    def _named_children(self, v: int) -> dict[str, list[int]]:
        known = self._by_name.get(v)
        if known is None:
            known = {}
            for child in self.children.get(v, ()):
                known.setdefault(self.name(child), []).append(child)
            if self.block_of[v] < 0:
                self._by_name[v] = known
        return known

    def all_paths(self) -> list[str]:
        """Return the paths of all vertices, in vertex order."""
        found: list[str] = []
        parent, own = self.parent, self.paths
        for v in range(len(self)):
            if v in own:
                found.append(own[v])
            elif parent[v] < 0:
                found.append("/" + self.name(v))
            else:
                found.append(f"{found[parent[v]]}/{self.name(v)}")
        return found

    def by_rank(self, rank: int) -> list[int]:
        """Return all vertices of one broker rank, ascending."""
        if self._by_rank is None:
            self._by_rank = {}
            for v, number in enumerate(self.rank):
                if number != -1 and self.block_of[v] not in self.gone:
                    self._by_rank.setdefault(number, []).append(v)
        return self._by_rank.get(rank, [])

    def subtree(self, v: int) -> Iterable[int]:
        """Return ``v`` and all vertices below it: a range unless nodes joined after compiling."""
        if self.block_of[v] >= 0 or not self.version:
            return range(v, self.end[v])
        return self._reach(v)

    def _reach(self, v: int) -> Iterator[int]:
        stack = [v]
        while stack:
            u = stack.pop()
            if self.block_of[u] >= 0:
                yield from range(u, self.end[u])
            else:
                yield u
                stack.extend(self.children.get(u, ()))

    def walk_order(self) -> Vector | None:
        """Return the blocks in the order of a walk, or None if they are numbered in that order."""
        if not self.has_joined:
            return None
        if self._walk_order is None or self._walk_order[0] != self.version:
            found: list[int] = []
            stack = [0]
            while stack:
                v = stack.pop()
                if self.block_of[v] >= 0:
                    found.append(self.block_of[v])
                else:
                    stack.extend(reversed(self.children.get(v, ())))
            self._walk_order = self.version, np.asarray(found, dtype=np.int64)
        return self._walk_order[1]

    # -- adding and removing one node (graph.growth) -------------------------------------------

    def text_number(self, text: str) -> int:
        """Return the number of a basename. A new one gets the next number."""
        if not self._text_numbers:
            self._text_numbers = {known: i for i, known in enumerate(self.texts)}
        number = self._text_numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number

    def shape_like(self, shape: BlockClass) -> BlockClass:
        """Return the graph's own shape that equals ``shape``. A new shape gets the next number."""
        if not self._shape_index:
            self._shape_index = {known.key(): known for known in self.shapes}
        known = self._shape_index.get(shape.key())
        if known is None:
            known = self._shape_index[shape.key()] = shape
            shape.number = len(self.shapes)
            self.shapes.append(shape)
        return known

    def note_joined(self, number: int) -> None:
        """Update the indexes after a block was added."""
        base = self.blocks[number].base
        self._by_path = None
        self.has_joined = True
        known = self._by_name.get(self.parent[base])
        if known is not None:
            known.setdefault(self.name(base), []).append(base)
        if self._by_rank is not None:
            for v in range(base, self.end[base]):
                if self.rank[v] != -1:
                    self._by_rank.setdefault(self.rank[v], []).append(v)
        self.version += 1

    def drop(self, number: int) -> None:
        """Make a block unreachable. Its parent must have other children."""
        base = self.blocks[number].base
        above = self.parent[base]
        self._by_path = None
        known = self._by_name.get(above)
        if known is not None:
            known[self.name(base)].remove(base)
        self.children[above].remove(base)
        for v in range(base, self.end[base]):
            if self._by_rank is not None and self.rank[v] != -1:
                self._by_rank[self.rank[v]].remove(v)
            for table in (self.names, self.paths, self.units, self.properties, self.other_paths):
                table.pop(v, None)
            self.foreign.pop(v, None)
            self.down.discard(v)
        self.gone.add(number)
        self.version += 1

    def postorder(self, v: int = 0) -> Iterator[int]:
        """Yield the subtree of ``v``, children in edge order before their parent."""
        stack = [(v, iter(self.children.get(v, ())))]
        while stack:
            u, pending = stack[-1]
            child = next(pending, None)
            if child is None:
                stack.pop()
                yield u
            else:
                stack.append((child, iter(self.children.get(child, ()))))

    def declare_consumable(self, names: Iterable[str]) -> None:
        """Let jobs take shares of all vertices of these types, such as millicores and bytes.

        Raises
        ------
        InvalidGraph
            The graph has no such type, or a vertex of that type has children.
        """
        kinds: set[int] = set()
        for name in names:
            kind = self.type_number.get(name)
            if kind is None or kind not in self.type_of:
                raise InvalidGraph("the graph has none of it", where="consumable", value=name)
            kinds.add(kind)
        for v in self.children:
            if self.type_of[v] in kinds:
                raise InvalidGraph(
                    "a consumable pool contains nothing", where="consumable", value=self.path(v)
                )
        self.consumable |= kinds

    def is_up(self, v: int) -> bool:
        """Return whether ``v`` and all vertices above it are up."""
        while v >= 0:
            if v in self.down:
                return False
            v = self.parent[v]
        return True
