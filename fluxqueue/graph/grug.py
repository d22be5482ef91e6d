"""The GRUG reader: a GraphML recipe that says how to generate a graph.

Called for ``-f grug``. The recipe is walked depth first over its edges in file order; one edge
makes *all* children of *all* parents of the level above, so uniq_ids are contiguous per recipe
edge (format: flux-sched, resource/readers/resource_reader_grug.cpp). Only the containment
subsystem is kept; of other subsystems, only the paths of containment vertices.

XML is read with a bare expat parser that refuses document type declarations, so entities cannot
be expanded and nothing outside the text is ever opened.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import NoReturn
from xml.parsers import expat

from fluxqueue.errors import InvalidGraph
from fluxqueue.graph.builder import GraphBuilder
from fluxqueue.graph.store import ResourceGraph

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


def read_grug(text: str | bytes) -> ResourceGraph:
    """Generate the graph that a recipe describes.

    Raises
    ------
    InvalidGraph
        No XML, a document type declaration, a wrong number, a dangling edge, more than five
        million vertices; ``where`` is the line or the recipe's element.
    """
    recipe = _RecipeReader()
    recipe.read(text)
    return _Generator(recipe).run()


class _RecipeReader:
    """GraphML to ``_Node`` and ``_Edge``; defaults come from the ``key`` elements."""

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
            raise InvalidGraph(f"is larger than {MAX_BYTES} bytes", where="grug", value=len(text))
        parser = self._parser
        parser.StartElementHandler = self._start
        parser.EndElementHandler = self._end
        parser.CharacterDataHandler = self._characters
        parser.StartDoctypeDeclHandler = self._doctype
        try:
            parser.Parse(text, True)
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


@dataclass(slots=True)
class _Made:
    """A generated vertex: its type and name, its path per subsystem, its index in the builder."""

    kind: str
    name: str
    paths: dict[str, str]
    index: int = -1


class _Generator:
    """Walks the recipe and makes vertices, level by level. Vertices are their uniq_ids."""

    def __init__(self, recipe: _RecipeReader) -> None:
        self.recipe = recipe
        self.builder = GraphBuilder()
        self.scales: list[int] = []
        self.made: list[_Made] = []
        self.rank = 0
        self.seen: set[str] = set()
        for node in recipe.nodes.values():
            # Fluxion interns types as it reads the recipe, before anything is generated.
            self.builder.intern_type(self._text(node.data, "type"))
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
            if self._int(node.data, "root", 0) and not node.made:
                node.made.append(self._make(node, 0, -1))
            self._generate(node, edge, target)
            self._visit(target, depth + 1)
        if self.scales:
            self.scales.pop(0)

    def _generate(self, node: _Node, edge: _Edge, target: _Node) -> None:
        target.made = []
        method = self._text(edge.data, "gen_method") or "MULTIPLY"
        if method == "MULTIPLY":
            self._multiply(node, edge, target)
        elif method in ("ASSOCIATE_IN", "ASSOCIATE_BY_PATH_IN"):
            self._associate(node, edge, target, by_path=method == "ASSOCIATE_BY_PATH_IN")
        else:
            raise InvalidGraph(f"unknown method {method[:40]!r}", where=f"edge to {target.id}")

    def _multiply(self, node: _Node, edge: _Edge, target: _Node) -> None:
        scale = self._int(edge.data, "multi_scale", 1)
        if scale < 0 or len(self.made) + scale * len(node.made) > MAX_VERTICES:
            raise InvalidGraph(
                f"generates more than {MAX_VERTICES} vertices", where=f"edge to {target.id}"
            )
        is_containment = self._subsystem(edge) == CONTAINMENT
        for j, parent in enumerate(node.made):
            for i in range(scale):
                number = self._make(target, self._gen_id(edge, i, scale, j), parent)
                source, child = self.made[parent].index, self.made[number].index
                if is_containment and source >= 0 and child >= 0:
                    self.builder.connect(source, child)
                target.made.append(number)
        self.scales.insert(0, scale)

    def _associate(self, node: _Node, edge: _Edge, target: _Node, *, by_path: bool) -> None:
        """Put existing vertices into another subsystem: all of a type, or those with a like path."""
        kind, subsystem = self._text(target.data, "type"), self._subsystem(edge)
        if subsystem == CONTAINMENT:
            raise InvalidGraph("containment is made by MULTIPLY", where=f"edge to {target.id}")
        through = self._text(edge.data, "as_tgt_subsystem") or CONTAINMENT
        up_target = self._int(edge.data, "as_tgt_uplvl", 1)
        up_source = self._int(edge.data, "as_src_uplvl", 1)
        candidates = [number for number, made in enumerate(self.made) if made.kind == kind]
        for source in node.made:
            paths = self.made[source].paths
            prefix = _prefix(paths.get(through, ""), up_source)
            for number in candidates:
                made = self.made[number]
                if by_path and _prefix(made.paths.get(through, ""), up_target) != prefix:
                    continue
                made.paths[subsystem] = f"{paths.get(subsystem, '')}/{made.name}"
                if made.index >= 0:
                    self.builder.other_paths.setdefault(made.index, {})[subsystem] = made.paths[
                        subsystem
                    ]
                target.made.append(number)

    def _gen_id(self, edge: _Edge, i: int, scale: int, j: int) -> int:
        scope = self._int(edge.data, "id_scope", 0)
        start = self._int(edge.data, "id_start", 0)
        if scope < 0:
            return -1
        if scope == 0:
            return start + i
        wrap = 1
        for earlier in self.scales[:scope]:
            wrap *= earlier
        stride = self._int(edge.data, "id_stride", 1)
        return start + (j % max(wrap, 1)) * scale * stride + i * stride

    def _make(self, node: _Node, number: int, parent: int) -> int:
        """Make one vertex; only those of containment reach the builder."""
        kind = self._text(node.data, "type")
        basename = self._text(node.data, "basename") or kind
        subsystem = self._text(node.data, "subsystem") or CONTAINMENT
        size = self._int(node.data, "size", 1)
        if not kind or size < 0:
            raise InvalidGraph("needs a type and a size of at least 0", where=f"node {node.id}")
        rank = -1
        if kind == "node":
            rank, self.rank = self.rank, self.rank + 1
        paths: dict[str, str] = {}
        name = ""
        if self.has_others:
            name = f"{basename}{number}" if number != -1 else basename
            above = self.made[parent].paths.get(subsystem, "") if parent >= 0 else ""
            paths[subsystem] = f"{above}/{name}"
        made = _Made(kind, name, paths)
        self.made.append(made)
        if subsystem == CONTAINMENT:
            builder = self.builder
            made.index = len(builder.kinds)
            builder.add_plain(
                builder.intern_type(kind),
                builder.intern_text(basename),
                number,
                len(self.made) - 1,
                rank,
                size,
            )
            unit = self._text(node.data, "unit")
            if unit:
                builder.units[made.index] = unit
        return len(self.made) - 1

    def _subsystem(self, edge: _Edge) -> str:
        return self._text(edge.data, "e_subsystem") or CONTAINMENT

    def _text(self, data: dict[str, str], name: str) -> str:
        return data.get(name, self.recipe.defaults.get(name, ""))

    def _int(self, data: dict[str, str], name: str, default: int) -> int:
        text = data.get(name, self.recipe.defaults.get(name, ""))
        return int(text) if text else default


def _prefix(path: str, levels_up: int) -> str:
    """``path`` without its last ``levels_up`` parts, a slash at the end."""
    parts = path.split("/")
    if levels_up >= len(parts) - 1:
        return ""
    return "/".join(parts[: len(parts) - levels_up]) + "/"
