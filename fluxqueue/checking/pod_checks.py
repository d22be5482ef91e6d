"""Pods and their slots: invariant 3, and every pod runs on the node of its slot. Pure."""

from __future__ import annotations

from collections.abc import Iterator

from fluxqueue.checking.both_sides import (
    CheckView,
    is_gated,
    is_terminal,
    node_of,
    subject_of,
    uid_of,
)
from fluxqueue.checking.findings import Finding
from fluxqueue.db.reading.snapshot import SlotRow
from fluxqueue.fluxjob.request import describe_amount
from fluxqueue.workload.objects import Object
from fluxqueue.workload.pod_resources import effective_request


def ungated(view: CheckView) -> Iterator[Finding]:
    """Report managed pods that are ungated without a slot, or bound to another node than it."""
    for pod in view.cluster.pods:
        if is_terminal(pod) or is_gated(pod) or not view.is_ours(pod):
            continue
        slot = view.slot_of_pod.get(uid_of(pod))
        if slot is None:
            where = f"on {node_of(pod)}" if node_of(pod) else "not yet bound"
            yield Finding("ungated pod without a slot", subject_of(pod, "Pod"), where)
        else:
            yield from _in_its_slot(view, pod, slot)


def _in_its_slot(view: CheckView, pod: Object, slot: SlotRow) -> Iterator[Finding]:
    """Report a pod that is on another node than its slot, or released and larger than it."""
    subject, node = subject_of(pod, "Pod"), node_of(pod)
    if node and node != slot.node:
        detail = f"runs on {node}, but allocation {slot.allocation_id} slot {slot.number} is on "
        yield Finding("pod on another node than its slot", subject, detail + slot.node)
    if node:
        # What a bound pod uses beyond its slot counts as unmanaged. ``nodes`` checks that it does.
        return
    needs = effective_request(pod["spec"], default_cpu_m=view.default_cpu_m)
    for name, amount in needs.items():
        given = slot.resources.get(name, 0)
        if amount > given:
            detail = f"uses {describe_amount(name, amount)}, but its slot has {given}"
            yield Finding("pod larger than its slot", subject, detail)


def holders(view: CheckView) -> Iterator[Finding]:
    """Report slots that are held by a pod that is gone or has ended."""
    live = {uid_of(pod) for pod in view.cluster.pods if not is_terminal(pod)}
    for slot in view.rows.slots:
        if slot.pod_uid is None or slot.pod_uid in live:
            continue
        row = view.row_of.get(slot.uid)
        subject = row.subject if row else f"workload {slot.uid}"
        detail = f"allocation {slot.allocation_id} slot {slot.number}: pod {slot.pod_uid}"
        yield Finding("slot held by a pod that is gone", f"{subject} slot {slot.number}", detail)
