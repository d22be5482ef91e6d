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


@dataclass(frozen=True, slots=True, kw_only=True)
class FluxJobStatus:
    """What the status of a FluxJob shows. Times are epoch seconds.

    ``state`` is the word that users read (``states.shown_state``).
    ``nodes`` may repeat a node for each of its slots. ``position`` is its place in its queue.
    ``expected_start_s`` is shown only while there is no real start, and so is ``expected_by_s``, by
    which nine of ten such jobs start. ``priority`` is the effective one, made of
    ``priority_parts``. ``place`` orders equal priorities, and is shown if it is not
    the jobid.

    Some fields are read back when rows are rebuilt, because no other object contains them.
    ``operator`` is what an operator set or has asked for. ``accepted_by`` is the queue that
    accepted it, and ``author_hold`` is how its author holds it. ``last_good`` has the annotations
    that count where others cannot be used. ``generation`` is that of the last spec that was
    applied.
    """

    state: FluxJobState | str
    reason: str = ""
    version: int = 0
    workload_uid: str | None = None
    jobid: int | None = None
    nodes: Sequence[str] = ()
    started_at_s: int | None = None
    expected_start_s: int | None = None
    expected_by_s: int | None = None
    position: int | None = None
    ended_at_s: int | None = None
    resource_set: Mapping[str, Any] | None = None
    conditions: Sequence[Mapping[str, Any]] = ()
    operator: Mapping[str, Any] | None = None
    queue: str | None = None
    accepted_by: str | None = None
    author_hold: str | None = None
    priority: int | None = None
    priority_parts: Mapping[str, int] | None = None
    place: int | None = None
    generation: int | None = None
    last_good: Mapping[str, str] | None = None

    def render(self) -> dict[str, Any]:
        """Return the whole status, a replacement for the old one."""
        started = None if self.started_at_s is None else to_rfc3339(self.started_at_s)
        is_expected = started is None and self.expected_start_s is not None
        expected = to_rfc3339(self.expected_start_s or 0) if is_expected else None
        latest_s = max(self.expected_start_s or 0, self.expected_by_s or 0)
        last_good = (self.last_good or {}).items()
        shown = {
            "observedGeneration": self.generation,
            "workloadUID": self.workload_uid,
            "jobid": self.jobid,
            "nodes": hostlist.compress(dict.fromkeys(self.nodes)) or None,
            "startTime": started,
            "expectedStart": expected,
            "expectedBy": to_rfc3339(latest_s) if is_expected and self.expected_by_s else None,
            "start": f"~{expected}" if is_expected else started or self._why_unknown(),
            "position": self.position,
            "endTime": None if self.ended_at_s is None else to_rfc3339(self.ended_at_s),
            "queue": self.queue,
            "acceptedBy": self.accepted_by,
            "authorHold": self.author_hold,
            "priority": self.priority,
            "priorityParts": None if self.priority is None else dict(self.priority_parts or {}),
            "place": None if self.place == self.jobid else self.place,
            "operator": dict(self.operator) if self.operator else None,
            "lastGood": (
                {key: text for key, text in last_good if len(text) <= LAST_GOOD_MAX}
                if last_good
                else None
            ),
            "R": None if self.resource_set is None else dict(self.resource_set),
        }
        return {
            "state": str(self.state),
            "reason": self.reason[:_MAX_REASON],
            "version": self.version,
            "conditions": [dict(condition) for condition in self.conditions],
            **{name: value for name, value in shown.items() if value is not None},
        }

    def _why_unknown(self) -> str | None:
        """Return why a job in the queue has no expected start, in one word."""
        if self.state != FluxJobState.PENDING:
            return None
        words = [str(one["reason"]) for one in self.conditions if one["type"] == "Queued"]
        return f"unknown ({words[0]})" if words and words[0] != QUEUED else "unknown yet"


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


QUEUED = "Queued"
"""Reason of a job that waits for nodes or for its turn."""

REASONS = {
    FluxJobState.PENDING: QUEUED,
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


@dataclass(frozen=True, slots=True, kw_only=True)
class FluxJobLife:
    """What the conditions of a FluxJob show.

    ``started_at_s`` is when it received its nodes. ``message`` goes with the condition of its
    state, and with ``Queued`` while it waits. ``reason`` is from ``reason_of``. A job that
    ``is_to_stop`` has its nodes, but its pods must no longer run there. ``generation`` is that of
    the spec that was applied. ``ignored`` is from ``constraints.ignored``.
    """

    state: FluxJobState
    submitted_at_s: int
    started_at_s: int | None = None
    ended_at_s: int | None = None
    ignored: Sequence[str] = ()
    since: Since = Since()
    message: str = ""
    reason: str | None = None
    is_to_stop: bool = False
    generation: int | None = None
    troubles: StatusFaults = StatusFaults()

    def conditions(self) -> list[dict[str, Any]]:
        """Render them.

        These are ``Queued``, ``Reserved``, ``Allocated``, ``Released``, ``Running`` and
        ``Finished``. Where they apply, also ``ConstraintsIgnored``, ``InputValid`` (False) and
        ``Stalled``.

        ``kubectl wait --for=condition=Finished fluxjob/x`` waits until the last resource is free
        again.
        """
        found = self._of_states()
        if self.ignored:
            message = f"not considered when nodes are chosen: {', '.join(self.ignored)}"
            found.append(
                self._condition(
                    "ConstraintsIgnored", True, self.submitted_at_s, "NotSupported", message
                )
            )
        troubles = self.troubles
        since_s = self.submitted_at_s if troubles.since_s is None else troubles.since_s
        if troubles.faults:
            found.append(self._condition("InputValid", False, since_s, *described(troubles.faults)))
        if troubles.stalled:
            told = [f"{task} is refused: {why}" for task, why in sorted(troubles.stalled.items())]
            message = f"{'; '.join(told)}; it is tried again"
            found.append(self._condition("Stalled", True, since_s, "EffectRefused", message))
        return found

    def _of_states(self) -> list[dict[str, Any]]:
        state, since, ended = self.state, self.since, self.ended_at_s
        is_queued = state in {FluxJobState.PENDING, FluxJobState.RESERVED}
        is_reserved = state is FluxJobState.RESERVED
        is_allocated = self.started_at_s is not None and ended is None
        is_running = state is FluxJobState.RUNNING
        changed_at = ended if ended is not None else self.started_at_s or since.queued
        ran_until = None if since.running is None else ended or since.queued
        unqueued = since.unqueued or changed_at
        rows = (
            ("Queued", is_queued, since.queued if is_queued else unqueued, state.is_waiting),
            (
                "Reserved",
                is_reserved,
                since.reserved if is_reserved else since.unreserved,
                is_reserved,
            ),
            ("Allocated", is_allocated, changed_at, is_allocated),
            # As soon as this is written its pods are released, if they have not been.
            ("Released", is_allocated and not self.is_to_stop, changed_at, False),
            ("Running", is_running, since.running if is_running else ran_until, is_running),
            ("Finished", state.is_final, ended if state.is_final else None, state.is_final),
        )
        reason = self.reason or reason_of(state)
        return [
            self._condition(
                name,
                holds,
                self.submitted_at_s if at_s is None else at_s,
                reason,
                self.message if is_about else "",
            )
            for name, holds, at_s, is_about in rows
        ]

    def _condition(
        self, name: str, holds: bool, at_s: int, reason: str, message: str
    ) -> dict[str, Any]:
        applied = {} if self.generation is None else {"observedGeneration": self.generation}
        return {
            "type": name,
            "status": "True" if holds else "False",
            **applied,
            "lastTransitionTime": to_rfc3339(at_s),
            "reason": reason,
            "message": message,
        }
