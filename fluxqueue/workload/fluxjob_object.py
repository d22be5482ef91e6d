"""FluxJob objects: built from a workload, with a status rendered from the rows.

Called by the controller (``build``) and by everything that writes status. The objects must fit the
definition ``chart/crds/fluxjobs.yaml``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from fluxqueue.fluxjob import hostlist
from fluxqueue.fluxjob.faults import Fault, described
from fluxqueue.fluxjob.holders import (
    BY_BEGIN_TIME,
    BY_COMPLEXITY,
    BY_DEPENDENCY,
    BY_QUARANTINE,
    BY_QUEUE,
    BY_RETRY,
    BY_START,
)
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.fluxjob.times import to_rfc3339
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.render import render
from fluxqueue.workload import labels
from fluxqueue.workload.annotations import Wishes
from fluxqueue.workload.fluxjob_name import name_for
from fluxqueue.workload.json_patch import Patch, op
from fluxqueue.workload.kinds.table import kind_of

GROUP = "jobs.converged-computing.org"
VERSION = "v1alpha1"
API_VERSION = f"{GROUP}/{VERSION}"
KIND = "FluxJob"
PLURAL = "fluxjobs"

DEFAULT_QUEUE = "default"

_MAX_REASON = 1024

LAST_GOOD_MAX = 16_384
"""Maximum characters of an annotation in a status. The row keeps longer ones."""


def fluxjob_name(workload: Mapping[str, Any]) -> str:
    """Name the FluxJob of a workload: ``<name>-job``, ``<name>-pod``. ``name_for`` cuts it."""
    meta, kind = workload["metadata"], kind_of(workload)
    if not kind.has_object:
        return str(meta["fluxjob"])
    return name_for(meta["name"], kind.shown_as(workload)[1].lower())


def build(
    workload: Mapping[str, Any],
    request: Jobspec,
    *,
    priority: int,
    queue: str = DEFAULT_QUEUE,
    wishes: Wishes | None = None,
    missing: int = 0,
) -> dict[str, Any]:
    """Build the FluxJob of a stored workload, without status. ``missing`` pods are yet to come.

    The owner reference deletes it with its workload, and does not block the workload's deletion.
    """
    meta, kind = workload["metadata"], kind_of(workload)
    api_version, name = kind.shown_as(workload)
    reference = {
        "apiVersion": api_version,
        "kind": name,
        "name": meta["name"],
        "uid": meta["uid"],
    }
    # A group's FluxJob has no owner: the controller deletes it with the last of the pods.
    owner = {**reference, "controller": True, "blockOwnerDeletion": False}
    owned = {"ownerReferences": [owner]} if kind.has_object else {}
    marks = {} if kind.has_object else {labels.WITHOUT_OBJECT: "true"}
    spec: dict[str, Any] = {
        "workload": reference,
        "size": request.size + missing,
        "priority": priority,
        "queue": queue,
        "jobspec": render(request),
    }
    if user := submitter(workload):
        spec["user"] = user
    if request.duration_s:
        spec["durationSeconds"] = int(request.duration_s)
    spec |= _starting(workload, wishes or Wishes())
    return {
        "apiVersion": API_VERSION,
        "kind": KIND,
        "metadata": {
            "name": fluxjob_name(workload),
            "namespace": meta["namespace"],
            "labels": {labels.QUEUE: queue, **marks},
            **owned,
        },
        "spec": spec,
    }


def _starting(workload: Mapping[str, Any], wishes: Wishes) -> dict[str, Any]:
    """Return the start conditions: dependencies, begin time, and whether it is held."""
    spec: dict[str, Any] = {}
    if wishes.depends_on:
        spec["dependsOn"] = [edge.to_json() for edge in wishes.depends_on]
    begin_at_s = begin_time(workload, wishes)
    if begin_at_s is not None:
        spec["beginTime"] = to_rfc3339(begin_at_s)
    if wishes.is_held:
        spec["hold"] = True
    return spec


def begin_time(workload: Mapping[str, Any], wishes: Wishes) -> int | None:
    """Return the epoch second before which a stored workload must not start, or None."""
    if wishes.begin is None:
        return None
    created = datetime.fromisoformat(workload["metadata"]["creationTimestamp"])
    return wishes.begin.resolve(int(created.timestamp()))


def submitter(workload: Mapping[str, Any]) -> str:
    """Return the submitter that admission recorded, or empty if admission was bypassed.

    Later edits of the annotation change nothing: the row and the FluxJob keep the first value.
    """
    annotations = workload["metadata"].get("annotations") or {}
    return str(annotations.get(labels.USER, ""))


def is_fluxjob_of(fluxjob: Mapping[str, Any], workload: Mapping[str, Any]) -> bool:
    """Tell whether ``fluxjob`` belongs to this workload, not to an older one of its name."""
    return bool(fluxjob["spec"]["workload"]["uid"] == workload["metadata"]["uid"])


def render_status(
    *,
    state: FluxJobState | str,
    reason: str = "",
    version: int = 0,
    workload_uid: str | None = None,
    jobid: int | None = None,
    nodes: Sequence[str] = (),
    started_at_s: int | None = None,
    expected_start_s: int | None = None,
    position: int | None = None,
    ended_at_s: int | None = None,
    resource_set: Mapping[str, Any] | None = None,
    conditions: Sequence[Mapping[str, Any]] = (),
    operator: Mapping[str, Any] | None = None,
    queue: str | None = None,
    accepted_by: str | None = None,
    author_hold: str | None = None,
    priority: int | None = None,
    priority_parts: Mapping[str, int] | None = None,
    place: int | None = None,
    generation: int | None = None,
    last_good: Mapping[str, str] | None = None,
) -> dict[str, Any]:
    """Render a whole status (a replacement for the old one). Times are epoch seconds.

    ``state`` is the word that users read (``states.shown_state``).
    ``nodes`` may repeat a node for each of its slots. ``position`` is its place in its queue.
    ``expected_start_s`` is shown only while there is no real start. ``priority`` is the effective
    one, made of ``priority_parts``. ``place`` orders equal priorities, and is shown if it is not
    the jobid.

    Some fields are read back when rows are rebuilt, because no other object contains them.
    ``operator`` is what an operator set or has asked for. ``accepted_by`` is the queue that
    accepted it, and ``author_hold`` is how its author holds it. ``last_good`` has the annotations
    that count where others cannot be used. ``generation`` is that of the last spec that was
    applied.
    """
    status: dict[str, Any] = {
        "state": str(state),
        "reason": reason[:_MAX_REASON],
        "version": version,
        "conditions": [dict(condition) for condition in conditions],
    }
    if generation is not None:
        status["observedGeneration"] = generation
    if workload_uid is not None:
        status["workloadUID"] = workload_uid
    if jobid is not None:
        status["jobid"] = jobid
    if nodes:
        status["nodes"] = hostlist.compress(dict.fromkeys(nodes))
    if started_at_s is not None:
        status["startTime"] = status["start"] = to_rfc3339(started_at_s)
    elif expected_start_s is not None:
        status["expectedStart"] = to_rfc3339(expected_start_s)
        status["start"] = f"~{status['expectedStart']}"
    if position is not None:
        status["position"] = position
    if ended_at_s is not None:
        status["endTime"] = to_rfc3339(ended_at_s)
    if queue is not None:
        status["queue"] = queue
    if accepted_by is not None:
        status["acceptedBy"] = accepted_by
    if author_hold is not None:
        status["authorHold"] = author_hold
    if priority is not None:
        status["priority"] = priority
        status["priorityParts"] = dict(priority_parts or {})
    if place is not None and place != jobid:
        status["place"] = place
    if operator:
        status["operator"] = dict(operator)
    if last_good:
        shown = {key: text for key, text in last_good.items() if len(text) <= LAST_GOOD_MAX}
        status["lastGood"] = shown
    if resource_set is not None:
        status["R"] = dict(resource_set)
    return status


def with_status(
    namespace: str, name: str, uid: str, version: str, status: Mapping[str, Any]
) -> dict[str, Any]:
    """Return a FluxJob for an update of its ``/status``, which ignores all other fields.

    The update is refused unless the object has that UID and resourceVersion.
    """
    named = {"namespace": namespace, "name": name, "uid": uid, "resourceVersion": version}
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": named, "status": dict(status)}


def status_patch(status: Mapping[str, Any]) -> Patch:
    """Return a JSON patch that replaces ``status``. A repetition has the same effect.

    The API server need not compute the changes of a merge, which costs it more.
    """
    return [op("add", "/status", value=dict(status))]


REASONS = {
    FluxJobState.PENDING: "Queued",
    FluxJobState.ALLOCATED: "Started",
    FluxJobState.RUNNING: "Started",
}
"""Reason of a condition and of an Event, in one word: the state, except for these."""

OVERDUE = "Overdue"
"""Reason of a group: some of its pods have not arrived in time."""

_HOLDERS = {
    BY_QUEUE: "HeldByQueue",
    BY_DEPENDENCY: "DependencyNeverSatisfied",
    BY_COMPLEXITY: "TooComplex",
    BY_QUARANTINE: "Quarantined",
    BY_START: "StartFailed",
}
"""Reason of a held job, by ``held_by``. Otherwise that of its state."""

_BLOCKS = {BY_DEPENDENCY: "Dependency", BY_BEGIN_TIME: "BeginTime", BY_RETRY: "StartRetry"}
"""Reason of a pending job, by ``blocked_by``."""


def reason_of(
    state: FluxJobState,
    *,
    held_by: str | None = None,
    blocked_by: str | None = None,
    wait_reason: str | None = None,
    is_overdue: bool = False,
    start_fault: str | None = None,
) -> str:
    """Return the one-word reason of a FluxJob's state, for conditions and Events alike.

    ``start_fault`` is the kind of what keeps the pods of a started job from running.

    Each obstacle of a pending job has its own word, and a change of the word is reported. The
    message shows how much is missing. A job that waits only for capacity is ``Queued``.
    """
    word = REASONS.get(state, str(state))
    if is_overdue and held_by != BY_QUEUE:
        return OVERDUE
    if state is FluxJobState.HELD or held_by == BY_QUEUE:
        return _HOLDERS.get(held_by or "", word)
    if state is FluxJobState.PENDING:
        return _BLOCKS.get(blocked_by or "") or wait_reason or word
    if state in {FluxJobState.ALLOCATED, FluxJobState.RUNNING}:
        return start_fault or word
    return word


@dataclass(frozen=True, slots=True)
class Since:
    """When a FluxJob last entered and left each condition, in epoch seconds.

    None if that never happened, or is no longer known.
    """

    queued: int | None = None
    unqueued: int | None = None
    reserved: int | None = None
    unreserved: int | None = None
    running: int | None = None


@dataclass(frozen=True, slots=True)
class StatusFaults:
    """The faults and stalled actions of a FluxJob.

    ``stalled``: by task, why the API server refuses an action. ``since_s``: epoch seconds.
    """

    faults: Sequence[Fault] = ()
    stalled: Mapping[str, str] = field(default_factory=dict)
    since_s: int | None = None


def render_conditions(
    *,
    state: FluxJobState,
    submitted_at_s: int,
    started_at_s: int | None = None,
    ended_at_s: int | None = None,
    ignored: Sequence[str] = (),
    since: Since | None = None,
    message: str = "",
    reason: str | None = None,
    is_to_stop: bool = False,
    generation: int | None = None,
    troubles: StatusFaults | None = None,
) -> list[dict[str, Any]]:
    """Render the conditions of its life.

    These are ``Queued``, ``Reserved``, ``Allocated``, ``Released``, ``Running`` and ``Finished``.
    Where they apply, also ``ConstraintsIgnored`` (named by ``constraints.ignored``), ``InputValid``
    (False) and ``Stalled`` (of ``troubles``).

    ``kubectl wait --for=condition=Finished fluxjob/x`` waits until the last resource is free again.
    ``started_at_s`` is when it received its nodes. ``message`` goes with the condition of its
    state, and with ``Queued`` while it waits. ``reason`` is from ``reason_of``. A job that
    ``is_to_stop`` has its nodes, but its pods must no longer run there. ``generation`` is that of
    the spec that was applied.
    """
    since = since or Since()
    reason = reason or reason_of(state)
    is_queued = state in {FluxJobState.PENDING, FluxJobState.RESERVED}
    is_reserved = state is FluxJobState.RESERVED
    is_allocated = started_at_s is not None and ended_at_s is None
    is_running = state is FluxJobState.RUNNING
    changed_at = ended_at_s if ended_at_s is not None else started_at_s or since.queued
    ran_until = None if since.running is None else ended_at_s or since.queued

    def one(name: str, holds: bool, at_s: int | None, is_about: bool) -> dict[str, Any]:
        at_s = submitted_at_s if at_s is None else at_s
        return _condition(name, holds, at_s, reason, message if is_about else "", generation)

    found = [
        one("Queued", is_queued, since.queued if is_queued else since.unqueued or changed_at,
            state.is_waiting),
        one("Reserved", is_reserved, since.reserved if is_reserved else since.unreserved,
            is_reserved),
        one("Allocated", is_allocated, changed_at, is_allocated),
        # As soon as this is written its pods are released, if they have not been.
        one("Released", is_allocated and not is_to_stop, changed_at, False),
        one("Running", is_running, since.running if is_running else ran_until, is_running),
        one("Finished", state.is_final, ended_at_s if state.is_final else None, state.is_final),
    ]  # fmt: skip
    if ignored:
        message = f"not considered when nodes are chosen: {', '.join(ignored)}"
        found.append(
            _condition(
                "ConstraintsIgnored", True, submitted_at_s, "NotSupported", message, generation
            )
        )
    troubles = troubles or StatusFaults()
    since_s = submitted_at_s if troubles.since_s is None else troubles.since_s
    if troubles.faults:
        word, said = described(troubles.faults)
        found.append(_condition("InputValid", False, since_s, word, said, generation))
    if troubles.stalled:
        told = [f"{task} is refused: {why}" for task, why in sorted(troubles.stalled.items())]
        message = f"{'; '.join(told)}; it is tried again"
        found.append(_condition("Stalled", True, since_s, "EffectRefused", message, generation))
    return found


def _condition(
    name: str, holds: bool, at_s: int, reason: str, message: str, generation: int | None
) -> dict[str, Any]:
    applied = {} if generation is None else {"observedGeneration": generation}
    return {
        "type": name,
        "status": "True" if holds else "False",
        **applied,
        "lastTransitionTime": to_rfc3339(at_s),
        "reason": reason,
        "message": message,
    }
