"""Paths into objects of any kind, as the table of what makes pods writes them. Pure.

A path is keys joined by dots: ``spec.roles.*.replicas``. ``*`` is all of a list or map; any other
key of a list is that of its elements whose ``type`` or ``name`` it is, so that
``status.conditions.Complete.status`` is the status of a condition.
"""

from __future__ import annotations

import copy
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Path = tuple[str | int, ...]
"""Keys and list indexes."""


def find(obj: Any, path: str) -> Iterator[tuple[Path, Any]]:
    """What ``path`` leads to, each with its place; nothing where a step is missing."""
    here: list[tuple[Path, Any]] = [((), obj)]
    for name in path.split(".") if path else ():
        here = [((*at, key), value) for at, one in here for key, value in _step(one, name)]
    return iter(here)


def _step(obj: Any, name: str) -> Iterator[tuple[str | int, Any]]:
    is_list = isinstance(obj, Sequence) and not isinstance(obj, str)
    if is_list and name == "*":
        yield from enumerate(obj)
    elif is_list:
        yield from ((n, one) for n, one in enumerate(obj) if name in _names(one))
    elif isinstance(obj, Mapping) and name == "*":
        yield from obj.items()
    elif isinstance(obj, Mapping) and obj.get(name) is not None:
        yield name, obj[name]


def _names(one: Any) -> tuple[Any, ...]:
    return (one.get("type"), one.get("name")) if isinstance(one, Mapping) else ()


def value_at(obj: Any, path: str) -> Any:
    """The first value that ``path`` leads to; None where there is none."""
    return next((value for _, value in find(obj, path)), None)


def without(obj: Mapping[str, Any], path: str) -> dict[str, Any]:
    """A copy of ``obj`` that lacks what ``path``, of keys alone, leads to."""
    changed = copy.deepcopy(dict(obj))
    *above, last = path.split(".")
    here: Any = changed
    for name in above:
        here = here.get(name) if isinstance(here, dict) else None
    if isinstance(here, dict):
        here.pop(last, None)
    return changed


def replaced(obj: Any, at: Path, value: Any) -> Any:
    """A copy of ``obj`` that has ``value`` at the place ``at``, which is there."""
    if not at:
        return value
    key, *rest = at
    copied: Any = list(obj) if isinstance(obj, list) else dict(obj)
    copied[key] = replaced(copied[key], tuple(rest), value)
    return copied


def nested(path: str, value: Any) -> dict[str, Any]:
    """The smallest object in which ``path``, of keys alone, leads to ``value``."""
    for name in reversed(path.split(".")):
        value = {name: value}
    found: dict[str, Any] = value
    return found
