"""The JGF reader: JSON Graph Format with Fluxion's metadata (RFC 4, flux-sched's JGF dialect).

Called for whole graphs (``read_jgf``), for subgraphs that are attached, and for R documents that
are booked or given back (``parse_jgf``). Large documents are parsed piece by piece, so that the
parsed JSON of a whole cluster never stands in memory at once.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

import orjson

from fluxqueue.errors import InvalidGraph, InvalidInput
from fluxqueue.graph.builder import MAX_SIZE, GraphBuilder, Vertex, collection_paused
from fluxqueue.graph.store import ResourceGraph
from fluxqueue.jobspec import document, idset

MAX_BYTES = 1 << 30
PIECE_BYTES = 1 << 19
"""Documents above twice this are cut into pieces of about this size."""

COLUMN = 4096
"""Vertices that are checked and taken together."""

_DIGITS_AT_END = re.compile(r"([0-9]{1,18})$")
_NEXT_NODE = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:id|source)"\s*:)')
_NODES = re.compile(rb'\A\s*\{\s*"graph"\s*:\s*\{\s*"nodes"\s*:\s*\[')
_EDGES = re.compile(rb'\]\s*,\s*"edges"\s*:\s*\[')
_TAIL = re.compile(rb"\]\s*\}\s*\}\s*\Z")


@dataclass(slots=True)
class JgfVertex:
    """A vertex of a JGF document, with the outer id that edges refer to."""

    outer_id: str
    vertex: Vertex
    is_exclusive: bool = False


@dataclass(slots=True)
class JgfDocument:
    """A parsed JGF document. Edges are pairs of outer ids, containment only."""

    vertices: list[JgfVertex] = field(default_factory=list)
    edges: list[tuple[str, str]] = field(default_factory=list)
    free_ranks: frozenset[int] | None = None
    is_shorthand: bool = False


def read_jgf(text: str | bytes) -> ResourceGraph:
    """Read a whole graph.

    Raises
    ------
    InvalidGraph
        No JSON, a missing or wrong key (``where`` is ``graph.nodes[17].metadata.size``), a
        repeated id, a dangling edge, and all that ``GraphBuilder.build`` refuses.
    """
    data = document.to_bytes(text, InvalidGraph)
    with collection_paused():
        if len(data) > 2 * PIECE_BYTES:
            builder = _read_pieces(data)
            if builder is not None:
                return builder.build()
        return _read_whole(_load(data))


def _read_whole(top: Any) -> ResourceGraph:
    nodes, edges = _sections(top)
    loader = _Loader()
    loader.take_nodes(nodes)
    loader.take_edges(edges)
    return loader.builder.build()


def _read_pieces(data: bytes) -> GraphBuilder | None:
    """Load the usual layout (nodes, then edges, nothing else) in pieces; None if it is another.

    A cut is made only before ``{"id":`` or ``{"source":``. A quote cannot stand unescaped inside
    a JSON string, so a cut is between two objects; should they be nested ones, the piece does not
    parse and the whole document is read at once instead.
    """
    head, tail = _NODES.match(data), _TAIL.search(data, max(0, len(data) - 200))
    middle = None
    for found in _EDGES.finditer(data):
        middle = found
    if head is None or tail is None or middle is None:
        return None
    loader = _Loader()
    try:
        for piece in _pieces(data, head.end(), middle.start()):
            loader.take_nodes(orjson.loads(piece))
        for piece in _pieces(data, middle.end(), tail.start()):
            loader.take_edges(orjson.loads(piece))
    except orjson.JSONDecodeError:
        return None
    return loader.builder


def _pieces(data: bytes, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        cut = _NEXT_NODE.search(data, min(start + PIECE_BYTES, end), end)
        stop = cut.start() + 1 if cut else end
        yield b"[" + data[start:stop] + b"]"
        start = cut.end() if cut else end


class _Loader:
    """Feeds parsed nodes and edges to a builder; plain ones take a short way.

    The short way is for vertices of a type seen before, with the metadata that nearly all have.
    """

    def __init__(self) -> None:
        self.builder = GraphBuilder()
        self.index_of: dict[str, int] = {}
        self.elsewhere: set[str] = set()
        self.known_kinds: dict[str, tuple[int, int, str]] = {}
        self.prefixes: dict[str, str] = {}
        self.edges = 0

    def take_nodes(self, nodes: Any) -> None:
        """Take ``graph.nodes``, or a piece of it."""
        if not isinstance(nodes, list):
            raise InvalidGraph("is no array", where="graph.nodes")
        for start in range(0, len(nodes), COLUMN):
            part = nodes[start : start + COLUMN]
            if not self._take_plain(part):
                for element in part:
                    self._take_unusual(element)

    def _take_plain(self, nodes: list[Any]) -> bool:
        """Take vertices that all have what nearly all have, column by column; False takes none."""
        known, index_of, builder = self.known_kinds, self.index_of, self.builder
        try:
            outer_ids = [element["id"] for element in nodes]
            metas = [element["metadata"] for element in nodes]
            kinds = [known[meta["type"]] for meta in metas]
            ids = [meta["id"] for meta in metas]
            ranks = [meta["rank"] for meta in metas]
            owns = [meta["paths"] for meta in metas]
            paths = [own["containment"] for own in owns]
            uniq_ids = list(map(int, outer_ids))
        except (KeyError, TypeError, ValueError):
            return False
        first = len(builder.kinds)
        if (
            set(map(len, metas)) != {4}
            or set(map(len, owns)) != {1}
            or set(map(type, ids)) | set(map(type, ranks)) != {int}
            or set(map(type, paths)) | set(map(type, outer_ids)) != {str}
            or len(set(outer_ids)) != len(outer_ids)
            or not index_of.keys().isdisjoint(outer_ids)
        ):
            return False
        index_of.update(zip(outer_ids, range(first, first + len(nodes)), strict=True))
        builder.complete_columns()
        builder.kinds += [kind for kind, _, _ in kinds]
        builder.basenames += [text for _, text, _ in kinds]
        builder.ids += ids
        builder.uniq_ids += uniq_ids
        builder.ranks += ranks
        column = builder.above_paths
        column += [None] * (first - len(column))
        known_above = self.prefixes.setdefault
        for path, (_, _, name), number in zip(paths, kinds, ids, strict=True):
            # Siblings share the path of their parent, so one copy of it is kept, not all paths.
            above, _, own = path.rpartition("/")
            if own == f"{name}{number}":
                column.append(known_above(above, above))
            else:
                builder.paths[len(column)] = path
                column.append(None)
        builder.complete_columns()
        return True

    def _take_unusual(self, element: Any) -> None:
        builder, number = self.builder, len(self.index_of) + len(self.elsewhere)
        where = f"graph.nodes[{number}]"
        if is_elsewhere(element):
            self.elsewhere.add(element["id"])
            return
        found = parse_vertex(element, where)
        if found.outer_id in self.index_of:
            raise InvalidGraph(
                "repeats the id of an earlier node", where=f"{where}.id", value=found.outer_id
            )
        self.index_of[found.outer_id] = builder.add(found.vertex, where)
        kind = found.vertex.type
        self.known_kinds[kind] = (builder.intern_type(kind), builder.intern_text(kind), kind)

    def take_edges(self, edges: Any) -> None:
        """Take ``graph.edges``, or a piece of it."""
        if not isinstance(edges, list):
            raise InvalidGraph("is no array", where="graph.edges")
        for start in range(0, len(edges), COLUMN):
            part = edges[start : start + COLUMN]
            if not self._take_plain_edges(part):
                for element in part:
                    self._take_unusual_edge(element)

    def _take_plain_edges(self, edges: list[Any]) -> bool:
        """Take edges that have two ends and nothing else; False takes none."""
        index_of, parents, children = self.index_of, self.builder.parents, self.builder.children
        try:
            sources = [index_of[element["source"]] for element in edges]
            targets = [index_of[element["target"]] for element in edges]
        except (KeyError, TypeError):
            return False
        if (
            set(map(len, edges)) != {2}
            or len(set(targets)) != len(targets)
            or any(parents[target] >= 0 for target in targets)
            or any(source == target for source, target in zip(sources, targets, strict=True))
        ):
            return False
        last, below = -1, []
        for source, target in zip(sources, targets, strict=True):
            parents[target] = source
            if source != last:
                last, below = source, children.setdefault(source, [])
            below.append(target)
        self.edges += len(edges)
        return True

    def _take_unusual_edge(self, element: Any) -> None:
        where = f"graph.edges[{self.edges}]"
        self.edges += 1
        ends = parse_edge(element, where)
        if ends is None:
            return
        source, target = self.index_of.get(ends[0]), self.index_of.get(ends[1])
        if source is None or target is None:
            raise InvalidGraph(
                "edge to a node that is not in the graph",
                where=where,
                value=f"{ends[0]} -> {ends[1]}",
            )
        self.builder.connect(source, target, where)


def parse_jgf(text: str | bytes) -> JgfDocument:
    """Read a JGF document (a subgraph, or an R) without building a graph.

    Raises
    ------
    InvalidGraph
        As ``read_jgf``; edges are not checked against the vertices.
    """
    return parse_jgf_document(_load(document.to_bytes(text, InvalidGraph)))


def parse_jgf_document(top: Any) -> JgfDocument:
    """``parse_jgf`` for JSON that is parsed already (the ``scheduling`` part of an R)."""
    nodes, edges = _sections(top)
    found = JgfDocument()
    seen: set[str] = set()
    for i, element in enumerate(nodes):
        if is_elsewhere(element):
            continue
        vertex = parse_vertex(element, f"graph.nodes[{i}]")
        if vertex.outer_id in seen:
            raise InvalidGraph(
                "repeats the id of an earlier node",
                where=f"graph.nodes[{i}].id",
                value=vertex.outer_id,
            )
        seen.add(vertex.outer_id)
        found.vertices.append(vertex)
    for i, element in enumerate(edges):
        ends = parse_edge(element, f"graph.edges[{i}]")
        if ends is not None:
            found.edges.append(ends)
    if "free_ranks" in top:
        try:
            found.free_ranks = frozenset(idset.decode(str(top["free_ranks"])))
        except InvalidInput as refusal:
            raise InvalidGraph(refusal.message, where="free_ranks") from refusal
    found.is_shorthand = str(top.get("writer", "")).endswith("shorthand")
    return found


def _load(data: bytes) -> Any:
    return document.load_json(data, InvalidGraph, MAX_BYTES)


def _sections(top: Any) -> tuple[list[Any], list[Any]]:
    if not isinstance(top, dict):
        raise InvalidGraph("JGF is an object", where="document", value=type(top).__name__)
    graph = top.get("graph")
    if not isinstance(graph, dict):
        raise InvalidGraph("the key 'graph' is missing or no object", where="graph")
    for key in ("nodes", "edges"):
        if not isinstance(graph.get(key), list):
            raise InvalidGraph("is missing or no array", where=f"graph.{key}")
    return graph["nodes"], graph["edges"]


def is_elsewhere(element: Any) -> bool:
    """Whether a node belongs to other subsystems only (power, network), which are left out."""
    try:
        paths = element["metadata"]["paths"]
        return bool(paths) and "containment" not in paths and isinstance(element["id"], str)
    except (KeyError, TypeError):
        return False


def parse_edge(element: Any, where: str) -> tuple[str, str] | None:
    """The ends of an edge; None for an edge of another subsystem than containment."""
    if not isinstance(element, dict):
        raise InvalidGraph("an edge is an object", where=where, value=element)
    source, target = element.get("source"), element.get("target")
    if not isinstance(source, str) or not isinstance(target, str):
        raise InvalidGraph("an edge needs the strings source and target", where=where)
    meta = element.get("metadata")
    if meta is None:
        return source, target
    if not isinstance(meta, dict):
        raise InvalidGraph("must be an object", where=f"{where}.metadata", value=meta)
    subsystem = meta.get("subsystem", "containment")
    return (source, target) if subsystem == "containment" else None


def parse_vertex(element: Any, where: str) -> JgfVertex:
    """Read one element of ``graph.nodes``, with Fluxion's defaults for what is left out."""
    if not isinstance(element, dict) or not isinstance(element.get("id"), str):
        raise InvalidGraph("a node needs the string 'id'", where=where)
    meta = element.get("metadata")
    if not isinstance(meta, dict):
        raise InvalidGraph("is missing or no object", where=f"{where}.metadata")
    here = f"{where}.metadata"
    outer_id = element["id"]
    kind = _string(meta, "type", here)
    if not kind:
        raise InvalidGraph("is missing", where=f"{here}.type")
    name = _string(meta, "name", here) if "name" in meta else None
    uniq_id = _integer(meta, "uniq_id", here, None)
    if uniq_id is None:
        try:
            uniq_id = int(outer_id[:19])
        except ValueError:
            raise InvalidGraph(
                "uniq_id is missing and the outer id is no number",
                where=f"{where}.id",
                value=outer_id[:40],
            ) from None
    number = _integer(meta, "id", here, None)
    if number is None:
        digits = _DIGITS_AT_END.search(name) if kind == "node" and name else None
        number = int(digits[1]) if digits else uniq_id
    basename = _string(meta, "basename", here) or kind
    size = _integer(meta, "size", here, 1)
    if size is None or not 0 <= size <= MAX_SIZE:
        raise InvalidGraph("is out of range", where=f"{here}.size", value=size)
    vertex = Vertex(
        type=kind,
        id=number,
        uniq_id=uniq_id,
        basename=basename,
        name=None if name is None or name == f"{basename}{number}" else name,
        rank=_integer(meta, "rank", here, -1) or 0,
        size=size,
        unit=_string(meta, "unit", here),
        is_up=_integer(meta, "status", here, 0) == 0,
        path=_path(meta, here),
        properties=_properties(meta, here),
        other_paths={k: p for k, p in meta["paths"].items() if k != "containment"},
    )
    if name is None and number == -1:
        vertex.name = f"{basename}-1"
    exclusive = meta.get("exclusive", False)
    if not isinstance(exclusive, bool):
        raise InvalidGraph("must be true or false", where=f"{here}.exclusive", value=exclusive)
    return JgfVertex(outer_id, vertex, exclusive)


def _path(meta: dict[str, Any], where: str) -> str:
    paths = meta.get("paths")
    if not isinstance(paths, dict):
        raise InvalidGraph("is missing or no object", where=f"{where}.paths", value=paths)
    path = paths.get("containment")
    if not isinstance(path, str) or not path.startswith("/"):
        raise InvalidGraph("is missing or no path", where=f"{where}.paths.containment", value=path)
    if not all(isinstance(other, str) for other in paths.values()):
        raise InvalidGraph("must be an object of strings", where=f"{where}.paths", value=paths)
    return path


def _properties(meta: dict[str, Any], where: str) -> dict[str, str]:
    found = meta.get("properties")
    if found is None:
        return {}
    if not isinstance(found, dict) or not all(isinstance(v, str) for v in found.values()):
        raise InvalidGraph("must be an object of strings", where=f"{where}.properties", value=found)
    return found


def _string(meta: dict[str, Any], key: str, where: str) -> str:
    value = meta.get(key, "")
    if not isinstance(value, str):
        raise InvalidGraph("must be a string", where=f"{where}.{key}", value=value)
    return value


def _integer(meta: dict[str, Any], key: str, where: str, default: int | None) -> int | None:
    value = meta.get(key, default)
    if value is default:
        return default
    if type(value) is not int or not -(1 << 62) < value < 1 << 62:
        raise InvalidGraph("must be a whole number", where=f"{where}.{key}", value=value)
    return value
