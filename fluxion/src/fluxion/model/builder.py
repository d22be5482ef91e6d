"""Builds a graph from vertices and edges that arrive in any order.

``GraphBuilder`` checks that they form a tree and compiles the ``ResourceGraph``. The readers (GRUG,
JGF, rv1exec, Kubernetes nodes) call it. Every error is an ``InvalidGraph`` that names the vertex.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np

from fluxion.model.compiling import NodeColumns, compile_blocks
from fluxion.model.consistency import check_tree
from fluxion.model.store import ResourceGraph
from fluxqueue.errors import InvalidGraph

MAX_SIZE = (1 << 62) - 1
MAX_DEPTH = 100


@dataclass(slots=True)
class Vertex:
    """One vertex as a reader found it.

    ``name`` and ``path`` are None when they have their defaults. ``other_paths`` are its paths in
    subsystems other than containment, and only JGF shows them. If ``is_consumable`` is set, jobs
    take shares of all vertices of this type. ``foreign`` is what unmanaged pods use of the vertex,
    in its units.
    """

    type: str
    id: int = 0
    uniq_id: int = 0
    basename: str = ""
    name: str | None = None
    rank: int = -1
    size: int = 1
    unit: str = ""
    is_up: bool = True
    path: str | None = None
    properties: dict[str, str] = field(default_factory=dict)
    other_paths: dict[str, str] = field(default_factory=dict)
    is_consumable: bool = False
    foreign: int = 0


class GraphBuilder:
    """Vertices and edges as columns, before they are compiled.

    ``add`` numbers the vertices. ``connect`` makes edges, and their order is the order of the
    children.
    """

    def __init__(self) -> None:
        self.graph = ResourceGraph()
        self.kinds: list[int] = []
        self.ids: list[int] = []
        self.uniq_ids: list[int] = []
        self.ranks: list[int] = []
        self.sizes: list[int] = []
        self.basenames: list[int] = []
        self.names: dict[int, str] = {}
        self.paths: dict[int, str] = {}
        self.units: dict[int, str] = {}
        self.properties: dict[int, dict[str, str]] = {}
        self.other_paths: dict[int, dict[str, str]] = {}
        self.down: set[int] = set()
        self.consumable: set[str] = set()
        self.foreign: dict[int, int] = {}
        self.parents: list[int] = []
        self.children: dict[int, list[int]] = {}
        self.above_codes: list[int] = []
        self.above_texts: list[str] = []
        self.final_order: list[int] = []
        self._texts: dict[str, int] = {}

    def intern_type(self, kind: str) -> int:
        """Return the number of a type. A new type gets the next number."""
        number = self.graph.type_number.get(kind)
        if number is None:
            number = self.graph.type_number[kind] = len(self.graph.types)
            self.graph.types.append(kind)
        return number

    def intern_text(self, text: str) -> int:
        number = self._texts.get(text)
        if number is None:
            number = self._texts[text] = len(self.graph.texts)
            self.graph.texts.append(text)
        return number

    def add(self, vertex: Vertex, where: str = "graph") -> int:
        """Add one vertex and return its number, which counts the calls of ``add``.

        Raises
        ------
        InvalidGraph
            The vertex has no type, or its size is outside 0 to 2^62.
        """
        if not vertex.type:
            raise InvalidGraph("a vertex needs a type", where=where)
        if not 0 <= vertex.size <= MAX_SIZE:
            raise InvalidGraph("size is out of range", where=where, value=vertex.size)
        number = len(self.kinds)
        self.add_plain(
            self.intern_type(vertex.type),
            self.intern_text(vertex.basename or vertex.type),
            vertex.id,
            vertex.uniq_id,
            vertex.rank,
            vertex.size,
        )
        if vertex.name is not None:
            self.names[number] = vertex.name
        if vertex.path is not None:
            self.paths[number] = vertex.path
        if vertex.unit:
            self.units[number] = vertex.unit
        if vertex.properties:
            self.properties[number] = dict(vertex.properties)
        if vertex.other_paths:
            self.other_paths[number] = dict(vertex.other_paths)
        if not vertex.is_up:
            self.down.add(number)
        if vertex.is_consumable:
            self.consumable.add(vertex.type)
        if vertex.foreign:
            self.foreign[number] = vertex.foreign
        return number

    def add_plain(
        self, kind: int, basename: int, number: int, uniq_id: int, rank: int, size: int
    ) -> None:
        """Add a vertex in a hot loop: its texts are interned already and nothing is unusual."""
        self.kinds.append(kind)
        self.basenames.append(basename)
        self.ids.append(number)
        self.uniq_ids.append(uniq_id)
        self.ranks.append(rank)
        self.sizes.append(size)
        self.parents.append(-1)

    def complete_columns(self) -> None:
        """Complete the columns after a reader filled them itself: size 1, no parent yet."""
        if self.above_texts:
            self.above_codes.extend([-1] * (len(self.kinds) - len(self.above_codes)))
        missing = len(self.kinds) - len(self.sizes)
        self.sizes.extend([1] * missing)
        self.parents.extend([-1] * missing)

    def connect(self, source: int, target: int, where: str = "edge") -> None:
        """Make ``target`` the last child of ``source``.

        Raises
        ------
        InvalidGraph
            ``target`` has a parent already, or is ``source`` itself.
        """
        if self.parents[target] >= 0:
            raise InvalidGraph(
                "a vertex is contained in one other only",
                where=where,
                value=self.label(target),
            )
        if source == target:
            raise InvalidGraph("a vertex contains itself", where=where, value=self.label(target))
        self.parents[target] = source
        found = self.children.get(source)
        if found is None:
            self.children[source] = [target]
        else:
            found.append(target)

    def label(self, number: int) -> str:
        """Return the name that error messages use for a vertex."""
        name = self.names.get(number)
        if name is None:
            name = f"{self.graph.texts[self.basenames[number]]}{self.ids[number]}"
        return f"{name} (id {self.uniq_ids[number]})"

    def build(self) -> ResourceGraph:
        """Check the vertices and edges, and compile the graph.

        Raises
        ------
        InvalidGraph
            The graph is empty, has several roots, has a cycle, is deeper than 100 levels, or gives
            two vertices the same path.
        """
        if not self.kinds:
            raise InvalidGraph("has no vertices", where="graph")
        self.complete_columns()
        count = self.parents.count(-1)
        if not count:
            raise InvalidGraph("has no root: every vertex is inside another", where="graph")
        if count > 1:
            roots = [i for i, parent in enumerate(self.parents) if parent < 0]
            shown = ", ".join(self.label(r) for r in roots[:3])
            raise InvalidGraph(f"has {count} roots: {shown}", where="graph", value=count)
        is_preordered = self._is_preordered()
        if is_preordered:
            order = list(range(len(self.kinds)))
        else:
            order = self._preorder(self.parents.index(-1))
        self.final_order = order
        self._fill(order, is_preordered=is_preordered)
        columns = NodeColumns(self.graph)
        self._check_paths(columns)
        compile_blocks(self.graph, columns)
        self.graph.declare_consumable(self.consumable)
        return self.graph

    def _is_preordered(self) -> bool:
        """Return whether the numbers are already those of a depth-first walk.

        Most documents are so.
        """
        if self.parents[0] != -1 or any(below != sorted(below) for below in self.children.values()):
            return False
        parents = np.asarray(self.parents, dtype=np.int64)
        # Usually a vertex follows its parent, or follows a leaf with the same parent. Otherwise its
        # parent must be found among the ancestors of the vertex before it.
        is_plain = (parents[1:] == parents[:-1]) | (parents[1:] == np.arange(len(parents) - 1))
        for v in (np.flatnonzero(~is_plain) + 1).tolist():
            above = v - 1
            while above >= 0 and above != self.parents[v]:
                above = self.parents[above]
            if above < 0:
                return False
        return bool((parents[1:] < np.arange(1, len(parents))).all())

    def _preorder(self, root: int) -> list[int]:
        check_tree(root, self.children, self.label)
        order: list[int] = []
        children = self.children
        stack = [root]
        while stack:
            i = stack.pop()
            order.append(i)
            below = children.get(i)
            if below is None:
                continue
            if children.keys().isdisjoint(below):
                order += below
            else:
                stack.extend(reversed(below))
        return order

    def _fill(self, order: list[int], *, is_preordered: bool) -> None:
        graph = self.graph
        if is_preordered:
            new_number = order
            graph.type_of, graph.id, graph.uniq_id = self.kinds, self.ids, self.uniq_ids
            graph.rank, graph.size = self.ranks, self.sizes
            graph.basename_of, graph.parent = self.basenames, self.parents
            graph.children = self.children
        else:
            numbers = np.empty(len(order) + 1, dtype=np.int64)
            numbers[np.asarray(order, dtype=np.int64)] = np.arange(len(order))
            numbers[-1] = -1
            new_number = numbers.tolist()
            graph.children = {
                new_number[i]: [new_number[c] for c in below] for i, below in self.children.items()
            }
            # Convert one column after the other, so that only one exists twice at any time.
            graph.type_of, self.kinds = [self.kinds[i] for i in order], []
            graph.id, self.ids = [self.ids[i] for i in order], []
            graph.uniq_id, self.uniq_ids = [self.uniq_ids[i] for i in order], []
            graph.rank, self.ranks = [self.ranks[i] for i in order], []
            graph.size, self.sizes = [self.sizes[i] for i in order], []
            graph.basename_of, self.basenames = [self.basenames[i] for i in order], []
            graph.parent, self.parents = [new_number[self.parents[i]] for i in order], []
        graph.names = {new_number[i]: name for i, name in self.names.items()}
        graph.paths = {new_number[i]: path for i, path in self.paths.items()}
        graph.units = {new_number[i]: unit for i, unit in self.units.items()}
        graph.properties = {new_number[i]: found for i, found in self.properties.items()}
        graph.other_paths = {new_number[i]: found for i, found in self.other_paths.items()}
        graph.down = {new_number[i] for i in self.down}
        graph.foreign = {new_number[i]: units for i, units in self.foreign.items()}
        end = list(range(1, len(order) + 1))
        inner = sorted(graph.children)
        for v in reversed(inner):
            end[v] = end[graph.children[v][-1]]
        graph.end = end
        depths = {-1: -1}
        for v in inner:
            depths[v] = depths[graph.parent[v]] + 1
            if depths[v] >= MAX_DEPTH - 1:
                raise InvalidGraph(
                    f"is deeper than {MAX_DEPTH}", where="graph", value=graph.name(v)
                )
        if self.paths or self.above_texts:
            self._keep_unusual_paths(order)

    def _keep_unusual_paths(self, order: list[int]) -> None:
        """Store only the paths that differ from the parent's path plus the name.

        Every JGF vertex states its path, so storing all of them would waste memory.
        """
        graph = self.graph
        stated, graph.paths = graph.paths, {}
        codes = np.full(len(order), -1, dtype=np.int64)
        if self.above_codes:
            codes = np.asarray(self.above_codes, dtype=np.int64)[np.asarray(order)]
        code_of = {text: code for code, text in enumerate(self.above_texts)}
        # Ascending numbers put a parent before its children, so its path is known in time.
        parents = np.asarray(graph.parent, dtype=np.int64)
        expected = np.full(len(order) + 1, -2, dtype=np.int64)
        inner: dict[int, str] = {-1: ""}
        expected[-1] = code_of.get("", -2)
        unusual = set(stated)
        for v in sorted(graph.children):
            code = int(codes[v])
            path = f"{inner[graph.parent[v]]}/{graph.name(v)}"
            if v in stated:
                path = self._reconcile_path(v, stated[v], path)
            elif code >= 0:
                path = self._reconcile_path(v, f"{self.above_texts[code]}/{graph.name(v)}", path)
            inner[v] = path
            expected[v] = code_of.get(path, -2)
        unusual.update(np.flatnonzero((codes >= 0) & (codes != expected[parents])).tolist())
        for v in unusual - inner.keys():
            path = stated.get(v) or f"{self.above_texts[codes[v]]}/{graph.name(v)}"
            self._reconcile_path(v, path, f"{inner[graph.parent[v]]}/{graph.name(v)}")

    def _reconcile_path(self, v: int, path: str, usual: str) -> str:
        if path != usual:
            self.graph.paths[v] = path
        return path

    def _check_paths(self, columns: NodeColumns) -> None:
        # Fluxion uses the rank to distinguish vertices with the same path (several brokers on a
        # host).
        graph = self.graph
        if graph.paths:
            groups = [list(range(len(graph)))]
            paths = graph.all_paths()
        else:
            are_distinct = _SiblingCheck(graph, columns)
            groups = [below for below in graph.children.values() if not are_distinct(below)]
            paths = []
        for group in groups:
            seen: set[tuple[str, int]] = set()
            for v in group:
                path = paths[v] if paths else graph.path(v)
                if (path, graph.rank[v]) in seen:
                    raise InvalidGraph("two vertices have one path", where="graph", value=path)
                seen.add((path, graph.rank[v]))


class _SiblingCheck:
    """Checks that siblings have different names. Equal runs of children are checked once."""

    def __init__(self, graph: ResourceGraph, columns: NodeColumns) -> None:
        self.graph = graph
        self._named = graph.names.keys()
        self._ids = columns.ids
        self._basenames = np.asarray(graph.basename_of, dtype=np.int64)
        self._good: set[tuple[bytes, bytes]] = set()

    def __call__(self, siblings: list[int]) -> bool:
        graph = self.graph
        if not self._named.isdisjoint(siblings):
            return len({graph.name(v) for v in siblings}) == len(siblings)
        first, last = siblings[0], siblings[-1] + 1
        if last - first != len(siblings):
            ids, basename_of = graph.id, graph.basename_of
            return len({(basename_of[c], ids[c]) for c in siblings}) == len(siblings)
        key = self._ids[first:last].tobytes(), self._basenames[first:last].tobytes()
        if key in self._good:
            return True
        pairs = zip(graph.basename_of[first:last], graph.id[first:last], strict=True)
        if len(set(pairs)) < len(siblings):
            return False
        self._good.add(key)
        return True


def vertex_of(graph: ResourceGraph, v: int) -> Vertex:
    """Return a vertex as a reader would have found it."""
    return Vertex(
        type=graph.type_name(v),
        id=graph.id[v],
        uniq_id=graph.uniq_id[v],
        basename=graph.basename(v),
        name=graph.names.get(v),
        rank=graph.rank[v],
        size=graph.size[v],
        unit=graph.units.get(v, ""),
        is_up=v not in graph.down,
        path=graph.paths.get(v),
        properties=dict(graph.properties.get(v, {})),
        other_paths=graph.other_paths.get(v, {}),
        is_consumable=graph.type_of[v] in graph.consumable,
        foreign=graph.foreign.get(v, 0),
    )
