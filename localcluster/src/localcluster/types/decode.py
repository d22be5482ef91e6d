"""Converts a request body to the object that the server stores.

It does what Go's JSON decoding into typed structs does, with schema nodes as types. Unknown fields
are dropped and reported. Wrong types are refused. Zero values of omitempty fields are left out.
Quantities and times get their canonical form. Strategies call it. Pure.
"""

from __future__ import annotations

import base64
import re
from datetime import UTC, datetime
from typing import Any

import orjson

from localcluster.obj import Obj
from localcluster.types.quantity import QuantityError, canonical
from localcluster.types.schema import Node

Path = tuple[Any, Any] | None
_DROP = object()


class DecodeError(ValueError):
    """A value of the wrong type. The text is that of the real server's decoder."""


class Decoder:
    """One pass over one object. ``unknown`` lists dropped fields as ``spec.containers[0].imag``."""

    def __init__(self) -> None:
        self.unknown: list[str] = []

    def clean_object(
        self, obj: Obj, node: Node, path: Path = None, known: Obj | None = None
    ) -> None:
        """Clean ``obj`` in place. Raises DecodeError.

        ``known`` is an object that was cleaned before. What equals it is left unchanged, because
        most patches change little.
        """
        fields = node.fields
        before = known if known is not None else {}
        for key, value in tuple(obj.items()):
            was = before.get(key)
            if was is not None and was == value:
                continue
            child = fields.get(key)
            if child is not None and child.type == "string" and value and type(value) is str:
                continue  # This is the most common case, decided without a call.
            if child is None:
                if not node.preserve_unknown:
                    self.unknown.append(render_path((path, key)))
                    del obj[key]
                continue
            if type(was) is dict and type(value) is dict and child.type == "object":
                self.clean_object(value, child, (path, key), was)
                continue
            cleaned = self._clean(value, child, path, key, node)
            if cleaned is _DROP:
                del obj[key]
            elif cleaned is not value:
                obj[key] = cleaned
        for key, child in node.always:
            if key not in obj:
                obj[key] = zero(child)

    def _clean(self, value: Any, node: Node, path: Path, key: Any, owner: Node) -> Any:
        kind = node.type
        if value is None:
            return _DROP if kind != "any" else None
        if kind == "string":
            if type(value) is not str:
                raise _mismatch(value, node, (path, key), owner)
            return value if value or node.is_always or node.keeps_zero else _DROP
        if kind == "object":
            if type(value) is not dict:
                raise _mismatch(value, node, (path, key), owner)
            self.clean_object(value, node, (path, key))
            return value
        if kind in ("list", "map"):
            return self._clean_many(value, node, path, key, owner)
        if kind == "any":
            return value
        cleaned = _scalar(value, node, (path, key), owner)
        return cleaned if cleaned or node.is_always or node.keeps_zero else _DROP

    def _clean_many(self, value: Any, node: Node, path: Path, key: Any, owner: Node) -> Any:
        assert node.items is not None
        items = node.items
        here = (path, key)
        if type(value) is not (list if node.type == "list" else dict):
            raise _mismatch(value, node, here, owner)
        if not value:
            return value if node.is_always and node.type == "list" else _DROP
        pairs: list[tuple[Any, Any]] = (
            list(enumerate(value)) if isinstance(value, list) else list(value.items())
        )
        for index, item in pairs:
            if items.type == "string" and type(item) is str:
                continue
            if item is None:
                value[index] = zero(items)
                continue
            is_plain_map = node.type == "map" and items.type not in ("object", "list", "map")
            if is_plain_map:  # Errors name the map, not the key.
                cleaned = self._clean(item, items, path, key, owner)
            else:
                cleaned = self._clean(item, items, here, index, owner)
            if cleaned is _DROP:
                cleaned = zero(items) if not isinstance(item, list | dict) else item
            if cleaned is not item:
                value[index] = cleaned
        return value


def zero(node: Node) -> Any:
    """Return what Go writes for an unset field without omitempty."""
    if node.type == "object":
        return {key: zero(child) for key, child in node.always}
    if node.type == "string":
        return ""
    if node.type == "boolean":
        return False
    if node.type in ("integer", "number", "int-or-string"):
        return 0
    if node.type == "quantity":
        return "0"
    return None


def _scalar(value: Any, node: Node, path: Path, owner: Node) -> Any:
    kind = node.type
    if kind == "boolean":
        if type(value) is bool:
            return value
    elif kind == "integer":
        if type(value) is int and _fits(value, node):
            return value
        if type(value) is float and value.is_integer() and _fits(int(value), node):
            return int(value)
    elif kind == "number":
        if type(value) in (int, float):
            return value
    elif kind == "int-or-string":
        if type(value) in (int, str):
            return value
    elif kind == "quantity":
        return _quantity(value, node, path, owner)
    elif kind in ("time", "microtime"):
        if type(value) is str:
            return parse_time(value, is_micro=kind == "microtime")
    elif kind == "bytes" and type(value) is str:
        _check_base64(value)
        return value
    raise _mismatch(value, node, path, owner)


def _fits(value: int, node: Node) -> bool:
    limit = 1 << (31 if node.go_type == "int32" else 63)
    return -limit <= value < limit


def _quantity(value: Any, node: Node, path: Path, owner: Node) -> str:
    if type(value) not in (str, int, float):
        raise _mismatch(value, node, path, owner)
    try:
        return canonical(str(value))
    except QuantityError as error:
        raise DecodeError(str(error)) from error


_NOT_BASE64 = re.compile(r"[^A-Za-z0-9+/\r\n=]")


def _check_base64(text: str) -> None:
    try:
        base64.b64decode(text.replace("\n", "").replace("\r", ""), validate=True)
    except ValueError:
        wrong = _NOT_BASE64.search(text)
        at = wrong.start() if wrong else len(text) // 4 * 4
        raise DecodeError(f"illegal base64 data at input byte {at}") from None


_TIME = re.compile(r"^(\d{4}-\d{2}-\d{2}T\d{2}:\d{2}:\d{2})(\.\d+)?(Z|[+-]\d{2}:\d{2})$")


def parse_time(text: str, *, is_micro: bool) -> str:
    """Return an RFC 3339 time in canonical UTC form. MicroTime requires and keeps six digits."""
    layout = "2006-01-02T15:04:05.000000Z07:00" if is_micro else "2006-01-02T15:04:05Z07:00"
    match = _TIME.match(text)
    if match is None:
        raise DecodeError(f'parsing time "{text}" as "{layout}": cannot parse "{text}" as "2006"')
    if is_micro and match[2] is None:
        raise DecodeError(
            f'parsing time "{text}" as "{layout}": cannot parse "{match[3]}" as ".000000"'
        )
    if not is_micro and match[2] is None and match[3] == "Z":
        return text
    try:
        moment = datetime.fromisoformat(text).astimezone(UTC)
    except ValueError as error:
        raise DecodeError(f'parsing time "{text}": {error}') from error
    return moment.strftime("%Y-%m-%dT%H:%M:%S" + (".%fZ" if is_micro else "Z"))


def _mismatch(value: Any, node: Node, path: Path, owner: Node) -> DecodeError:
    struct = owner.ref or "Object"
    dotted = render_path(path, with_index=False)
    target = node.go_type or node.type
    if node.type == "quantity":
        return DecodeError("unmarshalerDecoder: " + f"cannot unmarshal {json_kind(value)}")
    return DecodeError(
        f"json: cannot unmarshal {json_kind(value)} into Go struct field "
        f"{struct}.{dotted} of type {target}"
    )


def json_kind(value: Any) -> str:
    """Return the word that Go's decoder uses for a JSON value."""
    if isinstance(value, bool):
        return "bool"
    if isinstance(value, str):
        return "string"
    if isinstance(value, int | float):
        return "number" if isinstance(value, int) else f"number {orjson.dumps(value).decode()}"
    return "array" if isinstance(value, list) else "object"


def render_path(path: Path, *, with_index: bool = True) -> str:
    """Return a linked path as text, such as ``spec.containers[0].name``."""
    parts: list[Any] = []
    while path is not None:
        path, key = path
        parts.append(key)
    text = ""
    for key in reversed(parts):
        if isinstance(key, int):
            text += f"[{key}]" if with_index else ""
        else:
            text += f".{key}" if text else str(key)
    return text
