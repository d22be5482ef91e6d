"""The pods of workloads in rows, and what they use beyond their slots.

``observations`` writes them with their workloads, under the locks of these rows. ``reconciling``
and ``choices`` count again what no slot covers.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from typing import Any, NamedTuple

from fluxqueue.db.database import Transaction
from fluxqueue.db.queries import Q
from fluxqueue.db.reader import value
from fluxqueue.db.store.cluster_rows import tell_matcher
from fluxqueue.db.store.notices import UNMANAGED_USE, Notice, leave_notices
from fluxqueue.fluxjob.observation import WorkloadSeen
from fluxqueue.fluxjob.pod_facts import PodFact
from fluxqueue.fluxjob.request import describe


class UnmanagedUse(NamedTuple):
    """A pod that uses another amount beyond its slot than before, None for nothing."""

    uid: str
    workload_uid: str
    namespace: str
    name: str
    node: str
    unmanaged: Mapping[str, int] | None


async def save_pods(
    tx: Transaction,
    seen: Sequence[tuple[str, str, Sequence[PodFact]]],
    before: Mapping[str, WorkloadSeen],
) -> None:
    """Make the pod rows of the given workloads (UID, namespace, pods) what they are now."""
    changed: list[tuple[str, str, PodFact]] = []
    left: list[str] = []
    whole: list[str] = []
    gone: list[str | None] = []
    for uid, namespace, pods in seen:
        known = before.get(uid)
        live = {pod.uid: pod for pod in pods if not pod.is_terminal}
        old = {pod.uid: pod for pod in known.pods if not pod.is_terminal} if known else {}
        changed += [(uid, namespace, pod) for pod in live.values() if old.get(pod.uid) != pod]
        if known is None:
            whole.append(uid)
        else:
            left += old.keys() - live.keys()
    if whole:
        gone += await tx.fetch(
            Q.delete_other_pods, value, workloads=whole, pods=[pod.uid for _, _, pod in changed]
        )
    if left:
        gone += await tx.fetch(Q.delete_pods, value, pods=left)
    await tell_matcher(tx, "foreign", [node for node in gone if node is not None])
    rows = [_pod_row(*one) for one in changed]
    if changed and any(await tx.fetch(Q.save_pods, bool, rows=rows)):
        # Its slot follows it. Only the process with the matcher moves slots, and a bound pod by
        # itself is no reason to reconcile.
        await tx.wake_matcher()
    if running := [pod.uid for _, _, pod in changed if pod.uses and pod.phase == "Running"]:
        resized = await tx.fetch(Q.resize_slots, str, pods=running)
        await tell_matcher(tx, "allocation", sorted(set(resized)))
    await count_unmanaged(tx, {uid for uid, _, pod in changed if pod.node})


async def count_unmanaged(tx: Transaction, uids: Collection[str]) -> None:
    """Count what the pods of these workloads use beyond their slots.

    Notify the matcher, and leave a notice for the user on the FluxJob.
    """
    if not uids:
        return
    changed = await tx.fetch(Q.count_unmanaged, UnmanagedUse, uids=sorted(uids))
    await tell_matcher(tx, "foreign", [pod.node for pod in changed])
    notices = [
        Notice(
            uid=pod.workload_uid,
            event=UNMANAGED_USE,
            message=f"pod {pod.namespace}/{pod.name} takes {describe(pod.unmanaged)} of"
            f" {pod.node} that no slot of this job covers; it counts as unmanaged",
            key=f"{UNMANAGED_USE}/{pod.uid}",
        )
        for pod in changed
        if pod.unmanaged
    ]
    await leave_notices(tx, notices)


def _pod_row(workload_uid: str, namespace: str, pod: PodFact) -> dict[str, Any]:
    return {
        "uid": pod.uid,
        "workload_uid": workload_uid,
        "namespace": namespace,
        "name": pod.name,
        "phase": pod.phase,
        "is_gated": pod.is_gated,
        "is_terminating": pod.is_terminating,
        "node": pod.node,
        "completion_index": pod.index,
        "slot_kind": pod.kind,
        "uses": dict(pod.uses),
        "unschedulable": pod.unschedulable,
    }
