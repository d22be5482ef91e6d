"""The ``release`` task: workload objects are made what their rows say.

R goes into the FluxJob's status first, then the BatchJob is let go; where all its slots lie on one
node, its pod template takes the node and loses our gate in the same patch. A row that wants its
BatchJob suspended, or its object deleted, gets that. What was done is written down at the end; a
row that wants something else by then owes another release.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
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
from fluxqueue.kube.resources import PODS, resource_of
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.effects import all_at_once, conclude
from fluxqueue.worker.publish import tell, write_status
from fluxqueue.workload.gates import (
    pin_patch,
    release_patch,
    resuspend_patch,
    stop_patch,
    unpin_patch,
)
from fluxqueue.workload.kinds import kind_named
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.managed import is_managed
from fluxqueue.workload.pods import controller_owner


async def release_workloads(context: WorkerContext, uids: Sequence[str]) -> None:
    """Make the objects of the workloads that owe a release what their rows say.

    Raises
    ------
    EffectsFailed
        Something has failed, and is owed further.
    """
    owed = await read_owed_releases(context.database, uids)
    starting = [one.uid for one in owed if one.wanted is not None and _lets_go(one.wanted)]
    rows = await read_published(context.database, starting) if starting else {}
    done, failed = await all_at_once(owed, lambda one: _release(context, one, rows.get(one.uid)))
    await finish(context.database, done)
    await conclude(
        context, TaskName.RELEASE, len(done), {owed[n].uid: error for n, error in failed.items()}
    )


def _let_go_in(stored: Mapping[str, Any]) -> int | None:
    """The last generation in which it may have been let go, of one that is suspended."""
    if not (stored.get("spec") or {}).get("suspend"):
        return None
    return int(stored["metadata"].get("generation") or 1) - 1


def _lets_go(wanted: Wanted) -> bool:
    return not wanted.is_suspended and not wanted.is_deleted


async def _release(context: WorkerContext, owed: OwedRelease, row: PublishedRow | None) -> Released:
    wanted = owed.wanted
    if wanted is None:
        return Released(owed)
    written = None
    if row is not None and row.version > row.published:
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
        is_gated = wanted.is_suspended and is_managed(stored)
        return Released(owed, is_made=is_gated, generation=_let_go_in(stored), written=written)
    if wanted.pin is not None and owed.waited_s is not None:
        metrics.UNGATED_S.observe(owed.waited_s)  # its pods come without a gate
    told = await tell(context, row)
    return Released(
        owed,
        is_made=True,
        generation=int(stored["metadata"].get("generation") or 0),
        pinned_to=wanted.pin.node if wanted.pin else None,
        written=Written(row.uid, row.version if written else 0, told),
    )


async def _make(context: WorkerContext, wanted: Wanted, row: PublishedRow | None) -> dict[str, Any]:
    client, at = context.client, (wanted.namespace, wanted.name)
    resource = resource_of(wanted.kind)
    if wanted.is_deleted and not kind_named(wanted.kind).has_object:
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
            node=wanted.pin.node,
            hostname=wanted.pin.hostname,
            jobid=row.jobid,
            nodes=nodes,
        )
    else:
        patch = release_patch(wanted.uid, is_pinned=wanted.is_pinned)
    return await client.patch(resource, *at, patch, kind=PatchKind.STRATEGIC)


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
    client, at = context.client, (resource_of(wanted.kind), wanted.namespace, wanted.name)
    job = await client.get(*at)
    if job["metadata"]["uid"] != wanted.uid:
        return job
    if wanted.is_authors and not job["spec"].get("suspend"):
        return job
    if wanted.is_pinned and not is_managed(job):
        patch = unpin_patch(wanted.uid) if job["spec"].get("suspend") else stop_patch(wanted.uid)
        return await client.patch(*at, patch, kind=PatchKind.STRATEGIC)
    if job["spec"].get("suspend") or not is_managed(job):
        return job
    return await client.patch(*at, resuspend_patch(job), kind=PatchKind.JSON)


async def _is_same(context: WorkerContext, wanted: Wanted) -> bool:
    """Tell a write that was refused from one that met another object of the same name."""
    at = (resource_of(wanted.kind), wanted.namespace, wanted.name)
    try:
        found = await context.client.get(*at)
    except NotFound:
        return False
    return bool(found["metadata"]["uid"] == wanted.uid)
