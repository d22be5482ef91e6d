"""Convert sbatch's spellings of a begin time to that of ``fluxqueue/begin-time``. Pure.

``script_request`` calls it. The present time is an argument: naive (the zone of this machine) or
with a zone.
"""

from __future__ import annotations

import re
from datetime import date, datetime, time, timedelta

from fluxqueue.errors import InvalidInput

_HINT = "16:00, 4:30PM, now+1hour, now+60, tomorrow, 2030-01-31, 2030-01-31T08:00, MM/DD/YY"
_NAMED = {
    "midnight": time(0), "noon": time(12), "elevenses": time(11), "fika": time(15),
    "teatime": time(16),
}  # fmt: skip
_UNIT_S = {
    "": 1, "second": 1, "minute": 60, "hour": 3600, "day": 86_400, "week": 604_800, "s": 1,
    "sec": 1, "m": 60, "min": 60, "h": 3600, "d": 86_400, "w": 604_800,
}  # fmt: skip
_RELATIVE = re.compile(r"(?:now)?\s*\+\s*(\d{1,10})\s*([a-z]*)", re.IGNORECASE)
_SPAN = re.compile(r"(?:now)?\s*\+\s*((?:\d+[dhms])+)", re.IGNORECASE)
_CLOCK = re.compile(r"(\d{1,2}):(\d{2})(?::(\d{2}))?\s*([ap]m)?|(\d{1,2})\s*([ap]m)", re.IGNORECASE)


def begin_time(text: str, now: datetime, where: str) -> str:
    """Return ``+<seconds>s``, or an RFC 3339 time with its zone.

    A time of day without a date is its next occurrence. A date without a time is its midnight.

    Raises
    ------
    InvalidInput
        It is no begin time, or no such day exists.
    """
    said = text.strip()
    if found := _SPAN.fullmatch(said):
        return f"+{found[1].lower()}"
    if found := _RELATIVE.fullmatch(said):
        unit = found[2].lower()
        scale = _UNIT_S.get(unit, _UNIT_S.get(unit.removesuffix("s"), 0))
        if not scale:
            raise _no_time(text, where)
        return f"+{int(found[1]) * scale}s"
    if said.lower() == "now":
        return "+0s"
    if re.fullmatch(r"\d{4}-\d\d-\d\dT.*(?:Z|[+-]\d\d:?\d\d)", said):
        return said
    try:
        at = _absolute(said, now)
    except ValueError:
        raise _no_time(text, where) from None
    # A naive time is local: its offset is that of its own day, not of today.
    return (at if at.tzinfo else at.astimezone()).isoformat()


def _absolute(said: str, now: datetime) -> datetime:
    """Return the time. Raises ValueError."""
    # Upper-case T separates date and time. "tomorrow" and "today" have a t of their own.
    words = [word for word in re.split(r"(?<=\d)T(?=\d)|[\s]+", said) if word]
    if len(words) > 1 and words[-1].lower() in {"am", "pm"}:
        words[-2:] = ["".join(words[-2:])]
    day: date | None = None
    clock: time | None = None
    for word in words:
        as_time = _read_clock(word)
        if as_time is not None and clock is None:
            clock = as_time
        elif day is None:
            day = _read_day(word, now)
        else:
            raise ValueError(said)
    if day is None and clock is None:
        raise ValueError(said)
    if day is not None:
        return _at(day, clock or time(0), now)
    at = _at(now.date(), clock or time(0), now)
    return at if at > now else _at(now.date() + timedelta(days=1), clock or time(0), now)


def _at(day: date, clock: time, now: datetime) -> datetime:
    """Return that moment in the zone of ``now``."""
    return datetime.combine(day, clock, tzinfo=now.tzinfo)


def _read_clock(word: str) -> time | None:
    if word.lower() in _NAMED:
        return _NAMED[word.lower()]
    found = _CLOCK.fullmatch(word)
    if not found:
        return None
    hour, half = int(found[1] or found[5]), (found[4] or found[6] or "").lower()
    if half:
        if not 1 <= hour <= 12:
            raise ValueError(word)
        hour = hour % 12 + (12 if half == "pm" else 0)
    return time(hour, int(found[2] or 0), int(found[3] or 0))


def _read_day(word: str, now: datetime) -> date:
    """Return the day. Without a year it is the next one of that date. Raises ValueError."""
    if word.lower() in {"today", "tomorrow"}:
        return now.date() + timedelta(days=word.lower() == "tomorrow")
    if re.fullmatch(r"\d{4}-\d{1,2}-\d{1,2}", word):
        return date(*map(int, word.split("-")))
    parts: list[str] = re.split(r"[/.]", word)
    if len(parts) == 1 and word.isdigit() and len(word) in {4, 6}:
        parts = [word[i : i + 2] for i in range(0, len(word), 2)]
    if len(parts) not in {2, 3} or not all(part.isdigit() for part in parts):
        raise ValueError(word)
    month, day = int(parts[0]), int(parts[1])
    if len(parts) == 3:
        year = int(parts[2])
        return date(year if year > 99 else 2000 + year, month, day)
    found = date(now.year, month, day)
    return found if found >= now.date() else date(now.year + 1, month, day)


def _no_time(text: str, where: str) -> InvalidInput:
    return InvalidInput(f"{text!r} is not a begin time", where=where, value=text, hint=_HINT)
