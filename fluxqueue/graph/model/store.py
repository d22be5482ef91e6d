"""The resource graph: a containment tree compiled to flat, preorder-numbered arrays.

Built by ``GraphBuilder`` (fed by the readers); read by the matcher, the writers and ``find``. A
vertex is its preorder number, so a subtree is a range and the vertices of one *block* (a node and
all below it) are the bits of one integer. Holds what a graph *is*; what is booked on it lives in
``ledger.vertices``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass

import numpy as np

from fluxqueue.errors import InvalidGraph
from fluxqueue.fluxjob.levels import Levels
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.graph.model.arrays import Vector
from fluxqueue.graph.model.shapes import Block, BlockClass, ShapeKey

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
"""Fluxion's first interned types; later ones follow in order of appearance. The order decides the
order of types in a pruning filter and in R_lite (flux-sched, resource/schema/data_std.cpp)."""


@dataclass(frozen=True, slots=True)
class ClusterNodes:
    """The Kubernetes nodes that a graph of shares stands for, by name, and its levels."""

    levels: Levels
    facts: Mapping[str, NodeFact]


class ResourceGraph:
    """The compiled tree. Arrays are indexed by vertex; 0 is the root.

    ``end[v]`` is one past the last vertex of the subtree of ``v``; ``block_of[v]`` is -1 for
    vertices above (or beside) all blocks. ``consumable`` are the types of which a job takes a
    share; in a graph read from Fluxion's formats there are none unless they are declared.
    ``foreign`` is what others than our jobs use of a pool: not free, but not for ever. ``gone``
    are blocks that left; their numbers stay until the graph is compiled again. ``version`` counts
    the changes since then. ``cluster``: what the graph was made of, where it is a cluster whose
    nodes are given in shares (``from_nodes``).
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
        """The vertex's name: its own, else basename and id (no id when it is -1)."""
        own = self.names.get(v)
        if own is not None:
            return own
        number = self.id[v]
        return self.basename(v) + (str(number) if number != -1 else "")

    def path(self, v: int) -> str:
        """The containment path, ``/cluster0/rack0/node3``."""
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
        """Levels from the root, which has depth 1."""
        depth = 0
        while v >= 0:
            depth += 1
            v = self.parent[v]
        return depth

    def find_path(self, path: str) -> list[int]:
        """The vertices at ``path``; more than one only if their ranks differ."""
        if self.paths:
            return self._path_index().get(path, [])
        top, slash, rest = path[1:].partition("/")
        if not path.startswith("/") or top != self.name(0):
            return []
        return sorted(self._descend(0, rest.split("/"))) if slash else [0]

    def _path_index(self) -> dict[str, list[int]]:
        """All paths; needed where some vertex states another than its place gives it."""
        if self._by_path is None:
            self._by_path = {}
            for v, own in enumerate(self.all_paths()):
                if self.block_of[v] not in self.gone:
                    self._by_path.setdefault(own, []).append(v)
        return self._by_path

    def _descend(self, v: int, parts: list[str]) -> Iterator[int]:
        """Vertices below ``v`` by the parts of their path; a name may itself contain slashes."""
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
        """The paths of all vertices, in vertex order."""
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
        """All vertices of one broker rank, ascending."""
        if self._by_rank is None:
            self._by_rank = {}
            for v, number in enumerate(self.rank):
                if number != -1 and self.block_of[v] not in self.gone:
                    self._by_rank.setdefault(number, []).append(v)
        return self._by_rank.get(rank, [])

    def subtree(self, v: int) -> Iterable[int]:
        """``v`` and everything below it; a range unless nodes joined after it was compiled."""
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
        """The blocks in the order of a walk; None while that is the order of their numbers."""
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

    # -- one node more or less (graph.growth) -------------------------------------------------

    def text_number(self, text: str) -> int:
        """The number of a basename."""
        if not self._text_numbers:
            self._text_numbers = {known: i for i, known in enumerate(self.texts)}
        number = self._text_numbers.setdefault(text, len(self.texts))
        if number == len(self.texts):
            self.texts.append(text)
        return number

    def shape_like(self, shape: BlockClass) -> BlockClass:
        """The graph's own shape that equals ``shape``; a new one gets the next number."""
        if not self._shape_index:
            self._shape_index = {known.key(): known for known in self.shapes}
        known = self._shape_index.get(shape.key())
        if known is None:
            known = self._shape_index[shape.key()] = shape
            shape.number = len(self.shapes)
            self.shapes.append(shape)
        return known

    def note_joined(self, number: int) -> None:
        """A block is there; the indexes learn of it."""
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
        """Take a block out of reach; its parent must have other children."""
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
        """The subtree of ``v``, children in edge order before their parent."""
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
        """Let shares be taken of all vertices of these types, as of millicores and bytes.

        Raises
        ------
        InvalidGraph
            The graph has no such type, or a vertex of it contains others.
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
        """Whether ``v`` and everything above it is up."""
        while v >= 0:
            if v in self.down:
                return False
            v = self.parent[v]
        return True
