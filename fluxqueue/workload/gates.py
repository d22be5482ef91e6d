"""The patches that take a workload in and let it go again.

``hold_job`` and ``hold_pod`` are the webhook's answers; ``release_patch``, ``pin_patch`` and
``ungate_patch`` with their opposites are sent by the worker, ``let_go_patch`` and ``free_patch`` by
the uninstallation. What a suspended BatchJob and a gated Pod let us change: nodeSelector keys may
be added, node affinity terms may gain expressions, one's own gate may go
(``docs/developer/state-machine.md``).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

from fluxqueue.fluxjob.node import NAME_KEY, Destination
from fluxqueue.workload import labels
from fluxqueue.workload.annotations import Wishes
from fluxqueue.workload.groups import Membership
from fluxqueue.workload.json_patch import Patch, at, op, pointer, put, same_uid, set_in
from fluxqueue.workload.object_paths import Path
from fluxqueue.workload.pods import gate_index

Merge = dict[str, Any]
"""A strategic merge patch. With the UID in its metadata it is refused by any other object (422)."""

_GATE = {"name": labels.GATE}
_WITHOUT_GATE = {"$patch": "delete", **_GATE}
_OF_ITS_PODS = ("spec", "template", "metadata", "labels")
_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_UNPINNED = {
    "metadata": {"labels": {labels.JOBID: None}},
    "spec": {
        "schedulingGates": [_GATE],
        "nodeSelector": {labels.HOSTNAME: None},
        "affinity": {"nodeAffinity": {_REQUIRED: None}},
    },
}


def hold_pod(
    pod: Mapping[str, Any], wishes: Wishes, user: str, group: Membership | None = None
) -> Patch:
    """Take a Pod in at admission: gated, labelled, with its deadline, and the mark of its group.

    ``user`` is who asks, by the API server's word; it is written over what the manifest says.

    Idempotent, as ``hold_job``: what the patch makes gets an empty patch, so reinvocation changes
    nothing.
    """
    spec = pod.get("spec") or {}
    return [
        *_add_gate(spec, "/spec"),
        *_replace_former_scheduler(spec, "/spec"),
        *_disown(pod, ("metadata", "labels")),
        *set_in(pod, ("metadata", "labels"), labels.MANAGED, "true"),
        *_add_deadline(spec, wishes),
        *_stamp(pod, {labels.USER: user, labels.GROUP: _mark(group)}),
    ]


def hold_members(job: Mapping[str, Any], wishes: Wishes, user: str, group: Membership) -> Patch:
    """Take a BatchJob in whose pods start with those of others: they come, gated and marked.

    It is not suspended, or its pods could never be counted. What its pods need to know of it goes
    into its template: wishes, who submitted it, and its deadline, which counts from a pod's start.
    """
    template = (job.get("spec") or {}).get("template") or {}
    pod_spec = template.get("spec") or {}
    return [
        *_add_gate(pod_spec, "/spec/template/spec"),
        *_replace_former_scheduler(pod_spec, "/spec/template/spec"),
        *set_in(job, ("metadata", "labels"), labels.MANAGED, "true"),
        *_stamp(job, {labels.USER: user}),
        *_tell_members(job, template.get("metadata") or {}, {labels.USER: user}, group),
        *_add_deadline(pod_spec, wishes, "/spec/template/spec"),
    ]


def _tell_members(
    job: Mapping[str, Any],
    inner: Mapping[str, Any],
    stamps: Mapping[str, str],
    group: Membership,
) -> Patch:
    """Make the metadata of the template, ``inner``, what the pods of ``job`` are to bear."""
    meta = job.get("metadata") or {}
    wished = {
        key: value
        for key, value in (meta.get("annotations") or {}).items()
        if key.startswith(labels.PREFIX) and key not in {labels.AUTHOR_SUSPENDED, *stamps}
    }
    named = {k: v for k, v in (meta.get("labels") or {}).items() if k == labels.QUEUE}
    kept = {k: v for k, v in (inner.get("annotations") or {}).items() if k not in stamps}
    written = {key: value for key, value in stamps.items() if value}
    told = {
        **inner,
        "annotations": kept | wished | written | {labels.GROUP: group.mark()},
        "labels": (inner.get("labels") or {}) | named | {labels.MANAGED: "true"},
    }
    told["labels"].pop(labels.JOBID, None)
    return [] if told == inner else [op("add", "/spec/template/metadata", value=told)]


def have_ask(obj: Mapping[str, Any], path: Path) -> tuple[Mapping[str, Any], Patch]:
    """Have pods ask to be queued: label them, in the map of labels that ``path`` leads to, unless
    it says something already. Gives the object with the label, and the patch that makes it so.
    """
    if labels.MANAGED in (at(obj, path) or {}):
        return obj, []
    changed: dict[str, Any] = copy.deepcopy(dict(obj))
    return changed, put(changed, (*path, labels.MANAGED), "true")


def relieve_pod(pod: Mapping[str, Any]) -> Patch:
    """Give a Pod that is not ours, and names a scheduler of before, one that exists."""
    return _replace_former_scheduler(pod.get("spec") or {}, "/spec")


def _mark(group: Membership | None) -> str:
    return "" if group is None else group.mark()


def _stamp(
    obj: Mapping[str, Any], stamps: Mapping[str, str], *, is_map_made: bool = False
) -> Patch:
    """Write what admission knows, and nothing of that sort that the manifest brought.

    ``stamps``: annotations; empty ones go. ``is_map_made``: an earlier operation of the patch has
    made the map of annotations.
    """
    place = ("metadata", "annotations")
    annotations = (obj.get("metadata") or {}).get("annotations") or {}
    patch = [
        op("remove", pointer(*place, key))
        for key, value in stamps.items()
        if not value and key in annotations
    ]
    for key, value in stamps.items():
        if not value or annotations.get(key) == value:
            continue
        is_there = bool(annotations) or is_map_made
        add = [op("add", pointer(*place, key), value=value)]
        patch += add if is_there else set_in(obj, place, key, value)
        is_map_made = True
    return patch


def hold_job(job: Mapping[str, Any], wishes: Wishes, user: str) -> Patch:
    """Take a BatchJob in at admission: suspended, its pods gated, labelled, with its deadline."""
    spec = job.get("spec") or {}
    template = spec.get("template") or {}
    pod_spec = template.get("spec") or {}
    mark = _mark_author(job, is_gated=gate_index(pod_spec) is not None)
    return [
        *mark,
        *_stamp(job, {labels.USER: user}, is_map_made=bool(mark)),
        *([] if spec.get("suspend") else [op("add", "/spec/suspend", value=True)]),
        *_add_gate(pod_spec, "/spec/template/spec"),
        *_replace_former_scheduler(pod_spec, "/spec/template/spec"),
        *set_in(job, ("metadata", "labels"), labels.MANAGED, "true"),
        *_disown(job, _OF_ITS_PODS),
        *set_in(job, _OF_ITS_PODS, labels.MANAGED, "true"),
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
        return [op("remove", pointer("metadata", "annotations", labels.AUTHOR_SUSPENDED))]
    if is_gated:
        return []
    return set_in(job, ("metadata", "annotations"), labels.AUTHOR_SUSPENDED, "true")


def _disown(obj: Mapping[str, Any], place: tuple[str, ...]) -> Patch:
    """Take the number of a job, which a manifest may have been exported with, out of labels."""
    is_there = labels.JOBID in (at(obj, place) or {})
    return [op("remove", pointer(*place, labels.JOBID))] if is_there else []


def _add_gate(pod_spec: Mapping[str, Any], path: str) -> Patch:
    if gate_index(pod_spec) is not None:
        return []
    if pod_spec.get("schedulingGates"):
        return [op("add", f"{path}/schedulingGates/-", value=_GATE)]
    return [op("add", f"{path}/schedulingGates", value=[_GATE])]


def _replace_former_scheduler(pod_spec: Mapping[str, Any], path: str) -> Patch:
    """Give pods that name one of our predecessors a scheduler that exists."""
    if pod_spec.get("schedulerName") not in labels.FORMER_SCHEDULERS:
        return []
    return [op("replace", f"{path}/schedulerName", value=labels.DEFAULT_SCHEDULER)]


def _add_deadline(spec: Mapping[str, Any], wishes: Wishes, path: str = "/spec") -> Patch:
    if wishes.duration_s is None or spec.get("activeDeadlineSeconds") is not None:
        return []
    return [op("add", f"{path}/activeDeadlineSeconds", value=wishes.duration_s)]


def release_patch(uid: str, *, is_pinned: bool = False) -> Merge:
    """Unsuspend the BatchJob of this UID, and no other that may bear its name by now.

    ``is_pinned``: its template names the node of an earlier release; that goes, and our gate is in
    it again.
    """
    if is_pinned:
        return _of_job(uid, suspend=False, template=_UNPINNED)
    return _of_job(uid, suspend=False)


def pin_patch(
    uid: str, *, to: Destination, jobid: int, nodes: str, is_pinned: bool = False
) -> Merge:
    """Unsuspend a suspended BatchJob all of whose slots lie on one node: its pods come pinned.

    Its template loses our gate and gains the node, so no pod needs a patch of its own. Sent again,
    or to name another node after it was suspended, it does the same.

    ``is_pinned``: its template may name another node, of an earlier release.
    """
    spec: dict[str, Any] = {"schedulingGates": [_WITHOUT_GATE], **_pinned(to)}
    if is_pinned and "affinity" not in spec:
        spec["affinity"] = {"nodeAffinity": {_REQUIRED: None}}
    template = {"metadata": _named(jobid, nodes), "spec": spec}
    return _of_job(uid, suspend=False, template=template)


def unpin_patch(uid: str) -> Merge:
    """Put our gate back into the template of a suspended BatchJob, and take its last node out."""
    return _of_job(uid, suspend=True, template=_UNPINNED)


def stop_patch(uid: str) -> Merge:
    """Suspend the BatchJob of this UID: its pods end."""
    return _of_job(uid, suspend=True)


def _named(jobid: int | str, nodes: str) -> dict[str, Any]:
    """What of a released pod's metadata says as what, and where, it runs.

    The label keeps the policy away that guards what is queued (chart/templates/gatepolicy.yaml).
    """
    return {"labels": {labels.JOBID: str(jobid)}, "annotations": {labels.NODES: nodes}}


def _of_job(uid: str, *, suspend: bool, **spec: Any) -> Merge:
    whose = {labels.AUTHOR_SUSPENDED: "false" if suspend else None}
    return {"metadata": {"uid": uid, "annotations": whose}, "spec": {"suspend": suspend, **spec}}


def _pinned(to: Destination, *, has_affinity: bool = False) -> dict[str, Any]:
    """What of a pod's spec names its node.

    By label, and unless that is enough, by name: kube-scheduler then looks at one node in place of
    all. The terms of a required affinity are one value, so those of a pod that has its own are left
    alone.
    """
    fields: dict[str, Any] = {}
    if to.hostname is not None:
        fields["nodeSelector"] = {labels.HOSTNAME: to.hostname}
    if not (has_affinity or to.is_told_by_label):
        term = {"matchFields": [{"key": NAME_KEY, "operator": "In", "values": [to.name]}]}
        fields["affinity"] = {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [term]}}}
    return fields


def resuspend_patch(job: Mapping[str, Any]) -> Patch:
    """Suspend ``job`` again: its author unsuspended it, and now it is ours to queue.

    It is ours as long as our gate is in its template (``managed.is_managed``): where that went in
    the meantime, the queue has been uninstalled, and the patch fails.
    """
    return [
        same_uid(job),
        *_test_gate(job["spec"]["template"]["spec"], "/spec/template/spec"),
        op("replace", "/spec/suspend", value=True),
        *set_in(job, ("metadata", "annotations"), labels.AUTHOR_SUSPENDED, "false"),
    ]


def let_go_patch(job: Mapping[str, Any], *, is_unsuspended: bool) -> Patch:
    """Take our gate out of a suspended ``job`` for good, and our suspension unless told otherwise.

    A Job that its author suspended stays so; what we remembered of that goes. Fails (422) where
    the Job is no longer suspended: its template can then not change.
    """
    pod_spec = job["spec"]["template"]["spec"]
    patch = [
        same_uid(job),
        op("test", "/spec/suspend", value=True),
        *_remove_gate(pod_spec, "/spec/template/spec"),
    ]
    whose = (job["metadata"].get("annotations") or {}).get(labels.AUTHOR_SUSPENDED)
    if whose is not None:
        patch.append(op("remove", pointer("metadata", "annotations", labels.AUTHOR_SUSPENDED)))
    if is_unsuspended and whose != "true":
        patch.append(op("replace", "/spec/suspend", value=False))
    return patch


def free_patch(pod: Mapping[str, Any]) -> Patch:
    """Take our gate off ``pod`` for good: the cluster's scheduler places it as it likes."""
    return [same_uid(pod), *_remove_gate(pod["spec"], "/spec")]


def _remove_gate(pod_spec: Mapping[str, Any], path: str) -> Patch:
    test = _test_gate(pod_spec, path)
    return [*test, op("remove", f"{path}/schedulingGates/{gate_index(pod_spec)}")]


def _test_gate(pod_spec: Mapping[str, Any], path: str) -> Patch:
    """Make the patch fail where our gate is not (any more) where it was read."""
    index = gate_index(pod_spec)
    assert index is not None, "callers choose what has our gate"
    return [op("test", f"{path}/schedulingGates/{index}/name", value=labels.GATE)]


def ungate_patch(
    uid: str,
    *,
    to: Destination,
    jobid: int | str,
    nodes: str,
    has_affinity: bool = False,
) -> Merge:
    """Let the pod of this UID go to a node, whatever else is in it: nothing is read before.

    A strategic merge patch: our gate goes by its name. Sent again it changes nothing, and to
    another pod of that name it is refused (422).

    Parameters
    ----------
    to : the chosen node. Where it has no hostname, a pod with affinity of its own needs
        ``narrow_patch``.
    jobid, nodes : written as label and annotation for people; ``nodes`` is a hostlist.
    has_affinity : the pod requires node affinity of its own.
    """
    return {
        "metadata": {"uid": uid, **_named(jobid, nodes)},
        "spec": {
            "schedulingGates": [_WITHOUT_GATE],
            **_pinned(to, has_affinity=has_affinity),
        },
    }


def narrow_patch(
    pod: Mapping[str, Any], *, node: str, jobid: int | str, nodes: str
) -> Patch | None:
    """Let ``pod`` go to a node without a hostname label; None where our gate is gone already.

    Each term of the affinity that it has is narrowed to the node's name. Fails (422) if the pod has
    changed since it was read.
    """
    index = gate_index(pod["spec"])
    if index is None:
        return None
    gate = f"/spec/schedulingGates/{index}"
    return [
        same_uid(pod),
        op("test", f"{gate}/name", value=labels.GATE),
        op("remove", gate),
        *_pin_by_name(pod, node),
        *set_in(pod, ("metadata", "labels"), labels.JOBID, str(jobid)),
        *set_in(pod, ("metadata", "annotations"), labels.NODES, nodes),
    ]


def _pin_by_name(pod: Mapping[str, Any], node: str) -> Patch:
    """Require the node's name in each affinity term: a gated pod's terms may only be narrowed."""
    field = {"key": NAME_KEY, "operator": "In", "values": [node]}
    affinity = pod["spec"].get("affinity")
    node_affinity = (affinity or {}).get("nodeAffinity")
    terms = ((node_affinity or {}).get(_REQUIRED) or {}).get("nodeSelectorTerms")
    if terms:
        path = f"/spec/affinity/nodeAffinity/{_REQUIRED}/nodeSelectorTerms"
        return [
            op("add", f"{path}/{number}/matchFields/-", value=field)
            if term.get("matchFields")
            else op("add", f"{path}/{number}/matchFields", value=[field])
            for number, term in enumerate(terms)
        ]
    required: Any = {"nodeSelectorTerms": [{"matchFields": [field]}]}
    if node_affinity:
        return [op("add", f"/spec/affinity/nodeAffinity/{_REQUIRED}", value=required)]
    if affinity:
        return [op("add", "/spec/affinity/nodeAffinity", value={_REQUIRED: required})]
    return [op("add", "/spec/affinity", value={"nodeAffinity": {_REQUIRED: required}})]
