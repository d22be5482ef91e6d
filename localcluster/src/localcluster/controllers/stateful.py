"""What a StatefulSet does next: one pod after another, by ordinal. Pure.

It follows ``pkg/controller/statefulset/stateful_set_control.go``. Volume claims are not created
here, because the embedded cluster has no storage.
"""

from __future__ import annotations

import copy
from dataclasses import dataclass, field
from datetime import datetime

from localcluster.client.resources import STATEFULSETS
from localcluster.controllers.templates import (
    available_in_s,
    pod_from_template,
    safe_hash,
)
from localcluster.loops.objects import is_deleting, is_finished, is_ready, owner_reference, phase_of
from localcluster.obj import Obj

REVISION_LABEL = "controller-revision-hash"


@dataclass(slots=True)
class StatefulPlan:
    """The actions of one sync."""

    create: list[Obj] = field(default_factory=list)
    delete: list[Obj] = field(default_factory=list)
    look_again_s: float | None = None


def revision_name(stateful: Obj) -> str:
    """Return the name of the present template's ControllerRevision."""
    return f"{stateful['metadata']['name']}-{safe_hash(stateful['spec']['template'])}"


def revision_object(stateful: Obj, number: int) -> Obj:
    """Return the ControllerRevision of the present template."""
    template = {**copy.deepcopy(stateful["spec"]["template"]), "$patch": "replace"}
    return {
        "apiVersion": "apps/v1",
        "kind": "ControllerRevision",
        "metadata": {
            "name": revision_name(stateful),
            "namespace": stateful["metadata"]["namespace"],
            "labels": (template.get("metadata") or {}).get("labels", {})
            | {"controller.kubernetes.io/hash": safe_hash(stateful["spec"]["template"])},
            "ownerReferences": [owner_reference(stateful, "apps/v1", "StatefulSet")],
        },
        "data": {"spec": {"template": template}},
        "revision": number,
    }


def ordinal_of(stateful: Obj, pod: Obj) -> int | None:
    """Return the pod's number, or None."""
    prefix = f"{stateful['metadata']['name']}-"
    name: str = pod["metadata"]["name"]
    rest = name.removeprefix(prefix)
    return int(rest) if name.startswith(prefix) and rest.isdigit() else None


def pod_revision(pod: Obj) -> str:
    """Return the revision that a pod was created from."""
    labels: dict[str, str] = pod["metadata"].get("labels") or {}
    return labels.get(REVISION_LABEL, "")


def make_pod(stateful: Obj, ordinal: int, revision: str, template: Obj | None = None) -> Obj:
    """Return the body of one pod. ``template`` is that of an older revision, if needed."""
    source = stateful
    if template is not None:
        source = {**stateful, "spec": {**stateful["spec"], "template": template}}
    name = f"{stateful['metadata']['name']}-{ordinal}"
    labels = {
        REVISION_LABEL: revision,
        "statefulset.kubernetes.io/pod-name": name,
        "apps.kubernetes.io/pod-index": str(ordinal),
    }
    pod = pod_from_template(source, STATEFULSETS, name=name, extra_labels=labels)
    pod["spec"]["hostname"] = name
    pod["spec"]["subdomain"] = stateful["spec"].get("serviceName", "")
    return pod


def plan_stateful(
    stateful: Obj,
    pods: list[Obj],
    current: str,
    update: str,
    old_template: Obj | None,
    now: datetime,
) -> StatefulPlan:
    """Plan to create, delete or wait. ``current`` and ``update`` are revision names."""
    plan = StatefulPlan()
    spec = stateful["spec"]
    start = (spec.get("ordinals") or {}).get("start") or 0
    wanted = range(start, start + spec.get("replicas", 1))
    by_ordinal = {ordinal_of(stateful, pod): pod for pod in pods}
    is_parallel = spec.get("podManagementPolicy") == "Parallel"
    partition = ((spec.get("updateStrategy") or {}).get("rollingUpdate") or {}).get("partition", 0)
    for ordinal in wanted:
        pod = by_ordinal.get(ordinal)
        if pod is None:
            is_old = ordinal < partition + start and current != update and old_template is not None
            if is_old:
                plan.create.append(make_pod(stateful, ordinal, current, old_template))
            else:
                plan.create.append(make_pod(stateful, ordinal, update))
        elif is_finished(pod) and not is_deleting(pod):
            plan.delete.append(pod)
        elif _is_healthy(pod, spec, plan, now):
            continue
        if not is_parallel:
            return plan
    condemned = [
        pod
        for ordinal, pod in sorted(
            ((o, p) for o, p in by_ordinal.items() if o is not None and o not in wanted),
            reverse=True,
            key=lambda pair: pair[0],
        )
    ]
    for pod in condemned:
        if not is_deleting(pod):
            plan.delete.append(pod)
        if not is_parallel:
            return plan
    if plan.create or plan.delete or condemned:
        return plan
    if (spec.get("updateStrategy") or {}).get("type", "RollingUpdate") == "RollingUpdate":
        _update_one(plan, [by_ordinal.get(o) for o in reversed(wanted)], update, partition)
    return plan


def _is_healthy(pod: Obj, spec: Obj, plan: StatefulPlan, now: datetime) -> bool:
    """Return whether the pod is running, ready long enough and not being deleted."""
    if is_deleting(pod) or phase_of(pod) != "Running":
        return False
    wait_s = available_in_s(pod, spec.get("minReadySeconds") or 0, now)
    if wait_s:
        plan.look_again_s = wait_s
    return wait_s == 0


def _update_one(plan: StatefulPlan, pods: list[Obj | None], update: str, partition: int) -> None:
    """Update one pod at a time, from the highest ordinal down to the partition.

    Each waits until the one before it is ready.
    """
    for pod in pods[: max(0, len(pods) - partition)]:
        if pod is None or is_deleting(pod):
            return
        if pod_revision(pod) != update:
            plan.delete.append(pod)
            return
        if not is_ready(pod):
            return


def stateful_status(
    stateful: Obj, pods: list[Obj], current: str, update: str, now: datetime
) -> Obj:
    """Return the status with counts and revisions."""
    min_ready_s = stateful["spec"].get("minReadySeconds") or 0
    living = [pod for pod in pods if not is_deleting(pod)]
    ready = [pod for pod in pods if phase_of(pod) == "Running" and is_ready(pod)]
    updated = sum(pod_revision(pod) == update for pod in living)
    replicas = stateful["spec"].get("replicas", 1)
    if updated == replicas == len(living) == len(ready):
        current = update
    counts = {
        "readyReplicas": len(ready),
        "currentReplicas": sum(pod_revision(pod) == current for pod in living),
        "updatedReplicas": updated,
    }
    status: Obj = {
        "observedGeneration": stateful["metadata"]["generation"],
        "replicas": len(pods),
    }
    status |= {name: count for name, count in counts.items() if count}
    return status | {
        "currentRevision": current,
        "updateRevision": update,
        "collisionCount": (stateful.get("status") or {}).get("collisionCount") or 0,
        "availableReplicas": sum(available_in_s(pod, min_ready_s, now) == 0 for pod in ready),
    }
