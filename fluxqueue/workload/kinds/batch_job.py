"""The entry of BatchJobs (batch/v1 Job): suspended while they wait, released whole.

Called through the table (``workload.kinds``). The spec and status of a BatchJob show its progress.
The functions here read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import Any

from fluxqueue.fluxjob.facts import WorkloadFacts
from fluxqueue.fluxjob.indexes import Range, count_below, read_indexes
from fluxqueue.fluxjob.pod_facts import PodFact, WorkloadProgress
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.fluxjob.times import epoch_s
from fluxqueue.workload import labels, pinning
from fluxqueue.workload.annotations import said_on
from fluxqueue.workload.deletion import as_of_deletion
from fluxqueue.workload.kinds.admitted import AdmittedJob, number
from fluxqueue.workload.kinds.kind import WorkloadKind
from fluxqueue.workload.objects import Object

BACKOFF_LIMIT = 6
"""Kubernetes' default of ``spec.backoffLimit``."""
_ENDING = frozenset({"Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"})


class BatchJobKind(AdmittedJob, WorkloadKind):
    """Answer the questions of ``WorkloadKind`` for BatchJobs."""

    can_be_suspended = True
    is_known_by_gate_alone = False

    def looks_like(self, workload: Object) -> bool:
        return "template" in (workload.get("spec") or {})

    def pod_labels(self, workload: Object, pod: Object) -> Mapping[str, str]:
        """Return also the labels that the API server writes into the template of a new BatchJob."""
        meta = workload["metadata"]
        found = dict(super().pod_labels(workload, pod))
        for key, value in (("job-name", meta.get("name")), ("controller-uid", meta.get("uid"))):
            if value:
                found |= {key: str(value), f"batch.kubernetes.io/{key}": str(value)}
        return found

    def deletes_at(self, workload: Object) -> int | None:
        # Only the Job's own limit ends all its pods. ``deadline_s`` has that of gated pods, too.
        limit_s = WorkloadKind.deadline_s(self, workload)
        started_s = epoch_s((workload.get("status") or {}).get("startTime"))
        return None if limit_s is None or started_s is None else started_s + limit_s

    def is_taken_in(self, workload: Object) -> bool:
        return self.is_held(workload) or pinning.is_released(workload)

    def is_idle(self, workload: Object) -> bool:
        """Tell whether it is suspended and has no pods.

        The Job controller sets the condition ``Suspended`` together with the count of its pods.
        """
        status = workload.get("status") or {}
        if not self.is_suspended(workload) or status.get("active") or status.get("terminating"):
            return False
        found = (c for c in status.get("conditions") or () if c.get("type") == "Suspended")
        return all(condition.get("status") == "True" for condition in found)

    def is_paused(self, workload: Object) -> bool:
        # Without completions to reach it is complete at once, whatever its parallelism is.
        spec = workload["spec"]
        return number(spec, "parallelism", 1) == 0 and spec.get("completions") != 0

    def facts(self, workload: Object, common: WorkloadFacts) -> WorkloadFacts:
        comes_gated = self._comes_gated(workload)
        is_placeable = not comes_gated and pinning.is_placeable(workload)
        class_name = self.pod_spec(workload).get("priorityClassName") or ""
        return replace(
            common,
            replaces_pods=True,
            spare_failures=self._spare_failures(workload),
            waits_gated=said_on(workload, labels.WAIT) == labels.GATED,
            is_sweep=self.is_sweep(workload),
            is_pinnable=not comes_gated and pinning.is_pinnable(workload),
            is_placeable=is_placeable,
            priority_class=class_name if is_placeable else "",
        )

    def _spare_failures(self, workload: Object) -> int:
        """Return half of its failures, so that the other half is left for its pods.

        The Job controller counts a pod as failed that another client deletes. With
        ``podReplacementPolicy: Failed`` it waits for the end of a pod that never starts.
        """
        spec = workload["spec"]
        if spec.get("podReplacementPolicy") == "Failed":
            return 0
        limits = (spec.get("backoffLimit"), spec.get("backoffLimitPerIndex"))
        given = [int(limit) for limit in limits if limit is not None]
        return min(given, default=BACKOFF_LIMIT) // 2

    def pinned_node(self, workload: Object) -> str | None:
        return pinning.pinned_node(workload)

    def is_placed(self, workload: Object) -> bool:
        return pinning.sealed_in(workload) is not None

    def as_written(self, workload: Object) -> Object:
        return pinning.without_pin(workload)

    def progress(self, workload: Object, pods: Sequence[PodFact] = ()) -> WorkloadProgress:
        """Return its progress. Only ``Complete`` and ``Failed`` end it.

        ``SuccessCriteriaMet`` and ``FailureTarget`` come earlier, while its pods may still be
        terminating. No more pods start then. Suspension does not lower ``wanted``, because a
        BatchJob is suspended before its release. The rows show what suspended it.
        """
        succeeded = [pod.index for pod in pods if pod.phase == "Succeeded"]
        conditions = _conditions(workload)
        return WorkloadProgress(
            wanted=0 if conditions & _ENDING else wanted(workload, succeeded),
            result=_result(conditions),
            is_deleting=bool(workload["metadata"].get("deletionTimestamp")),
        )

    def last_result(self, workload: Object, pods: Sequence[PodFact] = ()) -> FluxJobState | None:
        """Return the result that the Job controller reported, or would have reported.

        A BatchJob may be deleted between the end of its last pod and ``Complete``. It may also be
        deleted between that end and ``SuccessCriteriaMet`` or ``FailureTarget``, which already
        decide the result. What its controller reports after the deletion does not count: it counts
        the pods that the deletion kills.
        """
        workload = as_of_deletion(workload)
        conditions = _conditions(workload)
        said = _result(conditions)
        if said is not None:
            return said
        if "SuccessCriteriaMet" in conditions:
            return FluxJobState.COMPLETED
        if "FailureTarget" in conditions or _has_failed(workload, pods):
            return FluxJobState.FAILED
        return FluxJobState.COMPLETED if _has_succeeded(workload, pods) else None

    def counted_pods(self, workload: Object) -> int:
        status = workload.get("status") or {}
        return number(status, "active", 0) + sum(
            _counted(status, name) for name in ("succeeded", "failed")
        )

    def has_indexes(self, workload: Object) -> bool:
        return is_indexed(workload)

    def ended_indexes(self, workload: Object, pods: Sequence[PodFact] = ()) -> list[Range]:
        succeeded = (pod.index for pod in pods if pod.phase == "Succeeded")
        return ended_indexes(workload, (index for index in succeeded if index is not None))

    def news(self, workload: Object) -> tuple[Any, ...]:
        meta, status = workload["metadata"], workload.get("status") or {}
        uncounted = (status.get("uncountedTerminatedPods") or {}).get("succeeded") or ()
        is_work_queue = workload["spec"].get("completions") is None
        return (
            meta.get("generation"),
            meta.get("deletionTimestamp"),
            meta.get("annotations"),
            meta.get("labels"),
            _conditions(workload) - {"Suspended"},
            self.is_idle(workload),
            (status.get("succeeded") or 0) + len(uncounted),
            status.get("completedIndexes"),
            status.get("failedIndexes"),
            status.get("active") if is_work_queue else None,
        )


BATCH_JOB = BatchJobKind()


def _result(conditions: set[str]) -> FluxJobState | None:
    if "Complete" in conditions:
        return FluxJobState.COMPLETED
    return FluxJobState.FAILED if "Failed" in conditions else None


def _has_succeeded(job: Mapping[str, Any], pods: Sequence[PodFact]) -> bool:
    """Tell whether enough pods have succeeded to complete it."""
    spec, status = job["spec"], job.get("status") or {}
    succeeded = [pod for pod in pods if pod.phase == "Succeeded" and not pod.is_killed]
    completions = spec.get("completions")
    if is_indexed(job) and completions:
        indexes = [pod.index for pod in succeeded if pod.index is not None]
        done = [
            *read_indexes(status.get("completedIndexes") or ""),
            *((index, index + 1) for index in indexes),
        ]
        return count_below(done, int(completions)) == int(completions)
    counted = max(_counted(status, "succeeded"), len(succeeded))
    if completions is None:
        # A work queue: it is complete when one pod has succeeded and none is left.
        return counted > 0 and all(pod.is_terminal for pod in pods)
    return 0 < int(completions) <= counted


def _has_failed(job: Mapping[str, Any], pods: Sequence[PodFact]) -> bool:
    """Tell whether more pods have failed than allowed, if only their number decides."""
    spec = job["spec"]
    if "podFailurePolicy" in spec or spec.get("backoffLimitPerIndex") is not None:
        return False
    failed = [pod for pod in pods if pod.phase == "Failed" and not pod.is_killed]
    counted = max(_counted(job.get("status") or {}, "failed"), len(failed))
    return counted > number(spec, "backoffLimit", BACKOFF_LIMIT)


def _counted(status: Mapping[str, Any], name: str) -> int:
    uncounted = (status.get("uncountedTerminatedPods") or {}).get(name) or ()
    return number(status, name, 0) + len(uncounted)


def _conditions(job: Mapping[str, Any]) -> set[str]:
    """Return the types of the conditions that are true."""
    found = (job.get("status") or {}).get("conditions") or ()
    return {one.get("type", "") for one in found if one.get("status") == "True"}


def is_indexed(job: Mapping[str, Any]) -> bool:
    """Tell whether each pod has a completion index."""
    return bool(job["spec"].get("completionMode") == "Indexed")


def ended_indexes(job: Mapping[str, Any], succeeded: Iterable[int] = ()) -> list[Range]:
    """Return the completion indexes for which no more pods will be made, if it has indexes.

    Parameters
    ----------
    succeeded : indexes of pods seen to have succeeded. Status shows them a little later.
    """
    if not is_indexed(job):
        return []
    status = job.get("status") or {}
    # If an Indexed BatchJob was made smaller, the indexes beyond its completions have ended.
    return [
        *read_indexes(status.get("completedIndexes") or ""),
        *read_indexes(status.get("failedIndexes") or ""),
        *((index, index + 1) for index in succeeded),
        (number(job["spec"], "completions", 0), None),
    ]


def wanted(job: Mapping[str, Any], succeeded: Iterable[int | None] = ()) -> int:
    """Return how many pods it may still run at once, if it has not ended.

    Parameters
    ----------
    succeeded : completion index of each pod seen to have succeeded, one item for each pod. Status
        counts them a little later.
    """
    spec, status = job["spec"], job.get("status") or {}
    parallelism = number(spec, "parallelism", 1)
    seen = list(succeeded)
    completions = spec.get("completions")
    if is_indexed(job) and completions is not None:
        ended = ended_indexes(job, (index for index in seen if index is not None))
        return min(parallelism, int(completions) - count_below(ended, int(completions)))
    # The controller moves a pod from the uncounted list to the count in one write.
    counted = _counted(status, "succeeded")
    if completions is None:
        # A work queue: after the first success no more pods start.
        return min(parallelism, number(status, "active", 0)) if counted else parallelism
    return max(0, min(parallelism, int(completions) - max(counted, len(seen))))
