"""BatchJob objects (batch/v1 Job) as data: what they ask for, and how far they are.

Called by the controller when it wraps a BatchJob and by the worker when it follows one.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from fluxqueue.fluxjob.follow import WorkloadFact
from fluxqueue.fluxjob.indexes import Range, count_below, read_indexes
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.jobspec import Jobspec
from fluxqueue.workload.annotations import read_wishes
from fluxqueue.workload.shape import DEFAULT_PRIORITY, build_request, choose_priority
from fluxqueue.workload.site import DEFAULT_SITE, Site

TEMPLATE = "spec.template.spec"
_ENDING = frozenset({"Complete", "Failed", "SuccessCriteriaMet", "FailureTarget"})


def size(job: Mapping[str, Any]) -> int:
    """Count the pods of ``job`` that run at once: parallelism, but no more than completions."""
    spec = job["spec"]
    parallelism = _number(spec, "parallelism", 1)
    completions = spec.get("completions")
    return parallelism if completions is None else min(parallelism, int(completions))


def to_request(job: Mapping[str, Any], *, site: Site = DEFAULT_SITE) -> Jobspec:
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
        site=site,
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
    earlier, while its pods may still be terminating; no pod is started any more then. Being
    suspended does not lower ``wanted``: a BatchJob is suspended before its release; whose it is,
    the rows know.
    """
    if job is None:
        return WorkloadFact(wanted=0, is_deleting=True)
    result = _result(job)
    return WorkloadFact(
        wanted=0 if _conditions(job) & _ENDING else wanted(job),
        result=result,
        is_deleting=bool(job["metadata"].get("deletionTimestamp")),
    )


def _result(job: Mapping[str, Any]) -> FluxJobState | None:
    conditions = _conditions(job)
    if "Complete" in conditions:
        return FluxJobState.COMPLETED
    return FluxJobState.FAILED if "Failed" in conditions else None


def _conditions(job: Mapping[str, Any]) -> set[str]:
    """Types of the conditions that hold."""
    found = (job.get("status") or {}).get("conditions") or ()
    return {one.get("type", "") for one in found if one.get("status") == "True"}


def is_indexed(job: Mapping[str, Any]) -> bool:
    """Whether each pod has a completion index."""
    return bool(job["spec"].get("completionMode") == "Indexed")


def ended_indexes(job: Mapping[str, Any], succeeded: Iterable[int] = ()) -> list[Range]:
    """Completion indexes for which no pod will be made any more; none where there are no indexes.

    Parameters
    ----------
    succeeded : indexes of pods seen to have succeeded; status tells of them a little later.
    """
    if not is_indexed(job):
        return []
    status = job.get("status") or {}
    # Of an Indexed BatchJob that was made smaller, the indexes beyond its completions are over.
    return [
        *read_indexes(status.get("completedIndexes") or ""),
        *read_indexes(status.get("failedIndexes") or ""),
        *((index, index + 1) for index in succeeded),
        (_number(job["spec"], "completions", 0), None),
    ]


def wanted(job: Mapping[str, Any], succeeded: Iterable[int | None] = ()) -> int:
    """Tell how many pods it may still run at once, if it has not ended.

    Parameters
    ----------
    succeeded : one item for each pod seen to have succeeded, its completion index; status counts
        them a little later.
    """
    spec, status = job["spec"], job.get("status") or {}
    parallelism = _number(spec, "parallelism", 1)
    seen = list(succeeded)
    completions = spec.get("completions")
    if is_indexed(job) and completions is not None:
        ended = ended_indexes(job, (index for index in seen if index is not None))
        return min(parallelism, int(completions) - count_below(ended, int(completions)))
    # The controller moves a pod from the uncounted list to the count in one write.
    uncounted = (status.get("uncountedTerminatedPods") or {}).get("succeeded") or ()
    counted = _number(status, "succeeded", 0) + len(uncounted)
    if completions is None:
        # A work queue: after the first success no pod is started any more.
        return min(parallelism, _number(status, "active", 0)) if counted else parallelism
    return max(0, min(parallelism, int(completions) - max(counted, len(seen))))


def _number(fields: Mapping[str, Any], name: str, default: int) -> int:
    value = fields.get(name)
    return default if value is None else int(value)
