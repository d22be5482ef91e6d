"""The JSON Patches that take a workload in and let it go again.

``admission_patch`` is the webhook's answer; ``release_patch`` and ``ungate_patch`` are sent by the
worker. What a suspended BatchJob and a gated Pod let us change: nodeSelector keys may be added,
node affinity terms may gain expressions, one's own gate may go (``docs/state-machine.md``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob import hostlist
from fluxqueue.fluxjob.node import NAME_KEY
from fluxqueue.workload import labels
from fluxqueue.workload.annotations import Wishes
from fluxqueue.workload.managed import JOB, kind_of
from fluxqueue.workload.pods import gate_index

Patch = list[dict[str, Any]]

_GATE = {"name": labels.GATE}
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def admission_patch(workload: Mapping[str, Any], wishes: Wishes) -> Patch:
    """Take a BatchJob or a bare Pod in: suspended and gated, labelled, with its deadline.

    Idempotent: what the patch makes gets an empty patch, so reinvocation changes nothing.
    """
    if kind_of(workload) == JOB:
        return _take_in_job(workload, wishes)
    spec = workload.get("spec") or {}
    return [
        *_add_gate(spec, "/spec"),
        *_replace_former_scheduler(spec, "/spec"),
        *_set(workload, ("metadata", "labels"), labels.MANAGED, "true"),
        *_add_deadline(spec, wishes),
    ]


def _take_in_job(job: Mapping[str, Any], wishes: Wishes) -> Patch:
    spec = job.get("spec") or {}
    template = spec.get("template") or {}
    pod_spec = template.get("spec") or {}
    return [
        *_mark_author(job, is_gated=gate_index(pod_spec) is not None),
        *([] if spec.get("suspend") else [_op("add", "/spec/suspend", value=True)]),
        *_add_gate(pod_spec, "/spec/template/spec"),
        *_replace_former_scheduler(pod_spec, "/spec/template/spec"),
        *_set(job, ("metadata", "labels"), labels.MANAGED, "true"),
        *_set(job, ("spec", "template", "metadata", "labels"), labels.MANAGED, "true"),
        *_add_deadline(spec, wishes),
    ]


def _mark_author(job: Mapping[str, Any], *, is_gated: bool) -> Patch:
    """Remember whose suspension it is.

    A suspended BatchJob that already has our gate was suspended by us: in an earlier round of
    this admission, or in the cluster its manifest was exported from.
    """
    annotations = (job.get("metadata") or {}).get("annotations") or {}
    if not (job.get("spec") or {}).get("suspend"):
        if labels.AUTHOR_SUSPENDED not in annotations:
            return []
        return [_op("remove", _pointer("metadata", "annotations", labels.AUTHOR_SUSPENDED))]
    if is_gated:
        return []
    return _set(job, ("metadata", "annotations"), labels.AUTHOR_SUSPENDED, "true")


def _add_gate(pod_spec: Mapping[str, Any], path: str) -> Patch:
    if gate_index(pod_spec) is not None:
        return []
    if pod_spec.get("schedulingGates"):
        return [_op("add", f"{path}/schedulingGates/-", value=_GATE)]
    return [_op("add", f"{path}/schedulingGates", value=[_GATE])]


def _replace_former_scheduler(pod_spec: Mapping[str, Any], path: str) -> Patch:
    """Give pods that name one of our predecessors a scheduler that exists."""
    if pod_spec.get("schedulerName") not in labels.FORMER_SCHEDULERS:
        return []
    return [_op("replace", f"{path}/schedulerName", value=labels.DEFAULT_SCHEDULER)]


def _add_deadline(spec: Mapping[str, Any], wishes: Wishes) -> Patch:
    if wishes.duration_s is None or spec.get("activeDeadlineSeconds") is not None:
        return []
    return [_op("add", "/spec/activeDeadlineSeconds", value=wishes.duration_s)]


def release_patch(job: Mapping[str, Any]) -> Patch:
    """Unsuspend ``job``, and no other object that may bear its name by now."""
    return [_test_uid(job), _op("replace", "/spec/suspend", value=False)]


def resuspend_patch(job: Mapping[str, Any]) -> Patch:
    """Suspend ``job`` again: its author unsuspended it, and now it is ours to queue."""
    patch = [_test_uid(job), _op("replace", "/spec/suspend", value=True)]
    annotations = job["metadata"].get("annotations") or {}
    if labels.AUTHOR_SUSPENDED in annotations:
        pointer = _pointer("metadata", "annotations", labels.AUTHOR_SUSPENDED)
        patch.append(_op("remove", pointer))
    return patch


def ungate_patch(
    pod: Mapping[str, Any], *, node: str, hostname: str | None, jobid: int | str, nodes: str
) -> Patch | None:
    """Let ``pod`` go to ``node``; None where our gate is gone already.

    Parameters
    ----------
    pod : the Pod as last read; the patch fails (422) if another bears its name, or our gate has
        moved or gone.
    node : the chosen node's name.
    hostname : the value of the node's label ``kubernetes.io/hostname``, which may differ from its
        name; None where the node lacks it (the pod is then pinned by the node's name).
    jobid, nodes : written as annotations for people; ``nodes`` is a hostlist.

    Raises
    ------
    InvalidInput
        The pod's own nodeSelector names another host, which Kubernetes lets nobody change.
    """
    index = gate_index(pod["spec"])
    if index is None:
        return None
    gate = f"/spec/schedulingGates/{index}"
    return [
        _test_uid(pod),
        _op("test", f"{gate}/name", value=labels.GATE),
        _op("remove", gate),
        *(_pin_by_name(pod, node) if hostname is None else _pin_by_label(pod, hostname)),
        *_annotate(pod, {labels.JOBID: str(jobid), labels.NODES: nodes}),
    ]


def hosts_annotation(nodes: list[str]) -> str:
    """Write the nodes of an allocation, each once, as the annotation shows them.

    Raises
    ------
    InvalidInput
        A name cannot stand in a hostlist.
    """
    return hostlist.compress(dict.fromkeys(nodes))


def _pin_by_label(pod: Mapping[str, Any], hostname: str) -> Patch:
    present = (pod["spec"].get("nodeSelector") or {}).get(labels.HOSTNAME)
    if present is not None and present != hostname:
        raise InvalidInput(
            f"the pod asks for host {present} and was given {hostname}",
            where=f"spec.nodeSelector[{labels.HOSTNAME}]",
            value=present,
        )
    return _set(pod, ("spec", "nodeSelector"), labels.HOSTNAME, hostname)


def _pin_by_name(pod: Mapping[str, Any], node: str) -> Patch:
    """Require the node's name in each affinity term: a gated pod's terms may only be narrowed."""
    field = {"key": NAME_KEY, "operator": "In", "values": [node]}
    affinity = pod["spec"].get("affinity")
    node_affinity = (affinity or {}).get("nodeAffinity")
    terms = ((node_affinity or {}).get(_REQUIRED) or {}).get("nodeSelectorTerms")
    if terms:
        path = f"/spec/affinity/nodeAffinity/{_REQUIRED}/nodeSelectorTerms"
        return [
            _op("add", f"{path}/{number}/matchFields/-", value=field)
            if term.get("matchFields")
            else _op("add", f"{path}/{number}/matchFields", value=[field])
            for number, term in enumerate(terms)
        ]
    required: Any = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    if node_affinity:
        return [_op("add", f"/spec/affinity/nodeAffinity/{_REQUIRED}", value=required)]
    if affinity:
        return [_op("add", "/spec/affinity/nodeAffinity", value={_REQUIRED: required})]
    return [_op("add", "/spec/affinity", value={"nodeAffinity": {_REQUIRED: required}})]


def _annotate(obj: Mapping[str, Any], pairs: Mapping[str, str]) -> Patch:
    if (obj.get("metadata") or {}).get("annotations"):
        return [
            operation
            for key, value in pairs.items()
            for operation in _set(obj, ("metadata", "annotations"), key, value)
        ]
    return [_op("add", "/metadata/annotations", value=dict(pairs))]


def _set(obj: Mapping[str, Any], path: tuple[str, ...], key: str, value: str) -> Patch:
    """Set ``key`` in the map at ``path``, making the maps on the way that are absent or null."""
    here: Any = obj
    for depth, name in enumerate(path):
        inner = here.get(name)
        if not inner:
            value_there: Any = {key: value}
            for missing in reversed(path[depth + 1 :]):
                value_there = {missing: value_there}
            return [_op("add", _pointer(*path[: depth + 1]), value=value_there)]
        here = inner
    return [] if here.get(key) == value else [_op("add", _pointer(*path, key), value=value)]


def _test_uid(obj: Mapping[str, Any]) -> dict[str, Any]:
    return _op("test", "/metadata/uid", value=obj["metadata"]["uid"])


def _pointer(*names: str) -> str:
    """Write a JSON Pointer (RFC 6901)."""
    return "".join("/" + name.replace("~", "~0").replace("/", "~1") for name in names)


def _op(op: str, path: str, **value: Any) -> dict[str, Any]:
    return {"op": op, "path": path, **value}
