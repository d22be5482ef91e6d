"""A FluxJob's status is read back as written, and nothing in it is believed that cannot be ours."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.scheduler.record import read_record
from fluxqueue.scheduler.resource_set import SLOTS_MAX, read_resource_set, to_resource_set
from fluxqueue.workload.fluxjob_object import FluxJobStatus

SLOTS = [("n1", {"cpu": 2000, "pods": 1}), ("n2", {"cpu": 2000, "pods": 1})]
R = to_resource_set(SLOTS, starts_at=1_700_000_000, until=1_700_003_600)
META = {"uid": "f", "creationTimestamp": "2026-01-01T00:00:00Z"}


def _fluxjob(**status: Any) -> dict[str, Any]:
    whole = FluxJobStatus(
        state=FluxJobState.RUNNING,
        version=7,
        jobid=42,
        nodes=["n1", "n2"],
        started_at_s=1_700_000_001,
        resource_set=R,
        operator={"heldBy": None, "priority": 9, "queue": "fast", "requeueBy": "ann"},
    ).render()
    return {"metadata": META, "status": {**whole, **status}}


def _with_slots(*slots: dict[str, Any]) -> dict[str, Any]:
    return {**R, "attributes": {"fluxqueue": {"slots": list(slots)}}}


def test_r_lists_what_is_held_whole() -> None:
    """The nodes of an exclusive rack with all their cores, those without a slot too. Read back."""
    held = [(name, {"cpu": 8000, "nvidia.com/gpu": 2}) for name in ("n1", "n2", "n3")]
    resource_set = to_resource_set(SLOTS, starts_at=1, until=None, held=held)
    lite = resource_set["execution"]["R_lite"]
    assert resource_set["execution"]["nodelist"] == ["n[1-3]"]
    assert lite == [
        {"rank": str(rank), "children": {"core": "0-7", "gpu": "0-1"}} for rank in range(3)
    ]
    given = read_resource_set(resource_set)
    assert (given.slots, given.held) == (tuple(SLOTS), ("n1", "n2", "n3"))


def test_equal_slots_that_follow_one_another_stand_there_once() -> None:
    """A thousand on twenty nodes are twenty entries. What an older version wrote is read, too."""
    slots = [(f"n{number // 50}", {"cpu": 1000, "pods": 1}) for number in range(1000)]
    resource_set = to_resource_set(slots, starts_at=1, until=None)
    written = resource_set["attributes"]["fluxqueue"]["slots"]
    assert len(written) == 20
    assert written[0] == {"node": "n0", "resources": {"cpu": 1000, "pods": 1}, "count": 50}
    assert read_resource_set(resource_set).slots == tuple(slots)
    older = _with_slots(*[{"node": node, "resources": has} for node, has in slots])
    assert read_resource_set(older).slots == tuple(slots)


_GRANTED = st.tuples(
    st.sampled_from(["n1", "n2"]), st.sampled_from([{"cpu": 1000}, {"cpu": 500, "pods": 1}])
)


@given(st.lists(st.tuples(_GRANTED, st.sampled_from(["", "ps"])), min_size=1, max_size=20))
def test_every_order_of_slots_is_read_back(granted: list[tuple[Any, str]]) -> None:
    """A slot's place in the list is its number."""
    slots, kinds = [slot for slot, _ in granted], [kind for _, kind in granted]
    given_ = read_resource_set(to_resource_set(slots, starts_at=1, until=None, kinds=kinds))
    assert given_.slots == tuple(slots)
    assert given_.kinds == tuple(kinds)


@pytest.mark.parametrize("held", ["n1", [1], ["n[1-999999]"], ["n["], [["n1"]]])
def test_held_nodes_that_are_none_are_refused(held: object) -> None:
    """A user that may write the status cannot make up a cluster."""
    bad = {**R, "attributes": {"fluxqueue": {**R["attributes"]["fluxqueue"], "held": held}}}
    with pytest.raises(InvalidInput):
        read_resource_set(bad)


def test_what_was_published_is_read_back() -> None:
    """Every decision that no other object tells."""
    record = read_record(_fluxjob())
    assert record.troubles == ()
    assert (record.state, record.version, record.jobid) == (FluxJobState.RUNNING, 7, 42)
    assert record.given is not None
    assert [(node, dict(amounts)) for node, amounts in record.given.slots] == SLOTS
    assert (record.given.starts_at, record.given.until) == (1_700_000_000, 1_700_003_600)
    assert (record.set_priority, record.set_queue, record.held_by) == (9, "fast", None)
    assert record.started_at_s == 1_700_000_001
    assert (record.requeue_by, record.cancel_by) == ("ann", None)


@pytest.mark.parametrize(
    ("status", "expected"),
    [
        ({"state": "Held", "queue": "fast", "acceptedBy": "fast"}, "fast"),
        ({"state": "Held", "queue": "slow", "acceptedBy": "fast"}, "fast"),
        ({"state": "Pending", "queue": "slow", "acceptedBy": "fast"}, "slow"),
        ({"state": "Held", "queue": "fast"}, None),
        ({"state": "Pending", "queue": "fast"}, "fast"),
        ({"queue": "fast"}, None),
        ({"state": [], "queue": {}, "acceptedBy": 7}, None),
        ({"state": "Held", "acceptedBy": 7}, None),
    ],
)
def test_which_queue_took_it_in(status: dict[str, Any], expected: str | None) -> None:
    """Of what is held it is said. Whatever else is in a queue was taken in by that queue."""
    assert read_record({"metadata": META, "status": status}).accepted_by == expected


@pytest.mark.parametrize(
    "bad",
    [
        {"R": "text"},
        {"R": {"version": 2}},
        {"R": {**R, "attributes": {}}},
        {"R": _with_slots()},
        {"R": _with_slots({"node": "", "resources": {}})},
        {"R": _with_slots({"node": "n", "resources": {"cpu": -1}})},
        {"R": _with_slots({"node": "n", "resources": {"cpu": 2**63}})},
        {"R": _with_slots({"node": "n", "resources": {"cpu": 1}, "count": 0})},
        {"R": _with_slots({"node": "n", "resources": {"cpu": 1}, "count": "2"})},
        {"R": _with_slots({"node": "n", "resources": {"cpu": 1}, "count": SLOTS_MAX + 1})},
        {"R": _with_slots(*[{"node": "n", "resources": {"cpu": 1}, "count": SLOTS_MAX}] * 2)},
        {"R": {**R, "execution": {**R["execution"], "starttime": "now"}}},
        {"R": {**R, "execution": {**R["execution"], "expiration": 5}}},
        {"jobid": 2**63},
        {"jobid": -1},
        {"jobid": True},
        {"state": "Flying"},
        {"version": "7"},
        {"startTime": "yesterday"},
        {"operator": {"priority": 2**40}},
    ],
)
def test_a_field_that_cannot_be_ours_is_named_and_left_out(bad: dict[str, Any]) -> None:
    """The rest of the status is still of use."""
    (name,) = bad
    record = read_record(_fluxjob(**bad))
    (trouble,) = record.troubles
    assert trouble.startswith(f"status.{name}")
    if name != "state":
        assert record.state is FluxJobState.RUNNING
    if name != "jobid":
        assert record.jobid == 42


JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner),
    max_leaves=8,
)
FIELDS = ("state", "version", "jobid", "R", "startTime", "endTime", "operator")


@given(st.dictionaries(st.sampled_from(FIELDS), JSON))
def test_no_status_makes_reading_fail(status: dict[str, Any]) -> None:
    """Whatever a user with the right to write it has put there."""
    read_record({"metadata": META, "status": status})
    read_record({"metadata": META, "status": status.get("operator")})
