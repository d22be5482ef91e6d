"""Paths into objects of any kind, in the form of the table of owner kinds. Pure.

A path is keys joined by dots: ``spec.roles.*.replicas``. ``*`` is all of a list or map. Any other
key of a list selects the elements with that ``type`` or ``name``. So
``status.conditions.Complete.status`` is the status of a condition.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

Path = tuple[str | int, ...]
"""Keys and list indexes."""


def find(obj: Any, path: str) -> Iterator[tuple[Path, Any]]:
    """Yield what ``path`` leads to, each with its place. Yields nothing if a step is missing."""
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
    """Return the first value that ``path`` leads to, or None if there is none."""
    return next((value for _, value in find(obj, path)), None)


def replaced(obj: Any, at: Path, value: Any) -> Any:
    """Return a copy of ``obj`` with ``value`` at the existing place ``at``."""
    if not at:
        return value
    key, *rest = at
    copied: Any = list(obj) if isinstance(obj, list) else dict(obj)
    copied[key] = replaced(copied[key], tuple(rest), value)
    return copied


def nested(path: str, value: Any) -> dict[str, Any]:
    """Return the smallest object with ``value`` at ``path``, which consists of keys alone."""
    for name in reversed(path.split(".")):
        value = {name: value}
    found: dict[str, Any] = value
    return found
