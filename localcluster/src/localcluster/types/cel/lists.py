"""Functions of lists; called by ``functions``. Pure."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable
from typing import Any

from localcluster.types.cel.operators import OPERATORS
from localcluster.types.cel.values import CelError, check_order, equal


def index_of(items: list[Any], wanted: Any) -> int:
    """Where it comes first, or -1."""
    return next((n for n, item in enumerate(items) if equal(item, wanted)), -1)


def last_index_of(items: list[Any], wanted: Any) -> int:
    """Where it comes last, or -1."""
    return next((n for n in reversed(range(len(items))) if equal(items[n], wanted)), -1)


def has_all(items: list[Any], wanted: list[Any]) -> bool:
    """``sets.contains``."""
    return all(any(equal(one, item) for item in items) for one in wanted)


def has_any(items: list[Any], others: list[Any]) -> bool:
    """``sets.intersects``."""
    return any(equal(one, item) for item in items for one in others)


def distinct(items: list[Any]) -> list[Any]:
    """Each once, in the order of their first."""
    kept: list[Any] = []
    for item in items:
        if not any(equal(item, other) for other in kept):
            kept.append(item)
    return kept


def _compare(left: Any, right: Any) -> int:
    check_order(left, right)
    return int(left > right) - int(left < right)


def in_order(items: list[Any], keys: list[Any] | None = None) -> list[Any]:
    """Smallest first, or the one of the smallest key."""
    key = functools.cmp_to_key(_compare)
    pairs = zip(items if keys is None else keys, items, strict=True)
    return [item for _, item in sorted(pairs, key=lambda pair: key(pair[0]))]


def is_sorted(items: list[Any]) -> bool:
    """Whether none is larger than the next."""
    return all(_compare(a, b) <= 0 for a, b in itertools.pairwise(items))


def smallest(items: list[Any]) -> Any:
    """``min``; an error for an empty list."""
    if not items:
        raise CelError("min called on empty list")
    return in_order(items)[0]


def largest(items: list[Any]) -> Any:
    """``max``; an error for an empty list."""
    if not items:
        raise CelError("max called on empty list")
    return in_order(items)[-1]


def total(zero: Any) -> Callable[[list[Any]], Any]:
    """``sum`` of lists whose items are added to ``zero``."""
    return lambda items: functools.reduce(OPERATORS["_+_"], items, zero)


def sliced(items: list[Any], start: int, end: int) -> list[Any]:
    """The items from ``start`` to before ``end``."""
    if not 0 <= start <= end <= len(items):
        raise CelError(f"cannot slice({start}, {end}), list is length {len(items)}")
    return items[start:end]
