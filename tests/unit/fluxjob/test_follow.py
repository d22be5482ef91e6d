"""What follows from the present facts of one allocated workload: the table of cases by hand."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fluxqueue.fluxjob.follow import FollowDecision, Slot, SlotState, follow
from fluxqueue.fluxjob.pod_facts import PodFact, WorkloadProgress
from fluxqueue.fluxjob.states import FluxJobState

ALLOCATED, RUNNING = FluxJobState.ALLOCATED, FluxJobState.RUNNING


def free(*numbers: int) -> list[Slot]:
    """Free slots."""
    return [Slot(n, f"node-{n}") for n in numbers]


def held(number: int, pod: str) -> Slot:
    """A slot that a pod holds."""
    return Slot(number, f"node-{number}", SlotState.HELD, pod)


def lost(number: int) -> Slot:
    """A free slot on a node that is gone."""
    return Slot(number, f"node-{number}", is_lost=True)


def returned(number: int) -> Slot:
    """A slot that is the cluster's again."""
    return Slot(number, f"node-{number}", SlotState.RETURNED)


def gated(uid: str, *, index: int | None = None, is_terminating: bool = False) -> PodFact:
    """A pod that still waits for its slot."""
    return PodFact(uid, uid, "Pending", True, is_terminating=is_terminating, index=index)


def running(uid: str, *, is_terminating: bool = False) -> PodFact:
    """A pod with containers that run."""
    return PodFact(uid, uid, "Running", False, is_terminating=is_terminating)


def whole(wanted: int) -> WorkloadProgress:
    """A workload of which kube-scheduler holds all pods back while one is gated."""
    return WorkloadProgress(wanted, is_whole=True)


def over(uid: str, phase: str) -> PodFact:
    """A pod with containers that have ended."""
    return PodFact(uid, uid, phase, False)


def own(number: int, index: int, pod: str | None = None, **more: bool) -> Slot:
    """The slot of an index, held by a pod or by none."""
    slot = free(number)[0] if pod is None else held(number, pod)
    return replace(slot, index=index, **more)


def placed(uid: str, index: int, *, node: str | None = None) -> PodFact:
    """A pod that admission has sent to the node of its index."""
    phase = "Pending" if node is None else "Running"
    return PodFact(uid, uid, phase, False, node=node, index=index)


def places(wanted: int, *, is_placing: bool = True, **more: Any) -> WorkloadProgress:
    """A workload with a template that names the node of each index."""
    return WorkloadProgress(wanted=wanted, is_placed=True, is_placing=is_placing, **more)


CASES = {
    "a gated pod that holds a slot keeps it while its workload stops": (
        ALLOCATED,
        WorkloadProgress(wanted=2, is_vacating=True, is_stopping=True),
        [gated("x", index=0), placed("y", 1, node="node-1")],
        [own(0, 0, "x"), own(1, 1)],
        FollowDecision(assign=((1, "y"),), state=RUNNING),
    ),
    "placed pods take the slots of their indexes, whatever order they are seen in": (
        ALLOCATED,
        places(3),
        [placed("x", 2), gated("y", index=1)],
        [own(0, 0), own(1, 1), own(2, 2)],
        FollowDecision(assign=((1, "y"), (2, "x"))),
    ),
    "a placed pod waits for its own slot, and no other slot is added for it": (
        RUNNING,
        places(2),
        [placed("old", 1, node="node-1"), placed("new", 1, node="node-1")],
        [own(0, 0), own(1, 1, "old")],
        FollowDecision(),
    ),
    "the slot of an index without a pod yet is kept before one of an index that has ended": (
        RUNNING,
        places(1),
        [],
        [own(0, 0, is_spent=True), own(1, 1)],
        FollowDecision(give_back=(0,)),
    ),
    "nodes that are lost before a placed pod is bound: the workload is placed anew": (
        ALLOCATED,
        places(2),
        [placed("x", 0)],
        [own(0, 0, is_lost=True), own(1, 1)],
        FollowDecision(assign=((0, "x"),), must_vacate=True),
    ),
    "a gated pod is not sent to a lost node while others of its workload are placed": (
        RUNNING,
        places(2),
        [placed("x", 0, node="node-0"), gated("y", index=1)],
        [own(0, 0, "x"), own(1, 1, is_lost=True)],
        FollowDecision(lacking=1),
    ),
    "once no pod is placed any more, a lost slot is returned": (
        RUNNING,
        places(2, is_placing=False),
        [placed("x", 0, node="node-0"), gated("y", index=1)],
        [own(0, 0, "x"), own(1, 1, is_lost=True)],
        FollowDecision(give_back=(1,), lacking=1),
    ),
    "a pod that was placed on a node that is gone is deleted when the next one comes gated": (
        RUNNING,
        places(2, is_placing=False),
        [placed("x", 0, node="node-0"), placed("y", 1)],
        [own(0, 0, "x"), own(1, 1, "y", is_gone=True, is_lost=True)],
        FollowDecision(evict=("y",)),
    ),
    "while more pods are placed there, it is left": (
        RUNNING,
        places(2),
        [placed("x", 0, node="node-0"), placed("y", 1)],
        [own(0, 0, "x"), own(1, 1, "y", is_gone=True, is_lost=True)],
        FollowDecision(),
    ),
    "a slot that the template still names is kept after its author made the workload smaller": (
        RUNNING,
        places(1),
        [placed("x", 0, node="node-0")],
        [own(0, 0, "x"), own(1, 1, is_spent=True, is_named=True), own(2, 2, is_named=True)],
        FollowDecision(is_kept=True),
    ),
    "it goes to no other index meanwhile, and to its own": (
        RUNNING,
        places(2),
        [placed("x", 0, node="node-0"), gated("y", index=3), gated("z", index=2)],
        [own(0, 0, "x"), own(1, 1, is_named=True), own(2, 2, is_named=True)],
        FollowDecision(assign=((2, "z"),), lacking=0, is_kept=True),
    ),
    "once no pod is placed any more it is returned": (
        RUNNING,
        places(1, is_placing=False),
        [placed("x", 0, node="node-0")],
        [own(0, 0, "x"), own(1, 1, is_spent=True, is_named=True), own(2, 2, is_named=True)],
        FollowDecision(give_back=(1, 2)),
    ),
    "a placed workload that ended keeps none of them": (
        RUNNING,
        places(1, result=FluxJobState.COMPLETED),
        [placed("x", 0, node="node-0")],
        [own(0, 0, "x"), own(1, 1, is_named=True)],
        FollowDecision(give_back=(1,)),
    ),
    "a placed workload that ended waits for pods that hold no slot yet": (
        ALLOCATED,
        WorkloadProgress(wanted=0, is_deleting=True, is_placed=True),
        [placed("x", 1, node="node-1")],
        [own(0, 0), own(1, 1)],
        FollowDecision(assign=((1, "x"),), give_back=(0,), state=RUNNING),
    ),
    "a placed workload that vacates keeps its slots for pods that are not seen yet": (
        RUNNING,
        WorkloadProgress(wanted=2, is_placed=True, is_vacating=True, is_stopping=True),
        [placed("x", 1, node="node-1"), gated("y", index=0)],
        [own(0, 0), own(1, 1)],
        FollowDecision(assign=((1, "x"),)),
    ),
    "an index gets the slot that was its own, wherever that is": (
        RUNNING,
        WorkloadProgress(wanted=3),
        [gated("x", index=2), gated("y", index=7), running("z")],
        [own(0, 7), own(1, 5, "z"), own(2, 1, is_spent=True), own(3, 2)],
        FollowDecision(assign=((3, "x"), (0, "y")), give_back=(2,)),
    ),
    "an index that has ended gives its slot back before one that has not": (
        RUNNING,
        WorkloadProgress(wanted=2),
        [running("z")],
        [own(0, 0, is_spent=True), own(1, 1, "z"), own(2, 2)],
        FollowDecision(give_back=(0,)),
    ),
    "a new index waits for who has ended, as long as the replacement is to come": (
        RUNNING,
        WorkloadProgress(wanted=3),
        [gated("n", index=3), running("z")],
        [own(0, 0), own(1, 1, "z"), own(2, 2)],
        FollowDecision(),
    ),
    "a new index takes a kept slot when there are as many pods as there may be": (
        RUNNING,
        WorkloadProgress(wanted=2),
        [gated("n", index=3), running("z")],
        [own(0, 0), own(1, 1, "z")],
        FollowDecision(assign=((0, "n"),)),
    ),
    "a replacement waits for the slot of the pod that is going": (
        RUNNING,
        WorkloadProgress(wanted=1),
        [replace(running("a", is_terminating=True), index=0), gated("b", index=0)],
        [own(0, 0, "a"), own(1, 1, is_spent=True)],
        FollowDecision(give_back=(1,)),
    ),
    "it does not wait on a lost node": (
        RUNNING,
        WorkloadProgress(wanted=1),
        [replace(running("a", is_terminating=True), index=0), gated("b", index=0)],
        [own(0, 0, "a", is_lost=True)],
        FollowDecision(lacking=1),
    ),
    "nor does one without an index": (
        RUNNING,
        WorkloadProgress(wanted=1),
        [running("a", is_terminating=True), gated("b")],
        [replace(held(0, "a"), is_lost=True)],
        FollowDecision(lacking=1),
    ),
    "a pod whose index has ended, though it is still seen to run, takes no kept slot away": (
        RUNNING,
        WorkloadProgress(wanted=1),
        [replace(running("z"), index=1)],
        [own(0, 0), own(1, 1, "z", is_spent=True)],
        FollowDecision(),
    ),
    "gated pods get the open slots in the order of their names": (
        ALLOCATED,
        WorkloadProgress(wanted=2),
        [gated("b"), gated("a")],
        free(0, 1),
        FollowDecision(assign=((0, "a"), (1, "b"))),
    ),
    "an index gets its own slot": (
        ALLOCATED,
        WorkloadProgress(wanted=2),
        [gated("x", index=1), gated("y", index=0)],
        free(0, 1),
        FollowDecision(assign=((0, "y"), (1, "x"))),
    ),
    "an index whose slot is taken gets another": (
        RUNNING,
        WorkloadProgress(wanted=2),
        [gated("x", index=0), running("y")],
        [held(0, "y"), *free(1)],
        FollowDecision(assign=((1, "x"),)),
    ),
    "a pod that is going gets none": (
        ALLOCATED,
        WorkloadProgress(wanted=1),
        [gated("a", is_terminating=True)],
        free(0),
        FollowDecision(),
    ),
    "more pods than slots: the rest lacks some": (
        ALLOCATED,
        WorkloadProgress(wanted=3),
        [gated("a"), gated("b"), gated("c")],
        free(0, 1),
        FollowDecision(assign=((0, "a"), (1, "b")), lacking=1),
    ),
    "a replacement beside a pod that is going lacks nothing: it will get that slot": (
        RUNNING,
        WorkloadProgress(wanted=2),
        [running("a", is_terminating=True), running("b"), gated("c")],
        [held(0, "a"), held(1, "b")],
        FollowDecision(),
    ),
    "a lost node before anything was held: the whole is matched anew": (
        ALLOCATED,
        WorkloadProgress(wanted=2),
        [gated("a"), gated("b")],
        [*free(0), lost(1)],
        FollowDecision(give_back=(0, 1), state=FluxJobState.PENDING, is_requeued=True),
    ),
    "a lost free slot beside held ones goes back, its pod lacks one": (
        RUNNING,
        WorkloadProgress(wanted=2),
        [running("a"), gated("b")],
        [held(0, "a"), lost(1)],
        FollowDecision(give_back=(1,), lacking=1),
    ),
    "a lost free slot whose pod is not there yet goes back and lacks nothing yet": (
        RUNNING,
        WorkloadProgress(wanted=2),
        [running("a")],
        [held(0, "a"), lost(1)],
        FollowDecision(give_back=(1,)),
    ),
    "a pod on a lost node keeps its slot": (
        RUNNING,
        WorkloadProgress(wanted=1),
        [running("a")],
        [replace(held(0, "a"), is_lost=True)],
        FollowDecision(),
    ),
    "its slot goes back when the pod is gone": (
        RUNNING,
        WorkloadProgress(wanted=1),
        [gated("b")],
        [replace(held(0, "a"), is_lost=True)],
        FollowDecision(free=(0,), give_back=(0,), lacking=1),
    ),
    "deleted while a node is lost: it ends, it is not matched anew": (
        ALLOCATED,
        WorkloadProgress(wanted=1, is_deleting=True),
        [],
        [lost(0)],
        FollowDecision(give_back=(0,), state=FluxJobState.CANCELLED, is_ended=True),
    ),
    "the first running pod makes it Running": (
        ALLOCATED,
        WorkloadProgress(wanted=1),
        [running("a")],
        [held(0, "a")],
        FollowDecision(state=RUNNING),
    ),
    "a failed pod's slot goes to its replacement": (
        RUNNING,
        WorkloadProgress(wanted=1),
        [over("a", "Failed"), gated("b")],
        [held(0, "a")],
        FollowDecision(assign=((0, "b"),)),
    ),
    "a failed pod's slot waits for the replacement": (
        RUNNING,
        WorkloadProgress(wanted=1),
        [],
        [held(0, "a")],
        FollowDecision(free=(0,)),
    ),
    "a pod that is being deleted still holds": (
        RUNNING,
        WorkloadProgress(wanted=1),
        [running("a", is_terminating=True), gated("b")],
        [held(0, "a")],
        FollowDecision(),
    ),
    "fewer completions left than slots: the spare one goes back at once": (
        RUNNING,
        WorkloadProgress(wanted=1),
        [running("b")],
        [held(0, "a"), held(1, "b")],
        FollowDecision(free=(0,), give_back=(0,)),
    ),
    "a finished workload with a running pod keeps that slot only": (
        RUNNING,
        WorkloadProgress(wanted=0, result=FluxJobState.FAILED),
        [running("b", is_terminating=True)],
        [held(0, "a"), held(1, "b")],
        FollowDecision(free=(0,), give_back=(0,)),
    ),
    "finished and no pod left: everything goes back and it ends": (
        RUNNING,
        WorkloadProgress(wanted=0, result=FluxJobState.COMPLETED),
        [],
        [held(0, "a"), *free(1), returned(2)],
        FollowDecision(free=(0,), give_back=(0, 1), state=FluxJobState.COMPLETED, is_ended=True),
    ),
    "deleted without a result is Cancelled": (
        ALLOCATED,
        WorkloadProgress(wanted=1, is_deleting=True),
        [],
        free(0),
        FollowDecision(give_back=(0,), state=FluxJobState.CANCELLED, is_ended=True),
    ),
    "deleted after its result keeps the result": (
        RUNNING,
        WorkloadProgress(wanted=0, result=FluxJobState.COMPLETED, is_deleting=True),
        [],
        free(0),
        FollowDecision(give_back=(0,), state=FluxJobState.COMPLETED, is_ended=True),
    ),
    "deleted with a gated pod that never held a slot ends": (
        ALLOCATED,
        WorkloadProgress(wanted=1, is_deleting=True),
        [gated("a")],
        free(0),
        FollowDecision(give_back=(0,), state=FluxJobState.CANCELLED, is_ended=True),
    ),
    "no slots and no pods, and still wanted: nothing follows": (
        ALLOCATED,
        WorkloadProgress(wanted=1),
        [],
        [],
        FollowDecision(),
    ),
    "of size 0 and over: it ends": (
        ALLOCATED,
        WorkloadProgress(wanted=0, result=FluxJobState.COMPLETED),
        [],
        [],
        FollowDecision(state=FluxJobState.COMPLETED, is_ended=True),
    ),
}


@pytest.mark.parametrize("case", CASES.values(), ids=CASES.keys())
def test_follow(
    case: tuple[FluxJobState, WorkloadProgress, list[PodFact], list[Slot], FollowDecision],
) -> None:
    """Each rule of the module's docstring, one case at least."""
    state, workload, pods, slots, expected = case
    assert follow(state, workload, pods, slots) == expected


def test_unequal_pods_get_slots_of_their_own_kind_and_no_other() -> None:
    """In any order. A pod without a slot of its kind waits for one, and is lacked."""
    pods = [gated("a"), gated("b"), gated("c")]
    kinds = {"a": "large", "b": "small", "c": "huge"}
    pods = [replace(pod, kind=kinds[pod.uid]) for pod in pods]
    slots = [
        replace(slot, kind=kind) for slot, kind in zip(free(0, 1), ("small", "large"), strict=True)
    ]
    decision = follow(ALLOCATED, WorkloadProgress(wanted=3), pods, slots)
    assert sorted(decision.assign) == [(0, "b"), (1, "a")]
    assert decision.lacking == 1
    assert decision.give_back == ()


def test_no_slot_is_kept_of_a_kind_that_nobody_waits_for() -> None:
    """A rollout to pods of another size: what the old pod had must not keep the new one waiting."""
    new = replace(gated("new"), kind="large")
    old = replace(free(0)[0], kind="small")
    decision = follow(RUNNING, WorkloadProgress(wanted=1), [new], [old])
    assert decision.give_back == (0,)
    assert decision.lacking == 1


def test_pods_of_one_node_keep_what_they_have_there() -> None:
    """Their template sends them nowhere else: a cordoned node's slot goes to the next of them."""
    slots = [replace(held(0, "a"), is_lost=True), replace(lost(1), is_refused=True)]
    pods = [running("a"), replace(running("b"), node="node-0")]
    decision = follow(RUNNING, WorkloadProgress(wanted=2, is_pinned=True), pods, slots)
    assert decision == FollowDecision(assign=((1, "b"),))


@pytest.mark.parametrize("slot", [lost(0), replace(free(0)[0], is_refused=True)])
def test_a_node_that_takes_none_of_its_pods_is_left(slot: Slot) -> None:
    """Whether it is lost, or refused one: all would come to it again."""
    fact = WorkloadProgress(wanted=1, is_pinned=True)
    assert follow(RUNNING, fact, [], [slot]).must_vacate
    assert follow(RUNNING, replace(fact, wanted=0), [], [slot]).must_vacate is False


@pytest.mark.parametrize(
    "end",
    [
        {"is_deleting": True},
        {"result": FluxJobState.COMPLETED},
        {"is_deleting": True, "is_vacating": True},
        {"is_deleting": True, "is_vacating": True, "is_stopping": True},
    ],
    ids=str,
)
def test_pods_without_a_gate_hold_slots_of_a_workload_that_is_over(end: dict[str, Any]) -> None:
    """Its end may be seen before its pods are looked at. It has not ended before they have."""
    fact = WorkloadProgress(wanted=0, is_pinned=True, **end)
    pods = [running("a"), running("b", is_terminating=True), gated("c")]
    decision = follow(
        ALLOCATED, fact, [replace(pods[1], node="n"), pods[0], pods[2]], free(0, 1, 2)
    )
    assert dict(decision.assign) == {0: "a", 1: "b"}
    assert not decision.is_ended
    assert decision.give_back == (2,)
    slots = [held(0, "a"), held(1, "b"), returned(2)]
    ended = [over("a", "Succeeded"), over("b", "Succeeded")]
    last = follow(RUNNING, fact, [*ended, pods[2]], slots)
    assert last.is_ended


def test_a_workload_that_is_over_does_not_wait_for_pods_beyond_its_slots() -> None:
    """They count as unmanaged use."""
    fact = WorkloadProgress(wanted=0, is_pinned=True, is_deleting=True)
    assert follow(RUNNING, fact, [running("a")], [returned(0)]).is_ended
    beside = follow(RUNNING, fact, [running("a"), running("b")], [held(0, "a")])
    assert not beside.is_ended
    assert not beside.assign
    assert follow(RUNNING, fact, [over("a", "Failed"), running("b")], [returned(0)]).is_ended


def test_who_stops_keeps_its_slots_for_pods_that_nobody_has_seen() -> None:
    """They came without a gate; those that are seen take theirs, until none can be left."""
    stopping = WorkloadProgress(wanted=2, is_vacating=True, is_stopping=True)
    assert follow(ALLOCATED, stopping, [], free(0, 1)) == FollowDecision()
    seen = follow(ALLOCATED, stopping, [running("a"), gated("b")], free(0, 1))
    assert seen == FollowDecision(assign=((0, "a"),), state=RUNNING)
    done = follow(RUNNING, replace(stopping, is_stopping=False), [], [held(0, "a"), *free(1)])
    assert done.is_requeued
    assert done.give_back == (0, 1)


def test_who_starts_anew_gives_back_the_slots_of_its_lost_pods() -> None:
    """No event comes for them. Their slots would be held for ever by what has ended."""
    fact = WorkloadProgress(wanted=2, is_vacating=True, restarts_on_loss=True)
    pods = [running("a", is_terminating=True), running("b")]
    gone = [replace(held(0, "a"), is_down=True), replace(held(1, "b"), is_gone=True)]
    decision = follow(RUNNING, fact, pods, gone)
    assert decision.is_requeued
    assert sorted(decision.give_back) == [0, 1]
    waits = follow(RUNNING, fact, pods, [gone[0], held(1, "b")])
    assert (waits.is_requeued, waits.give_back) == (False, ())


def test_slots_of_the_kinds_that_are_yet_to_come_are_kept() -> None:
    """The launcher has ended before its worker came: its slot goes back, not the worker's."""
    slots = [replace(free(0)[0], kind="launcher"), replace(free(1)[0], kind="worker")]
    fact = WorkloadProgress(wanted=1, wanted_of={"worker": 1})
    assert follow(RUNNING, fact, [], slots).give_back == (0,)
    worker = replace(gated("w"), kind="worker")
    decision = follow(RUNNING, fact, [worker], slots)
    assert (decision.assign, decision.give_back) == (((1, "w"),), (0,))
    both = WorkloadProgress(wanted=2, wanted_of={"launcher": 1, "worker": 1})
    decision = follow(RUNNING, both, [worker], slots)
    assert (decision.assign, decision.give_back) == (((1, "w"),), ())


def going(uid: str) -> PodFact:
    """A pod that is being deleted, on its node."""
    return replace(running(uid, is_terminating=True), node="node-0")


def test_a_pod_without_a_gate_that_is_first_seen_as_it_goes_holds_a_slot() -> None:
    """It uses its node until it is gone. Pods that stay come first."""
    fact = WorkloadProgress(wanted=1, is_pinned=True)
    assert follow(RUNNING, fact, [going("a")], free(0)).assign == ((0, "a"),)
    both = follow(RUNNING, fact, [going("a"), running("b")], free(0))
    assert both.assign == ((0, "b"),)
    fewer = follow(RUNNING, replace(fact, wanted=0), [going("a")], free(0, 1))
    assert (fewer.assign, fewer.give_back) == (((0, "a"),), (1,))
    stopping = replace(fact, is_vacating=True, is_stopping=True)
    assert follow(RUNNING, stopping, [going("a")], free(0)).assign == ((0, "a"),)


def test_pods_of_a_native_group_are_released_together() -> None:
    """All have slots: all are sent at once."""
    found = follow(ALLOCATED, whole(2), [gated("a"), gated("b")], free(0, 1))
    assert found.assign == ((0, "a"), (1, "b"))
    assert not found.lacking


def test_a_native_group_that_has_grown_before_its_release_is_matched_again() -> None:
    """Two of three would wait in kube-scheduler, with their slots, for the third."""
    found = follow(ALLOCATED, whole(3), [gated(uid) for uid in "abc"], free(0, 1))
    assert (found.assign, found.give_back, found.is_requeued) == ((), (0, 1), True)
    loose = follow(ALLOCATED, WorkloadProgress(3), [gated(uid) for uid in "abc"], free(0, 1))
    assert len(loose.assign) == 2


def test_a_running_native_group_sends_no_part_of_what_waits() -> None:
    """Two pods were replaced, and one slot is left: it is kept, and neither pod is sent."""
    pods = [running("a"), gated("b"), gated("c")]
    slots = [held(0, "a"), *free(1)]
    found = follow(RUNNING, whole(3), pods, slots)
    assert (found.assign, found.give_back, found.lacking) == ((), (), 1)
    both = follow(RUNNING, whole(3), pods, [held(0, "a"), *free(1, 2)])
    assert sorted(uid for _, uid in both.assign) == ["b", "c"]


def test_a_sweep_in_a_native_group_still_starts_pod_by_pod() -> None:
    """Its pods lose the group at their creation. If they have not, waiting would be no better."""
    facts = WorkloadProgress(3, is_whole=True, is_independent=True)
    assert follow(ALLOCATED, facts, [gated("a"), gated("b")], free(0)).assign == ((0, "a"),)
