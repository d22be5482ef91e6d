"""Builds schema nodes of built-in kinds from ``table.txt``.

Called once per kind when the registry is built. The nodes resolve their fields on first use.
"""

from __future__ import annotations

from functools import cache
from importlib import resources

from localcluster.types.schema import ANY, Node

_SCALARS = {
    "string": "string",
    "int32": "integer",
    "int64": "integer",
    "float64": "number",
    "bool": "boolean",
    "quantity": "quantity",
    "time": "time",
    "microtime": "microtime",
    "bytes": "bytes",
    "int-or-string": "int-or-string",
}


@cache
def _table() -> dict[str, tuple[bool, list[str]]]:
    """Return type name -> (is atomic, its field lines)."""
    text = resources.files(__package__).joinpath("table.txt").read_text(encoding="utf-8")
    types: dict[str, tuple[bool, list[str]]] = {}
    lines: list[str] = []
    for line in text.splitlines():
        if line.startswith("#") or not line.strip():
            continue
        if line.startswith("  "):
            lines.append(line.strip())
        else:
            name, *marks = line.split()
            lines = []
            types[name] = ("atomic" in marks, lines)
    return types


def type_names() -> list[str]:
    """Return all types of the table, in its (sorted) order."""
    return list(_table())


@cache
def builtin_node(name: str) -> Node:
    """Return the node of a built-in type."""
    is_atomic, lines = _table()[name]
    return Node(
        "object",
        ref=name,
        go_type=f"v1.{name}",
        map_type="atomic" if is_atomic else "granular",
        _resolve=lambda: dict(_field(line) for line in lines),
    )


def _field(line: str) -> tuple[str, Node]:
    name, type_text, *marks = line.split()
    keeps_zero = type_text.startswith("*")
    node = _type_node(type_text.lstrip("*"))
    words = {m.partition("=")[0]: m.partition("=")[2] for m in marks}
    if not words and not keeps_zero:
        return name, node
    node = _copy(node)
    node.keeps_zero = keeps_zero
    node.is_required = "required" in words
    node.is_always = "always" in words
    node.merge_key = words.get("merge", "")
    node.patch_strategy = frozenset({"merge", "retainKeys"} & set(words))
    if "keys" in words:
        node.list_type, node.list_map_keys = "map", tuple(words["keys"].split(","))
    if "set" in words:
        node.list_type = "set"
    if "atomic" in words:
        node.map_type = "atomic"
    return name, node


def _copy(node: Node) -> Node:
    return Node(
        node.type,
        items=node.items,
        map_type=node.map_type,
        preserve_unknown=node.preserve_unknown,
        ref=node.ref,
        go_type=node.go_type,
        _resolve=lambda: node.fields,
    )


@cache
def _type_node(text: str) -> Node:
    if text.startswith("[]"):
        items = _type_node(text[2:])
        return Node("list", items=items, go_type=f"[]{items.go_type}")
    if text.startswith("map:"):
        items = _type_node(text[4:])
        return Node("map", items=items, go_type=f"map[string]{items.go_type}")
    if text == "any":
        return ANY
    if text in _SCALARS:
        return Node(_SCALARS[text], go_type=text)
    return builtin_node(text)
