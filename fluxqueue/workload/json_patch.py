"""Wanted objects, and the JSON Patch (RFC 6902) that makes an object what it should be. Pure.

A caller describes the wanted object (``edited``). All JSON Patches of fluxqueue are the difference
between an object and the wanted object (``diff``, ``guarded_diff``).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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


def at(obj: Any, path: Path) -> Any:
    """Return the value at ``path``, or None if a step is missing."""
    for name in path:
        is_there = isinstance(obj, list) if isinstance(name, int) else isinstance(obj, Mapping)
        obj = (obj[name] if isinstance(name, int) else obj.get(name)) if is_there else None
    return obj


def edited(obj: Mapping[str, Any], changes: Mapping[Path, Any]) -> Mapping[str, Any]:
    """Return ``obj`` with other values at some paths. None removes what is there.

    Absent or null maps on the way are created. Only what is on the way is copied, because the rest
    may be very large. ``obj`` itself is returned if nothing changes.

    Raises
    ------
    InvalidInput
        A place can hold no member: a custom resource has any types.
    """
    for path, value in changes.items():
        obj = _with(obj, path, value)
    return obj


def _with(here: Any, path: Path, value: Any, depth: int = 0) -> Any:
    name, is_last = path[depth], depth + 1 == len(path)
    if not isinstance(here, list if isinstance(name, int) else Mapping):
        if value is None:
            return here
        raise InvalidInput(
            "is not an object, so nothing in it can be set",
            where=".".join(map(str, path[:depth])),
            value=here,
            hint="write a mapping, or leave it out",
        )
    old = at(here, (name,))
    if value is None and (is_last or not old):
        is_there = is_last and name in here
        return {key: here[key] for key in here if key != name} if is_there else here
    new: Any = value
    if not is_last and old:
        new = _with(old, path, value, depth + 1)
    elif not is_last:
        for missing in reversed(path[depth + 1 :]):
            new = {missing: new}
    if new is old or (is_last and new == old):
        return here
    copied: Any = list(here) if isinstance(here, list) else dict(here)
    copied[name] = new
    return copied


def diff(obj: Any, wanted: Any, path: Path = ()) -> Patch:
    """Return the patch that makes ``wanted`` from ``obj``.

    What both share is not looked at, so the cost grows with the changes alone.
    """
    if obj is wanted or obj == wanted:
        return []
    if isinstance(obj, Mapping) and isinstance(wanted, Mapping):
        patch = [op("remove", pointer(*path, name)) for name in obj if name not in wanted]
        for name, value in wanted.items():
            if name in obj:
                patch += diff(obj[name], value, (*path, name))
            else:
                patch.append(op("add", pointer(*path, name), value=value))
        return patch
    if isinstance(obj, list) and isinstance(wanted, list):
        return _diff_lists(obj, wanted, path)
    # "add" into a list would shift the elements that follow. In a map it replaces the member.
    verb = "replace" if not path or isinstance(path[-1], int) else "add"
    return [op(verb, pointer(*path), value=wanted)]


def _diff_lists(old: Sequence[Any], new: Sequence[Any], path: Path) -> Patch:
    """Compare elements of equal index. Or find the one run of elements that came or went."""
    if len(old) == len(new):
        pairs = enumerate(zip(old, new, strict=True))
        return [one for n, (a, b) in pairs for one in diff(a, b, (*path, n))]
    shorter = min(len(old), len(new))
    start = next((n for n in range(shorter) if old[n] != new[n]), shorter)
    kept = shorter - start
    if kept and old[-kept:] != new[-kept:]:
        return [op("add", pointer(*path), value=new)]
    if len(old) > len(new):
        return [op("remove", pointer(*path, start))] * (len(old) - len(new))
    came = new[start : len(new) - kept]
    return [op("add", pointer(*path, start + n), value=one) for n, one in enumerate(came)]


def guarded_diff(obj: Mapping[str, Any], wanted: Mapping[str, Any], *same: Path) -> Patch:
    """Return the patch that makes ``wanted`` from a stored object that may have changed since.

    It fails (422) on another object of this name, and if a value at one of the places ``same`` is
    not as it was read.
    """
    places = (("metadata", "uid"), *same)
    return [*(op("test", pointer(*one), value=at(obj, one)) for one in places), *diff(obj, wanted)]
