"""The ``release`` task: workload objects are made what their rows say.

R goes into the FluxJob's status first, then the BatchJob is let go; where all its slots lie on one
node, its pod template takes the node and loses our gate in the same patch. Where many of these
start at once, the status is put off: until it comes the template says the same. What else can be
suspended (``kinds.suspended_owner``) is let go by its own field. A row that wants its object
suspended, or deleted, gets that. What was done is written down at the end; a
row that wants something else by then owes another release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fluxqueue import metrics
from fluxqueue.db.life.desired_state import (
    OwedRelease,
    Released,
    Wanted,
    finish,
    read_owed_releases,
)
from fluxqueue.db.life.published import PublishedRow, Written, read_published
from fluxqueue.db.task_queue import TaskName
from fluxqueue.errors import Conflict, Invalid, NotFound
from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import PODS
from fluxqueue.kube.workload_resource import resource_of
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.effects import all_at_once, conclude, one_by_one
from fluxqueue.worker.publish import tell, write_status
from fluxqueue.workload.gates import pin_patch, stop_patch, unpin_patch
from fluxqueue.workload.kinds import kind_in_row, kind_of
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.managed import is_managed
from fluxqueue.workload.pods import controller_owner

RUSH = 10
"""More starts than these within the time between two statuses are many; whoever submits some by
hand sees each start at once."""


async def release_workloads(context: WorkerContext, uids: Sequence[str]) -> None:
    """Make the objects of the workloads that owe a release what their rows say.

    Raises
    ------
    EffectsFailed
        Something has failed, and is owed further.
    """
    parts, broken = await one_by_one(uids, lambda part: read_owed_releases(context.database, part))
    owed = [one for part in parts for one in part]
    starting = [one.uid for one in owed if one.wanted is not None and _lets_go(one.wanted)]
    rows = await read_published(context.database, starting) if starting else {}
    later = _told_later(context, owed, rows)
    done, failed = await all_at_once(
        owed,
        lambda one: _release(context, one, rows.get(one.uid), is_put_off=one.uid in later),
    )
    by_uid = {one.owed.uid: one for one in done}
    _, unfinished = await one_by_one(
        list(by_uid), lambda part: finish(context.database, [by_uid[uid] for uid in part])
    )
    broken |= unfinished | {owed[number].uid: error for number, error in failed.items()}
    await conclude(context, TaskName.RELEASE, len(done) - len(unfinished), broken)


def _let_go_in(workload: Mapping[str, Any]) -> int | None:
    """The last generation in which it may have been let go, of one that is suspended."""
    if not workload or not kind_of(workload).is_suspended(workload):
        return None
    return int(workload["metadata"].get("generation") or 1) - 1


def _lets_go(wanted: Wanted) -> bool:
    return not wanted.is_suspended and not wanted.is_deleted


def _told_later(
    context: WorkerContext, owed: Sequence[OwedRelease], rows: Mapping[str, PublishedRow]
) -> frozenset[str]:
    """Those whose pod template says where they run, while there are many: most will have ended by
    the time that their start is told, so it need not be told by itself.

    Only of a first start: of another one the status might go on saying where the one before was.
    """
    pinned = [
        one.uid
        for one in owed
        if one.wanted is not None
        and one.wanted.pin is not None
        and (row := rows.get(one.uid)) is not None
        and row.is_first
        and not row.reason
        and not row.notices
    ]
    return frozenset(pinned) if context.starts.count(len(pinned)) > RUSH else frozenset()


async def _release(
    context: WorkerContext, owed: OwedRelease, row: PublishedRow | None, *, is_put_off: bool
) -> Released:
    wanted = owed.wanted
    if wanted is None:
        return Released(owed)
    written = None
    if row is not None and row.version > row.published and not is_put_off:
        written = await write_status(context, row)
    try:
        stored = await _make(context, wanted, row)
    except NotFound:
        return Released(owed, written=written)  # its deletion gives back what it holds
    except (Conflict, Invalid):
        if await _is_same(context, wanted):
            raise
        return Released(owed, written=written)
    if row is None or not _lets_go(wanted):
        workload = _read(wanted, stored) if wanted.is_suspended else {}
        is_gated = wanted.is_suspended and is_managed(workload)
        return Released(owed, is_made=is_gated, generation=_let_go_in(workload), written=written)
    if wanted.pin is not None and owed.waited_s is not None:
        metrics.UNGATED_S.observe(owed.waited_s)  # its pods come without a gate
    told = await tell(context, row)
    written = replace(written or Written(row.uid, 0), told=told)
    return Released(
        owed,
        is_made=True,
        generation=int(stored["metadata"].get("generation") or 0),
        pinned_to=wanted.pin.name if wanted.pin else None,
        is_put_off=is_put_off,
        written=written,
    )


def _read(wanted: Wanted, stored: Mapping[str, Any]) -> Mapping[str, Any]:
    """A workload object, as its entry takes it."""
    return kind_in_row(wanted.kind, wanted.owner).read(stored, wanted.owner)


async def _make(context: WorkerContext, wanted: Wanted, row: PublishedRow | None) -> dict[str, Any]:
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
    else:
        patch = entry.release_patch(wanted.uid, wanted.owner, is_pinned=wanted.is_pinned)
    kind = PatchKind.STRATEGIC if entry.is_built_in else PatchKind.MERGE
    return await client.patch(resource, *at, patch, kind=kind, metadata_only=True)


async def _delete_members(context: WorkerContext, wanted: Wanted) -> None:
    """Delete what a group is made of: BatchJobs, which would make their pods again, and Pods."""
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
            continue  # it is gone, or goes with the BatchJob


async def _suspend(context: WorkerContext, wanted: Wanted) -> dict[str, Any]:
    """It waits its turn: its pods must not be there, and its deadline must not run.

    Where its template names the node of its last release, that goes and our gate comes back, as
    soon as the API server lets a template be changed: when its BatchJob has been suspended.
    """
    client = context.client
    at = (resource_of(wanted.kind, wanted.owner), wanted.namespace, wanted.name)
    stored = await client.get(*at)
    if stored["metadata"]["uid"] != wanted.uid:
        return stored
    workload = _read(wanted, stored)
    kind = kind_of(workload)
    is_suspended = kind.is_suspended(workload)
    if wanted.is_authors and not is_suspended:
        return stored
    if wanted.is_pinned and not is_managed(workload):
        patch = unpin_patch(wanted.uid) if is_suspended else stop_patch(wanted.uid)
        return await client.patch(*at, patch, kind=PatchKind.STRATEGIC)
    if is_suspended or not is_managed(workload):
        return stored
    return await client.patch(*at, kind.stop_patch(workload), kind=PatchKind.JSON)


async def _is_same(context: WorkerContext, wanted: Wanted) -> bool:
    """Tell a write that was refused from one that met another object of the same name."""
    at = (resource_of(wanted.kind, wanted.owner), wanted.namespace, wanted.name)
    try:
        found = await context.client.get(*at)
    except NotFound:
        return False
    return bool(found["metadata"]["uid"] == wanted.uid)
