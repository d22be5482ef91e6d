"""Completion indexes: lists of a Job's status (``1,3-5``), and the same as Postgres ranges.

``workload.kinds`` and the controller call it. Pure. The cost of a list depends on its number of
parts, not on its number of members.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

INDEX_MAX = 2**31 - 1
"""Largest completion index: an int32 in Kubernetes and in the rows."""

DIGITS_MAX = len(str(INDEX_MAX))

NO_INDEXES = "{}"
"""An empty ``int4multirange``."""

_PART = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?")

Range = tuple[int, int | None]
"""The first member, and the first number after the last. None: no upper end."""


def read_indexes(text: str) -> list[Range]:
    """Read a list such as ``1,3-5`` (``status.completedIndexes``, ``status.failedIndexes``).

    A part that is not valid is skipped. The status comes from another controller, and one bad part
    must not stop the rest from being followed.
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
    """Return the same members as the fewest ranges, ascending and disjoint."""
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
    """Return whether ``index`` is a member."""
    return any(low <= index and (end is None or index < end) for low, end in ranges)


def count_below(ranges: Iterable[Range], bound: int) -> int:
    """Count the members that are smaller than ``bound``."""
    return sum(
        max(0, (bound if end is None else min(end, bound)) - low) for low, end in merge(ranges)
    )


def as_multirange(ranges: Iterable[Range]) -> str:
    """Write ranges as an ``int4multirange``, in the form in which Postgres writes it."""
    parts = (f"[{low},{'' if end is None else end})" for low, end in merge(ranges))
    return "{" + ",".join(parts) + "}"
