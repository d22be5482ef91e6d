"""The ``release`` and ``ungate`` effects: decisions become visible to Kubernetes.

Release publishes R in the FluxJob's status and unsuspends the BatchJob; ungate lets each pod go to
the node of its slot. Every call is conditional on the object's UID, so repeating it, or coming too
late, changes nothing.
"""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from typing import Any

from fluxqueue import metrics
from fluxqueue.db.life.desired_state import Wanted, read_pods, read_wanted, remember_let_go
from fluxqueue.db.life.settling import Ungate, settle
from fluxqueue.db.outbox import OutboxRow
from fluxqueue.errors import Conflict, FluxQueueError, Invalid, NotFound
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import JOBS, PODS
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.drain import one_by_one
from fluxqueue.worker.publish import publish_status
from fluxqueue.workload.gates import release_patch, resuspend_patch, ungate_patch
from fluxqueue.workload.managed import JOB, is_managed

SETTLE_MAX = 20
"""Workloads settled in one transaction."""


async def release_batch(context: WorkerContext, rows: Sequence[OutboxRow]) -> dict[int, str]:
    """Release the workloads that the rows name."""

    async def effect(row: OutboxRow) -> None:
        if "evict" in row.payload:
            await _evict(context, row.key, row.payload["evict"])
        else:
            await _release(context, row.key)

    return await one_by_one(rows, effect)


async def _release(context: WorkerContext, uid: str) -> None:
    """Publish the decision, then make the workload object what the row says.

    The row is read again after the write: where a decision came in between, its own release may
    have been overtaken by ours, so the last word is always given by the row.
    """
    await publish_status(context, uid)
    wanted = await read_wanted(context.database, uid)
    while wanted is not None:
        await _make(context, wanted)
        now = await read_wanted(context.database, uid)
        if now == wanted:
            return
        wanted = now


async def _make(context: WorkerContext, wanted: Wanted) -> None:
    resource = JOBS if wanted.kind == JOB else PODS
    try:
        if wanted.is_deleted:
            await context.client.delete(
                resource, wanted.namespace, wanted.name, uid=wanted.uid, propagation="Background"
            )
        else:
            await _set_suspend(context, wanted)
    except NotFound:
        return  # deleted meanwhile; its deletion gives back what it holds
    except (Conflict, Invalid):
        if await _is_same(context, wanted):
            raise


async def _set_suspend(context: WorkerContext, wanted: Wanted) -> None:
    patch = release_patch({"metadata": {"uid": wanted.uid}})
    if wanted.is_suspended:
        # It waits its turn: its pods must not be there, and its deadline must not run.
        job = await context.client.get(JOBS, wanted.namespace, wanted.name)
        if job["metadata"]["uid"] != wanted.uid or job["spec"].get("suspend"):
            return
        if not is_managed(job):
            return
        patch = resuspend_patch(job)
    stored = await context.client.patch(
        JOBS, wanted.namespace, wanted.name, patch, kind=PatchKind.JSON
    )
    if not wanted.is_suspended:
        await remember_let_go(
            context.database, wanted.uid, int(stored["metadata"].get("generation") or 0)
        )


async def _evict(context: WorkerContext, uid: str, pod_uids: Sequence[str]) -> None:
    """Delete pods that can start nowhere: let go to a node that is gone, and bound to none.

    Conditional on the version that was read as unbound, so a pod that has a node is never hit.
    """
    for namespace, name, pod_uid in await read_pods(context.database, uid, pod_uids):
        try:
            pod = await context.client.get(PODS, namespace, name)
            meta = pod["metadata"]
            if meta["uid"] != pod_uid or pod["spec"].get("nodeName"):
                continue
            await context.client.delete(
                PODS, namespace, name, uid=pod_uid, version=meta["resourceVersion"]
            )
        except NotFound:
            continue


async def _is_same(context: WorkerContext, wanted: Wanted) -> bool:
    """Tell a write that was refused from one that met another object of the same name."""
    resource = JOBS if wanted.kind == JOB else PODS
    try:
        found = await context.client.get(resource, wanted.namespace, wanted.name)
    except NotFound:
        return False
    return bool(found["metadata"]["uid"] == wanted.uid)


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
