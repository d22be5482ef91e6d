"""Idsets: ``0-3,7`` for many small numbers (Flux RFC 22).

The R readers and writers and rank constraints call it. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from fluxqueue.errors import InvalidInput

MAX_ID = (1 << 32) - 2
"""Flux's largest id. A larger one is a typing error."""
MAX_IDS = 2_000_000
"""Most ids in one idset. More are refused, because they could exhaust memory."""

_PART = re.compile(r"([0-9]{1,10})(?:-([0-9]{1,10}))?")


def encode(ids: Iterable[int]) -> str:
    """Return ``ids`` as an ascending idset without repetitions. No ids give the empty string."""
    ordered = sorted(set(ids))
    if ordered and ordered[0] < 0:
        raise InvalidInput("an idset has no negative ids", where="idset", value=ordered[0])
    parts: list[str] = []
    first = last = -2
    for number in [*ordered, -9]:
        if number == last + 1:
            last = number
            continue
        if first >= 0:
            parts.append(str(first) if first == last else f"{first}-{last}")
        first = last = number
    return ",".join(parts)


def decode(text: str, *, most: int = MAX_IDS) -> list[int]:
    """Return the ids of an idset, ascending and without repetitions.

    Brackets around the whole text are allowed.

    Raises
    ------
    InvalidInput
        ``text`` is not an idset, has a backward range, or has more than ``most`` members.
    """
    body = text.strip()
    if body.startswith("[") and body.endswith("]"):
        body = body[1:-1]
    if not body:
        return []
    found: set[int] = set()
    for part in body.split(","):
        match = _PART.fullmatch(part)
        low, high = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
        if high < low or high > MAX_ID or high - low + len(found) > most:
            raise InvalidInput(
                f"{text[:80]!r} is no idset", where="idset", value=text[:80], hint="such as 0-3,7"
            )
        found.update(range(low, high + 1))
    return sorted(found)
