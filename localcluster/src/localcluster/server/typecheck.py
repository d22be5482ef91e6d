"""Checks an applied configuration against its schema, with the words of the real server.

``apply`` calls it. Other writes decode leniently. An apply refuses unknown fields, wrong types and
doubled list elements with a 500 that has no reason (``typed.ObjectToTyped``).
"""

from __future__ import annotations

from typing import Any

from localcluster.obj import Obj
from localcluster.server.fieldsets import element_of, path_text
from localcluster.types.refusals import StatusError
from localcluster.types.schema import ANY, Node

_IMPLICIT = ("apiVersion", "kind", "metadata")


class _Mismatch(Exception):
    pass


def check_typed(config: Obj, node: Node, api_version: str, kind: str) -> None:
    """Raise 500 for the first field that does not fit the schema."""
    try:
        _check(config, node, "", is_root=True)
    except _Mismatch as mismatch:
        meta = config.get("metadata")
        meta = meta if isinstance(meta, dict) else {}
        namespace, name = (
            meta[key] if isinstance(meta.get(key), str) else "" for key in ("namespace", "name")
        )
        raise StatusError(
            500,
            "",
            f"failed to create typed patch object ({namespace}/{name}; {api_version}, "
            f"Kind={kind}): {mismatch}",
        ) from mismatch


def _check(value: Any, node: Node, path: str, *, is_root: bool = False) -> None:
    if value is None or node.type == "any":
        return
    if node.type in ("object", "map"):
        _check_map(value, node, path, is_root=is_root)
    elif node.type == "list":
        _check_list(value, node, path)
    else:
        _check_scalar(value, node, path)


def _check_map(value: Any, node: Node, path: str, *, is_root: bool) -> None:
    if not isinstance(value, dict):
        raise _Mismatch(f"{path}: expected map, got {_shown(value)}")
    for key, inner in value.items():
        here = f"{path}.{key}"
        is_known = node.type == "map" or key in node.fields or node.preserve_unknown
        if not is_known and not (is_root and key in _IMPLICIT):
            raise _Mismatch(f"{here}: field not declared in schema")
        _check(inner, node.child(key), here)


def _check_list(value: Any, node: Node, path: str) -> None:
    if not isinstance(value, list):
        raise _Mismatch(f"{path}: expected list, got {_shown(value)}")
    seen: set[str] = set()
    for index, item in enumerate(value):
        here = f"{path}[{index}]"
        if node.list_type in ("map", "set"):
            element = element_of(item, node)
            if element in seen:
                raise _Mismatch(f"{path}: duplicate entries for key {path_text((element,))}")
            seen.add(element)
            here = path + path_text((element,))
        _check(item, node.items or ANY, here)


_EXPECTED = {"boolean": "boolean", "integer": "numeric (int or float)", "number": "numeric (int or float)"}  # noqa: E501 # fmt: skip


def _check_scalar(value: Any, node: Node, path: str) -> None:
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    if node.type in ("integer", "number"):
        is_right = is_number
    elif node.type == "boolean":
        is_right = isinstance(value, bool)
    elif node.type in ("int-or-string", "quantity"):
        is_right = is_number or isinstance(value, str)
    else:
        is_right = isinstance(value, str)
    if not is_right:
        expected = _EXPECTED.get(node.type, "string")
        raise _Mismatch(f"{path}: expected {expected}, got {_shown(value)}")


def _shown(value: Any) -> str:
    text = str(value).lower() if isinstance(value, bool) else value
    return f"&value.valueUnstructured{{Value:{text}}}"
