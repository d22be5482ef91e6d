"""Any facts of a placed BatchJob: a pod that was sent to a node gets the slot there, or none."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from fluxqueue.fluxjob.follow import Slot, SlotState, follow
from fluxqueue.fluxjob.pod_facts import PodFact, WorkloadProgress
from fluxqueue.fluxjob.states import FluxJobState

WIDTH = 5


@st.composite
def _pods(draw: st.DrawFn) -> list[PodFact]:
    return [
        PodFact(
            f"p{number}",
            f"p{number}",
            draw(st.sampled_from(["Pending", "Running", "Succeeded", "Failed"])),
            is_gated=draw(st.booleans()),
            is_terminating=draw(st.booleans()),
            node=draw(st.sampled_from([None, "n"])),
            index=draw(st.integers(0, WIDTH + 1)),
            is_sent=draw(st.booleans()),
        )
        for number in range(draw(st.integers(0, 2 * WIDTH)))
    ]


@st.composite
def _slots(draw: st.DrawFn, pods: list[PodFact]) -> list[Slot]:
    """Slots that belong to their indexes, and perhaps further ones. A pod holds one at most."""
    left = [pod.uid for pod in pods]
    found = []
    for number in range(draw(st.integers(1, WIDTH + 2))):
        state = draw(st.sampled_from(list(SlotState)))
        holder = draw(st.sampled_from(left)) if state is SlotState.HELD and left else None
        if holder is not None:
            left.remove(holder)
        is_gone = draw(st.booleans())
        found.append(
            Slot(
                number,
                f"node-{number}",
                SlotState.FREE if state is SlotState.HELD and holder is None else state,
                holder,
                is_lost=is_gone or draw(st.booleans()),
                is_gone=is_gone,
                is_refused=draw(st.booleans()),
                index=number if number < WIDTH else None,
                is_spent=draw(st.booleans()),
                is_named=number < WIDTH and draw(st.booleans()),
            )
        )
    return found


@given(st.data())
def test_slots_are_given_once_and_to_the_pods_that_are_there(data: st.DataObject) -> None:
    pods = data.draw(_pods())
    slots = data.draw(_slots(pods))
    is_vacating = data.draw(st.booleans())
    workload = WorkloadProgress(
        wanted=data.draw(st.integers(0, WIDTH)),
        is_deleting=data.draw(st.booleans()),
        is_vacating=is_vacating,
        is_stopping=is_vacating and data.draw(st.booleans()),
        is_placed=True,
        is_placing=data.draw(st.booleans()),
    )
    state = data.draw(st.sampled_from([FluxJobState.ALLOCATED, FluxJobState.RUNNING]))
    found = follow(state, workload, pods, slots)
    by_uid, by_number = {pod.uid: pod for pod in pods}, {slot.number: slot for slot in slots}
    given_to = dict(found.assign)
    assert len(given_to) == len(found.assign) == len(set(given_to.values()))
    assert not set(given_to) & ({*found.free} | {*found.give_back})
    for number, uid in found.assign:
        pod, slot = by_uid[uid], by_number[number]
        holder = by_uid.get(slot.pod_uid or "")
        may_be_freed = holder is None or holder.is_terminal or (holder.is_gated and slot.is_lost)
        assert slot.state is not SlotState.RETURNED
        assert slot.state is SlotState.FREE or may_be_freed
        assert not pod.is_terminal
        if pod.is_gated:
            assert not slot.is_lost or is_vacating
            assert not (slot.is_named and workload.is_placing) or slot.index == pod.index
        else:
            assert number == pod.index, "it was sent to the node of this slot"
    if workload.is_placing and not (workload.is_over or is_vacating or found.is_requeued):
        kept = [by_number[number] for number in found.give_back]
        assert not any(slot.is_named for slot in kept), "its pod may still come ungated"
    for uid in found.evict:
        assert not by_uid[uid].is_gated
        assert not workload.is_placing, "the next pod would be sent to the same node"
