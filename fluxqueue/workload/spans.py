"""Spans of time in human notation: ``1d6h``, ``90s``. One parser, in one pass.

Called by ``starting`` (begin times) and ``annotations`` (durations). It reads each character once,
so the cost grows linearly with the length of the text. Pure.
"""

from __future__ import annotations

import string

DIGITS_MAX = 10
"""Longest number in a span. Ten digits hold more seconds than a deadline may have."""

_SECONDS = {"d": 86_400, "h": 3_600, "m": 60, "s": 1}


def read_span(text: str, *, may_end_bare: bool = False, is_ordered: bool = False) -> int | None:
    """Return the sum of the parts in seconds, or None if ``text`` is no span.

    Parameters: ``may_end_bare`` allows the last number without a unit (seconds). ``is_ordered``
    requires days, hours, minutes and seconds in this order, each once.
    """
    total_s, digits, last = 0, "", ""
    for character in text:
        if character in string.digits:
            digits += character
            if len(digits) > DIGITS_MAX:
                return None
            continue
        if not digits or character not in _SECONDS:
            return None
        if is_ordered and last and _SECONDS[character] >= _SECONDS[last]:
            return None
        total_s += int(digits) * _SECONDS[character]
        digits, last = "", character
    if digits and not may_end_bare:
        return None
    if not digits and not last:
        return None
    return total_s + int(digits or 0)
