"""Functions of lists. ``functions`` uses them. Pure."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

from localcluster.types.cel.operators import OPERATORS
from localcluster.types.cel.values import CelError, check_order, equal


def index_of(items: list[Any], wanted: Any) -> int:
    """Return the first index of an item, or -1."""
    return next((n for n, item in enumerate(items) if equal(item, wanted)), -1)


def last_index_of(items: list[Any], wanted: Any) -> int:
    """Return the last index of an item, or -1."""
    return next((n for n in reversed(range(len(items))) if equal(items[n], wanted)), -1)


def has_all(items: list[Any], wanted: list[Any]) -> bool:
    """Compute ``sets.contains``."""
    return all(any(equal(one, item) for item in items) for one in wanted)


def has_any(items: list[Any], others: list[Any]) -> bool:
    """Compute ``sets.intersects``."""
    return any(equal(one, item) for item in items for one in others)


def distinct(items: list[Any]) -> list[Any]:
    """Return each item once, in the order of first occurrence."""
    kept: list[Any] = []
    for item in items:
        if not any(equal(item, other) for other in kept):
            kept.append(item)
    return kept


def _compare(left: Any, right: Any) -> int:
    check_order(left, right)
    return int(left > right) - int(left < right)


def in_order(items: list[Any], keys: list[Any] | None = None) -> list[Any]:
    """Return the items, smallest first. If ``keys`` are given, they are compared instead."""
    key = functools.cmp_to_key(_compare)
    pairs = zip(items if keys is None else keys, items, strict=True)
    return [item for _, item in sorted(pairs, key=lambda pair: key(pair[0]))]


def is_sorted(items: list[Any]) -> bool:
    """Return whether no item is larger than the next."""
    return all(_compare(a, b) <= 0 for a, b in itertools.pairwise(items))


def smallest(items: list[Any]) -> Any:
    """Compute ``min``. Raises CelError for an empty list."""
    if not items:
        raise CelError("min called on empty list")
    return in_order(items)[0]


def largest(items: list[Any]) -> Any:
    """Compute ``max``. Raises CelError for an empty list."""
    if not items:
        raise CelError("max called on empty list")
    return in_order(items)[-1]


def total(zero: Any) -> Callable[[list[Any]], Any]:
    """Return ``sum`` for lists with items that can be added to ``zero``."""
    return lambda items: functools.reduce(OPERATORS["_+_"], items, zero)


def sliced(items: list[Any], start: int, end: int) -> list[Any]:
    """Return the items from ``start`` to before ``end``."""
    if not 0 <= start <= end <= len(items):
        raise CelError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return items[start:end]
