"""The GRUG reader: a GraphML recipe that says how to generate a graph.

Called for ``-f grug``. The recipe is walked depth first over its edges in file order. One edge
makes *all* children of *all* parents of the level above, so uniq_ids are contiguous per recipe edge
(format: flux-sched, resource/readers/resource_reader_grug.cpp). Only the containment subsystem is
kept. From other subsystems only the paths of containment vertices are kept.

A bare expat parser reads the XML and refuses document type declarations. So entities cannot be
expanded, and nothing outside the text is ever opened.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from fluxion.model.builder import GraphBuilder
from fluxion.model.store import ResourceGraph
from fluxqueue.errors import InvalidGraph
from fluxqueue.graph.ledger.shares import collection_paused
from fluxqueue.jobspec import document

MAX_BYTES = 4 << 20
MAX_DEPTH = 16
MAX_VERTICES = 5_000_000
CONTAINMENT = "containment"
_INTEGERS = {
    "root", "size", "id_scope", "id_start", "id_stride", "multi_scale", "as_tgt_uplvl",
    "as_src_uplvl",
}  # fmt: skip


@dataclass(slots=True)
class _Node:
    id: str
    data: dict[str, str] = field(default_factory=dict)
    out: list[_Edge] = field(default_factory=list)
    made: list[int] = field(default_factory=list)


@dataclass(slots=True)
class _Edge:
    source: str
    target: str
    data: dict[str, str] = field(default_factory=dict)


def read_grug(text: str | bytes, consumable: Iterable[str] = ()) -> ResourceGraph:
    """Generate the graph that a recipe describes.

    Parameters
    ----------
    consumable
        Types of which jobs take shares. Fluxion has none.

    Raises
    ------
    InvalidGraph
        Not XML, a document type declaration, a wrong number, an edge without a vertex, or more than
        five million vertices. ``where`` is the line or the recipe's element.
    """
    recipe = _RecipeReader()
    recipe.read(text)
    with collection_paused():
        graph = _Generator(recipe).run()
    graph.declare_consumable(consumable)
    return graph


class _RecipeReader:
    """Parses GraphML into ``_Node`` and ``_Edge``. Defaults come from the ``key`` elements."""

    def __init__(self) -> None:
        self.nodes: dict[str, _Node] = {}
        self.edges: list[_Edge] = []
        self.defaults: dict[str, str] = {}
        self.names: dict[str, str] = {}
        self._parser = expat.ParserCreate()
        self._depth = 0
        self._owner: _Node | _Edge | None = None
        self._key = ""
        self._field = ""
        self._text: list[str] = []

    def read(self, text: str | bytes) -> None:
        if len(text) > MAX_BYTES:
            raise InvalidGraph(f"is larger than {MAX_BYTES} bytes", where="grug")
        parser = self._parser
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = self._doctype
        try:
            parser.Parse(document.to_bytes(text, InvalidGraph), True)
        except expat.ExpatError as failure:
            place = f"line {failure.lineno}"
            raise InvalidGraph(f"is not XML: {expat.ErrorString(failure.code)}", where=place) from (
                failure
            )
        if not self.nodes:
            raise InvalidGraph("has no recipe: no GraphML nodes", where="grug")
        for edge in self.edges:
            if edge.target not in self.nodes:
                raise InvalidGraph("edge to an unknown node", where="grug", value=edge.target)
            self.nodes[edge.source].out.append(edge)

    def _doctype(self, *_: object) -> None:
        self._refuse("document type declarations are not accepted")

    def _start(self, tag: str, attributes: dict[str, str]) -> None:
        self._depth += 1
        if self._depth > MAX_DEPTH:
            self._refuse(f"elements are nested deeper than {MAX_DEPTH}")
        match tag:
            case "key":
                self._key = attributes.get("id", "")
                self.names[self._key] = attributes.get("attr.name", self._key)
            case "node":
                number = attributes.get("id", "")
                if not number or number in self.nodes:
                    self._refuse(f"node id {number!r} is missing or repeated")
                self._owner = self.nodes[number] = _Node(number)
            case "edge":
                edge = _Edge(attributes.get("source", ""), attributes.get("target", ""))
                if edge.source not in self.nodes:
                    self._refuse(f"edge from the unknown node {edge.source!r}")
                self.edges.append(edge)
                self._owner = edge
            case "data":
                self._field = self.names.get(attributes.get("key", ""), "")
                if not self._field:
                    self._refuse(f"data for the unknown key {attributes.get('key', '')!r}")
        self._text = []

    def _end(self, tag: str) -> None:
        self._depth -= 1
        text = "".join(self._text).strip()
        match tag:
            case "default" if self._key:
                self.defaults[self.names[self._key]] = self._checked(self.names[self._key], text)
            case "data" if self._owner is not None:
                self._owner.data[self._field] = self._checked(self._field, text)
            case "node" | "edge":
                self._owner = None
        self._text = []

    def _characters(self, text: str) -> None:
        self._text.append(text)

    def _checked(self, name: str, text: str) -> str:
        digits = text.removeprefix("-")
        if name in _INTEGERS and not (digits.isascii() and digits.isdigit() and len(digits) < 19):
            self._refuse(f"{name} must be a whole number, not {text[:40]!r}")
        return text

    def _refuse(self, message: str) -> NoReturn:
        raise InvalidGraph(message, where=f"line {self._parser.CurrentLineNumber}")


class _Generator:
    """Walks the recipe and makes vertices, level by level.

    A vertex is its uniq_id. ``index_of`` has its place in the builder, -1 outside containment.
    ``kinds``, ``names`` and ``paths`` are kept only if the recipe has other subsystems.
    """

    def __init__(self, recipe: _RecipeReader) -> None:
        self.recipe = recipe
        self.builder = GraphBuilder()
        self.scales: list[int] = []
        self.index_of: list[int] = []
        self.kinds: list[str] = []
        self.names: list[str] = []
        self.paths: list[dict[str, str]] = []
        self.rank = 0
        self.seen: set[str] = set()
        for node in recipe.nodes.values():
            # Fluxion interns types as it reads the recipe, before it generates anything.
            self.builder.intern_type(self.text_of(node.data, "type"))
        self.has_others = any(self._subsystem(edge) != CONTAINMENT for edge in recipe.edges)

    def run(self) -> ResourceGraph:
        for node in self.recipe.nodes.values():
            if node.id not in self.seen:
                self._visit(node, 0)
        return self.builder.build()

    def _visit(self, node: _Node, depth: int) -> None:
        if depth > 64:
            raise InvalidGraph("the recipe is deeper than 64", where="grug", value=node.id)
        self.seen.add(node.id)
        for edge in node.out:
            target = self.recipe.nodes[edge.target]
            if target.id in self.seen:
                continue
            if self.int_of(node.data, "root", 0) and not node.made:
                node.made.append(_Maker(self, node).make(0, -1))
            self._generate(node, edge, target)
            self._visit(target, depth + 1)
        if self.scales:
            self.scales.pop(0)

    def _generate(self, node: _Node, edge: _Edge, target: _Node) -> None:
        target.made = []
        method = self.text_of(edge.data, "gen_method") or "MULTIPLY"
        if method == "MULTIPLY":
            self._multiply(node, edge, target)
        elif method in ("ASSOCIATE_IN", "ASSOCIATE_BY_PATH_IN"):
            self._associate(node, edge, target, by_path=method == "ASSOCIATE_BY_PATH_IN")
        else:
            raise InvalidGraph(f"unknown method {method[:40]!r}", where=f"edge to {target.id}")

    def _multiply(self, node: _Node, edge: _Edge, target: _Node) -> None:
        scale = self.int_of(edge.data, "multi_scale", 1)
        if scale < 0 or len(self.index_of) + scale * len(node.made) > MAX_VERTICES:
            raise InvalidGraph(
                f"generates more than {MAX_VERTICES} vertices", where=f"edge to {target.id}"
            )
        is_containment = self._subsystem(edge) == CONTAINMENT
        maker = _Maker(self, target)
        start, step = self.int_of(edge.data, "id_start", 0), 1
        wrap = self._wrap(edge)
        if wrap:
            step = self.int_of(edge.data, "id_stride", 1)
        connect, made, index_of = self.builder.connect, target.made, self.index_of
        for j, parent in enumerate(node.made):
            first = start + (j % wrap) * scale * step if wrap else start
            if wrap is None:
                first, step = -1, 0
            source = index_of[parent]
            for i in range(scale):
                number = maker.make(first + i * step, parent)
                made.append(number)
                if is_containment and source >= 0 and index_of[number] >= 0:
                    connect(source, index_of[number])
        self.scales.insert(0, scale)

    def _wrap(self, edge: _Edge) -> int | None:
        """Return how many parents share one series of ids.

        0 means that each has its own series. None means that there are no ids.
        """
        scope = self.int_of(edge.data, "id_scope", 0)
        if scope < 0:
            return None
        wrap = 1 if scope else 0
        for earlier in self.scales[:scope]:
            wrap *= earlier
        return wrap

    def _associate(self, node: _Node, edge: _Edge, target: _Node, *, by_path: bool) -> None:
        """Add existing vertices of a type to another subsystem: all, or those with a like path."""
        kind, subsystem = self.text_of(target.data, "type"), self._subsystem(edge)
        if subsystem == CONTAINMENT:
            raise InvalidGraph("containment is made by MULTIPLY", where=f"edge to {target.id}")
        through = self.text_of(edge.data, "as_tgt_subsystem") or CONTAINMENT
        up_target = self.int_of(edge.data, "as_tgt_uplvl", 1)
        up_source = self.int_of(edge.data, "as_src_uplvl", 1)
        candidates = [number for number, made in enumerate(self.kinds) if made == kind]
        for source in node.made:
            own = self.paths[source]
            prefix = _prefix(own.get(through, ""), up_source)
            for number in candidates:
                paths = self.paths[number]
                if by_path and _prefix(paths.get(through, ""), up_target) != prefix:
                    continue
                paths[subsystem] = f"{own.get(subsystem, '')}/{self.names[number]}"
                index = self.index_of[number]
                if index >= 0:
                    others = self.builder.other_paths.setdefault(index, {})
                    others[subsystem] = paths[subsystem]
                target.made.append(number)

    def _subsystem(self, edge: _Edge) -> str:
        return self.text_of(edge.data, "e_subsystem") or CONTAINMENT

    def text_of(self, data: dict[str, str], name: str) -> str:
        return data.get(name, self.recipe.defaults.get(name, ""))

    def int_of(self, data: dict[str, str], name: str, default: int) -> int:
        text = data.get(name, self.recipe.defaults.get(name, ""))
        return int(text) if text else default


class _Maker:
    """Makes the vertices of one recipe node. What they have in common is looked up once."""

    def __init__(self, generator: _Generator, node: _Node) -> None:
        self.generator = generator
        builder = generator.builder
        self.kind = generator.text_of(node.data, "type")
        self.basename = generator.text_of(node.data, "basename") or self.kind
        self.subsystem = generator.text_of(node.data, "subsystem") or CONTAINMENT
        self.size = generator.int_of(node.data, "size", 1)
        self.unit = generator.text_of(node.data, "unit")
        if not self.kind or self.size < 0:
            raise InvalidGraph("needs a type and a size of at least 0", where=f"node {node.id}")
        self.kind_number = builder.intern_type(self.kind)
        self.text_number = builder.intern_text(self.basename)

    def make(self, number: int, parent: int) -> int:
        """Make one vertex with ``number`` as its id. Only vertices of containment are built."""
        generator, builder = self.generator, self.generator.builder
        uniq_id = len(generator.index_of)
        rank = -1
        if self.kind == "node":
            rank, generator.rank = generator.rank, generator.rank + 1
        if generator.has_others:
            name = f"{self.basename}{number}" if number != -1 else self.basename
            above = generator.paths[parent].get(self.subsystem, "") if parent >= 0 else ""
            generator.kinds.append(self.kind)
            generator.names.append(name)
            generator.paths.append({self.subsystem: f"{above}/{name}"})
        if self.subsystem != CONTAINMENT:
            generator.index_of.append(-1)
            return uniq_id
        index = len(builder.kinds)
        generator.index_of.append(index)
        builder.add_plain(self.kind_number, self.text_number, number, uniq_id, rank, self.size)
        if self.unit:
            builder.units[index] = self.unit
        return uniq_id


def _prefix(path: str, levels_up: int) -> str:
    """Return ``path`` without its last ``levels_up`` parts, with a slash at the end."""
    parts = path.split("/")
    if levels_up >= len(parts) - 1:
        return ""
    return "/".join(parts[: len(parts) - levels_up]) + "/"
