"""The present state of a Job: counts, indexes, what has finished. Pure.

It is the first half of a Job sync (``syncJob`` up to the decisions). ``job_plan`` decides on it.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from datetime import datetime
from typing import Any

from localcluster.controllers import job_policy as policy
from localcluster.controllers.job_backoff import BackoffRecord, with_finished_pods
from localcluster.controllers.job_pods import (
    counts_as_failed,
    is_indexed,
    is_tracked,
    parse_indexes,
    valid_index,
)
from localcluster.loops.objects import (
    condition_of,
    is_active,
    is_ready,
    is_terminating,
    is_true,
    later,
    phase_of,
    read_time,
    uid_of,
    write_time,
)
from localcluster.obj import Obj

BACKOFF_MESSAGE = "Job has reached the specified backoff limit"
DEADLINE_MESSAGE = "Job was active longer than specified deadline"
FAILED_INDEXES_MESSAGE = "Job has failed indexes"
MAX_FAILED_MESSAGE = "Job has exceeded the specified maximal number of failed indexes"
COMPLETIONS_MESSAGE = "Reached expected number of succeeded pods"


def new_condition(kind: str, reason: str, message: str, now: datetime, status: str = "True") -> Obj:
    """Return a Job condition."""
    at = write_time(now)
    return {
        "type": kind,
        "status": status,
        "lastProbeTime": at,
        "lastTransitionTime": at,
        "reason": reason,
        "message": message,
    }


@dataclass(slots=True)
class JobView:
    """A Job and its pods, counted. ``status`` is a copy that the plan changes further.

    ``outcome`` is the interim condition (SuccessCriteriaMet or FailureTarget) that holds or must be
    set. It is None while the Job continues.
    """

    job: Obj
    pods: list[Obj]
    now: datetime
    status: dict[str, Any]
    active: list[Obj]
    backoff: BackoffRecord
    ready: int
    terminating: int
    succeeded: int = 0
    failed: int = 0
    outcome: Obj | None = None
    indexes_before: set[int] = field(default_factory=set)
    indexes_done: set[int] = field(default_factory=set)
    indexes_failed: set[int] | None = None
    kept: dict[int, Obj] = field(default_factory=dict)

    @property
    def spec(self) -> Obj:
        """Return the Job's spec."""
        spec: Obj = self.job["spec"]
        return spec

    @property
    def is_suspended(self) -> bool:
        """Return spec.suspend."""
        return bool(self.spec.get("suspend"))

    @property
    def uncounted(self) -> dict[str, list[str]]:
        """Return status.uncountedTerminatedPods (a private copy)."""
        found: dict[str, list[str]] = self.status["uncountedTerminatedPods"]
        return found

    def is_uncounted(self, pod: Obj) -> bool:
        """Return whether the pod's uid is in uncountedTerminatedPods already."""
        uid = uid_of(pod)
        return uid in self.uncounted.get("succeeded", ()) or uid in self.uncounted.get("failed", ())


def is_job_finished(job: Obj) -> bool:
    """Return whether the Job is Complete or Failed."""
    return is_true(job, "Complete") or is_true(job, "Failed")


def view_job(job: Obj, pods: list[Obj], now: datetime, backoff: BackoffRecord) -> JobView:
    """Count everything and find out whether an outcome is reached."""
    status = dict(job.get("status") or {})
    status["conditions"] = [dict(c) for c in status.get("conditions") or ()]
    uncounted = status.get("uncountedTerminatedPods") or {}
    status["uncountedTerminatedPods"] = {k: list(v) for k, v in uncounted.items() if v}
    active = [pod for pod in pods if is_active(pod)]
    view = JobView(
        job=job,
        pods=pods,
        now=now,
        status=status,
        active=active,
        backoff=backoff,
        ready=sum(1 for pod in active if is_ready(pod)),
        terminating=sum(1 for pod in pods if is_terminating(pod)),
    )
    _count_finished(view)
    if not view.is_suspended and not status.get("startTime"):
        status["startTime"] = write_time(now)
    view.outcome = _known_outcome(view) or _failure(view)
    if is_indexed(job):
        _count_indexes(view)
    return view


def _count_finished(view: JobView) -> None:
    """Count the pods that finished since the last status, and the totals with them."""
    job, indexed = view.job, is_indexed(view.job)
    fresh = [
        pod
        for pod in view.pods
        if is_tracked(pod)
        and not view.is_uncounted(pod)
        and (not indexed or valid_index(pod, job) is not None)
    ]
    succeeded = [pod for pod in fresh if phase_of(pod) == "Succeeded"]
    failed = [pod for pod in fresh if counts_as_failed(pod, job)]
    if job["spec"].get("podFailurePolicy"):
        counted = sum(1 for pod in failed if policy.is_failure_counted(job, pod))
    else:
        counted = len(failed)
    status, uncounted = view.status, view.uncounted
    view.succeeded = (
        (status.get("succeeded") or 0) + len(succeeded) + len(uncounted.get("succeeded", ()))
    )
    view.failed = (status.get("failed") or 0) + counted + len(uncounted.get("failed", ()))
    view.backoff = with_finished_pods(view.backoff, succeeded, failed)


def _known_outcome(view: JobView) -> Obj | None:
    """Return an interim condition written by an earlier sync."""
    for kind in ("SuccessCriteriaMet", "FailureTarget"):
        if is_true(view.job, kind):
            return condition_of(view.job, kind)
    return None


def _failure(view: JobView) -> Obj | None:
    """Return a reason to fail that is found now."""
    spec, now = view.spec, view.now
    if spec.get("podFailurePolicy"):
        message = policy.fail_job_message(view.job, view.pods)
        if message:
            return new_condition("FailureTarget", "PodFailurePolicy", message, now)
    if view.failed > spec.get("backoffLimit", 6) or _restarts_exceed(view):
        return new_condition("FailureTarget", "BackoffLimitExceeded", BACKOFF_MESSAGE, now)
    left_s = deadline_left_s(view)
    if left_s is not None and left_s <= 0:
        return new_condition("FailureTarget", "DeadlineExceeded", DEADLINE_MESSAGE, now)
    return None


def deadline_left_s(view: JobView) -> float | None:
    """Return the seconds until activeDeadlineSeconds, or None if no deadline runs."""
    limit = view.spec.get("activeDeadlineSeconds")
    started = read_time(view.status.get("startTime"))
    if limit is None or started is None or view.is_suspended:
        return None
    return (later(started, limit) - view.now).total_seconds()


def _restarts_exceed(view: JobView) -> bool:
    """Return whether restarts in place (restartPolicy OnFailure) reach backoffLimit."""
    if view.spec["template"]["spec"].get("restartPolicy") != "OnFailure":
        return False
    restarts = 0
    for pod in view.pods:
        if phase_of(pod) in {"Pending", "Running"}:
            status = pod.get("status") or {}
            for key in ("initContainerStatuses", "containerStatuses"):
                restarts += sum(c.get("restartCount") or 0 for c in status.get(key) or ())
    limit: int = view.spec.get("backoffLimit", 6)
    return restarts > 0 if limit == 0 else restarts >= limit


def _count_indexes(view: JobView) -> None:
    """Count completedIndexes, failedIndexes and what follows from them."""
    job, spec, now = view.job, view.spec, view.now
    completions: int = spec["completions"]
    view.indexes_before = parse_indexes(view.status.get("completedIndexes"), completions)
    done = set(view.indexes_before)
    for pod in view.pods:
        index = valid_index(pod, job)
        if index is not None and phase_of(pod) == "Succeeded" and is_tracked(pod):
            done.add(index)
    view.indexes_done, view.succeeded = done, len(done)
    if spec.get("backoffLimitPerIndex") is not None:
        failed = view.indexes_failed = policy.failed_indexes(job, view.pods)
        active = {i for i in (valid_index(pod, job) for pod in view.active) if i is not None}
        view.kept = policy.kept_failures(job, view.pods, done | failed, active)
        if view.outcome is None:
            limit = spec.get("maxFailedIndexes")
            if limit is not None and len(failed) > limit:
                view.outcome = new_condition(
                    "FailureTarget", "MaxFailedIndexesExceeded", MAX_FAILED_MESSAGE, now
                )
            elif failed and len(failed) + len(done) >= completions:
                view.outcome = new_condition(
                    "FailureTarget", "FailedIndexes", FAILED_INDEXES_MESSAGE, now
                )
    if view.outcome is None:
        message = policy.match_success_policy(job, done)
        if message:
            view.outcome = new_condition("SuccessCriteriaMet", "SuccessPolicy", message, now)
