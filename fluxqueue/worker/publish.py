"""The ``status`` effect: what users see of a FluxJob, rendered from its rows.

A status is always rendered whole from the present row and carries the row's version. Two workers
may publish at once, and one may hang before its write for as long as it likes: each writes under
the resourceVersion it knows (never without one: whoever knows none looks first), and on a conflict
looks whether a newer version is already there. Events tell the transitions; their names are derived
from the outbox row, so telling one twice is refused by the API server as already existing.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from fluxqueue.clock import to_rfc3339
from fluxqueue.db.life.observations import BY_QUEUE
from fluxqueue.db.life.published import PublishedRow, read_published, remember_versions
from fluxqueue.db.outbox import OutboxRow
from fluxqueue.errors import ApiError, Conflict, NotFound
from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import EVENTS, FLUXJOBS
from fluxqueue.scheduler.resource_set import to_resource_set
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.drain import one_by_one
from fluxqueue.workload.fluxjob_object import (
    API_VERSION,
    KIND,
    render_conditions,
    render_status,
    status_patch,
)

CONFLICTS_MAX = 5

_EVENTS = {
    FluxJobState.PENDING: ("Normal", "Queued", "waits in the queue as job {jobid}"),
    FluxJobState.RESERVED: ("Normal", "Reserved", "has a reservation and an expected start"),
    FluxJobState.HELD: ("Normal", "Held", "is held"),
    FluxJobState.UNSATISFIABLE: ("Warning", "Unsatisfiable", "can never run on this cluster"),
    FluxJobState.ALLOCATED: ("Normal", "Allocated", "got {size} slots on {nodes}"),
    FluxJobState.RUNNING: ("Normal", "Started", "runs on {nodes}"),
    FluxJobState.COMPLETED: ("Normal", "Completed", "has completed; its resources are free again"),
    FluxJobState.FAILED: ("Warning", "Failed", "has failed; its resources are free again"),
    FluxJobState.CANCELLED: ("Normal", "Cancelled", "was deleted; its resources are free again"),
}


async def publish_batch(context: WorkerContext, rows: Sequence[OutboxRow]) -> dict[int, str]:
    """Publish the FluxJobs that the rows name, each once, and tell each transition.

    The rows of a batch are read, and the new resourceVersions kept, in one statement each.
    """
    last = {row.key: row.id for row in rows}
    present = await read_published(context.database, list(last))
    versions: dict[str, str] = {}

    async def effect(row: OutboxRow) -> None:
        published = present.get(row.key)
        if published is None:
            return
        if last[row.key] == row.id:
            version = await _publish(context, published)
            if version is not None:
                versions[row.key] = version
        await _tell(context, row, published)

    failed = await one_by_one(rows, effect)
    await remember_versions(context.database, versions)
    return failed


async def publish_status(context: WorkerContext, uid: str) -> None:
    """Bring the status of one FluxJob up to its row."""
    present = await read_published(context.database, [uid])
    if uid in present:
        version = await _publish(context, present[uid])
        if version is not None:
            await remember_versions(context.database, {uid: version})


async def _publish(context: WorkerContext, row: PublishedRow) -> str | None:
    """Write one status; give the FluxJob's new resourceVersion, None where nothing was written."""
    if row.flux_uid is None:
        return None
    known = row if row.flux_rv is not None else await _look(context, row)
    for _ in range(CONFLICTS_MAX):
        if known is None:
            return None
        body = status_patch(_render(known))
        body["metadata"] = {"resourceVersion": known.flux_rv}
        try:
            stored = await context.client.patch(
                FLUXJOBS,
                known.namespace,
                known.name,
                body,
                kind=PatchKind.MERGE,
                subresource="status",
            )
        except NotFound:
            return None
        except Conflict:
            known = await _look(context, known)
            continue
        is_same = stored["metadata"]["uid"] == known.flux_uid
        return str(stored["metadata"]["resourceVersion"]) if is_same else None
    raise Conflict(409, "Conflict", f"the status of FluxJob {row.name} keeps changing", {})


async def _look(context: WorkerContext, row: PublishedRow) -> PublishedRow | None:
    """The row as it is now with the resourceVersion to write under; None if that is in vain."""
    try:
        current = await context.client.get(FLUXJOBS, row.namespace, row.name)
    except NotFound:
        return None
    if current["metadata"]["uid"] != row.flux_uid:
        return None
    now = (await read_published(context.database, [row.uid])).get(row.uid)
    if now is None or (current.get("status") or {}).get("version", 0) > now.version:
        return None
    return replace(now, flux_rv=current["metadata"]["resourceVersion"])


def _render(row: PublishedRow) -> dict[str, Any]:
    slots = [(slot["node"], slot["resources"]) for slot in row.slots]
    started, ended = _epoch(row.started_at), _epoch(row.ended_at)
    resource_set = (
        to_resource_set(slots, starts_at=row.starts_at, until=row.until)
        if row.starts_at is not None
        else None
    )
    return render_status(
        state=FluxJobState(row.state),
        reason=row.reason,
        version=row.version,
        jobid=row.jobid,
        nodes=[node for node, _ in slots],
        started_at_s=started,
        expected_start_s=_epoch(row.expected_start),
        ended_at_s=ended,
        resource_set=resource_set,
        conditions=render_conditions(
            state=FluxJobState(row.state),
            submitted_at_s=int(row.submitted_at.timestamp()),
            started_at_s=_epoch(row.allocated_at),
            ended_at_s=ended,
            ignored=row.ignored,
        ),
        operator=_operator(row),
        queue=row.queue,
        accepted_by=row.accepted_by,
        priority=row.priority,
        priority_parts=row.priority_parts,
    )


def _operator(row: PublishedRow) -> dict[str, Any]:
    said = {
        "heldBy": row.held_by,
        "priority": row.set_priority,
        "queue": row.set_queue,
        "requeueBy": row.vacate_by,
        "cancelBy": None if FluxJobState(row.state).is_final else row.cancel_by,
    }
    # A merge patch takes out only what it names as null.
    return said if any(value is not None for value in said.values()) else {}


def _epoch(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())


async def _tell(context: WorkerContext, outbox_row: OutboxRow, row: PublishedRow) -> None:
    """Write the Event of one transition, on the FluxJob and on its workload."""
    payload = outbox_row.payload
    if payload.get("new") == payload.get("old"):
        return
    kind, reason, sentence = _EVENTS[FluxJobState(payload["new"])]
    if payload.get("held_by") == BY_QUEUE:
        kind, reason = "Warning", "HeldByQueue"
    nodes = compress(dict.fromkeys(slot["node"] for slot in row.slots)) or "no nodes"
    message = sentence.format(jobid=row.jobid, size=row.size, nodes=nodes)
    if payload.get("reason"):
        message = f"{message}: {payload['reason']}"
    flux = {"apiVersion": API_VERSION, "kind": KIND, "name": row.name, "uid": row.flux_uid}
    workload = {
        "apiVersion": "batch/v1" if row.workload_kind == "Job" else "v1",
        "kind": row.workload_kind,
        "name": row.workload_name,
        "uid": row.uid,
    }
    for involved in (flux, workload):
        if involved["uid"] is None:
            continue
        name = f"{involved['name']}.{outbox_row.id:x}"[-253:]
        body = _event(
            row.namespace,
            name,
            involved=involved,
            kind=kind,
            reason=reason,
            message=message,
            at_s=context.clock.now_s(),
        )
        try:
            await context.client.create(EVENTS, row.namespace, body)
        except (Conflict, NotFound):
            continue  # told already, or the namespace is gone
        except ApiError as error:
            if not error.is_namespace_ending:
                raise


def _event(
    namespace: str,
    name: str,
    *,
    involved: Mapping[str, Any],
    kind: str,
    reason: str,
    message: str,
    at_s: int,
) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Event",
        "metadata": {"name": name, "namespace": namespace},
        "involvedObject": {**involved, "namespace": namespace},
        "type": kind,
        "reason": reason,
        "message": message[:1024],
        "source": {"component": "fluxqueue"},
        "reportingComponent": "fluxqueue",
        "firstTimestamp": to_rfc3339(at_s),
        "lastTimestamp": to_rfc3339(at_s),
        "count": 1,
    }
