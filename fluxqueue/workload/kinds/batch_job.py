"""The entry of BatchJobs (batch/v1 Job): suspended while they wait, released whole.

Called through the table (``workload.kinds``). The spec and status of a BatchJob show its progress.
The functions here read them.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.indexes import Range, count_below, read_indexes
from fluxqueue.fluxjob.pod_facts import PodFact, WorkloadFact
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.fluxjob.times import epoch_s
from fluxqueue.workload import labels, pinning
from fluxqueue.workload.annotations import (
    Wishes,
    check_fits,
    check_sweep,
    said_on,
)
from fluxqueue.workload.deletion import as_of_deletion
from fluxqueue.workload.gates import gated_members, suspended_job
from fluxqueue.workload.groups import Membership, read_mark, read_membership
from fluxqueue.workload.job_scheduling import asks_for_group, check_scheduling, with_scheduling
from fluxqueue.workload.kinds.kind import WorkloadKind
from fluxqueue.workload.objects import Object
from fluxqueue.workload.pods import controller_owner, template_spec

if TYPE_CHECKING:
    from fluxqueue.fluxjob.facts import WorkloadFacts

OWN_JOB_CONTROLLER = "kubernetes.io/job-controller"
BACKOFF_LIMIT = 6
"""Kubernetes' default of ``spec.backoffLimit``."""
_ENDING = frozenset({"Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"})


class BatchJobKind(WorkloadKind):
    """Answer the questions of ``WorkloadKind`` for BatchJobs."""

    name, group, version, plural = "Job", "batch", "v1", "jobs"
    pod_spec_path = "spec.template.spec"
    can_be_suspended = True
    is_known_by_gate_alone = False

    def looks_like(self, workload: Object) -> bool:
        return "template" in (workload.get("spec") or {})

    def claim(self, pod: Object) -> str | None:
        owner = controller_owner(pod)
        # Other API groups have kinds of that name, too.
        is_its = owner is not None and (owner["apiVersion"], owner["kind"]) == (
            self.api_version,
            self.name,
        )
        return str(owner["uid"]) if owner is not None and is_its else None

    def pod_spec(self, workload: Object) -> Object:
        return template_spec(workload.get("spec") or {})

    def pod_labels(self, workload: Object, pod: Object) -> Mapping[str, str]:
        """Return also the labels that the API server writes into the template of a new BatchJob."""
        meta = workload["metadata"]
        found = dict(super().pod_labels(workload, pod))
        for key, value in (("job-name", meta.get("name")), ("controller-uid", meta.get("uid"))):
            if value:
                found |= {key: str(value), f"batch.kubernetes.io/{key}": str(value)}
        return found

    def size(self, workload: Object) -> int:
        """Return how many pods must start together. Of a sweep one must."""
        return min(1, size(workload)) if self.is_sweep(workload) else size(workload)

    def wishes(self, workload: Object) -> Wishes:
        return with_scheduling(workload, super().wishes(workload))

    def is_sweep(self, workload: Object) -> bool:
        return said_on(workload, labels.GANG) == "false"

    def deadline_s(self, workload: Object) -> int | None:
        # The time of a pod counts from its start. That of a Job counts while its pods are gated.
        limits = [super().deadline_s(workload)]
        if self._comes_gated(workload):
            own = self.pod_spec(workload).get("activeDeadlineSeconds")
            limits.append(None if own is None else int(own))
        return min((one for one in limits if one is not None), default=None)

    def deletes_at(self, workload: Object) -> int | None:
        limit_s = super().deadline_s(workload)
        started_s = epoch_s((workload.get("status") or {}).get("startTime"))
        return None if limit_s is None or started_s is None else started_s + limit_s

    def why_not(self, workload: Object) -> str | None:
        spec = workload["spec"]
        managed_by = spec.get("managedBy")
        if managed_by and managed_by != OWN_JOB_CONTROLLER:
            return f"spec.managedBy is {managed_by}"
        template = (spec.get("template") or {}).get("metadata") or {}
        if (template.get("labels") or {}).get(labels.MANAGED) == "false":
            return f'label {labels.MANAGED} of the pod template is "false"'
        if self.pod_spec(workload).get("nodeName"):
            return "the pod template names its node"
        return None

    def held(self, workload: Object, wishes: Wishes, user: str) -> Object:
        group = _wider_group(workload)
        if wishes.is_sweep and read_membership(workload) is None:
            check_sweep(workload, wishes)
            check_scheduling(workload, wishes, are_independent=True)
            return suspended_job(workload, wishes, user)
        check_fits(wishes, can_restart=group is None)
        if group is None:
            check_scheduling(workload, wishes, are_independent=False)
            keeps_group = asks_for_group(workload)
            return suspended_job(workload, wishes, user, keeps_group=keeps_group)
        return gated_members(workload, wishes, user, group)

    def is_held(self, workload: Object) -> bool:
        """Tell whether it waits for fluxqueue. False if its pods are held for a group."""
        template = (workload.get("spec") or {}).get("template") or {}
        return read_mark(template) is None and super().is_held(workload)

    def is_taken_in(self, workload: Object) -> bool:
        return self.is_held(workload) or pinning.is_released(workload)

    def is_suspended(self, workload: Object) -> bool:
        return bool(workload["spec"].get("suspend", False))

    def is_idle(self, workload: Object) -> bool:
        """Tell whether it is suspended and has no pods.

        The Job controller sets the condition ``Suspended`` together with the count of its pods.
        """
        status = workload.get("status") or {}
        if not self.is_suspended(workload) or status.get("active") or status.get("terminating"):
            return False
        found = (c for c in status.get("conditions") or () if c.get("type") == "Suspended")
        return all(condition.get("status") == "True" for condition in found)

    def is_author_suspended(self, workload: Object) -> bool:
        return _whose_suspension(workload) == "true"

    def is_suspended_again(self, workload: Object) -> bool:
        return _whose_suspension(workload) == "false"

    def is_paused(self, workload: Object) -> bool:
        # Without completions to reach it is complete at once, whatever its parallelism is.
        spec = workload["spec"]
        return _number(spec, "parallelism", 1) == 0 and spec.get("completions") != 0

    def facts(self, workload: Object, common: WorkloadFacts) -> WorkloadFacts:
        comes_gated = self._comes_gated(workload)
        return replace(
            common,
            replaces_pods=True,
            spare_failures=self._spare_failures(workload),
            waits_gated=said_on(workload, labels.WAIT) == labels.GATED,
            is_sweep=self.is_sweep(workload),
            is_pinnable=not comes_gated and pinning.is_pinnable(workload),
            is_placeable=not comes_gated and pinning.is_placeable(workload),
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

    def _comes_gated(self, workload: Object) -> bool:
        """Tell whether each of its pods gets its node by itself."""
        return self.is_sweep(workload) or said_on(workload, labels.WAIT) == labels.GATED

    def is_placed(self, workload: Object) -> bool:
        return pinning.sealed_in(workload) is not None

    def as_written(self, workload: Object) -> Object:
        return pinning.without_pin(workload)

    def fact(self, workload: Object, pods: Sequence[PodFact] = ()) -> WorkloadFact:
        """Return its progress. Only ``Complete`` and ``Failed`` end it.

        ``SuccessCriteriaMet`` and ``FailureTarget`` come earlier, while its pods may still be
        terminating. No more pods start then. Suspension does not lower ``wanted``, because a
        BatchJob is suspended before its release. The rows show what suspended it.
        """
        succeeded = [pod.index for pod in pods if pod.phase == "Succeeded"]
        conditions = _conditions(workload)
        return WorkloadFact(
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
        return _number(status, "active", 0) + sum(
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


def _wider_group(job: Mapping[str, Any]) -> Membership | None:
    """Return the group that its pods start with, or None if that is the BatchJob itself.

    A BatchJob always starts as a whole, so a group of its size needs nothing more. A larger group
    waits for pods of other workloads. A group that can grow starts with fewer pods. A smaller group
    is not possible. For the predecessors of fluxqueue the size was a minimum, so all pods count in
    their spellings.

    Raises
    ------
    InvalidInput
        The group is smaller than the BatchJob, or cannot be read.
    """
    group, own = read_membership(job), size(job)
    if group is not None and group.of:
        return group
    if group is None or (group.minimum is None and not group.is_former):
        return None
    if group.minimum is None or group.minimum > own:
        return group
    if group.maximum is None or group.minimum < own <= group.maximum:
        return group
    if group.maximum is not None and group.maximum < own and not group.is_former:
        raise InvalidInput(
            f"is {group.size}, and the Job runs {own} pods at once",
            where=group.where,
            value=group.size,
            hint=f"give the group {own} pods or more, or leave its size out",
        )
    return None


def _whose_suspension(job: Mapping[str, Any]) -> str | None:
    if not (job.get("spec") or {}).get("suspend"):
        return None
    return ((job.get("metadata") or {}).get("annotations") or {}).get(labels.AUTHOR_SUSPENDED)


def size(job: Mapping[str, Any]) -> int:
    """Return how many pods of ``job`` run at once: parallelism, but at most completions."""
    spec = job["spec"]
    parallelism = _number(spec, "parallelism", 1)
    completions = spec.get("completions")
    return parallelism if completions is None else min(parallelism, int(completions))


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
    return counted > _number(spec, "backoffLimit", BACKOFF_LIMIT)


def _counted(status: Mapping[str, Any], name: str) -> int:
    uncounted = (status.get("uncountedTerminatedPods") or {}).get(name) or ()
    return _number(status, name, 0) + len(uncounted)


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
        (_number(job["spec"], "completions", 0), None),
    ]


def wanted(job: Mapping[str, Any], succeeded: Iterable[int | None] = ()) -> int:
    """Return how many pods it may still run at once, if it has not ended.

    Parameters
    ----------
    succeeded : completion index of each pod seen to have succeeded, one item for each pod. Status
        counts them a little later.
    """
    spec, status = job["spec"], job.get("status") or {}
    parallelism = _number(spec, "parallelism", 1)
    seen = list(succeeded)
    completions = spec.get("completions")
    if is_indexed(job) and completions is not None:
        ended = ended_indexes(job, (index for index in seen if index is not None))
        return min(parallelism, int(completions) - count_below(ended, int(completions)))
    # The controller moves a pod from the uncounted list to the count in one write.
    counted = _counted(status, "succeeded")
    if completions is None:
        # A work queue: after the first success no more pods start.
        return min(parallelism, _number(status, "active", 0)) if counted else parallelism
    return max(0, min(parallelism, int(completions) - max(counted, len(seen))))


def _number(fields: Mapping[str, Any], name: str, default: int) -> int:
    value = fields.get(name)
    return default if value is None else int(value)
