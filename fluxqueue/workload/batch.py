"""BatchJob objects (batch/v1 Job) as data: what they ask for, and how far they are.

Called by the controller when it wraps a BatchJob and by the worker when it follows one.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.fluxjob.follow import WorkloadFact
from fluxqueue.fluxjob.request import ResourceRequest
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.workload.annotations import read_wishes
from fluxqueue.workload.resources import DEFAULT_CPU_M
from fluxqueue.workload.shape import DEFAULT_PRIORITY, build_request, choose_priority

TEMPLATE = "spec.template.spec"


def size(job: Mapping[str, Any]) -> int:
    """Count the pods of ``job`` that run at once: parallelism, but no more than completions."""
    spec = job["spec"]
    parallelism = _number(spec, "parallelism", 1)
    completions = spec.get("completions")
    return parallelism if completions is None else min(parallelism, int(completions))


def to_request(job: Mapping[str, Any], *, default_cpu_m: int = DEFAULT_CPU_M) -> ResourceRequest:
    """Describe what ``job`` needs while it runs: one slot for each of its ``size`` pods.

    A BatchJob of size 0 asks for nothing and has no slots.

    Raises
    ------
    InvalidInput
        An annotation, a quantity or an affinity term cannot be read.
    """
    spec = job["spec"]
    return build_request(
        pod_spec(job),
        read_wishes(job),
        count=size(job),
        deadline_s=spec.get("activeDeadlineSeconds"),
        where=TEMPLATE,
        default_cpu_m=default_cpu_m,
    )


def priority(
    job: Mapping[str, Any],
    *,
    class_values: Mapping[str, int] | None = None,
    default: int = DEFAULT_PRIORITY,
) -> int:
    """Choose the priority of ``job``; see ``shape.choose_priority``.

    Raises
    ------
    InvalidInput
        An annotation cannot be read.
    """
    return choose_priority(pod_spec(job), read_wishes(job), class_values or {}, default)


def pod_spec(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the spec of the pod template."""
    spec: Mapping[str, Any] = job["spec"]["template"].get("spec") or {}
    return spec


def is_suspended(job: Mapping[str, Any]) -> bool:
    """Whether the BatchJob controller may not start pods."""
    return bool(job["spec"].get("suspend", False))


def workload_fact(job: Mapping[str, Any] | None) -> WorkloadFact:
    """Tell how far ``job`` is; None is a BatchJob that no longer exists.

    Only ``Complete`` and ``Failed`` end it. ``SuccessCriteriaMet`` and ``FailureTarget`` come
    earlier, while its pods may still be terminating. Being suspended does not lower ``wanted``:
    a BatchJob is suspended before its release; whose suspension it is, the rows know.
    """
    if job is None:
        return WorkloadFact(wanted=0, is_deleting=True)
    result = _result(job)
    return WorkloadFact(
        wanted=0 if result else _wanted(job),
        result=result,
        is_deleting=bool(job["metadata"].get("deletionTimestamp")),
    )


def _result(job: Mapping[str, Any]) -> FluxJobState | None:
    for condition in (job.get("status") or {}).get("conditions") or ():
        if condition.get("status") == "True":
            if condition.get("type") == "Complete":
                return FluxJobState.COMPLETED
            if condition.get("type") == "Failed":
                return FluxJobState.FAILED
    return None


def _wanted(job: Mapping[str, Any]) -> int:
    spec, status = job["spec"], job.get("status") or {}
    parallelism = _number(spec, "parallelism", 1)
    # The controller moves a pod from the uncounted list to the count in one write.
    uncounted = (status.get("uncountedTerminatedPods") or {}).get("succeeded") or ()
    succeeded = _number(status, "succeeded", 0) + len(uncounted)
    completions = spec.get("completions")
    if completions is None:
        # A work queue: after the first success no pod is started any more.
        return min(parallelism, _number(status, "active", 0)) if succeeded else parallelism
    left = int(completions) - succeeded - count_indexes(status.get("failedIndexes") or "")
    return max(0, min(parallelism, left))


def count_indexes(text: str) -> int:
    """Count the indexes in a status field such as ``1,3-5`` (``status.failedIndexes``)."""
    count = 0
    for part in filter(None, text.split(",")):
        low, _, high = part.partition("-")
        count += int(high or low) - int(low) + 1
    return count


def _number(fields: Mapping[str, Any], name: str, default: int) -> int:
    value = fields.get(name)
    return default if value is None else int(value)
