"""The ``status`` task: what users see of a FluxJob, rendered from its rows.

A status is always rendered whole from the present row and carries the row's version. The API server
refuses a status that is older than the stored one (a rule of the definition). So two workers may
publish at once, and a worker may hang before its write for any time.

There is one Event for each thing that a user has to know. It is on the user's own object and names
the FluxJob as the related object. Its reason is that of the conditions. A state that was overtaken
before its Event gets no Event.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any

from fluxqueue.db.store.statuses import (
    EmittedEvents,
    StatusRow,
    WrittenStatus,
    read_due_statuses,
    remember_written,
)
from fluxqueue.db.task_queue import TaskName
from fluxqueue.errors import Conflict, Invalid, NotFound
from fluxqueue.fluxjob.faults import as_text
from fluxqueue.fluxjob.holders import BY_QUEUE, BY_START
from fluxqueue.fluxjob.hostlist import compress
from fluxqueue.fluxjob.states import FluxJobState, shown_state
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.events import Involved, build_event, tell_event
from fluxqueue.kube.resources import FLUXJOBS
from fluxqueue.process import metrics
from fluxqueue.scheduler.resource_set import to_resource_set
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.effects import all_at_once, conclude, one_by_one
from fluxqueue.workload.fluxjob_object import (
    FluxJobLife,
    FluxJobStatus,
    Since,
    StatusFaults,
    reason_of,
    status_patch,
    with_status,
)
from fluxqueue.workload.kinds.table import kind_named
from fluxqueue.workload.references import read_reference

S = FluxJobState

logger = logging.getLogger(__name__)

_EVENTS = {
    S.GATHERING: "{reason}",
    S.PENDING: "waits in the queue as job {jobid}",
    S.RESERVED: "has a reservation as job {jobid}",
    S.HELD: "is held",
    S.UNSATISFIABLE: "can never run on this cluster",
    S.ALLOCATED: "{slots} on {nodes} after {waited:.1f} s",
    S.RUNNING: "{slots} on {nodes} after {waited:.1f} s",
    S.CANCELLED: "{reason}",
}
"""The message of an Event by state. The reason of the Event is that of the conditions.

The workload's own controller reports its end.
"""

_WARNINGS = frozenset({S.UNSATISFIABLE})


async def write_statuses(context: WorkerContext, uids: Sequence[str]) -> None:
    """Write the pending statuses of FluxJobs, and emit Events for what has changed.

    Raises
    ------
    EffectsFailed
        Something has failed, and stays pending.
    """
    # Halves on failure: otherwise one row that cannot be read stops the statuses of all.
    parts, broken = await one_by_one(uids, lambda part: read_due_statuses(context.database, part))
    rows = [row for part in parts for row in part]
    # A busy API server answers releases first: no job waits for a status.
    client = context.client.in_background()
    done, failed = await all_at_once(
        rows, lambda row: _publish(client, row, now_s=context.clock.now_s())
    )
    by_uid = {one.uid: one for one in done}
    # Recorded after the writes: a crash before this line repeats them, which is harmless.
    _, unkept = await one_by_one(
        list(by_uid),
        lambda part: remember_written(context.database, [by_uid[uid] for uid in part]),
    )
    broken |= unkept | {rows[number].uid: error for number, error in failed.items()}
    await conclude(context, TaskName.STATUS, len(done) - len(unkept), broken)


async def _publish(client: KubeClient, row: StatusRow, *, now_s: int) -> WrittenStatus:
    # The status comes first: a status that fails is raised here, before any Event reports it.
    written = await write_status(client, row)
    for one in row.notices:
        event = build_event(
            _involved(row),
            key=one["key"],
            reason=one["event"],
            message=one["message"],
            at_s=now_s,
            is_warning=bool(one.get("is_warning")),
        )
        await tell_event(client, event)
    if written.is_gone and S(row.state).is_final:
        await tell_event(client, _end_of_gone(row, now_s=now_s))
    told = await tell(client, row, now_s=now_s)
    return replace(written, told=told, noticed=[one["key"] for one in row.notices])


async def write_status(client: KubeClient, row: StatusRow) -> WrittenStatus:
    """Write one status, unless it is stale, or the object is gone or another workload's.

    A status is stale if the object shows a newer one. The API server refuses a stale status and
    that of another workload (rules of the definition). The workload's UID in the status is the only
    UID that it checks in a status write.
    """
    written = WrittenStatus(row.uid, row.version)
    try:
        stored = await _put(client, row, _render(row))
    except NotFound:
        # If the object is created again, its status is pending again.
        written = replace(written, is_gone=True)
    except (Conflict, Invalid):
        # A refusal of a stale status is no failure. A retry would be refused each time.
        found = await _present(client, row)
        if found is None:
            written = replace(written, is_gone=True)
        elif (found.get("status") or {}).get("version", 0) <= row.version:
            raise
    else:
        written = replace(written, flux_version=stored["metadata"]["resourceVersion"])
    return written


async def _put(client: KubeClient, row: StatusRow, status: Mapping[str, Any]) -> dict[str, Any]:
    """Replace the status, or patch it if the object has changed since the last write.

    A replacement names the version that was written last. It costs the API server a fifth less than
    a patch.
    """
    at = (FLUXJOBS, row.namespace, row.name)
    if row.flux_uid is not None and row.flux_version is not None:
        body = with_status(row.namespace, row.name, row.flux_uid, row.flux_version, status)
        try:
            return await client.replace(*at, body, subresource="status", metadata_only=True)
        except Conflict:
            pass  # another client has changed the object since, and only a patch still applies
    # Repeatable: the version in the status protects it, so a late repetition overwrites no newer.
    return await client.patch(
        *at,
        status_patch(status),
        kind=PatchKind.JSON,
        subresource="status",
        metadata_only=True,
        is_repeatable=True,
    )


async def _present(client: KubeClient, row: StatusRow) -> dict[str, Any] | None:
    """Return the FluxJob of a row, or None if it is gone. Another may have its name by now."""
    try:
        found = await client.get(FLUXJOBS, row.namespace, row.name)
    except NotFound:
        return None
    return found if found["metadata"]["uid"] == row.flux_uid else None


def _render(row: StatusRow) -> dict[str, Any]:
    """Return the whole status. If its slots cannot be rendered, the status says why instead."""
    try:
        return _rendered(row)
    except Exception as error:
        # Without this, a defect in the slots would hide the state of the job from its user.
        logger.exception("status cannot be rendered", extra={"uid": row.uid})
        metrics.ROWS_SKIPPED.labels("status").inc()
        said = {**(row.stalled or {}), "status": f"{type(error).__name__}: {as_text(error)}"}
        return _rendered(replace(row, slots=(), held=(), starts_at=None, stalled=said))


def _rendered(row: StatusRow) -> dict[str, Any]:
    slots = [(slot["node"], slot["resources"]) for slot in row.slots]
    returned = [number for number, slot in enumerate(row.slots) if slot["is_returned"]]
    held = [(node["node"], node["resources"]) for node in row.held]
    started, ended = _epoch(row.started_at), _epoch(row.ended_at)
    resource_set = (
        to_resource_set(
            slots,
            starts_at=row.starts_at,
            until=row.until,
            held=held,
            kinds=[slot["kind"] for slot in row.slots],
            returned=returned,
        )
        if row.starts_at is not None
        else None
    )
    return FluxJobStatus(
        state=shown_state(FluxJobState(row.state), None if row.blocked_by else row.wait_reason),
        reason=row.reason,
        version=row.version,
        workload_uid=row.uid,
        jobid=row.jobid,
        nodes=[slot["node"] for slot in row.slots if not slot["is_returned"]],
        started_at_s=started,
        expected_start_s=_epoch(row.expected_start),
        expected_by_s=row.expected_by,
        position=row.position,
        ended_at_s=ended,
        resource_set=resource_set,
        conditions=FluxJobLife(
            state=FluxJobState(row.state),
            submitted_at_s=int(row.submitted_at.timestamp()),
            started_at_s=_epoch(row.allocated_at),
            ended_at_s=ended,
            ignored=row.facts.ignored,
            since=Since(
                queued=_epoch(row.queued_at),
                unqueued=_epoch(row.unqueued_at),
                reserved=_epoch(row.reserved_at),
                unreserved=_epoch(row.unreserved_at),
                running=_epoch(row.started_at),
            ),
            message=row.reason,
            reason=_word(row),
            is_to_stop=bool(row.vacate_by or row.cancel_by),
            generation=row.observed_generation,
            troubles=StatusFaults(row.facts.faults, row.stalled or {}, _epoch(row.troubled_at)),
        ).conditions(),
        operator=_operator(row),
        queue=row.queue,
        accepted_by=row.accepted_by,
        author_hold=row.author_hold,
        priority=row.priority,
        place=row.place,
        priority_parts=row.priority_parts,
        generation=row.observed_generation,
        last_good=row.facts.said if row.facts.faults else None,
    ).render()


def _word(row: StatusRow) -> str:
    return reason_of(
        S(row.state),
        held_by=row.held_by,
        blocked_by=row.blocked_by,
        wait_reason=row.wait_reason,
        is_overdue=row.is_overdue,
        start_fault=row.start_fault,
    )


def _operator(row: StatusRow) -> dict[str, Any]:
    said = {
        "heldBy": row.held_by,
        "priority": row.set_priority,
        "queue": row.set_queue,
        "requeueBy": row.vacate_by,
        "requeue": row.requeue,
        "cancelBy": None if FluxJobState(row.state).is_final else row.cancel_by,
    }
    return {name: value for name, value in said.items() if value is not None}


def _epoch(at: datetime | None) -> int | None:
    return None if at is None else int(at.timestamp())


async def tell(client: KubeClient, row: StatusRow, *, now_s: int) -> EmittedEvents | None:
    """Emit an Event on the workload if its reason is new. Return what was reported, or None.

    The reason is new if it differs from that of the last Event. A change in numbers alone emits
    nothing. Events are best effort: a refused Event is dropped, and nothing is tried again.
    """
    state, word = S(row.state), _word(row)
    if word == row.told:
        return None
    # No Event for an end that its own controller reports. A requested cancellation gets one.
    if state not in _EVENTS or (state is S.CANCELLED and row.cancel_by is None):
        return EmittedEvents(word, row.version)
    nodes = [slot["node"] for slot in row.slots]
    started = row.allocated_at or row.submitted_at
    message = _EVENTS[state].format(
        jobid=row.jobid,
        reason=row.reason,
        slots="1 slot" if len(nodes) == 1 else f"{len(nodes)} slots",
        nodes=compress(dict.fromkeys(nodes)) or "no nodes",
        waited=(started - row.submitted_at).total_seconds(),
    )
    if row.start_fault is not None and state in {S.ALLOCATED, S.RUNNING}:
        message = row.reason
    if row.reason and row.reason != message:
        message = f"{message}: {row.reason}"
    # Race: two workers may emit the same change. The same key gives both Events one name, so the
    # API server stores one.
    event = build_event(
        _involved(row),
        related=_fluxjob(row),
        key=f"{row.told_version}/{word}",
        reason=word,
        message=message,
        at_s=now_s,
        is_warning=_is_warning(row),
    )
    await tell_event(client, event)
    return EmittedEvents(word, row.version)


def _end_of_gone(row: StatusRow, *, now_s: int) -> dict[str, Any]:
    """Return the Event on a FluxJob that went with its workload before its status said the end.

    Clients that wait for it read it (``client.last_word``).
    """
    return build_event(
        _fluxjob(row),
        related=_involved(row),
        key=f"{row.version}/{row.state}",
        reason=row.state,
        message=row.reason or f"has ended as job {row.jobid}",
        at_s=now_s,
    )


def _is_warning(row: StatusRow) -> bool:
    is_held_by_us = row.held_by in {BY_QUEUE, BY_START}
    is_faulty = row.is_overdue or row.start_fault is not None
    return is_held_by_us or is_faulty or S(row.state) in _WARNINGS


def _involved(row: StatusRow) -> Involved:
    """Return the user's own object, or the FluxJob if no object represents the workload."""
    at, owner = row.namespace, read_reference(row.facts.owner)
    if owner is not None:
        return Involved(owner.api_version, owner.kind, at, owner.name, owner.uid)
    kind = kind_named(row.workload_kind)
    if kind.has_object:
        return Involved(kind.api_version, kind.name, at, row.workload_name, row.uid)
    return _fluxjob(row)


def _fluxjob(row: StatusRow) -> Involved:
    return Involved(
        FLUXJOBS.api_version, FLUXJOBS.kind, row.namespace, row.name, row.flux_uid or ""
    )
