"""From objects to observations: pure conversions between the informers and the rows.

Called by ``observer``; no client, no database.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from fluxqueue.db.life.observations import AUTHOR, WorkloadSeen
from fluxqueue.fluxjob.follow import PodFact
from fluxqueue.fluxjob.indexes import NO_INDEXES, as_multirange
from fluxqueue.jobspec import render
from fluxqueue.workload import batch, pods
from fluxqueue.workload.annotations import Wishes, read_wishes
from fluxqueue.workload.constraints import ignored
from fluxqueue.workload.fluxjob_object import begin_time, fluxjob_name, submitter
from fluxqueue.workload.managed import JOB, is_author_suspended, kind_of
from fluxqueue.workload.site import Site

_POD_METADATA = (
    "name",
    "namespace",
    "uid",
    "resourceVersion",
    "creationTimestamp",
    "deletionTimestamp",
    "ownerReferences",
    "annotations",
    "labels",
)
_POD_STATUS = (
    "phase",
    "reason",
    "conditions",
    "containerStatuses",
    "initContainerStatuses",
    "resources",
)


def trim_pod(pod: dict[str, Any]) -> dict[str, Any]:
    """Keep of a pod what is ever looked at: memory for large clusters (informer transform)."""
    meta, status = pod["metadata"], pod.get("status") or {}
    return {
        "kind": "Pod",
        "metadata": {key: meta[key] for key in _POD_METADATA if key in meta},
        "spec": pod.get("spec") or {},
        "status": {key: status[key] for key in _POD_STATUS if key in status},
    }


def trim_job(job: dict[str, Any]) -> dict[str, Any]:
    """Name the kind, which lists leave out, and drop what the API server keeps for itself."""
    meta = {key: value for key, value in job["metadata"].items() if key != "managedFields"}
    return {**job, "kind": "Job", "metadata": meta}


def workload_of(pod: Mapping[str, Any]) -> str:
    """UID of the workload a pod belongs to: its controlling BatchJob, else the pod itself."""
    owner = pods.controller_owner(pod)
    return str(
        owner["uid"] if owner is not None and owner["kind"] == JOB else pod["metadata"]["uid"]
    )


def see_workload(
    workload: Mapping[str, Any],
    its_pods: Sequence[Mapping[str, Any]],
    *,
    flux_uid: str | None,
    class_values: Mapping[str, int],
    site: Site,
) -> WorkloadSeen:
    """Describe a workload and its pods as rows store them.

    Raises
    ------
    InvalidInput
        The object cannot be turned into a request (admission was passed by).
    """
    words = batch if kind_of(workload) == JOB else pods
    meta = workload["metadata"]
    wishes = read_wishes(workload)
    request = words.to_request(workload, site=site)
    fact = words.workload_fact(workload)
    spec = workload["spec"] if words is pods else batch.pod_spec(workload)
    facts = _pod_facts(workload, its_pods)
    return WorkloadSeen(
        uid=meta["uid"],
        namespace=meta["namespace"],
        name=fluxjob_name(workload),
        workload_kind=kind_of(workload),
        workload_name=meta["name"],
        flux_uid=flux_uid,
        user_name=submitter(workload),
        queue=wishes.queue or "default",
        priority=words.priority(workload, class_values=class_values),
        held_by=_held_by(workload, wishes),
        request=render(request),
        size=request.size,
        duration_s=int(request.duration_s) or None,
        begin_at_s=begin_time(workload, wishes),
        depends_on=tuple(edge.to_json() for edge in wishes.depends_on),
        ignored=ignored(spec),
        wanted=_wanted(workload, facts) if fact.wanted and words is batch else fact.wanted,
        result=str(fact.result) if fact.result else None,
        is_deleting=fact.is_deleting,
        is_gone=False,
        is_suspended=words is batch and batch.is_suspended(workload),
        pods=facts,
        has_hold=wishes.is_held,
        generation=int(meta.get("generation") or 0),
        ended_indexes=_ended_indexes(workload, facts),
    )


def see_facts(
    old: WorkloadSeen, workload: Mapping[str, Any], its_pods: Sequence[Mapping[str, Any]]
) -> WorkloadSeen:
    """Describe how far a workload is whose wishes can no longer be read: those seen last count.

    An annotation that was spoilt by a later edit must not keep what runs from being followed.
    """
    words = batch if kind_of(workload) == JOB else pods
    fact = words.workload_fact(workload)
    facts = _pod_facts(workload, its_pods)
    return replace(
        old,
        wanted=_wanted(workload, facts) if fact.wanted and words is batch else fact.wanted,
        result=str(fact.result) if fact.result else None,
        is_deleting=fact.is_deleting,
        is_suspended=words is batch and batch.is_suspended(workload),
        pods=facts,
        generation=int(workload["metadata"].get("generation") or 0),
        ended_indexes=_ended_indexes(workload, facts),
    )


def _held_by(workload: Mapping[str, Any], wishes: Wishes) -> str | None:
    """How its author holds it, if at all."""
    is_suspended = kind_of(workload) == JOB and is_author_suspended(workload)
    return AUTHOR if is_suspended or wishes.is_held else None


def _pod_facts(
    workload: Mapping[str, Any], its_pods: Sequence[Mapping[str, Any]]
) -> tuple[PodFact, ...]:
    """Pods as rows store them; only an Indexed BatchJob has indexes, whatever a template says."""
    facts = sorted((pods.pod_fact(pod) for pod in its_pods), key=lambda one: one.uid)
    if _is_indexed(workload):
        return tuple(facts)
    return tuple(replace(fact, index=None) for fact in facts)


def _is_indexed(workload: Mapping[str, Any]) -> bool:
    return kind_of(workload) == JOB and batch.is_indexed(workload)


def _wanted(job: Mapping[str, Any], facts: Sequence[PodFact]) -> int:
    """Bound by the pods seen to have succeeded, too: status counts them a little later."""
    return batch.wanted(job, [fact.index for fact in facts if fact.phase == "Succeeded"])


def _ended_indexes(workload: Mapping[str, Any], facts: Sequence[PodFact]) -> str:
    if not _is_indexed(workload):
        return NO_INDEXES
    succeeded = (fact.index for fact in facts if fact.phase == "Succeeded")
    return as_multirange(batch.ended_indexes(workload, (i for i in succeeded if i is not None)))


def is_same(old: WorkloadSeen | None, new: WorkloadSeen) -> bool:
    """Whether writing ``new`` after ``old`` would tell the rows nothing."""
    return (
        old is not None
        and replace(old, flux_uid=new.flux_uid) == new
        and (old.flux_uid == new.flux_uid)
    )
