"""Adoption: facts win over records, nothing is given twice, and a whole is kept whole or not."""

from __future__ import annotations

from dataclasses import replace

import pytest

from fluxqueue.fluxjob.states import FluxJobState as S
from fluxqueue.jobspec.shape import equal_slots
from fluxqueue.scheduler.adoption import (
    AdoptedSlot,
    PinnedStart,
    PlacedPod,
    keep,
    place,
    target_state,
    with_start,
)
from fluxqueue.scheduler.record import DecisionRecord
from fluxqueue.scheduler.resource_set import GivenSlots

CPU = {"cpu": 1000}


def _record(*nodes: str, state: S = S.RUNNING) -> DecisionRecord:
    slots = tuple((node, CPU) for node in nodes)
    return DecisionRecord("f", state=state, given=GivenSlots(slots, 0, None))


def _pod(name: str, node: str | None, *, index: int | None = None, cpu: int = 1000) -> PlacedPod:
    return PlacedPod(name, name, node, {"cpu": cpu}, "Running", index)


def _holders(slots: list[AdoptedSlot]) -> dict[int, tuple[str, str | None]]:
    return {slot.number: (slot.node, slot.pod_uid) for slot in slots}


def test_pods_hold_the_slots_of_their_nodes() -> None:
    """An index has its own slot. A pod without one takes what is left on its node."""
    pods = [_pod("x", "n1", index=2), _pod("y", "n1", index=0), _pod("z", "n2", index=1)]
    found = place(_record("n1", "n2", "n1", "n2"), pods)
    assert _holders(found) == {0: ("n1", "y"), 1: ("n2", "z"), 2: ("n1", "x"), 3: ("n2", None)}


def test_a_pod_that_the_record_does_not_know_is_adopted_where_it_is() -> None:
    """Another node, or larger than its slot: it holds what it takes, in a slot of its own."""
    found = place(_record("n1"), [_pod("x", "n9"), _pod("y", "n1", cpu=4000)])
    assert _holders(found) == {0: ("n1", None), 1: ("n9", "x"), 2: ("n1", "y")}
    assert found[2].resources == {"cpu": 4000}


def test_without_a_record_the_pods_tell() -> None:
    """And one that is not bound waits until it is."""
    assert _holders(place(None, [_pod("x", "n1"), _pod("y", None)])) == {0: ("n1", "x")}


def test_a_template_tells_of_a_start_that_its_fluxjob_does_not_yet() -> None:
    """What was asked for is on its node, since its BatchJob started, or was made at the latest."""
    request = equal_slots(2, CPU, duration_s=60)
    start = PinnedStart(("n1",), request, "q", jobid=7, starts_at_s=100)
    for waiting in (
        DecisionRecord("f", 50),
        DecisionRecord("f", 50, S.PENDING, jobid=7, version=2),
    ):
        found = with_start(waiting, start)
        assert (found.state, found.jobid, found.accepted_by) == (S.ALLOCATED, 7, "q")
        assert found.version == waiting.version
        assert found.given == GivenSlots((("n1", CPU), ("n1", CPU)), 100, 160)
    early = replace(start, starts_at_s=None)
    assert with_start(DecisionRecord("f", 50), early).given == GivenSlots(
        (("n1", CPU), ("n1", CPU)), 50, 110
    )
    whole = replace(start, request=replace(request, is_node_exclusive=True, duration_s=0.0))
    given = with_start(DecisionRecord("f", 50), whole).given
    assert given is not None
    assert (given.held, given.until) == (("n1",), None)


def test_a_template_tells_the_node_of_each_index() -> None:
    """A list of another length is from another release."""
    request = replace(equal_slots(3, CPU), is_node_exclusive=True)
    start = PinnedStart(("n2", "n1", "n2"), request, "q", jobid=7, starts_at_s=100)
    given = with_start(DecisionRecord("f", 50), start).given
    assert given is not None
    assert given.slots == (("n2", CPU), ("n1", CPU), ("n2", CPU))
    assert given.held == ("n2", "n1")
    other = replace(start, nodes=("n2", "n1"))
    assert with_start(DecisionRecord("f", 50), other) == DecisionRecord("f", 50)


def test_what_a_fluxjob_tells_wins_over_its_template() -> None:
    start = PinnedStart(("n1",), equal_slots(1, CPU), "q", jobid=7, starts_at_s=100)
    for told in (
        _record("n2"),
        DecisionRecord("f", 50, S.COMPLETED),
        DecisionRecord("f", 50, S.CANCELLED),
    ):
        assert with_start(told, start) == told
    nobody_knows = replace(start, starts_at_s=None)
    assert with_start(DecisionRecord("f"), nobody_knows) == DecisionRecord("f")


def test_unequal_pods_hold_slots_of_their_own_kind() -> None:
    """Also where another would do, and where the record does not say of what kind they are."""
    slots = (("n1", CPU), ("n1", {"cpu": 4000}), ("n2", CPU))
    record = DecisionRecord(
        "f", state=S.RUNNING, given=GivenSlots(slots, 0, None, (), ("s", "l", "s"))
    )
    pods = [replace(_pod("a", "n1"), kind="l"), replace(_pod("b", "n2"), kind="other")]
    found = {slot.number: (slot.pod_uid, slot.kind) for slot in place(record, pods)}
    assert found == {0: (None, "s"), 1: ("a", "l"), 2: (None, "s"), 3: ("b", "other")}
    before = place(_record("n1", "n2"), pods[1:])
    assert [(slot.pod_uid, slot.kind) for slot in before] == [(None, ""), ("b", "other")]
    equal = place(record, [_pod("a", "n1")])
    assert equal[0].pod_uid == "a", "who is of no kind takes any"


def test_what_is_left_belongs_to_the_index_whose_pod_failed_there() -> None:
    """Unless that index runs, and it is kept before a free slot."""
    pods = [_pod("x", "n1", index=0), _pod("y", "n4", index=3)]
    slots = place(_record("n1", "n2", "n3", "n3", "n4"), pods, {0: "n2", 8: "n3", 2: "n3"})
    indexes = {slot.number: slot.index for slot in slots}
    assert indexes == {0: 0, 1: None, 2: 2, 3: 8, 4: 3}
    free = _free(n2=1000, n3=2000)
    assert keep(slots, wanted=4, is_whole=False, free=free) == {2, 3}


def _free(**cpu: int) -> dict[tuple[str, str], int]:
    return {(node, "cpu"): amount for node, amount in cpu.items()}


def test_what_another_has_been_given_meanwhile_is_not_kept() -> None:
    """A slot that was returned long ago stands in R as well."""
    slots = place(_record("n1", "n2", "n3"), [_pod("x", "n1")])
    free = _free(n1=0, n2=500, n3=1000)
    assert keep(slots, wanted=3, is_whole=False, free=free) == {2}
    assert free["n3", "cpu"] == 0


def test_no_more_is_kept_than_can_be_used() -> None:
    """Two of three have completed."""
    slots = place(_record("n1", "n2", "n3"), [_pod("x", "n1")])
    assert keep(slots, wanted=1, is_whole=False, free=_free(n2=1000, n3=1000)) == set()


def test_a_whole_that_has_not_started_is_kept_whole_or_not_at_all() -> None:
    """Half a gang is of no use. What was taken for it is free again."""
    slots = place(_record("n1", "n2", state=S.ALLOCATED), [])
    free = _free(n1=1000, n2=0)
    assert keep(slots, wanted=2, is_whole=True, free=free) == set()
    assert free == _free(n1=1000, n2=0)
    assert keep(slots, wanted=2, is_whole=True, free=_free(n1=1000, n2=1000)) == {0, 1}


@pytest.mark.parametrize(
    ("facts", "expected"),
    [
        ({"pods": [_pod("x", "n")]}, S.RUNNING),
        ({"pods": [_pod("x", "n")], "result": S.COMPLETED}, S.RUNNING),
        ({"result": S.FAILED, "record": _record("n")}, S.FAILED),
        ({"record": _record("n", state=S.ALLOCATED)}, S.ALLOCATED),
        ({"record": _record("n", state=S.ALLOCATED), "is_deleting": True}, S.PENDING),
        ({"record": DecisionRecord("f", state=S.RUNNING)}, S.PENDING),
        ({"record": DecisionRecord("f", state=S.RESERVED)}, S.PENDING),
        ({"record": DecisionRecord("f", state=S.COMPLETED)}, S.PENDING),
        ({"record": DecisionRecord("f", state=S.CANCELLED), "is_deleting": True}, S.CANCELLED),
        ({"is_held": True}, S.HELD),
        ({}, S.PENDING),
    ],
)
def test_the_state_is_that_of_the_objects(facts: dict[str, object], expected: S) -> None:
    """A record is believed only where no fact is against it."""
    known = {"result": None, "is_deleting": False, "is_held": False, "pods": [], "record": None}
    assert target_state(**{**known, **facts}) is expected  # type: ignore[arg-type]
