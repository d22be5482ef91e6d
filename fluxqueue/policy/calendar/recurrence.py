"""Occurrences of a wish in local time: its first start, zone, exact duration and rule (RFC 5545).

``reservation`` makes a ``Recurrence`` from a FluxReservation. Each occurrence follows from the wish
and never from the last occurrence, so a clock change shifts none for good. A local time that does
not exist counts with the offset before the gap, and of one that exists twice the first counts. The
readers of such rules differ here: RFC 5545 3.3.5, Slurm's ``begin`` and ``at`` agree with this.

The rules come from ``python-dateutil``, with naive local times. It must be kept from the rest: it
scans to the year 9999 for a rule that never matches, and takes rules that no reservation can have.
Times are epoch seconds. Pure.
"""

from __future__ import annotations

import re
import zoneinfo
from collections.abc import Iterator
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from functools import cached_property

from dateutil.rrule import rrule, rrulestr

from fluxqueue.errors import InvalidInput

# The zones of the locked ``tzdata``, and not those of the machine: processes must agree.
zoneinfo.reset_tzpath(to=())

NEVER_S = 10 * 366 * 86_400
"""A rule without an occurrence for this long (seconds) never matches."""

STEP_S = {"HOURLY": 3600, "DAILY": 86_400, "WEEKLY": 7 * 86_400}
"""The periods of equal length, in seconds. Their rules can begin anywhere in the series."""

_FREQUENCIES = (*STEP_S, "MONTHLY", "YEARLY")
_DAY = "([+-]?[1-5])?(MO|TU|WE|TH|FR|SA|SU)"
_PARTS = {
    "FREQ": re.compile("|".join(_FREQUENCIES)),
    "INTERVAL": re.compile(r"[1-9][0-9]{0,2}"),
    "COUNT": re.compile(r"[1-9][0-9]{0,3}"),
    "UNTIL": re.compile(r"[0-9]{8}T[0-9]{6}Z"),
    "BYMONTH": re.compile(r"[0-9]{1,2}(,[0-9]{1,2}){0,11}"),
    "BYMONTHDAY": re.compile(r"-?[0-9]{1,2}(,-?[0-9]{1,2}){0,30}"),
    "BYDAY": re.compile(f"{_DAY}(,{_DAY}){{0,6}}"),
    "BYSETPOS": re.compile(r"-?[1-9][0-9]{0,2}"),
}
_WHERE = "spec.schedule"


@dataclass(frozen=True)
class Recurrence:
    """A wish: the first local start, its zone, the exact duration, and how it is repeated.

    ``rule``: RFC 5545's RRULE without WKST, which is Monday. Empty: once. ``without``: local dates
    on which there is none.
    """

    start: datetime
    zone: str
    duration_s: int
    rule: str = ""
    without: frozenset[str] = frozenset()

    def occurrences(self, after: int) -> Iterator[tuple[int, int]]:
        """Yield start and end of each occurrence that ends after ``after``, in order.

        A rule may have no end, so the caller takes as many as it needs.
        """
        # Before the first one, by a day for the offsets of zones and one for a shift of the clock.
        since = self._local(after - self.duration_s) - timedelta(days=2)
        last = None
        for local in self._starts(since):
            starts_at = self._instant(local)
            ends_at = starts_at + self.duration_s
            # Two local times may be one instant, where a zone has skipped a day.
            if (
                ends_at > after
                and starts_at != last
                and local.date().isoformat() not in self.without
            ):
                last = starts_at
                yield starts_at, ends_at

    def _starts(self, since: datetime) -> Iterator[datetime]:
        if not self.rule:
            yield self.start
            return
        begun = self._rule if self._step_s is None else self._rule_from(since)
        yield from begun.xafter(since, inc=True)

    @cached_property
    def _parts(self) -> dict[str, str]:
        return dict(one.split("=", 1) for one in self.rule.split(";")) if self.rule else {}

    @cached_property
    def _rule(self) -> rrule:
        return self._from(self.start)

    @property
    def _step_s(self) -> int | None:
        """Return the seconds of one period if the rule can begin in the middle of its series."""
        step_s = STEP_S.get(self._parts["FREQ"])
        if step_s is None or "COUNT" in self._parts:
            return None
        return step_s * int(self._parts.get("INTERVAL", 1))

    def _rule_from(self, since: datetime) -> rrule:
        """Return the rule, begun in the last period before ``since``: years would cost seconds."""
        step_s = self._step_s
        assert step_s is not None, "only such rules can begin later"
        periods = int((since - self.start).total_seconds()) // step_s - 1
        return self._from(self.start + timedelta(seconds=step_s * max(0, periods)))

    def _from(self, start: datetime) -> rrule:
        parts = {**self._parts, "WKST": "MO"}
        if "UNTIL" in parts:
            until = datetime.strptime(parts["UNTIL"], "%Y%m%dT%H%M%SZ").replace(tzinfo=UTC)
            local = until.astimezone(zoneinfo.ZoneInfo(self.zone)).replace(tzinfo=None)
            parts["UNTIL"] = local.strftime("%Y%m%dT%H%M%S")
        found = rrulestr(";".join(f"{key}={value}" for key, value in parts.items()), dtstart=start)
        assert isinstance(found, rrule), "one rule without dates makes no set"
        return found

    def _instant(self, local: datetime) -> int:
        # fold=0: in a gap the offset before it, and of two equal local times the first.
        return int(local.replace(tzinfo=zoneinfo.ZoneInfo(self.zone), fold=0).timestamp())

    def _local(self, at: int) -> datetime:
        zone = zoneinfo.ZoneInfo(self.zone)
        at = max(at, 0)
        return datetime.fromtimestamp(at, zone).replace(tzinfo=None, fold=0)


def read_recurrence(
    start: datetime,
    zone: str,
    duration_s: int,
    rule: str = "",
    without: frozenset[str] = frozenset(),
) -> Recurrence:
    """Return a wish that has occurrences, each of which ends before the next one begins.

    Raises
    ------
    InvalidInput
        A part is not usable. ``where`` is its field.
    """
    try:
        zoneinfo.ZoneInfo(zone)
    except (zoneinfo.ZoneInfoNotFoundError, ValueError, OSError):
        raise InvalidInput(
            f"{zone!r} is no time zone",
            where=f"{_WHERE}.timeZone",
            value=zone,
            hint="write a name of the tz database, such as Europe/Berlin, or UTC",
        ) from None
    found = Recurrence(start, zone, duration_s, _checked(rule, zone), without)
    if rule:
        _check_series(found)
    return found


def _checked(rule: str, zone: str) -> str:
    """Return a rule in its normal form."""
    parts: dict[str, str] = {}
    for one in filter(None, rule.upper().split(";")):
        key, _, value = one.partition("=")
        known = _PARTS.get(key)
        if known is None or key in parts or known.fullmatch(value) is None:
            raise _wrong(
                rule, f"{one!r} is not usable", f"parts are {', '.join(_PARTS)}, each once"
            )
        parts[key] = value
    if rule and "FREQ" not in parts:
        raise _wrong(rule, "it has no FREQ", f"one of {', '.join(_FREQUENCIES)}")
    is_ordinal = any(one.isdigit() for one in parts.get("BYDAY", ""))
    if is_ordinal and parts["FREQ"] not in {"MONTHLY", "YEARLY"}:
        why = "days with a number are of a month or a year"
        raise _wrong(rule, why, "use FREQ=MONTHLY, or leave out the number")
    if {"COUNT", "UNTIL"} <= parts.keys():
        raise _wrong(rule, "it has COUNT and UNTIL", "give one of them")
    if parts.get("FREQ") == "HOURLY" and zone != "UTC":
        # In local time readers repeat an hour in spring, and leave two out in autumn.
        raise _wrong(rule, "FREQ=HOURLY counts in UTC only", "set timeZone: UTC")
    return ";".join(f"{key}={parts[key]}" for key in _PARTS if key in parts)


def _check_series(found: Recurrence) -> None:
    first_s = found._instant(found.start)
    try:
        series = found._rule.xafter(found.start, count=1, inc=True)
        first = next(iter(series), None)
    except (ValueError, OverflowError) as error:
        raise _wrong(found.rule, str(error), "see RFC 5545, 3.3.10") from None
    if first is None or found._instant(first) - first_s > NEVER_S:
        raise _wrong(found.rule, "it has no occurrence in ten years", "see RFC 5545, 3.3.10")
    if first != found.start:
        raise _wrong(
            found.rule,
            f"its first occurrence is {first.isoformat()}, and start is {found.start.isoformat()}",
            "let start be an occurrence",
        )
    last_end = None
    for number, (starts_at, ends_at) in enumerate(found.occurrences(first_s)):
        if last_end is not None and starts_at < last_end:
            raise _wrong(
                found.rule,
                f"an occurrence of {found.duration_s} s is not over when the next one begins",
                "make duration shorter, or the distance longer",
            )
        if number >= _TRIED:
            return
        last_end = ends_at


_TRIED = 60
"""How many occurrences are compared: months of all lengths, and both clock changes of a year."""


def _wrong(rule: str, why: str, hint: str) -> InvalidInput:
    return InvalidInput(f"{rule!r}: {why}", where=f"{_WHERE}.rrule", value=rule, hint=hint)
