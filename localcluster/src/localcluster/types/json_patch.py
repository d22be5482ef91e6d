"""JSON Patch (RFC 6902), for PATCH requests and for the answers of webhooks. Pure.

It follows the library of the real server (evanphx/json-patch v4) where that is laxer than the RFC.
``replace`` of a missing key adds it. ``test`` of a missing key against null holds. So a strict
library could not be used.
"""

from __future__ import annotations

from typing import Any

from localcluster.obj import Obj


class PatchError(ValueError):
    """An operation cannot be applied. The text is the real server's."""


class _Refused(Exception):
    """An error inside an operation. ``apply_operations`` adds which one."""


def apply_operations(document: Any, patch: list[Obj]) -> Any:
    """Apply the operations in place and return the result. Raises ``PatchError``."""
    for operation in patch:
        try:
            document = _apply_operation(document, operation)
        except _Refused as error:
            raise PatchError(_why(operation)) from error
    return document


def _why(operation: Obj) -> str:
    kind, path = operation.get("op", ""), str(operation.get("path", ""))
    key = path.rpartition("/")[2]
    if kind == "test":
        return f"testing value {path} failed: test failed"
    if kind == "remove":
        why = f"Unable to remove nonexistent key: {key}: missing value"
        return f"error in remove for path: '{path}': {why}"
    if kind == "replace":
        return f"replace operation does not apply: doc is missing key: {path}: missing value"
    return f'{kind} operation does not apply: doc is missing path: "{path}": missing value'


_MISSING = object()


def _apply_operation(document: Any, operation: Obj) -> Any:
    name, path = operation.get("op"), operation.get("path")
    if not isinstance(path, str):
        raise _Refused
    if name == "add":
        return _put(document, path, operation.get("value"), is_add=True)
    if name == "replace":
        return _put(document, path, operation.get("value"), is_add=False)
    if name == "remove":
        _take(document, path)
        return document
    if name == "test":
        found = _read(document, path)
        wanted = operation.get("value")
        if not (_equal(found, wanted) or (found is _MISSING and wanted is None)):
            raise _Refused
        return document
    source = operation.get("from")
    if name not in ("copy", "move") or not isinstance(source, str):
        raise _Refused
    if name == "move":
        value = _take(document, source)
    else:
        value = _read(document, source)
        if value is _MISSING:
            raise _Refused
        value = copy_json(value)
    return _put(document, path, value, is_add=True)


def copy_json(value: Any) -> Any:
    """Return a copy of JSON data that shares nothing with it."""
    if isinstance(value, dict):
        return {key: copy_json(inner) for key, inner in value.items()}
    if isinstance(value, list):
        return [copy_json(inner) for inner in value]
    return value


def _equal(left: Any, right: Any) -> bool:
    """Compare as JSON does: unlike in Python, true is not 1."""
    if isinstance(left, bool) is not isinstance(right, bool):
        return False
    if isinstance(left, dict) and isinstance(right, dict):
        return left.keys() == right.keys() and all(_equal(left[k], right[k]) for k in left)
    if isinstance(left, list) and isinstance(right, list):
        return len(left) == len(right) and all(map(_equal, left, right))
    return bool(left == right)


def _segments(path: str) -> list[str]:
    if path == "":
        return []
    if not path.startswith("/"):
        raise _Refused
    return [s.replace("~1", "/").replace("~0", "~") for s in path[1:].split("/")]


def _parent(document: Any, segments: list[str]) -> Any:
    for segment in segments[:-1]:
        document = _child(document, segment)
        if not isinstance(document, dict | list):
            raise _Refused
    return document


def _child(container: Any, segment: str) -> Any:
    if isinstance(container, dict):
        return container.get(segment, _MISSING)
    if isinstance(container, list):
        index = _index(segment, len(container) - 1)
        return container[index]
    return _MISSING


def _index(segment: str, highest: int) -> int:
    try:
        index = int(segment)
    except ValueError:
        raise _Refused from None
    if index < 0:
        index += highest + 1
    if not 0 <= index <= highest:
        raise _Refused
    return index


def _read(document: Any, path: str) -> Any:
    segments = _segments(path)
    if not segments:
        return document
    return _child(_parent(document, segments), segments[-1])


def _put(document: Any, path: str, value: Any, *, is_add: bool) -> Any:
    segments = _segments(path)
    if not segments:
        return value
    parent, last = _parent(document, segments), segments[-1]
    if isinstance(parent, dict):
        parent[last] = value
    elif isinstance(parent, list):
        if not is_add:
            parent[_index(last, len(parent) - 1)] = value
        elif last == "-":
            parent.append(value)
        else:
            parent.insert(_index(last, len(parent)), value)
    else:
        raise _Refused
    return document


def _take(document: Any, path: str) -> Any:
    segments = _segments(path)
    if not segments:
        raise _Refused
    parent, last = _parent(document, segments), segments[-1]
    if isinstance(parent, dict):
        if last not in parent:
            raise _Refused
        return parent.pop(last)
    if isinstance(parent, list):
        return parent.pop(_index(last, len(parent) - 1))
    raise _Refused
