"""The ``release`` task: change workload objects to what their rows require.

R goes into the FluxJob's status first. Then the BatchJob is released. If all its slots are on one
node, the same patch adds the node to its pod template and removes our gate. If many of these start
at once, their status updates and Events are deferred. Until then the template shows the same. If
its pods know their indexes, the patch adds the node of each index, with a proof for the webhook
(``workload.index_placement``). A PodGroup of Kubernetes can bind them all or none
(``gang_groups``).

Other objects that can be suspended (``kinds.suspended_owner``) are released by their own field. If
a row requires that its object is suspended or deleted, this task does that. The result is recorded
at the end. If a row requires something else by then, another release is pending.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fluxqueue.db.store.desired_state import (
    DesiredState,
    PendingRelease,
    Released,
    finish,
    read_pending_releases,
)
from fluxqueue.db.store.statuses import StatusRow, WrittenStatus, read_statuses
from fluxqueue.db.task_queue import TaskName
from fluxqueue.errors import Conflict, Invalid, NotFound
from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import PODS
from fluxqueue.kube.workload_resource import resource_of
from fluxqueue.process import metrics
from fluxqueue.process.pacing import RUSH
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.effects import all_at_once, conclude, one_by_one
from fluxqueue.worker.status import tell, write_status
from fluxqueue.workload.index_placement import seal
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.kinds.table import kind_in_row, kind_of
from fluxqueue.workload.labels import FIELD_MANAGER
from fluxqueue.workload.managed import is_managed
from fluxqueue.workload.pods import controller_owner
from fluxqueue.workload.release_patches import (
    displace_patch,
    pin_patch,
    place_patch,
    suspend_patch,
    unpin_patch,
)


async def release_workloads(context: WorkerContext, uids: Sequence[str]) -> None:
    """Carry out the pending releases of workloads, as their rows require.

    Raises
    ------
    EffectsFailed
        Something has failed, and stays pending.
    """
    parts, broken = await one_by_one(
        uids, lambda part: read_pending_releases(context.database, part)
    )
    pending = [one for part in parts for one in part]
    starting = [one.uid for one in pending if one.wanted is not None and _lets_go(one.wanted)]
    rows = await read_statuses(context.database, starting) if starting else {}
    later = _told_later(context, pending, rows)
    done, failed = await all_at_once(
        pending,
        lambda one: _release(context, one, rows.get(one.uid), is_put_off=one.uid in later),
    )
    # Recorded after the effects: a row that changed meanwhile keeps its release pending.
    by_uid = {one.pending.uid: one for one in done}
    _, unfinished = await one_by_one(
        list(by_uid), lambda part: finish(context.database, [by_uid[uid] for uid in part])
    )
    broken |= unfinished | {pending[number].uid: error for number, error in failed.items()}
    await conclude(context, TaskName.RELEASE, len(done) - len(unfinished), broken)


def _let_go_in(workload: Mapping[str, Any]) -> int | None:
    """Return the last generation in which a suspended object may have been released.

    Return None if the object is not suspended.
    """
    if not workload or not kind_of(workload).is_suspended(workload):
        return None
    return int(workload["metadata"].get("generation") or 1) - 1


def _lets_go(wanted: DesiredState) -> bool:
    return not wanted.is_suspended and not wanted.is_deleted


def _told_later(
    context: WorkerContext, pending: Sequence[PendingRelease], rows: Mapping[str, StatusRow]
) -> frozenset[str]:
    """Return the UIDs of starts that need no status update or Event of their own, during a burst.

    The pod templates of these jobs show where they run. Most jobs will have ended by the time that
    their start is reported. This applies to first starts only. On a later start, the old status
    might continue to show the nodes of the previous one.
    """
    pinned = [
        one.uid
        for one in pending
        if one.wanted is not None
        and not one.wanted.needs_group
        and (one.wanted.pin is not None or _sealed(context, one.wanted) is not None)
        and (row := rows.get(one.uid)) is not None
        and row.is_first
        and not row.reason
        and not row.notices
    ]
    return frozenset(pinned) if context.starts.count(len(pinned)) > RUSH else frozenset()


async def _release(
    context: WorkerContext,
    pending: PendingRelease,
    row: StatusRow | None,
    *,
    is_put_off: bool,
) -> Released:
    wanted = pending.wanted
    if wanted is None:
        return Released(pending)
    groupless = ""
    if wanted.is_sent and wanted.group is not None and _may_group(context):
        why = await context.groups.ensure(wanted.namespace, wanted.group)
        groupless = f"{wanted.group.name}: {why}" if why else ""
        if wanted.is_released:
            return Released(pending, groupless=groupless)
    written = None
    # The status comes first: pods must not run before R is visible. If it is deferred, the template
    # shows the node.
    if row is not None and row.version > row.written_version and not is_put_off:
        written = await write_status(context.client, row)
    wanted = await _grouped(context, wanted)
    try:
        stored = await _make(context, wanted, row)
    except NotFound:
        return Released(pending, written=written)  # its deletion frees what it holds
    except (Conflict, Invalid):
        # Another object may have this name by now. A retry against it would never succeed.
        if await _is_same(context, wanted):
            raise
        return Released(pending, written=written)
    if row is None or not _lets_go(wanted):
        workload = _read(wanted, stored) if wanted.is_suspended else {}
        is_gated = wanted.is_suspended and is_managed(workload)
        # A template with a placement is not as it was before the release, although it has the gate.
        is_gated = is_gated and not kind_of(workload).is_placed(workload)
        return Released(pending, is_made=is_gated, generation=_let_go_in(workload), written=written)
    placement = _sealed(context, wanted)
    if (wanted.pin is not None or placement is not None) and pending.waited_s is not None:
        metrics.UNGATED_S.observe(pending.waited_s)  # its pods come without a gate
    # The status task emits the Event with the status that was put off, if the start lasts.
    told = None if is_put_off else await tell(context.client, row, now_s=context.clock.now_s())
    written = replace(written or WrittenStatus(row.uid, 0), told=told)
    return Released(
        pending,
        is_made=True,
        generation=int(stored["metadata"].get("generation") or 0),
        pinned_to=wanted.pin.name if wanted.pin else None,
        is_put_off=is_put_off,
        written=written,
        is_placed=placement is not None or wanted.is_sent,
        groupless=groupless,
    )


async def _grouped(context: WorkerContext, wanted: DesiredState) -> DesiredState:
    """Return a gang whose placement names its PodGroup, if there can be one.

    The group is made once all pods are there. For a retry it is made first: that shows whether it
    can be.
    """
    if wanted.placement is None:
        return wanted
    group = ""
    if wanted.group is not None and _may_group(context):
        if wanted.needs_group:
            is_there = not await context.groups.ensure(wanted.namespace, wanted.group)
        else:
            is_there = await context.groups.can_make()
        group = wanted.group.name if is_there else ""
    if wanted.needs_group and not group:
        # Each pod comes gated: one that its node refuses can be sent elsewhere.
        return replace(wanted, placement=None)
    return replace(wanted, placement=replace(wanted.placement, group=group))


def _may_group(context: WorkerContext) -> bool:
    return context.settings.binds_groups and bool(context.placement_key)


def _sealed(context: WorkerContext, wanted: DesiredState) -> str | None:
    """Return the placement for its pod template, with the proof, or None if it has none."""
    if wanted.placement is None or not context.placement_key:
        return None
    drops = context.settings.drops_managed_fields
    placement = replace(wanted.placement, drops_managed_fields=drops)
    return seal(placement, wanted.uid, context.placement_key)


def _read(wanted: DesiredState, stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return a workload object in the form that its entry takes."""
    return kind_in_row(wanted.kind, wanted.owner).read(stored, wanted.owner)


async def _make(
    context: WorkerContext, wanted: DesiredState, row: StatusRow | None
) -> dict[str, Any]:
    client, at = context.client, (wanted.namespace, wanted.name)
    resource, entry = resource_of(wanted.kind, wanted.owner), kind_in_row(wanted.kind, wanted.owner)
    if wanted.is_deleted and not entry.has_object:
        await _delete_members(context, wanted)
        return {}
    if wanted.is_deleted:
        return await client.delete(resource, *at, uid=wanted.uid, propagation="Background")
    if wanted.is_suspended:
        return await _suspend(context, wanted)
    if wanted.pin is not None and row is not None:
        nodes = compress(sorted({slot["node"] for slot in row.slots}))
        patch = pin_patch(
            wanted.uid,
            to=wanted.pin,
            jobid=row.jobid,
            nodes=nodes,
            is_pinned=wanted.is_pinned,
        )
    elif (placement := _sealed(context, wanted)) is not None or wanted.is_placed:
        patch = place_patch(wanted.uid, placement)
    else:
        patch = entry.resume_patch(wanted.uid, wanted.owner, is_pinned=wanted.is_pinned)
    kind = PatchKind.STRATEGIC if entry.is_built_in else PatchKind.MERGE
    # Admission knows by the field manager that this is no user who resumes a waiting Job.
    return await client.patch(
        resource, *at, patch, kind=kind, metadata_only=True, field_manager=FIELD_MANAGER
    )


async def _delete_members(context: WorkerContext, wanted: DesiredState) -> None:
    """Delete the members of a group: Pods, and BatchJobs, which would create their pods again."""
    client, at = context.client, wanted.namespace
    for uid, name in wanted.members:
        try:
            pod = await client.get(PODS, at, name)
            if pod["metadata"]["uid"] != uid:
                continue
            owner = controller_owner(pod)
            if BATCH_JOB.claim(pod) is None or owner is None:
                await client.delete(PODS, at, name, uid=uid)
            else:
                job = resource_of(BATCH_JOB.name)
                await client.delete(
                    job, at, owner["name"], uid=owner["uid"], propagation="Background"
                )
        except (NotFound, Conflict):
            continue  # it is deleted already, or is deleted with the BatchJob


async def _suspend(context: WorkerContext, wanted: DesiredState) -> dict[str, Any]:
    """Suspend a workload, so that it has no pods and its deadline does not run.

    If its template names the node of its last release, that node is removed and our gate is added
    again. A placement of its indexes is removed, too. The API server permits this change once the
    BatchJob has been suspended.
    """
    client = context.client
    at = (resource_of(wanted.kind, wanted.owner), wanted.namespace, wanted.name)
    stored = await client.get(*at)
    if stored["metadata"]["uid"] != wanted.uid:
        return stored
    workload = _read(wanted, stored)
    kind = kind_of(workload)
    is_suspended = kind.is_suspended(workload)
    # Its author has resumed it meanwhile. The controller must observe that before it is suspended
    # again.
    if wanted.is_authors and not is_suspended:
        return stored
    if wanted.is_pinned and not is_managed(workload):
        if is_suspended:
            patch = unpin_patch(wanted.uid, is_authors=wanted.is_authors)
        else:
            patch = suspend_patch(wanted.uid)
        return await client.patch(*at, patch, kind=PatchKind.STRATEGIC)
    if is_suspended and kind.is_placed(workload):
        return await client.patch(*at, displace_patch(workload), kind=PatchKind.JSON)
    if is_suspended or not is_managed(workload):
        return stored
    return await client.patch(*at, kind.suspend_patch(workload), kind=PatchKind.JSON)


async def _is_same(context: WorkerContext, wanted: DesiredState) -> bool:
    """Return whether a refused write was for this object, not another one of the same name."""
    at = (resource_of(wanted.kind, wanted.owner), wanted.namespace, wanted.name)
    try:
        found = await context.client.get(*at)
    except NotFound:
        return False
    return bool(found["metadata"]["uid"] == wanted.uid)
