"""Completion indexes: the lists of a Job's status (``1,3-5``), and the same as Postgres ranges.

Called by ``workload.kinds`` and the controller. Pure; a list of any length costs as much as it has
parts, never as much as it has members.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

INDEX_MAX = 2**31 - 1
"""A completion index is an int32 in Kubernetes and in our rows."""

DIGITS_MAX = len(str(INDEX_MAX))

NO_INDEXES = "{}"
"""An empty ``int4multirange``."""

_PART = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?")

Range = tuple[int, int | None]
"""First member and the first after the last; None is *and all that follow*."""


def read_indexes(text: str) -> list[Range]:
    """Read a list such as ``1,3-5`` (``status.completedIndexes`` and ``status.failedIndexes``).

    A part that is none is left out: the status is its controller's, and one bad word in it must
    not keep us from following the rest.
    """
    found: list[Range] = []
    for part in text.split(","):
        match = _PART.fullmatch(part.strip())
        if match is None:
            continue
        low, high = int(match[1]), int(match[2] or match[1])
        if low <= high < INDEX_MAX:
            found.append((low, high + 1))
    return found


def merge(ranges: Iterable[Range]) -> list[Range]:
    """Give the same members as few ranges, ascending and apart from each other."""
    merged: list[Range] = []
    for low, end in sorted(ranges, key=lambda one: one[0]):
        last = merged[-1][1] if merged else -1
        if last is None:
            break
        if low > last:
            merged.append((low, end))
        elif end is None or end > last:
            merged[-1] = (merged[-1][0], end)
    return merged


def is_in(index: int, ranges: Iterable[Range]) -> bool:
    """Whether ``index`` is a member."""
    return any(low <= index and (end is None or index < end) for low, end in ranges)


def count_below(ranges: Iterable[Range], bound: int) -> int:
    """Count the members that are smaller than ``bound``."""
    return sum(
        max(0, (bound if end is None else min(end, bound)) - low) for low, end in merge(ranges)
    )


def as_multirange(ranges: Iterable[Range]) -> str:
    """Write ranges as an ``int4multirange`` in the one form in which Postgres writes it."""
    parts = (f"[{low},{'' if end is None else end})" for low, end in merge(ranges))
    return "{" + ",".join(parts) + "}"
