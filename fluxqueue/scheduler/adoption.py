"""Adoption: the rows that a workload needs, from its objects and its published record.

``db.store.rebuild`` calls it if rows are missing or older than the cluster. Facts win over records:
a running pod holds a slot on its node, whatever the record says.

It is pure, and never moves, stops or restarts a pod.
"""

from __future__ import annotations

from collections.abc import Mapping, MutableMapping, Sequence
from dataclasses import dataclass, replace
from types import MappingProxyType

from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.jobspec.model import Jobspec
from fluxqueue.jobspec.shape import slot_needs, takes_whole_nodes
from fluxqueue.scheduler.record import DecisionRecord
from fluxqueue.scheduler.resource_set import GivenSlots

Amounts = Mapping[str, int]


@dataclass(frozen=True, slots=True)
class PlacedPod:
    """A pod that was ungated and has not ended.

    ``node`` is None if the pod is unbound and nothing on it names a node. ``resources`` are in base
    units. ``index`` is the completion index of an indexed pod, ``kind`` the label of its kind of
    slots.
    """

    uid: str
    name: str
    node: str | None
    resources: Amounts
    phase: str
    index: int | None = None
    kind: str = ""


@dataclass(frozen=True, slots=True)
class AdoptedSlot:
    """A slot as it must be stored.

    ``pod_uid`` is None if no pod holds the slot. ``index`` is the completion index that owns the
    slot, if that is known. ``kind`` is the label of its kind of slots, empty if all are equal.
    """

    number: int
    node: str
    resources: Amounts
    pod_uid: str | None = None
    index: int | None = None
    kind: str = ""


def target_state(
    *,
    result: FluxJobState | None,
    is_deleting: bool,
    is_held: bool,
    pods: Sequence[PlacedPod],
    record: DecisionRecord | None,
) -> FluxJobState:
    """Return the state of a workload, from its objects first and its record second.

    Parameters
    ----------
    result : How the workload has ended, or None.
    is_held : Whether its author or an operator holds it.
    pods : Its pods that were ungated and have not ended.
    """
    said = record.state if record is not None else None
    # Pods win over every record: while one is there, the allocation must not end.
    if pods:
        has_run = said is FluxJobState.RUNNING or any(pod.phase == "Running" for pod in pods)
        return FluxJobState.RUNNING if has_run else FluxJobState.ALLOCATED
    if result is not None:
        return result
    if said is FluxJobState.CANCELLED and is_deleting:
        return said
    was_given = record is not None and record.given is not None
    # Without a grant in the record nothing tells which nodes to keep, so it waits again.
    if was_given and said in {FluxJobState.ALLOCATED, FluxJobState.RUNNING} and not is_deleting:
        return FluxJobState(said)
    return FluxJobState.HELD if is_held else FluxJobState.PENDING


@dataclass(frozen=True, slots=True)
class PinnedStart:
    """A start that a pod template records: the slots of ``request`` on ``nodes``.

    ``nodes`` has one node for all slots, or one for each. ``starts_at_s`` is in epoch seconds, None
    if no process has seen the start. ``jobid`` is the jobid it started under, ``queue`` its queue.
    """

    nodes: tuple[str, ...]
    request: Jobspec
    queue: str
    jobid: int | None
    starts_at_s: int | None


def with_start(record: DecisionRecord, start: PinnedStart) -> DecisionRecord:
    """Return ``record`` with a start that its status does not show yet.

    A record that has a grant or a final state is returned unchanged. The grant equals the request,
    because a template has nodes only if no further slot can follow.
    """
    is_told = record.given is not None or (record.state is not None and record.state.is_final)
    starts_at = start.starts_at_s or record.submitted_at_s
    if is_told or starts_at is None:
        return record
    request = start.request
    needs = list(slot_needs(request))
    nodes = start.nodes * len(needs) if len(start.nodes) == 1 else start.nodes
    if len(nodes) != len(needs):
        return record
    given = GivenSlots(
        slots=tuple((node, dict(need)) for node, need in zip(nodes, needs, strict=True)),
        starts_at=starts_at,
        until=starts_at + request.held_s if request.held_s else None,
        held=tuple(dict.fromkeys(nodes)) if takes_whole_nodes(request) else (),
    )
    return replace(
        record,
        state=FluxJobState.ALLOCATED,
        jobid=record.jobid or start.jobid,
        given=given,
        accepted_by=record.accepted_by or start.queue,
    )


def place(
    record: DecisionRecord | None,
    pods: Sequence[PlacedPod],
    last_nodes: Mapping[int, str] = MappingProxyType({}),
) -> list[AdoptedSlot]:
    """Give each pod the slot of the record that it must have held, else one on its node.

    The slot of an indexed pod's own index comes first, as when slots are given out. A pod without a
    known node takes any slot that is left. If none is left, it stays without a slot until it is
    bound.

    Parameters
    ----------
    last_nodes : Completion index -> node of its last pod, which has failed. A slot that is left
        there belongs to that index.
    """
    r = record.given if record is not None else None
    given, kinds = (r.slots, r.kinds) if r is not None else ((), ())
    left = {
        n: AdoptedSlot(n, node, amounts, kind=kinds[n] if kinds else "")
        for n, (node, amounts) in enumerate(given)
    }
    held: list[AdoptedSlot] = []
    beyond = len(given)
    # Pods with a known node choose first: a pod without one could take the only slot there.
    for pod in sorted(pods, key=lambda p: (p.node is None, p.index is None, p.index or 0, p.name)):
        number = _slot_for(pod, left, len(given))
        if number is not None:
            slot = left.pop(number)
            kind = pod.kind or slot.kind
            held.append(replace(slot, pod_uid=pod.uid, index=pod.index, kind=kind))
        elif pod.node is not None:
            held.append(AdoptedSlot(beyond, pod.node, pod.resources, pod.uid, pod.index, pod.kind))
            beyond += 1
    there = {slot.index for slot in held}
    missing = {index: node for index, node in last_nodes.items() if index not in there}
    return sorted([*held, *_keep_for(left, missing, len(given))], key=lambda slot: slot.number)


def _keep_for(
    left: Mapping[int, AdoptedSlot], last_nodes: Mapping[int, str], width: int
) -> list[AdoptedSlot]:
    """Return the slots that are left, each marked with the index that owns it."""
    slots = dict(left)
    for index, node in sorted(last_nodes.items()):
        there = [n for n, slot in slots.items() if slot.node == node and slot.index is None]
        if there:
            number = _choose(there, index, width)
            slots[number] = replace(slots[number], index=index)
    return list(slots.values())


def _slot_for(pod: PlacedPod, left: Mapping[int, AdoptedSlot], width: int) -> int | None:
    """Return the number of a slot on the pod's node, of its kind and size, or None."""
    fitting = [
        number
        for number, slot in left.items()
        if pod.node in {None, slot.node} and _covers(slot.resources, pod.resources)
        if not pod.kind or slot.kind in {"", pod.kind}
    ]
    return _choose(fitting, pod.index, width) if fitting else None


def _choose(numbers: Sequence[int], index: int | None, width: int) -> int:
    """Return the slot number of the index itself if it is among ``numbers``, else the lowest."""
    own = index % width if index is not None and width else None
    return own if own is not None and own in numbers else min(numbers)


def _covers(given: Amounts, needs: Amounts) -> bool:
    """Return whether ``given`` has at least the amount of each resource in ``needs``."""
    return all(given.get(name, 0) >= amount for name, amount in needs.items())


def keep(
    slots: Sequence[AdoptedSlot],
    *,
    wanted: int,
    is_whole: bool,
    free: MutableMapping[tuple[str, str], int],
) -> set[int]:
    """Return the numbers of the slots without a pod that the workload may keep.

    Other jobs may have been given what a slot of the record once was. So a slot is kept only if it
    still fits, and no more slots are kept than the workload can use.

    Parameters
    ----------
    wanted : Pods that the workload may still run at once.
    is_whole : Nothing of it has started: it keeps every slot it needs, or none.
    free : (node, resource) -> amount that is free after all held slots. Kept slots are subtracted
        from it.
    """
    # Slots with a known index come first: a pod of that index is sure to come again.
    open_slots = sorted(
        (slot for slot in slots if slot.pod_uid is None), key=lambda slot: slot.index is None
    )
    usable = max(0, wanted - (len(slots) - len(open_slots)))
    if is_whole and usable < len(open_slots):
        open_slots = open_slots[:usable]
    taken: list[AdoptedSlot] = []
    for slot in open_slots:
        if len(taken) < usable and _fits(slot, free):
            _take(slot, free, 1)
            taken.append(slot)
    # All or nothing: half of a gang would hold nodes and could never start.
    if is_whole and len(taken) < len(open_slots):
        for slot in taken:
            _take(slot, free, -1)
        return set()
    return {slot.number for slot in taken}


def _fits(slot: AdoptedSlot, free: Mapping[tuple[str, str], int]) -> bool:
    """Return whether the node of ``slot`` exists and has enough free."""
    is_there = any((slot.node, name) in free for name in slot.resources)
    return is_there and all(
        free.get((slot.node, n), 0) >= amount for n, amount in slot.resources.items()
    )


def _take(slot: AdoptedSlot, free: MutableMapping[tuple[str, str], int], sign: int) -> None:
    """Subtract the slot from ``free``, or add it with ``sign`` -1."""
    for name, amount in slot.resources.items():
        free[slot.node, name] = free.get((slot.node, name), 0) - sign * amount
