"""What people may change of a FluxJob, by field and state."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.workload.steered import Steered, changes_by_hand, read_steered

WORKLOAD = {"apiVersion": "batch/v1", "kind": "Job", "name": "train", "uid": "u"}


def fluxjob(state: str = "Pending", kind: str = "Job", **spec: Any) -> dict[str, Any]:
    """A FluxJob as stored."""
    workload = {**WORKLOAD, "kind": kind} | ({"apiVersion": "v1"} if kind == "Pod" else {})
    return {"spec": {"workload": workload, "size": 1, **spec}, "status": {"state": state}}


def test_nothing_is_read_of_what_nobody_changed() -> None:
    """An author's hold and priority stand in the spec, too."""
    assert read_steered(fluxjob(hold=True, priority=3)) is None


def test_what_was_changed_is_read_and_nothing_else() -> None:
    """A field without a value has been given back."""
    by = {"hold": "alice", "queue": "bob"}
    found = read_steered(fluxjob(hold=False, priority=3, steeredBy=by))
    assert found == Steered({"hold": False}, by)
    found = read_steered(fluxjob(hold=True, queue="gold", priority=3, steeredBy=by))
    assert found == Steered({"hold": True, "queue": "gold"}, by)


@pytest.mark.parametrize(
    ("state", "kind", "change", "sentence"),
    [
        ("Pending", "Job", {"size": 5}, r"spec\.size = 5: says what Job train asks for"),
        ("Pending", "Job", {"user": "eve"}, r"spec\.user = 'eve': says what Job train asks for"),
        ("Running", "Job", {"hold": True}, r"is Running: only what waits can be held"),
        ("Allocated", "Job", {"queue": "gold"}, r"is Allocated: only what waits can be moved"),
        ("Running", "Job", {"beginTime": "x"}, r"is Running: it has begun; requeue it first"),
        ("Held", "Job", {"requeue": "1"}, r"is Held: it waits already"),
        ("Running", "Pod", {"requeue": "1"}, r"is Running: it cannot be suspended; delete it"),
        (
            "Pending",
            "Job",
            {"queue": "Go ld"},
            r"spec\.queue: 'Go ld' is no queue name. Fix: lower-case",
        ),
        ("Completed", "Job", {"priority": 1}, r"is Completed: it is over"),
        ("Failed", "Job", {"requeue": "1"}, r"is Failed: submit it again"),
    ],
)
def test_what_is_not_his_or_can_do_nothing_is_refused(
    state: str, kind: str, change: dict[str, Any], sentence: str
) -> None:
    """With the field, the value and the way out."""
    old = fluxjob(state, kind)
    with pytest.raises(InvalidInput, match=sentence):
        changes_by_hand(old, {**old, "spec": {**old["spec"], **change}})


@pytest.mark.parametrize(
    ("state", "change"),
    [
        ("Pending", {"hold": True, "queue": "gold", "beginTime": "2030-01-01T00:00:00Z"}),
        ("Running", {"priority": 9, "requeue": "again"}),
        ("Running", {"hold": None}),
    ],
)
def test_the_fields_that_he_steers_by_are_given(state: str, change: dict[str, Any]) -> None:
    """What changes nothing is none of them."""
    old = fluxjob(state, hold=True) if change.get("hold", 1) is None else fluxjob(state)
    new = {**old, "spec": {**old["spec"], **change, "steeredBy": {"size": "forged"}}}
    assert changes_by_hand(old, new) == tuple(sorted(change))
    assert changes_by_hand(old, old) == ()
