"""FluxReservations: which nodes, when, and what is refused with field, value and way out."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml

from fluxqueue.errors import InvalidInput
from fluxqueue.policy.calendar.reservation import (
    ENDLESS_S,
    OCCURRENCES_MAX,
    Occurrence,
    read_reservation,
)
from tests.support.pool_model import node

START = {"start": "2027-03-02T18:00", "timeZone": "Europe/Berlin"}
FOUR_HOURS = {**START, "duration": "4h"}
AT = int(datetime(2027, 3, 2, 17, tzinfo=UTC).timestamp())


def spec(**more: Any) -> dict[str, Any]:
    """A valid spec with other fields."""
    return {"nodes": ["n[1-2]"], "schedule": FOUR_HOURS, **more}


def test_nodes_are_hostlists_or_selected_by_labels() -> None:
    facts = [node("n1", rack="a"), node("n2", rack="b"), node("n3", rack="b")]
    by_name = read_reservation("r", spec(nodes=["n[1-2]", "later"]))
    assert by_name.nodes_of(facts) == ("n1", "n2")
    selector = {"matchLabels": {"rack": "b"}}
    by_label = read_reservation("r", {"nodeSelector": selector, "schedule": FOUR_HOURS})
    assert by_label.nodes_of(facts) == ("n2", "n3")
    every = read_reservation("r", {"nodeSelector": {}, "schedule": FOUR_HOURS})
    assert every.nodes_of(facts) == ("n1", "n2", "n3")


@pytest.mark.parametrize(
    ("schedule", "duration_s"),
    [
        (FOUR_HOURS, 4 * 3600),
        ({**START, "end": "2027-03-02T20:30"}, 2.5 * 3600),
        (START, ENDLESS_S),
        # Over the night in which clocks move forward.
        ({**START, "start": "2027-03-27T18:00", "end": "2027-03-28T18:00"}, 23 * 3600),
    ],
)
def test_how_long(schedule: dict[str, Any], duration_s: float) -> None:
    (found,) = read_reservation("r", spec(schedule=schedule)).occurrences(AT - 3600)
    assert found.until - found.starts_at == duration_s


def test_occurrences_up_to_the_horizon_and_no_more_than_planned_at_once() -> None:
    daily = read_reservation("r", spec(schedule={**FOUR_HOURS, "rrule": "FREQ=DAILY"}))
    found = daily.occurrences(AT)
    assert len(found) == OCCURRENCES_MAX
    assert found[0] == Occurrence(AT, AT + 4 * 3600)
    assert read_reservation("r", spec()).occurrences(AT - 70 * 86_400) == []
    assert read_reservation("r", spec()).occurrences(AT + 4 * 3600) == []


@pytest.mark.parametrize(
    ("wrong", "where"),
    [
        ({"nodes": None}, "spec.nodes"),
        ({"nodeSelector": {}}, "spec.nodes"),
        ({"nodes": ["n[1-"]}, "spec.nodes"),
        ({"nodes": "n1"}, "spec.nodes"),
        ({"nodes": ["n[1-99999]"]}, "spec.nodes"),
        ({"schedule": None}, "spec.schedule.start"),
        ({"schedule": {**FOUR_HOURS, "start": "tomorrow"}}, "spec.schedule.start"),
        ({"schedule": {**FOUR_HOURS, "start": "2027-03-02T18:00Z"}}, "spec.schedule.start"),
        ({"schedule": {**START, "end": "2027-03-02T17:00"}}, "spec.schedule.end"),
        ({"schedule": {**START, "end": "2027-03-02T18:00"}}, "spec.schedule.end"),
        ({"schedule": {**FOUR_HOURS, "end": "2027-03-02T19:00"}}, "spec.schedule.end"),
        ({"schedule": {**FOUR_HOURS, "duration": "4 hours"}}, "spec.schedule.duration"),
        ({"schedule": {**FOUR_HOURS, "duration": "0s"}}, "spec.schedule.duration"),
        ({"schedule": {**START, "rrule": "FREQ=DAILY"}}, "spec.schedule.duration"),
        ({"schedule": {**FOUR_HOURS, "rrule": "FREQ=DAILY;BYHOUR=3"}}, "spec.schedule.rrule"),
        ({"schedule": {**FOUR_HOURS, "timeZone": "Mars/Olympus"}}, "spec.schedule.timeZone"),
        ({"schedule": {**FOUR_HOURS, "except": ["soon"]}}, "spec.schedule.except"),
        ({"schedule": {**FOUR_HOURS, "except": ["2027-01-01"] * 367}}, "spec.schedule.except"),
    ],
)
def test_what_is_refused(wrong: dict[str, Any], where: str) -> None:
    with pytest.raises(InvalidInput) as refused:
        read_reservation("r", spec(**wrong))
    assert refused.value.where == where
    assert refused.value.hint


def test_a_selector_that_is_none_is_refused() -> None:
    with pytest.raises(InvalidInput, match="no mapping of labels"):
        read_reservation("r", spec(nodes=None, nodeSelector={"matchLabels": 3}))


def test_the_definition_and_the_reader_know_the_same_fields() -> None:
    path = Path(__file__).resolve().parents[3] / "chart/crds/fluxreservations.yaml"
    (version,) = yaml.safe_load(path.read_text(encoding="utf-8"))["spec"]["versions"]
    found = version["schema"]["openAPIV3Schema"]["properties"]["spec"]["properties"]
    assert set(found) == {"nodes", "nodeSelector", "schedule", "why"}
    of_times = {"start", "timeZone", "duration", "end", "rrule", "except"}
    assert set(found["schedule"]["properties"]) == of_times
