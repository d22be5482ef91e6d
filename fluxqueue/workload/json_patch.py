"""JSON Patches (RFC 6902), composed operation by operation. Pure.

Called by the modules that change objects: ``gates`` and ``suspension``.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.workload.object_paths import Path

Patch = list[dict[str, Any]]
"""A JSON Patch."""


def op(op: str, path: str, **value: Any) -> dict[str, Any]:
    """Return one operation."""
    return {"op": op, "path": path, **value}


def pointer(*names: str | int) -> str:
    """Return a JSON Pointer (RFC 6901)."""
    return "".join("/" + str(name).replace("~", "~0").replace("/", "~1") for name in names)


def same_uid(obj: Mapping[str, Any]) -> dict[str, Any]:
    """Return a test that makes the patch fail on another object of this name."""
    return op("test", "/metadata/uid", value=obj["metadata"]["uid"])


def set_in(obj: Mapping[str, Any], path: tuple[str, ...], key: str, value: str) -> Patch:
    """Set ``key`` in the map at ``path``, and create absent or null maps on the way."""
    return put(_copied_along(obj, path), (*path, key), value)


def _copied_along(obj: Mapping[str, Any], path: tuple[str, ...]) -> dict[str, Any]:
    """Copy only ``obj`` and the maps at ``path``, because the rest may be very large."""
    copied = here = dict(obj)
    for name in path:
        inner = here.get(name)
        if not isinstance(inner, Mapping):
            break
        here[name] = here = dict(inner)
    return copied


def put(obj: dict[str, Any], path: Path, value: Any) -> Patch:
    """Set the value at ``path`` in ``obj`` itself, and return the patch that does the same.

    Absent maps on the way are created. As ``obj`` changes, several such patches can follow each
    other.
    """
    here: Any = obj
    for depth, name in enumerate(path[:-1]):
        inner = at(here, (name,))
        if not inner:
            _check_holds(here, path, depth)
            made = value
            for missing in reversed(path[depth + 1 :]):
                made = {missing: made}
            here[name] = made
            # "add" into a list would shift the elements that follow.
            verb = "replace" if isinstance(name, int) else "add"
            return [op(verb, pointer(*path[: depth + 1]), value=copy.deepcopy(made))]
        here = inner
    _check_holds(here, path, len(path) - 1)
    if here.get(path[-1]) == value:
        return []
    here[path[-1]] = value
    return [op("add", pointer(*path), value=value)]


def _check_holds(here: Any, path: Path, depth: int) -> None:
    """Refuse a place that can hold no member ``path[depth]``: a custom resource has any types."""
    if not isinstance(here, list if isinstance(path[depth], int) else dict):
        raise InvalidInput(
            "is not an object, so nothing in it can be set",
            where=".".join(map(str, path[:depth])),
            value=here,
            hint="write a mapping, or leave it out",
        )


def take(obj: dict[str, Any], path: Path) -> Patch:
    """Remove the value at ``path`` from ``obj`` itself, if it is there. Return the patch."""
    here = at(obj, path[:-1])
    if not isinstance(here, dict) or path[-1] not in here:
        return []
    del here[str(path[-1])]
    return [op("remove", pointer(*path))]


def at(obj: Any, path: Path) -> Any:
    """Return the value at ``path``, or None if a step is missing."""
    for name in path:
        is_there = isinstance(obj, list) if isinstance(name, int) else isinstance(obj, Mapping)
        obj = (obj[name] if isinstance(name, int) else obj.get(name)) if is_there else None
    return obj
