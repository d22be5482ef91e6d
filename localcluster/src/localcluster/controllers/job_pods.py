"""The pods of a Job: their names, what they count as, which are removed first. Pure.

It follows ``pkg/controller/job/job_utils.go``, ``indexed_job_utils.go`` and
``pkg/controller/controller_utils.go`` (ActivePods ordering) of Kubernetes.
"""

from __future__ import annotations

import copy
from collections.abc import Iterable
from datetime import UTC, datetime

from localcluster.loops.objects import (
    condition_of,
    is_deleting,
    is_ready,
    later,
    node_name,
    owner_reference,
    phase_of,
    read_time,
)
from localcluster.obj import Obj

TRACKING_FINALIZER = "batch.kubernetes.io/job-tracking"
INDEX_KEY = "batch.kubernetes.io/job-completion-index"
FAILURES_KEY = "batch.kubernetes.io/job-index-failure-count"
IGNORED_FAILURES_KEY = "batch.kubernetes.io/job-index-ignored-failure-count"
INDEX_ENV = "JOB_COMPLETION_INDEX"

_PHASE_RANK = {"Pending": 0, "Unknown": 1, "Running": 2}
_NEVER = datetime.min.replace(tzinfo=UTC)


def is_indexed(job: Obj) -> bool:
    """Return whether completionMode is Indexed."""
    return bool(job["spec"].get("completionMode") == "Indexed")


def replaces_only_failed(job: Obj) -> bool:
    """Return whether podReplacementPolicy is Failed.

    Then a terminating pod is neither failed nor replaced yet.
    """
    return bool(job["spec"].get("podReplacementPolicy") == "Failed")


def is_tracked(pod: Obj) -> bool:
    """Return whether the pod has the finalizer, so that its count is not final yet."""
    return TRACKING_FINALIZER in (pod["metadata"].get("finalizers") or ())


def index_of(pod: Obj) -> int | None:
    """Return the completion index of a pod of an Indexed Job."""
    value = (pod["metadata"].get("annotations") or {}).get(INDEX_KEY, "")
    return int(value) if value.isdigit() else None


def valid_index(pod: Obj, job: Obj) -> int | None:
    """Return the completion index if it is below completions."""
    index = index_of(pod)
    return index if index is not None and index < job["spec"]["completions"] else None


def counts_as_failed(pod: Obj, job: Obj) -> bool:
    """Return whether the pod failed, or is being deleted without having succeeded.

    The second does not count if only failed pods are replaced.
    """
    phase = phase_of(pod)
    if phase == "Failed":
        return True
    if replaces_only_failed(job):
        return False
    return is_deleting(pod) and phase != "Succeeded"


def finished_at(pod: Obj) -> datetime:
    """Return when the pod ended: its containers, else its readiness, else its deletion."""
    status = pod.get("status") or {}
    ends: list[datetime] = []
    for container in status.get("containerStatuses") or ():
        end = read_time(((container.get("state") or {}).get("terminated") or {}).get("finishedAt"))
        if end is None:
            ends = []
            break
        ends.append(end)
    if ends:
        return max(ends)
    ready = condition_of(pod, "Ready")
    if ready is not None and ready.get("status") == "False" and ready.get("lastTransitionTime"):
        return read_time(ready["lastTransitionTime"]) or _NEVER
    metadata = pod["metadata"]
    deleted = read_time(metadata.get("deletionTimestamp"))
    if deleted is not None:
        return later(deleted, -(metadata.get("deletionGracePeriodSeconds") or 0))
    return read_time(metadata.get("creationTimestamp")) or _NEVER


def removal_rank(pod: Obj) -> tuple[object, ...]:
    """Return the sort key for removal.

    The order is unbound, pending, not ready, newest ready, most restarts, newest.
    """
    status = pod.get("status") or {}
    ready = condition_of(pod, "Ready")
    ready_since = _NEVER
    if ready is not None and ready.get("status") == "True":
        ready_since = read_time(ready.get("lastTransitionTime")) or _NEVER
    restarts = sum(c.get("restartCount") or 0 for c in status.get("containerStatuses") or ())
    created = read_time(pod["metadata"].get("creationTimestamp")) or _NEVER
    return (
        bool(node_name(pod)),
        _PHASE_RANK.get(phase_of(pod), 3),
        is_ready(pod),
        -ready_since.timestamp() if ready_since is not _NEVER else 0.0,
        -restarts,
        -created.timestamp() if created is not _NEVER else 0.0,
    )


def pods_to_remove(job: Obj, active: list[Obj], at_least: int) -> list[Obj]:
    """Return the active pods to remove.

    Doubled or surplus indexes are always removed. More pods are chosen by ``removal_rank``.
    """
    surplus: list[Obj] = []
    rest = active
    if is_indexed(job):
        surplus, rest = _surplus_indexes(active, job["spec"]["completions"])
    missing = at_least - len(surplus)
    if missing > 0:
        surplus = surplus + sorted(rest, key=removal_rank)[:missing]
    return surplus


def _surplus_indexes(pods: list[Obj], completions: int) -> tuple[list[Obj], list[Obj]]:
    surplus: list[Obj] = []
    kept: dict[int, Obj] = {}
    for pod in sorted(pods, key=removal_rank, reverse=True):
        index = index_of(pod)
        if index is None or index >= completions or index in kept:
            surplus.append(pod)
        else:
            kept[index] = pod
    return surplus, list(kept.values())


def parse_indexes(text: str | None, completions: int) -> set[int]:
    """Return ``0,2-4`` as a set, without indexes from completions on."""
    found: set[int] = set()
    for part in (text or "").split(","):
        first, _, last = part.partition("-")
        if not first:
            continue
        if int(first) >= completions:
            break
        found.update(range(int(first), min(int(last or first), completions - 1) + 1))
    return found


def format_indexes(indexes: Iterable[int]) -> str:
    """Return the compressed form ``0,2-4``. Two neighbours are ``0,1``."""
    parts: list[str] = []
    run: list[int] = []
    for index in [*sorted(indexes), None]:
        if run and (index is None or index != run[-1] + 1):
            if len(run) <= 2:
                parts.extend(str(member) for member in run)
            else:
                parts.append(f"{run[0]}-{run[-1]}")
            run = []
        if index is not None:
            run.append(index)
    return ",".join(parts)


def new_pod(job: Obj, index: int | None = None, annotations: dict[str, str] | None = None) -> Obj:
    """Return the pod to create for ``job``. Indexed Jobs need ``index``."""
    template = copy.deepcopy(job["spec"]["template"])
    metadata = template.get("metadata") or {}
    name = job["metadata"]["name"]
    pod: Obj = {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "generateName": f"{name}-",
            "namespace": job["metadata"]["namespace"],
            "labels": dict(metadata.get("labels") or {}),
            "annotations": dict(metadata.get("annotations") or {}) | (annotations or {}),
            "finalizers": [*(metadata.get("finalizers") or ()), TRACKING_FINALIZER],
            "ownerReferences": [owner_reference(job, "batch/v1", "Job")],
        },
        "spec": template["spec"],
    }
    if index is not None:
        _make_indexed(pod, name, index)
    if not pod["metadata"]["annotations"]:
        del pod["metadata"]["annotations"]
    return pod


def _make_indexed(pod: Obj, job_name: str, index: int) -> None:
    metadata, spec = pod["metadata"], pod["spec"]
    metadata["generateName"] = f"{_cut(f'{job_name}-{index}', 57)}-"
    metadata["labels"][INDEX_KEY] = str(index)
    metadata["annotations"][INDEX_KEY] = str(index)
    spec["hostname"] = f"{job_name}-{index}"[:63].rstrip("-.")
    source = {"fieldRef": {"apiVersion": "v1", "fieldPath": f"metadata.labels['{INDEX_KEY}']"}}
    for container in [*(spec.get("initContainers") or ()), *spec["containers"]]:
        env = container.setdefault("env", [])
        if not any(variable.get("name") == INDEX_ENV for variable in env):
            env.append({"name": INDEX_ENV, "valueFrom": source})


def _cut(name: str, length: int) -> str:
    """Cut a long name so that the index and the random suffix still fit."""
    if len(name) <= length:
        return name
    base, _, index = name.rpartition("-")
    return f"{base[: length - len(index) - 1]}-{index}"
