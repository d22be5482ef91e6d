"""The ``release`` and ``ungate`` effects: decisions become visible to Kubernetes.

Release publishes R in the FluxJob's status and unsuspends the BatchJob; ungate lets each pod go to
the node of its slot. Every call is conditional on the object's UID, so repeating it, or coming too
late, changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from fluxqueue import metrics
from fluxqueue.db.outbox import OutboxRow
from fluxqueue.db.settling import Ungate, settle
from fluxqueue.errors import FluxQueueError, Invalid, NotFound
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import JOBS, PODS
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.drain import one_by_one
from fluxqueue.worker.publish import publish_status
from fluxqueue.workload.gates import release_patch, resuspend_patch, ungate_patch
from fluxqueue.workload.managed import JOB

SETTLE_MAX = 20
"""Workloads settled in one transaction."""


async def release_batch(context: WorkerContext, rows: Sequence[OutboxRow]) -> dict[int, str]:
    """Release the workloads that the rows name."""

    async def effect(row: OutboxRow) -> None:
        await _release(context, row.key)

    return await one_by_one(rows, effect)


async def _release(context: WorkerContext, uid: str) -> None:
    """Publish the decision, then make the BatchJob's ``suspend`` what the row says.

    The row is read again after the write: where a decision came in between, its own release may
    have been overtaken by ours, so the last word is always given by the row.
    """
    await publish_status(context, uid)
    wanted = await _wanted_suspend(context, uid)
    while wanted is not None:
        await _set_suspend(context, uid, wanted)
        now = await _wanted_suspend(context, uid)
        if now == wanted:
            return
        wanted = now


@dataclass(frozen=True, slots=True)
class _Suspend:
    """Which BatchJob, and whether it is to be suspended."""

    namespace: str
    name: str
    is_suspended: bool


async def _wanted_suspend(context: WorkerContext, uid: str) -> _Suspend | None:
    """What the row says of a BatchJob; None where it says nothing (any more)."""
    async with context.database.begin() as tx:
        row = await tx.fetch_one(
            "SELECT namespace, workload_kind, workload_name, state, is_suspended, is_deleting"
            " FROM fluxjobs WHERE uid = :uid",
            uid=uid,
        )
    if row is None or row["workload_kind"] != JOB:
        return None
    is_released = row["state"] in {"Allocated", "Running"}
    must_wait = row["state"] in {"Pending", "Reserved", "Unsatisfiable"} and not row["is_deleting"]
    if not is_released and not must_wait:
        return None
    return _Suspend(row["namespace"], row["workload_name"], is_suspended=must_wait)


async def _set_suspend(context: WorkerContext, uid: str, wanted: _Suspend) -> None:
    patch = release_patch({"metadata": {"uid": uid}})
    try:
        if wanted.is_suspended:
            # Its author has unsuspended it and it waits its turn: its deadline must not run.
            job = await context.client.get(JOBS, wanted.namespace, wanted.name)
            if job["metadata"]["uid"] != uid or job["spec"].get("suspend"):
                return
            patch = resuspend_patch(job)
        await context.client.patch(JOBS, wanted.namespace, wanted.name, patch, kind=PatchKind.JSON)
    except NotFound:
        return  # deleted meanwhile; its deletion gives back what it holds
    except Invalid:
        if await _is_same(context, wanted.namespace, wanted.name, uid):
            raise


async def _is_same(context: WorkerContext, namespace: str, name: str, uid: str) -> bool:
    """Tell a patch that was refused from one that met another object of the same name."""
    try:
        job = await context.client.get(JOBS, namespace, name)
    except NotFound:
        return False
    return bool(job["metadata"]["uid"] == uid)


async def settle_batch(context: WorkerContext, rows: Sequence[OutboxRow]) -> dict[int, str]:
    """Settle the workloads that the rows name, and ungate the pods that now hold slots."""
    uids = sorted({row.key for row in rows})
    failed: dict[str, str] = {}
    ungates: list[Ungate] = []
    for start in range(0, len(uids), SETTLE_MAX):
        async with context.database.begin() as tx:
            ungates += await settle(tx, uids[start : start + SETTLE_MAX])
    outcomes = await asyncio.gather(*(_try_ungate(context, ungate) for ungate in ungates))
    for ungate, error in zip(ungates, outcomes, strict=True):
        if error is not None:
            failed[ungate.workload_uid] = error
    return {row.id: failed[row.key] for row in rows if row.key in failed}


async def _try_ungate(context: WorkerContext, ungate: Ungate) -> str | None:
    try:
        await _ungate(context, ungate)
    except FluxQueueError as error:
        return f"pod {ungate.namespace}/{ungate.name}: {error}"
    return None


async def _ungate(context: WorkerContext, ungate: Ungate) -> None:
    patch = await _read_patch(context, ungate)
    if patch is None:
        return
    try:
        await context.client.patch(PODS, ungate.namespace, ungate.name, patch, kind=PatchKind.JSON)
    except NotFound:
        return
    except Invalid:
        # The pod has changed since it was read; if our gate went with that, all is well.
        if await _read_patch(context, ungate) is not None:
            raise
        return
    if ungate.waited_s is not None:
        metrics.UNGATED_S.observe(ungate.waited_s)


async def _read_patch(context: WorkerContext, ungate: Ungate) -> list[dict[str, Any]] | None:
    """What is still to be patched; None where the gate, or the pod, is gone."""
    try:
        pod: dict[str, Any] = await context.client.get(PODS, ungate.namespace, ungate.name)
    except NotFound:
        return None
    if pod["metadata"]["uid"] != ungate.pod_uid or pod["metadata"].get("deletionTimestamp"):
        return None  # its removal will be seen and frees the slot
    return ungate_patch(
        pod,
        node=ungate.node,
        hostname=ungate.hostname,
        jobid=ungate.jobid,
        nodes=ungate.nodes,
    )
