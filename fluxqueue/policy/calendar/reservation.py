"""One FluxReservation as a rule: which nodes are closed, when, and why.

The controller makes rules to check a spec before it is stored, and the worker makes them from rows.
A spec must fit the definition in ``chart/crds/fluxreservations.yaml``. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import date, datetime
from itertools import islice, takewhile
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.hostlist import expand
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.policy.calendar.recurrence import Recurrence, read_recurrence
from fluxqueue.policy.label_selector import LabelSelection, read_selector
from fluxqueue.policy.spec_fields import as_mapping, as_texts
from fluxqueue.workload.annotations import parse_duration

HORIZON_S = 60 * 86_400
"""How far ahead (seconds) the planner knows of occurrences."""
OCCURRENCES_MAX = 8
"""Most occurrences of one reservation that are planned at once. The first of them stops long jobs
already."""
ENDLESS_S = 100 * 365 * 86_400
NODES_MAX = 20_000
WHY_MAX = 200
EXCEPT_MAX = 366


@dataclass(frozen=True, slots=True)
class Occurrence:
    """One time at which the nodes of a reservation are closed: ``[starts_at, until)``."""

    starts_at: int
    until: int


@dataclass(frozen=True, slots=True)
class ReservationRule:
    """A maintenance: its nodes are closed at its occurrences. Nodes that vanish are left out."""

    name: str
    nodes: frozenset[str] | LabelSelection
    times: Recurrence
    why: str = ""

    def nodes_of(self, facts: Iterable[NodeFact]) -> tuple[str, ...]:
        """Return which of these nodes it closes, in order."""
        if isinstance(self.nodes, LabelSelection):
            return tuple(sorted(one.name for one in facts if self.nodes.matches(one.labels)))
        return tuple(sorted(one.name for one in facts if one.name in self.nodes))

    def occurrences(self, now: int) -> list[Occurrence]:
        """Return the occurrences that are not over, up to the horizon."""
        coming = takewhile(lambda one: one[0] <= now + HORIZON_S, self.times.occurrences(now))
        return [Occurrence(*one) for one in islice(coming, OCCURRENCES_MAX)]


def read_reservation(name: str, spec: object) -> ReservationRule:
    """Read the spec of a FluxReservation.

    Raises
    ------
    InvalidInput
        A field is not valid. ``where`` is its path.
    """
    found = as_mapping(spec, "spec")
    why = str(found.get("why") or "")[:WHY_MAX]
    return ReservationRule(name, _nodes(found), _times(found), why)


def _nodes(spec: Mapping[str, Any]) -> frozenset[str] | LabelSelection:
    names, selector = spec.get("nodes"), spec.get("nodeSelector")
    if (names is None) == (selector is None):
        raise InvalidInput(
            "it names nodes and a selector" if selector is not None else "it names no nodes",
            where="spec.nodes",
            hint="give nodes, as [n1, 'rack[1-4]'], or nodeSelector: an empty one is all nodes",
        )
    if selector is not None:
        return read_selector(selector, "spec.nodeSelector")
    listed = as_texts(names, "spec.nodes")
    found: set[str] = set()
    for one in listed:
        try:
            found.update(expand(one))
        except InvalidInput as error:
            hint = "write names, or hostlists such as rack[1-4]"
            raise InvalidInput(str(error), where="spec.nodes", value=one, hint=hint) from None
    if not 0 < len(found) <= NODES_MAX:
        raise InvalidInput(
            f"{len(found)} nodes", where="spec.nodes", value=len(found), hint=f"1 to {NODES_MAX}"
        )
    return frozenset(found)


def _times(spec: Mapping[str, Any]) -> Recurrence:
    at = as_mapping(spec.get("schedule"), "spec.schedule")
    start = _local(at.get("start"), "spec.schedule.start")
    duration_s = _duration_s(at, start)
    rule, zone = str(at.get("rrule") or ""), str(at.get("timeZone") or "UTC")
    without = as_texts(at.get("except"), "spec.schedule.except")
    if len(without) > EXCEPT_MAX:
        raise InvalidInput(
            f"{len(without)} dates", where="spec.schedule.except", hint="366 at most"
        )
    for one in without:
        try:
            date.fromisoformat(one)
        except ValueError:
            hint = "write dates, such as 2027-05-01"
            raise InvalidInput(
                f"{one!r} is no date", where="spec.schedule.except", value=one, hint=hint
            ) from None
    return read_recurrence(start, zone, duration_s, rule, frozenset(without))


def _local(value: object, where: str) -> datetime:
    try:
        found = datetime.fromisoformat(str(value))
    except ValueError:
        found = None
    if found is None or found.tzinfo is not None:
        raise InvalidInput(
            f"{value!r} is no local time",
            where=where,
            value=value,
            hint="write 2027-03-02T18:00, and name the zone in timeZone",
        )
    return found.replace(microsecond=0)


def _duration_s(at: Mapping[str, Any], start: datetime) -> int:
    """Return the exact duration in seconds. Without one, it lasts until it is deleted."""
    if at.get("end") is None:
        wanted = at.get("duration")
        if wanted is not None:
            return max(1, parse_duration(str(wanted), "spec.schedule.duration"))
        if at.get("rrule"):
            hint = "a repeated reservation has a duration, such as 4h"
            raise InvalidInput("it is missing", where="spec.schedule.duration", hint=hint)
        return ENDLESS_S
    if at.get("duration") is not None or at.get("rrule"):
        raise InvalidInput(
            "it stands beside duration or rrule",
            where="spec.schedule.end",
            value=at["end"],
            hint="give duration alone",
        )
    zone = str(at.get("timeZone") or "UTC")
    first, last = (
        next(read_recurrence(one, zone, 1).occurrences(0))[0]
        for one in (start, _local(at["end"], "spec.schedule.end"))
    )
    if last <= first:
        raise InvalidInput(
            f"{at['end']!r} is not after start",
            where="spec.schedule.end",
            value=at["end"],
            hint=f"start is {start.isoformat()}",
        )
    return last - first
