"""Timestamps and durations: parsing and writing. ``functions`` uses them. Pure.

The precision is a microsecond. In cel-go it is a nanosecond.
"""

from __future__ import annotations

import re
from datetime import UTC, datetime, timedelta
from fractions import Fraction

from localcluster.types.cel.values import CelError

_DURATION = re.compile(r"([+-]?)((?:(?:\d+(?:\.\d*)?|\.\d+)(?:ns|us|µs|μs|ms|s|m|h))+|0)")
_PIECE = re.compile(r"(\d+(?:\.\d*)?|\.\d+)(ns|us|µs|μs|ms|s|m|h)")
_SECONDS = {
    "ns": Fraction(1, 10**9),
    "us": Fraction(1, 10**6),
    "µs": Fraction(1, 10**6),
    "μs": Fraction(1, 10**6),
    "ms": Fraction(1, 1000),
    "s": Fraction(1),
    "m": Fraction(60),
    "h": Fraction(3600),
}
_MOMENT = re.compile(r"\d{4}-\d\d-\d\d[Tt]\d\d:\d\d:\d\d(?:\.\d+)?(?:[Zz]|[+-]\d\d:\d\d)")


def timestamp(text: str) -> datetime:
    """Parse a time of RFC 3339."""
    try:
        if not _MOMENT.fullmatch(text):
            raise ValueError(text)
        return datetime.fromisoformat(text.upper()).astimezone(UTC)
    except (ValueError, OverflowError) as error:
        why = "type conversion error from 'string' to 'google.protobuf.Timestamp'"
        raise CelError(why) from error


def from_seconds(count: int) -> datetime:
    """Return the time for a number of seconds since 1970."""
    try:
        return datetime.fromtimestamp(count, UTC)
    except (ValueError, OverflowError, OSError) as error:
        raise CelError("timestamp overflow") from error


def seconds(moment: datetime) -> int:
    """Return whole seconds since 1970."""
    return (moment - datetime(1970, 1, 1, tzinfo=UTC)) // timedelta(seconds=1)


def timestamp_text(moment: datetime) -> str:
    """Return a time as RFC 3339 in UTC, with a fraction only if there is one."""
    text = moment.strftime("%Y-%m-%dT%H:%M:%S").rjust(19, "0")
    fraction = f".{moment.microsecond:06d}".rstrip("0") if moment.microsecond else ""
    return f"{text}{fraction}Z"


def duration(text: str) -> timedelta:
    """Parse a duration as Go does, such as ``1h30m`` or ``-1.5s``."""
    found = _DURATION.fullmatch(text)
    if found is None:
        raise CelError(f'time: invalid duration "{text}"')
    total = sum((Fraction(n) * _SECONDS[unit] for n, unit in _PIECE.findall(found[2])), Fraction(0))
    micros = int(total * 10**6)
    return timedelta(microseconds=-micros if found[1] == "-" else micros)


def duration_text(length: timedelta) -> str:
    """Return a duration in seconds, such as ``5400s``."""
    micros = length // timedelta(microseconds=1)
    whole, fraction = divmod(abs(micros), 10**6)
    shown = f"{whole}" + (f".{fraction:06d}".rstrip("0") if fraction else "")
    return ("-" if micros < 0 else "") + shown + "s"
