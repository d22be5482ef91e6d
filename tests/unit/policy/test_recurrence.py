"""Occurrences of reservations: over clock changes, of every zone, and what no reservation may say.

The nights of clock changes are those in which eleven readers of such rules disagree.
"""

from __future__ import annotations

import os
import zoneinfo
from datetime import UTC, datetime, timedelta
from itertools import islice, pairwise, takewhile

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.policy.calendar.recurrence import Recurrence, read_recurrence

BERLIN = "Europe/Berlin"
NIGHT = datetime.fromisoformat("2026-12-01T02:30")


def at(text: str) -> int:
    return int(datetime.fromisoformat(text).replace(tzinfo=UTC).timestamp())


def starts(found: Recurrence, after: str, count: int = 3) -> list[str]:
    """The next starts in UTC."""
    return [
        datetime.fromtimestamp(one, UTC).strftime("%d %b %H:%M")
        for one, _ in islice(found.occurrences(at(after)), count)
    ]


def test_a_missing_hour_moves_by_the_gap_and_of_a_doubled_one_the_first_counts() -> None:
    daily = read_recurrence(NIGHT, BERLIN, 1800, "FREQ=DAILY")
    spring = starts(daily, "2027-03-27T12:00")
    assert spring == ["28 Mar 01:30", "29 Mar 00:30", "30 Mar 00:30"]
    autumn = starts(daily, "2027-10-30T12:00")
    assert autumn == ["31 Oct 00:30", "01 Nov 01:30", "02 Nov 01:30"]


def test_the_duration_is_exact_over_a_clock_change() -> None:
    """Slurm keeps two wall-clock times, and loses the duration for good."""
    daily = read_recurrence(datetime.fromisoformat("2026-12-01T01:00"), BERLIN, 7200, "FREQ=DAILY")
    found = list(islice(daily.occurrences(at("2027-03-26T00:00")), 5))
    assert {end - start for start, end in found} == {7200}


def test_an_occurrence_under_way_is_the_first() -> None:
    weekly = read_recurrence(
        datetime.fromisoformat("2027-01-05T18:00"), "UTC", 4 * 3600, "FREQ=WEEKLY;BYDAY=TU"
    )
    assert starts(weekly, "2027-01-12T21:59", 2) == ["12 Jan 18:00", "19 Jan 18:00"]
    assert starts(weekly, "2027-01-12T22:00", 1) == ["19 Jan 18:00"]


def test_a_rule_is_the_same_from_any_moment() -> None:
    """Every second week, counted from the first: also years later."""
    rule = read_recurrence(
        datetime.fromisoformat("2027-01-05T18:00"), BERLIN, 60, "FREQ=WEEKLY;INTERVAL=2;BYDAY=TU,FR"
    )
    every = list(islice(rule.occurrences(0), 600))
    for number in (1, 7, 100, 599):
        assert next(rule.occurrences(every[number - 1][1])) == every[number]


@pytest.mark.parametrize(
    ("rule", "after", "found"),
    [
        ("FREQ=MONTHLY;BYDAY=1TU", "2027-01-01T00:00", ["05 Jan 18:00", "02 Feb 18:00"]),
        ("FREQ=YEARLY;BYMONTH=1;BYDAY=1TU", "2027-02-01T00:00", ["04 Jan 18:00", "02 Jan 18:00"]),
        ("FREQ=DAILY;COUNT=2", "2027-01-01T00:00", ["05 Jan 18:00", "06 Jan 18:00"]),
        ("FREQ=DAILY;UNTIL=20270106T180000Z", "2027-01-06T00:00", ["06 Jan 18:00"]),
        ("", "2027-01-01T00:00", ["05 Jan 18:00"]),
        ("", "2027-01-05T19:00", []),
    ],
)
def test_rules(rule: str, after: str, found: list[str]) -> None:
    made = read_recurrence(datetime.fromisoformat("2027-01-05T18:00"), "UTC", 3600, rule)
    assert starts(made, after, 2) == found


def test_dates_are_left_out() -> None:
    without = frozenset({"2027-01-12"})
    made = read_recurrence(
        datetime.fromisoformat("2027-01-05T18:00"), BERLIN, 60, "FREQ=WEEKLY;BYDAY=TU", without
    )
    assert starts(made, "2027-01-01T00:00", 2) == ["05 Jan 17:00", "19 Jan 17:00"]


@pytest.mark.parametrize(
    ("rule", "zone", "where", "words"),
    [
        ("FREQ=MINUTELY", "UTC", "rrule", "not usable"),
        ("FREQ=HOURLY", BERLIN, "rrule", "in UTC only"),
        ("FREQ=DAILY;INTERVAL=0", "UTC", "rrule", "not usable"),
        ("FREQ=DAILY;FREQ=WEEKLY", "UTC", "rrule", "not usable"),
        ("FREQ=DAILY;COUNT=2;UNTIL=20280101T000000Z", "UTC", "rrule", "COUNT and UNTIL"),
        ("FREQ=DAILY;UNTIL=20280101", "UTC", "rrule", "not usable"),
        ("FREQ=WEEKLY;BYDAY=1TU", "UTC", "rrule", "days with a number"),
        ("FREQ=MONTHLY;BYDAY=FR", "UTC", "rrule", "its first occurrence is"),
        ("FREQ=MONTHLY;BYMONTHDAY=31;BYMONTH=2", "UTC", "rrule", "no occurrence in ten years"),
        ("FREQ=YEARLY;BYMONTH=13", "UTC", "rrule", "no occurrence in ten years"),
        ("BYDAY=TU", "UTC", "rrule", "no FREQ"),
        ("WKST=SU;FREQ=DAILY", "UTC", "rrule", "not usable"),
        ("FREQ=DAILY", "Europe/Atlantis", "timeZone", "no time zone"),
        ("FREQ=DAILY", "../../etc/passwd", "timeZone", "no time zone"),
        ("FREQ=DAILY", "", "timeZone", "no time zone"),
    ],
)
def test_what_is_refused_names_field_value_and_way_out(
    rule: str, zone: str, where: str, words: str
) -> None:
    with pytest.raises(InvalidInput, match=words) as refused:
        read_recurrence(NIGHT, zone, 1800, rule)
    assert refused.value.where == f"spec.schedule.{where}"
    assert refused.value.hint


def test_occurrences_that_overlap_are_refused() -> None:
    """A month has 28 days at least, and a day of a clock change 23 hours."""
    with pytest.raises(InvalidInput, match="not over when the next one begins"):
        read_recurrence(NIGHT, "UTC", 86_401, "FREQ=DAILY")
    with pytest.raises(InvalidInput, match="not over when the next one begins"):
        read_recurrence(NIGHT, "UTC", 29 * 86_400, "FREQ=MONTHLY")
    read_recurrence(NIGHT, "UTC", 86_400, "FREQ=DAILY")


def test_the_zones_are_those_of_the_locked_data() -> None:
    """And not those of the machine: two processes on two machines must agree."""
    assert zoneinfo.TZPATH == ()


# --- every zone -----------------------------------------------------------------------------------

ZONES = sorted(zoneinfo.available_timezones())
PARTS = 6
OF_EACH = 1 if os.environ.get("FLUXQUEUE_TEST_ALL_EXAMPLES") else 25
"""Of how many zones one is tried."""
RULES = (
    ("FREQ=DAILY", 1),
    ("FREQ=WEEKLY;BYDAY=SU", 7),
    ("FREQ=WEEKLY;INTERVAL=2;BYDAY=SA,SU", 1),
    ("FREQ=MONTHLY;BYDAY=-1SU", 28),
    ("FREQ=YEARLY;BYMONTH=3,10;BYDAY=-1SU", 140),
)


@pytest.mark.parametrize("part", range(PARTS))
@pytest.mark.parametrize(("rule", "least_days"), RULES)
def test_no_occurrence_is_lost_doubled_or_overlaps(rule: str, least_days: int, part: int) -> None:
    """In ten years at 02:30, an hour long, in every zone: local dates are those of the rule."""
    start = datetime.fromisoformat("2024-12-29T02:30")
    if "YEARLY" in rule:
        start = datetime.fromisoformat("2024-10-27T02:30")
    if "INTERVAL" in rule:
        start = datetime.fromisoformat("2024-12-28T02:30")
    last = at("2034-12-29T00:00")
    wanted = None
    for zone in ZONES[::OF_EACH][part::PARTS]:
        made = Recurrence(start, zone, 3600, rule)
        found = list(takewhile(lambda one: one[0] < last, made.occurrences(0)))
        assert all(b[0] >= a[1] for a, b in pairwise(found)), zone
        info = zoneinfo.ZoneInfo(zone)
        # A night without 02:30 begins later by the gap, of an hour at most.
        local = [datetime.fromtimestamp(one, info).replace(tzinfo=None) for one, _ in found]
        dates = [(one - timedelta(hours=2)).date() for one in local]
        assert len(set(dates)) == len(dates), zone
        assert all((b - a).days >= least_days for a, b in pairwise(dates)), zone
        wanted = wanted or dates
        # The last night may lie on the other side of the end, by the offset of the zone.
        assert dates[:-1] == wanted[: len(dates) - 1], zone
