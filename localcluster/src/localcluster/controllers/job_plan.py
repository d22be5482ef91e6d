"""What to do about a Job: pods to create, pods to delete, status to write. Pure.

It is the second half of a Job sync (``manageJob`` and ``trackJobStatusAndRemoveFinalizers``). A
crash may end a sync after any part, so it writes in this order:

1. Deletions and creations.
2. The status with ``uncountedTerminatedPods``.
3. The finalizers of the pods counted there.
4. The final status.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from localcluster.controllers import job_policy as policy
from localcluster.controllers.job_backoff import (
    BackoffRecord,
    delay_s,
    remaining_s,
)
from localcluster.controllers.job_pods import (
    counts_as_failed,
    finished_at,
    format_indexes,
    index_of,
    is_indexed,
    is_tracked,
    new_pod,
    pods_to_remove,
    replaces_only_failed,
    valid_index,
)
from localcluster.controllers.job_view import (
    COMPLETIONS_MESSAGE,
    JobView,
    deadline_left_s,
    new_condition,
    view_job,
)
from localcluster.loops.objects import (
    is_deleting,
    is_ready,
    is_terminating,
    phase_of,
    uid_of,
    write_time,
)
from localcluster.loops.options import ControllerOptions
from localcluster.obj import Obj

PODS_PER_SYNC_MAX = 500
UNCOUNTED_MAX = 500

Status = dict[str, Any]


@dataclass(slots=True)
class JobPlan:
    """The actions of one sync, in the order of the fields."""

    delete: list[Obj] = field(default_factory=list)
    is_stripped_first: bool = False
    create: list[Obj] = field(default_factory=list)
    status: Status = field(default_factory=dict)
    release: list[Obj] = field(default_factory=list)
    final: Obj | None = None
    events: list[tuple[str, str, str]] = field(default_factory=list)
    look_again_s: float | None = None
    backoff: BackoffRecord = field(default_factory=BackoffRecord)


def plan_job(
    job: Obj, pods: list[Obj], now: datetime, backoff: BackoffRecord, options: ControllerOptions
) -> JobPlan:
    """Decide one sync of an unfinished Job."""
    view = view_job(job, pods, now, backoff)
    plan = JobPlan(backoff=view.backoff)
    active = len(view.active)
    if view.outcome is not None:
        plan.delete = view.active
        active = 0
    elif not is_deleting(job):
        active = _manage(view, plan, options)
        active = _check_completion(view, plan, active)
    for pod in plan.delete:
        view.ready -= is_ready(pod)
    view.terminating += len(plan.delete)
    _set_counts(view, active)
    _track(view, plan)
    plan.status = _tidy(view.status)
    left_s = deadline_left_s(view)
    if view.outcome is None and left_s is not None:
        _look_again(plan, left_s)
    return plan


def _look_again(plan: JobPlan, delay: float) -> None:
    plan.look_again_s = delay if plan.look_again_s is None else min(plan.look_again_s, delay)


# -- pods ------------------------------------------------------------------------------------------


def _wanted(view: JobView) -> int:
    """Return how many pods should be active."""
    parallelism: int = view.spec.get("parallelism", 1)
    completions: int | None = view.spec.get("completions")
    if completions is None:
        return len(view.active) if view.succeeded > 0 else parallelism
    return max(0, min(completions - view.succeeded, parallelism))


def _manage(view: JobView, plan: JobPlan, options: ControllerOptions) -> int:
    """Plan deletions or creations (never both). Return the number active afterwards."""
    active = len(view.active)
    if view.is_suspended:
        plan.delete, plan.is_stripped_first = view.active, True
        return 0
    wanted = _wanted(view)
    surplus = pods_to_remove(view.job, view.active, max(0, active - wanted))
    if surplus:
        plan.delete, plan.is_stripped_first = surplus[:PODS_PER_SYNC_MAX], True
        return active - len(plan.delete)
    busy = active + (view.terminating if replaces_only_failed(view.job) else 0)
    missing = min(wanted - busy, PODS_PER_SYNC_MAX)
    if missing <= 0:
        return active
    if view.spec.get("backoffLimitPerIndex") is None:
        wait_s = remaining_s(
            view.backoff, view.now, options.job_backoff_s, options.job_backoff_max_s
        )
        if wait_s > 0:
            _look_again(plan, wait_s)
            return active
    if is_indexed(view.job):
        plan.create = _indexed_pods(view, plan, missing, options)
    else:
        plan.create = [new_pod(view.job) for _ in range(missing)]
    return active + len(plan.create)


def _indexed_pods(
    view: JobView, plan: JobPlan, missing: int, options: ControllerOptions
) -> list[Obj]:
    """Return pods for the first pending indexes.

    With backoffLimitPerIndex each index waits separately.
    """
    busy = {index_of(pod) for pod in view.active} | view.indexes_done
    if replaces_only_failed(view.job):
        busy |= {index_of(pod) for pod in view.pods if is_terminating(pod)}
    if view.indexes_failed:
        busy |= view.indexes_failed
    pending = [i for i in range(view.spec["completions"]) if i not in busy][:missing]
    if view.indexes_failed is None:
        return [new_pod(view.job, index) for index in pending]
    pods: list[Obj] = []
    for index in pending:
        last = view.kept.get(index)
        wait_s = _index_wait_s(view, last, options)
        if wait_s > 0:
            _look_again(plan, wait_s)
        else:
            pods.append(new_pod(view.job, index, policy.inherited_counts(view.job, last)))
    return pods


def _index_wait_s(view: JobView, failed: Obj | None, options: ControllerOptions) -> float:
    if failed is None:
        return 0.0
    failures = policy.failure_count(failed) + 1
    pause_s = delay_s(failures, options.job_backoff_s, options.job_backoff_max_s)
    return pause_s - (view.now - finished_at(failed)).total_seconds()


# -- conditions ------------------------------------------------------------------------------------


def _check_completion(view: JobView, plan: JobPlan, active: int) -> int:
    """Set the outcome if the Job is complete. Otherwise update the Suspended condition."""
    completions = view.spec.get("completions")
    if completions is None:
        is_complete = view.succeeded > 0 and active == 0
    else:
        is_complete = view.succeeded >= completions and active == 0
    if is_complete:
        view.outcome = new_condition(
            "SuccessCriteriaMet", "CompletionsReached", COMPLETIONS_MESSAGE, view.now
        )
    elif view.is_suspended:
        if _set_suspended(view, "True", "JobSuspended", "Job suspended"):
            plan.events.append(("Normal", "Suspended", "Job suspended"))
        view.status.pop("startTime", None)
    elif _set_suspended(view, "False", "JobResumed", "Job resumed"):
        plan.events.append(("Normal", "Resumed", "Job resumed"))
        view.status["startTime"] = write_time(view.now)
    return active


def _set_suspended(view: JobView, status: str, reason: str, message: str) -> bool:
    """Return whether the condition changed. A Job never suspended gets no False condition."""
    conditions: list[Obj] = view.status["conditions"]
    for number, condition in enumerate(conditions):
        if condition["type"] == "Suspended":
            if condition["status"] == status:
                return False
            conditions[number] = new_condition("Suspended", reason, message, view.now, status)
            return True
    if status == "True":
        conditions.append(new_condition("Suspended", reason, message, view.now))
        return True
    return False


# -- status ----------------------------------------------------------------------------------------


def _set_counts(view: JobView, active: int) -> None:
    view.status["active"] = active
    view.status["ready"] = max(0, view.ready)
    view.status["terminating"] = view.terminating


def _track(view: JobView, plan: JobPlan) -> None:
    """Count finished pods, choose pods to release, and add the interim condition."""
    settle_counts(view.status, {uid_of(pod) for pod in view.pods if is_tracked(pod)})
    indexes = set(view.indexes_before)
    fresh = 0
    for pod in sorted(view.pods, key=lambda p: index_of(p) or 0):
        if not is_tracked(pod) or not _may_release(view, pod):
            continue
        plan.release.append(pod)
        fresh += _count_pod(view, pod, indexes)
        if fresh >= UNCOUNTED_MAX:
            _look_again(plan, 0.0)
            break
    if is_indexed(view.job):
        view.status["succeeded"] = len(indexes)
        view.status["completedIndexes"] = format_indexes(indexes)
        if view.indexes_failed is not None:
            view.status["failedIndexes"] = format_indexes(view.indexes_failed)
    if view.outcome is not None:
        kind = view.outcome["type"]
        if all(condition["type"] != kind for condition in view.status["conditions"]):
            view.status["conditions"].append(view.outcome)
        # With pods left for the next sync, it is too early for the last condition.
        plan.final = view.outcome if fresh < UNCOUNTED_MAX else None


def _may_release(view: JobView, pod: Obj) -> bool:
    """Return whether the tracking finalizer may be removed in this sync."""
    if is_deleting(view.job) or view.outcome is not None or phase_of(pod) == "Succeeded":
        return True
    if not counts_as_failed(pod, view.job):
        return False
    return not policy.index_of_kept(view.kept, pod)


def _count_pod(view: JobView, pod: Obj, indexes: set[int]) -> int:
    """Record a pod as finished. Return 1 if it was not recorded before."""
    job, uid = view.job, uid_of(pod)
    index = valid_index(pod, job)
    uncounted = view.uncounted
    if phase_of(pod) == "Succeeded" and uid not in uncounted.get("failed", ()):
        if is_indexed(job):
            if index is None or index in indexes:
                return 0
            indexes.add(index)
            return 1
        return _note(uncounted, "succeeded", uid)
    is_lost = view.outcome is not None and view.outcome["type"] == "FailureTarget"
    if not counts_as_failed(pod, job) and not is_lost:
        return 0
    if is_indexed(job) and index is None:
        return 0
    if job["spec"].get("podFailurePolicy") and not policy.is_failure_counted(job, pod):
        return 0
    return _note(uncounted, "failed", uid)


def _note(uncounted: dict[str, list[str]], kind: str, uid: str) -> int:
    uids = uncounted.setdefault(kind, [])
    if uid in uids:
        return 0
    uids.append(uid)
    return 1


def settle_counts(status: Status, tracked: set[str]) -> None:
    """Add uids without finalizer from uncountedTerminatedPods to the totals."""
    uncounted = status.get("uncountedTerminatedPods") or {}
    for kind in ("succeeded", "failed"):
        uids = uncounted.get(kind) or []
        gone = [uid for uid in uids if uid not in tracked]
        if gone:
            status[kind] = (status.get(kind) or 0) + len(gone)
            uncounted[kind] = [uid for uid in uids if uid in tracked]
    status["uncountedTerminatedPods"] = {k: v for k, v in uncounted.items() if v}


def finish(status: Status, final: Obj | None, now: datetime) -> tuple[str, str, str] | None:
    """Add Complete or Failed once nothing is uncounted or terminating. Return its event.

    ``status`` is changed in place.
    """
    if final is None or status["uncountedTerminatedPods"] or status.get("terminating"):
        return None
    if status.get("active"):
        return None
    is_success = final["type"] == "SuccessCriteriaMet"
    kind = "Complete" if is_success else "Failed"
    condition = new_condition(kind, final["reason"], final["message"], now)
    status.setdefault("conditions", []).append(condition)
    if is_success:
        status["completionTime"] = condition["lastTransitionTime"]
        return ("Normal", "Completed", "Job completed")
    return ("Warning", final["reason"], final["message"])


def _tidy(status: Status) -> Status:
    """Return the status as the server writes it, without zero counts and empty conditions."""
    return {
        key: value
        for key, value in status.items()
        if value or key in {"ready", "terminating", "uncountedTerminatedPods", "failedIndexes"}
    }
