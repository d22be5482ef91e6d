"""The resource graph: a containment tree compiled to flat, preorder-numbered arrays.

Built by ``GraphBuilder`` (fed by the readers); read by the matcher, the writers and ``find``. A
vertex is its preorder number, so a subtree is a range and the vertices of one *block* (a node and
all below it) are the bits of one integer. Holds what a graph *is*; what is booked on it lives in
``ledger.vertices``.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from fluxqueue.errors import InvalidGraph
from fluxqueue.fluxjob.levels import Levels
from fluxqueue.fluxjob.node import NodeFact

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


FULL_SHARE = 1 << 20
"""A type of which all is free counts so much when nodes are compared by how empty they are."""

MAX_SCORE = 1 << 62
"""Sort keys are 64-bit; graphs with larger ids are left to the reference walk."""
Numbers = npt.NDArray[np.int64]
ShapeKey = tuple[tuple[int, ...], tuple[int, ...], tuple[int, ...], tuple[int, ...]]

MAX_BLOCK = 4096
"""Largest block in a graph without nodes: a block's state is one integer of as many bits."""


class BlockClass:
    """The shape that many blocks share: everything about a node's subtree but names and its id.

    Vertices are numbered from the block's root, which is 0. ``type_mask[t]`` has the bits of all
    vertices of type ``t``; ``below(i)`` the bits of the subtree of ``i``, itself included;
    ``inner`` are the vertices with children, the root left out; ``lite_texts`` is the R_lite
    writer's memory of masks.
    """

    __slots__ = (
        "_units",
        "children",
        "ends",
        "full",
        "has_equal_pools",
        "ids",
        "inner",
        "lite_texts",
        "number",
        "parents",
        "postorder",
        "sizes",
        "type_mask",
        "types",
    )

    def __init__(
        self, number: int, types: list[int], parents: list[int], ids: list[int], sizes: list[int]
    ) -> None:
        self.number, self.types, self.parents, self.ids = number, types, parents, ids
        self.sizes = sizes
        self.full = (1 << len(types)) - 1
        self.children: list[list[int]] = [[] for _ in types]
        self.type_mask: dict[int, int] = {}
        self.lite_texts: dict[int, str] = {}
        self._units: tuple[tuple[int, int], ...] | None = None
        for i in range(1, len(types)):
            self.children[parents[i]].append(i)
        column = np.asarray(types)
        for kind in set(types):
            bits = np.packbits(column == kind, bitorder="little").tobytes()
            self.type_mask[kind] = int.from_bytes(bits, "little")
        self.ends = list(range(1, len(types) + 1))
        for i in range(len(types) - 1, 0, -1):
            self.ends[parents[i]] = max(self.ends[parents[i]], self.ends[i])
        self.postorder = _postorder(self.children)
        self.inner = tuple(i for i, below in enumerate(self.children) if i and below)
        self.has_equal_pools = all(
            len(set(np.asarray(sizes)[column == kind].tolist())) == 1 for kind in set(types)
        )

    def key(self) -> ShapeKey:
        """Equal for blocks that are alike."""
        return tuple(self.types), tuple(self.parents), tuple(self.ids), tuple(self.sizes)

    def below(self, i: int) -> int:
        """The bits of the subtree of ``i``."""
        return ((1 << (self.ends[i] - i)) - 1) << i

    def units_below(self) -> tuple[tuple[int, int], ...]:
        """Each type below the root that has units, and how many."""
        if self._units is None:
            mask = self.full & ~1
            found = ((kind, self.count(kind, mask)) for kind in self.type_mask)
            self._units = tuple((kind, total) for kind, total in found if total)
        return self._units

    def count(self, kind: int, mask: int) -> int:
        """Units of type ``kind`` among the vertices in ``mask``."""
        bits = mask & self.type_mask.get(kind, 0)
        if not bits:
            return 0
        if self.has_equal_pools:
            first = self.type_mask[kind]
            return bits.bit_count() * self.sizes[(first & -first).bit_length() - 1]
        return sum(self.sizes[i] for i in iterate_bits(bits))


def iterate_bits(mask: int) -> Iterator[int]:
    """The positions of the ones in ``mask``, ascending."""
    while mask:
        low = mask & -mask
        yield low.bit_length() - 1
        mask ^= low


def _postorder(children: list[list[int]]) -> list[int]:
    order: list[int] = []
    stack = [0]
    while stack:
        i = stack.pop()
        order.append(i)
        stack.extend(children[i])
    order.reverse()
    return order


@dataclass(slots=True)
class Block:
    """A node and all below it: vertices ``base`` to ``base + len(shape.types) - 1``."""

    base: int
    shape: BlockClass


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
        self._walk_order: tuple[int, Numbers] | None = None
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

    def walk_order(self) -> Numbers | None:
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


class Columns:
    """The columns of a graph as arrays, made once for all that looks at whole columns."""

    def __init__(self, graph: ResourceGraph) -> None:
        self.kinds = np.asarray(graph.type_of, dtype=np.int64)
        self.parents = np.asarray(graph.parent, dtype=np.int64)
        self.ids = np.asarray(graph.id, dtype=np.int64)
        self.sizes = np.asarray(graph.size, dtype=np.int64)


def compile_blocks(graph: ResourceGraph, columns: Columns) -> None:
    """Find the blocks (nodes, or the whole graph where there is none) and the shapes they share."""
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
    """The topmost nodes; in a graph without nodes, the largest subtrees of moderate size."""
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
