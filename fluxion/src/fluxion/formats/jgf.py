"""The JGF reader: JSON Graph Format with Fluxion's metadata.

The format is RFC 4 and flux-sched's JGF dialect. The reader is called for whole graphs
(``read_jgf``), for subgraphs to attach, and for R documents to book or give back (``parse_jgf``).
Large documents are parsed piece by piece, so that the parsed JSON of a whole cluster is never in
memory at once.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import orjson

from fluxion.formats.jgf_text import (
    PlainNodes,
    PlainReader,
    read_edges,
    split_objects,
)
from fluxion.model.builder import MAX_SIZE, GraphBuilder, Vertex
from fluxion.model.store import ResourceGraph
from fluxqueue.errors import InvalidGraph, InvalidInput
from fluxqueue.graph.arrays import Vector
from fluxqueue.graph.ledger.shares import collection_paused
from fluxqueue.jobspec import document, idset

MAX_BYTES = 1 << 30
PIECE_BYTES = 1 << 19
"""Documents larger than twice this are cut into pieces of about this size."""

_PLAIN_ID = re.compile(r"0|[1-9][0-9]{0,17}")
_DIGITS_AT_END = re.compile(r"([0-9]{1,18})$")
_NEXT_NODE = re.compile(rb'\}\s*,\s*(?=\{\s*"(?:id|source)"\s*:)')
_NODES = re.compile(rb'\A\s*\{\s*"graph"\s*:\s*\{\s*"nodes"\s*:\s*\[')
_EDGES = re.compile(rb'\]\s*,\s*"edges"\s*:\s*\[')
_TAIL = re.compile(rb"\]\s*\}\s*\}\s*\Z")


@dataclass(slots=True)
class JgfVertex:
    """A vertex of a JGF document, with the outer id that edges refer to.

    ``share`` is what an R takes of a consumable pool, in units. 0 means all of it.
    """

    outer_id: str
    vertex: Vertex
    is_exclusive: bool = False
    share: int = 0


@dataclass(slots=True)
class JgfDocument:
    """A parsed JGF document. Edges are pairs of outer ids, of containment only."""

    vertices: list[JgfVertex] = field(default_factory=list)
    edges: list[tuple[str, str]] = field(default_factory=list)
    free_ranks: frozenset[int] | None = None
    is_shorthand: bool = False


def read_jgf(text: str | bytes, consumable: Iterable[str] = ()) -> ResourceGraph:
    """Read a whole graph.

    Parameters
    ----------
    consumable
        Types of which jobs take shares, in addition to those that the document marks
        (``"consumable": true``, which Fluxion does not have).

    Raises
    ------
    InvalidGraph
        Not JSON, a missing or wrong key (``where`` is ``graph.nodes[17].metadata.size``), a
        repeated id, an edge without a vertex, and all that ``GraphBuilder.build`` refuses.
    """
    data = document.to_bytes(text, InvalidGraph)
    with collection_paused():
        graph = _read(data)
    graph.declare_consumable(consumable)
    return graph


def _read(data: bytes) -> ResourceGraph:
    if len(data) > 2 * PIECE_BYTES:
        builder = _read_pieces(data)
        if builder is not None:
            return builder.build()
    return _read_whole(_load(data))


def _read_whole(top: Any) -> ResourceGraph:
    nodes, edges = _sections(top)
    loader = JgfLoader()
    loader.take_nodes(nodes)
    loader.take_edges(edges)
    return loader.builder.build()


def _read_pieces(data: bytes) -> GraphBuilder | None:
    """Load the usual layout (nodes, then edges, nothing else) in pieces.

    None means another layout, or text that does not parse in pieces.
    """
    head, tail = _NODES.match(data), _TAIL.search(data, max(0, len(data) - 200))
    middle = None
    for found in _EDGES.finditer(data):
        middle = found
    if head is None or tail is None or middle is None:
        return None
    loader = JgfLoader()
    try:
        for piece in _pieces(data, head.end(), middle.start()):
            loader.take_nodes_text(piece)
        for piece in _pieces(data, middle.end(), tail.start()):
            loader.take_edges_text(piece)
    except orjson.JSONDecodeError:
        return None
    return loader.builder


def _pieces(data: bytes, start: int, end: int) -> Iterator[bytes]:
    while start < end:
        cut = _NEXT_NODE.search(data, min(start + PIECE_BYTES, end), end)
        stop = cut.start() + 1 if cut else end
        yield data[start:stop]
        start = cut.end() if cut else end


class JgfLoader:
    """Gives nodes and edges to a builder: plain ones as columns, the others one by one."""

    def __init__(self) -> None:
        self.builder = GraphBuilder()
        self.elsewhere: set[str] = set()
        self._index_of: dict[str, int] = {}
        self._outer_ids: list[Vector] = []
        self._indexes: list[Vector] = []
        self._sorted: tuple[Vector, Vector] | None = None
        self._reader = PlainReader()
        self._above_codes: dict[str, int] = {}
        self._nodes = self._edges = 0

    def take_nodes(self, nodes: Any) -> None:
        """Add the parsed ``graph.nodes``."""
        if not isinstance(nodes, list):
            raise InvalidGraph("is no array", where="graph.nodes")
        for element in nodes:
            self._take_node(element)

    def take_nodes_text(self, piece: bytes) -> None:
        """Add a piece of the array ``graph.nodes``. Raises ``JSONDecodeError`` if it is not valid.

        Groups of plain vertices may be added first: the order of vertices decides only the numbers
        of types and texts.
        """
        objects = split_objects(piece)
        plain = np.zeros(len(objects), dtype=np.bool_)
        for group in self._reader.nodes(objects):
            plain[group.positions] = True
            self._take_group(group)
        for position in np.flatnonzero(~plain).tolist():
            self._take_node(orjson.loads(objects[position]), self._nodes + position)
        self._nodes += int(plain.sum())

    def _take_group(self, group: PlainNodes) -> None:
        builder = self.builder
        first, count = len(builder.kinds), len(group.ids)
        builder.complete_columns()
        builder.kinds += [builder.intern_type(group.kind)] * count
        builder.basenames += [builder.intern_text(group.kind)] * count
        builder.ids += group.ids.tolist()
        builder.uniq_ids += group.outer_ids.tolist()
        builder.ranks += group.ranks.tolist()
        codes = [self._above_code(text) for text in group.above_texts]
        column = builder.above_codes
        column += [-1] * (first - len(column))
        column += np.asarray(codes, dtype=np.int64)[group.above].tolist()
        builder.complete_columns()
        self._outer_ids.append(group.outer_ids)
        self._indexes.append(np.arange(first, first + count))
        self._sorted = None

    def _above_code(self, text: str) -> int:
        code = self._above_codes.get(text)
        if code is None:
            code = self._above_codes[text] = len(self.builder.above_texts)
            self.builder.above_texts.append(text)
        return code

    def _take_node(self, element: Any, number: int | None = None) -> None:
        where = f"graph.nodes[{self._nodes if number is None else number}]"
        self._nodes += 1
        if is_elsewhere(element):
            self.elsewhere.add(element["id"])
            return
        found = parse_vertex(element, where)
        if found.outer_id in self._index_of:
            raise _repeats(found.outer_id, where)
        self._index_of[found.outer_id] = self.builder.add(found.vertex, where)

    # -- edges ------------------------------------------------------------------------------

    def take_edges(self, edges: Any) -> None:
        """Add the parsed ``graph.edges``."""
        if not isinstance(edges, list):
            raise InvalidGraph("is no array", where="graph.edges")
        for element in edges:
            self._take_edge(element)

    def take_edges_text(self, piece: bytes) -> None:
        """Add a piece of the array ``graph.edges``. Raises ``JSONDecodeError`` as for nodes."""
        ends = read_edges(piece)
        if ends is None or not self._take_columns(ends):
            self.take_edges(orjson.loads(b"[" + piece + b"]"))

    def _take_columns(self, ends: Vector) -> bool:
        """Connect all pairs of ids if all are valid. Otherwise connect none and return False."""
        indexes = self._index_column(ends)
        if indexes is None:
            return False
        builder = self.builder
        sources, targets = indexes[:, 0], indexes[:, 1]
        below = targets.tolist()
        parents, children = builder.parents, builder.children
        if (sources == targets).any() or len(set(below)) != len(below):
            return False
        if any(parents[target] >= 0 for target in below):
            return False
        cuts = [0, *(np.flatnonzero(sources[1:] != sources[:-1]) + 1).tolist(), len(below)]
        for start, stop in itertools.pairwise(cuts):
            source = int(sources[start])
            group = below[start:stop]
            for target in group:
                parents[target] = source
            children.setdefault(source, []).extend(group)
        self._edges += len(below)
        return True

    def _index_column(self, outer_ids: Vector) -> Vector | None:
        """Return the builder indexes of numeric outer ids, or None if one is not known."""
        known, indexes = self._in_order()
        if not len(known):
            return None
        at = np.searchsorted(known, outer_ids)
        at[at == len(known)] = 0
        return indexes[at] if np.array_equal(known[at], outer_ids) else None

    def _in_order(self) -> tuple[Vector, Vector]:
        """Return all outer ids that are plain numbers, ascending, with their indexes.

        Raises
        ------
        InvalidGraph
            An id occurs twice.
        """
        if self._sorted is None:
            odd = {int(text): i for text, i in self._index_of.items() if _PLAIN_ID.fullmatch(text)}
            columns = [*self._outer_ids, np.fromiter(odd, dtype=np.int64, count=len(odd))]
            places = [*self._indexes, np.fromiter(odd.values(), dtype=np.int64, count=len(odd))]
            known, indexes = np.concatenate(columns), np.concatenate(places)
            order = np.argsort(known, kind="stable")
            self._sorted = known[order], indexes[order]
            twice = np.flatnonzero(self._sorted[0][1:] == self._sorted[0][:-1])
            if len(twice):
                raise _repeats(str(self._sorted[0][twice[0]]), "graph.nodes")
        return self._sorted

    def _take_edge(self, element: Any) -> None:
        where = f"graph.edges[{self._edges}]"
        self._edges += 1
        ends = parse_edge(element, where)
        if ends is None:
            return
        source, target = self._find(ends[0]), self._find(ends[1])
        if source is None or target is None:
            raise InvalidGraph(
                "edge to a node that is not in the graph",
                where=where,
                value=f"{ends[0]} -> {ends[1]}",
            )
        self.builder.connect(source, target, where)

    def _find(self, outer_id: str) -> int | None:
        index = self._index_of.get(outer_id)
        if index is None and _PLAIN_ID.fullmatch(outer_id):
            found = self._index_column(np.array([int(outer_id)]))
            index = None if found is None else int(found[0])
        return index


def _repeats(outer_id: str, where: str) -> InvalidGraph:
    return InvalidGraph("repeats the id of an earlier node", where=f"{where}.id", value=outer_id)


def parse_jgf(text: str | bytes) -> JgfDocument:
    """Read a JGF document (a subgraph, or an R) without building a graph.

    Raises
    ------
    InvalidGraph
        As ``read_jgf``. Edges are not checked against the vertices.
    """
    return parse_jgf_document(_load(document.to_bytes(text, InvalidGraph)))


def parse_jgf_document(top: Any) -> JgfDocument:
    """Read JSON that is already parsed (the ``scheduling`` part of an R), as ``parse_jgf``."""
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
    """Return whether a node belongs only to ignored subsystems (power, network)."""
    try:
        paths = element["metadata"]["paths"]
        return bool(paths) and "containment" not in paths and isinstance(element["id"], str)
    except (KeyError, TypeError):
        return False


def parse_edge(element: Any, where: str) -> tuple[str, str] | None:
    """Return the ends of an edge, or None if its subsystem is not containment."""
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
            uniq_id = int(outer_id[:18])
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
        raise InvalidGraph(f"must be 0 to {MAX_SIZE}", where=f"{here}.size", value=size)
    is_consumable = _boolean(meta, "consumable", here)
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
        is_consumable=is_consumable,
        foreign=_units(meta, "foreign", here, MAX_SIZE) if is_consumable else 0,
    )
    if name is None and number == -1:
        vertex.name = f"{basename}-1"
    exclusive = _boolean(meta, "exclusive", here)
    share = _units(meta, "share", here, size) if is_consumable else 0
    return JgfVertex(outer_id, vertex, exclusive, share)


def _boolean(meta: dict[str, Any], key: str, where: str) -> bool:
    value = meta.get(key, False)
    if not isinstance(value, bool):
        raise InvalidGraph("must be true or false", where=f"{where}.{key}", value=value)
    return value


def _units(meta: dict[str, Any], key: str, where: str, most: int) -> int:
    value = _integer(meta, key, where, 0) or 0
    if not 0 <= value <= most:
        raise InvalidGraph(f"must be 0 to {most}", where=f"{where}.{key}", value=value)
    return value


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
