"""Sets of field paths: the fields of an object, the difference of two objects, ``fieldsV1``.

``managed_fields`` and ``apply`` use it. It is a port of the parts of
``sigs.k8s.io/structured-merge-diff/v4`` (fieldpath, typed) that server-side apply needs. Pure.

A path is a tuple of elements in the spelling of ``fieldsV1``. ``f:spec`` is a field,
``k:{"name":"main"}`` an element of a list with keys, ``v:"x"`` a member of a set.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import orjson

from localcluster.obj import Obj
from localcluster.types.schema import ANY, Node

Path = tuple[str, ...]
Fields = frozenset[Path]
NO_FIELDS: Fields = frozenset()

_KEY_DEFAULTS = {"protocol": "TCP"}
"""Defaults of list keys (ports of containers and services)."""

_SYSTEM = frozenset(
    {
        ("f:apiVersion",),
        ("f:kind",),
        ("f:metadata",),
        *(
            ("f:metadata", f"f:{name}")
            for name in (
                "name",
                "namespace",
                "creationTimestamp",
                "selfLink",
                "uid",
                "generation",
                "managedFields",
                "resourceVersion",
                "deletionTimestamp",
                "deletionGracePeriodSeconds",
            )
        ),
    }
)


def without_system(fields: Iterable[Path]) -> Fields:
    """Return the fields that a manager can own, without type, name and system fields."""
    return frozenset(p for p in fields if p not in _SYSTEM and p[:2] not in _SYSTEM)


def is_granular_map(node: Node) -> bool:
    """Return whether the fields of an object have separate owners."""
    return node.map_type != "atomic"


def is_associative(node: Node) -> bool:
    """Return whether the elements of a list have separate owners."""
    return node.list_type in ("map", "set")


def element_of(item: Any, node: Node) -> str:
    """Return the path element of a list item."""
    if node.list_type == "set":
        return "v:" + orjson.dumps(item).decode()
    keys: Obj = {}
    if isinstance(item, dict):
        for key in node.list_map_keys:
            value = item.get(key, _KEY_DEFAULTS.get(key))
            if value is not None:
                keys[key] = value
    return "k:" + orjson.dumps(keys, option=orjson.OPT_SORT_KEYS).decode()


def fields_of(value: Any, node: Node) -> Fields:
    """Return all fields that an object sets (``ToFieldSet``)."""
    found: set[Path] = set()
    _collect(value, node, (), found)
    return frozenset(found)


def _collect(value: Any, node: Node, path: Path, found: set[Path]) -> None:
    if isinstance(value, dict) and is_granular_map(node):
        declared = node.fields
        for key, inner in value.items():
            here = (*path, f"f:{key}")
            _collect(inner, node.child(key), here, found)
            if inner is None or inner == {} or key not in declared:
                found.add(here)
    elif isinstance(value, list) and is_associative(node):
        for item in value:
            here = (*path, element_of(item, node))
            if isinstance(item, dict):
                _collect(item, node.items or ANY, here, found)
            found.add(here)
    else:
        found.add(path)


class Difference:
    """What changed between two objects: ``changed`` (added or modified) and ``removed``."""

    __slots__ = ("changed", "removed")

    def __init__(self) -> None:
        self.changed: set[Path] = set()
        self.removed: set[Path] = set()

    def compare(self, old: Any, new: Any, node: Node, path: Path = ()) -> None:
        """Compare both objects. Equal subtrees are skipped at the speed of ``==``."""
        if old == new:
            return
        if isinstance(old, dict) and isinstance(new, dict) and is_granular_map(node):
            self._maps(old, new, node, path)
        elif isinstance(old, list) and isinstance(new, list) and is_associative(node):
            self._lists(old, new, node, path)
        else:
            self.changed.add(path)

    def _maps(self, old: Obj, new: Obj, node: Node, path: Path) -> None:
        for key in {**old, **new}:
            here = (*path, f"f:{key}")
            if key not in new:
                self._gone(old[key], node.child(key), here)
            elif key not in old:
                self.appeared(new[key], node.child(key), here)
            else:
                self.compare(old[key], new[key], node.child(key), here)

    def _lists(self, old: list[Any], new: list[Any], node: Node, path: Path) -> None:
        before = {element_of(item, node): item for item in old}
        after = {element_of(item, node): item for item in new}
        items = node.items or ANY
        for element in {**before, **after}:
            here = (*path, element)
            if element not in after:
                self._gone(before[element], items, here)
            elif element not in before:
                self.appeared(after[element], items, here)
            else:
                self.compare(before[element], after[element], items, here)

    def appeared(self, value: Any, node: Node, path: Path) -> None:
        """Add a new subtree: every node of it counts, including containers."""
        self.changed.add(path)
        if isinstance(value, dict) and is_granular_map(node):
            for key, inner in value.items():
                self.appeared(inner, node.child(key), (*path, f"f:{key}"))
        elif isinstance(value, list) and is_associative(node):
            for item in value:
                self.appeared(item, node.items or ANY, (*path, element_of(item, node)))

    def _gone(self, value: Any, node: Node, path: Path) -> None:
        self.removed.add(path)
        found: set[Path] = set()
        _collect(value, node, path, found)
        self.removed |= found


_SKELETON = frozenset({"f:metadata", "f:spec", "f:template", "f:status", "f:containers"})


_LEFT_OUT = frozenset({"f:metadata", "f:status"})
"""Structs that have no owner while they are empty."""


def created_fields(obj: Obj, node: Node, *, is_custom: bool) -> Fields:
    """Return what a creator without apply owns.

    Containers that an empty typed object already has (``spec``, ``template`` ...) do not count.
    """
    made = Difference()
    for key, value in obj.items():
        made.appeared(value, node.child(key), (f"f:{key}",))
    skeleton = frozenset({"f:metadata"}) if is_custom else _SKELETON
    empty = {
        p
        for p in made.changed
        if (p[-1] in skeleton and _has_below(p, obj))
        or (p[-1] in _LEFT_OUT and not _has_below(p, obj))
    }
    return without_system(made.changed - empty)


def _has_below(path: Path, obj: Any) -> bool:
    for element in path:
        if not element.startswith("f:"):
            return True
        obj = obj.get(element[2:]) if isinstance(obj, dict) else None
    return bool(obj)


# -- fieldsV1 -------------------------------------------------------------------------------


def encode(fields: Fields) -> Obj:
    """Return ``fieldsV1`` as a nested object."""
    root: Obj = {}
    for path in sorted(fields):
        node = root
        for element in path:
            node = node.setdefault(element, {})
        node["."] = {}
    _drop_plain_dots(root)
    root.pop(".", None)
    return root


def _drop_plain_dots(node: Obj) -> None:
    """Remove the dot from leaves. Only members that also have children keep it."""
    for element, inner in node.items():
        if element != ".":
            _drop_plain_dots(inner)
            if list(inner) == ["."]:
                del inner["."]


def decode(value: Mapping[str, Any], path: Path = ()) -> Fields:
    """Return the set that ``fieldsV1`` stands for."""
    found: set[Path] = set()
    if not value and path:
        return frozenset({path})
    for element, inner in value.items():
        if element == ".":
            found.add(path)
        elif isinstance(inner, dict):
            found |= decode(inner, (*path, element))
    return frozenset(found)


def path_text(path: Path) -> str:
    """Return a path as conflicts show it, such as ``.spec.containers[name="main"].image``."""
    out = ""
    for element in path:
        kind, text = element[:2], element[2:]
        if kind == "f:":
            out += f".{text}"
        elif kind == "v:":
            out += f"[={text}]"
        else:
            pairs = orjson.loads(text).items()
            out += "[" + ",".join(f"{k}={orjson.dumps(v).decode()}" for k, v in pairs) + "]"
    return out
