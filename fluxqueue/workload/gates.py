"""The patches that hold a workload and release it again.

``suspend_job`` and ``gate_pod`` are the webhook's answers. The worker sends ``resume_patch``,
``pin_patch`` and ``ungate_patch`` with their opposites. The uninstallation sends
``leave_job_patch`` and ``leave_pod_patch``. A suspended BatchJob and a gated Pod allow these
changes: nodeSelector keys can be added, node affinity terms can gain expressions, and fluxqueue's
own gate can be removed (``docs/developer/state-machine.md``).
"""

from __future__ import annotations

import copy
from collections.abc import Mapping, Sequence
from typing import Any

from fluxqueue.fluxjob.node import NAME_KEY, Destination
from fluxqueue.workload import labels
from fluxqueue.workload.annotations import Wishes
from fluxqueue.workload.groups import Membership
from fluxqueue.workload.json_patch import Patch, at, op, pointer, put, same_uid, set_in
from fluxqueue.workload.object_paths import Path
from fluxqueue.workload.pods import gate_index

Merge = dict[str, Any]
"""A strategic merge patch. With a UID in its metadata, any other object refuses it (422)."""

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


def gate_pod(
    pod: Mapping[str, Any],
    wishes: Wishes,
    user: str,
    group: Membership | None = None,
    *,
    followers: str = "",
) -> Patch:
    """Return the admission patch for a Pod: gated, labelled, with its deadline and group mark.

    ``user`` is the submitter that the API server authenticated. It replaces any value in the
    manifest. ``followers``: the annotation for a driver that has none, as its arguments tell.

    Idempotent, as ``suspend_job``: the result of the patch gets an empty patch, so reinvocation
    changes nothing.
    """
    spec = pod.get("spec") or {}
    stamps = {labels.USER: user, labels.GROUP: _mark(group)}
    stamps |= {labels.FOLLOWERS: followers} if followers else {}
    return [
        *_add_gate(spec, "/spec"),
        *_replace_former_scheduler(spec, "/spec"),
        *_unpin_exported(pod, spec, "/spec"),
        *_disown(pod, ("metadata", "labels")),
        *set_in(pod, ("metadata", "labels"), labels.MANAGED, "true"),
        *_add_deadline(spec, wishes),
        *_stamp(pod, stamps),
    ]


def gate_members(job: Mapping[str, Any], wishes: Wishes, user: str, group: Membership) -> Patch:
    """Return the admission patch for a BatchJob that starts together with other workloads.

    Its pods belong to a wider group. They are created, gated and marked. The BatchJob is not
    suspended, or its pods could never be counted. Its template receives what its pods must know:
    wishes, submitter, and its deadline, which counts from a pod's start.
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
    """Patch the template's metadata, ``inner``, to what the pods of ``job`` must carry."""
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


def opt_in_patch(obj: Mapping[str, Any], path: Path) -> tuple[Mapping[str, Any], Patch]:
    """Label pods to ask to be queued, unless the label is already set.

    ``path`` leads to the map of labels. Returns the object with the label, and the patch that makes
    the change.
    """
    if labels.MANAGED in (at(obj, path) or {}):
        return obj, []
    changed: dict[str, Any] = copy.deepcopy(dict(obj))
    return changed, put(changed, (*path, labels.MANAGED), "true")


def replace_legacy_scheduler(pod: Mapping[str, Any]) -> Patch:
    """Replace a former scheduler's name in an unmanaged Pod with a scheduler that exists."""
    return _replace_former_scheduler(pod.get("spec") or {}, "/spec")


def _mark(group: Membership | None) -> str:
    return "" if group is None else group.mark()


def _stamp(
    obj: Mapping[str, Any], stamps: Mapping[str, str], *, is_map_made: bool = False
) -> Patch:
    """Write what admission knows, in place of such annotations from the manifest.

    ``stamps``: annotations. Empty ones are removed. ``is_map_made``: an earlier operation of the
    patch has made the map of annotations.
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


def suspend_job(job: Mapping[str, Any], wishes: Wishes, user: str) -> Patch:
    """Return the admission patch for a BatchJob: suspended, pods gated, labelled, with deadline."""
    spec = job.get("spec") or {}
    template = spec.get("template") or {}
    pod_spec = template.get("spec") or {}
    is_gated = gate_index(pod_spec) is not None
    mark = _mark_author(job, is_gated=is_gated or wishes.is_suspended_for_queue)
    return [
        *mark,
        *_stamp(job, {labels.USER: user}, is_map_made=bool(mark)),
        *_suspend(job, wishes, is_gated=is_gated),
        *_add_gate(pod_spec, "/spec/template/spec"),
        *_replace_former_scheduler(pod_spec, "/spec/template/spec"),
        *_unpin_exported(template, pod_spec, "/spec/template/spec"),
        *set_in(job, ("metadata", "labels"), labels.MANAGED, "true"),
        *_disown(job, _OF_ITS_PODS),
        *_displace(job),
        *set_in(job, _OF_ITS_PODS, labels.MANAGED, "true"),
        # Of independent pods each has the time. Of a gang all end together. The time of a Job
        # counts while its pods are gated.
        *(
            _add_deadline(pod_spec, wishes, "/spec/template/spec")
            if wishes.is_sweep or wishes.waits_gated
            else _add_deadline(spec, wishes)
        ),
    ]


def _suspend(job: Mapping[str, Any], wishes: Wishes, *, is_gated: bool) -> Patch:
    """Suspend a BatchJob, unless its gated pods wait in its place.

    One that is suspended and has the gate was suspended by fluxqueue, in the cluster that its
    manifest was exported from.
    """
    spec, annotations = job.get("spec") or {}, (job.get("metadata") or {}).get("annotations") or {}
    if not wishes.waits_gated:
        return [] if spec.get("suspend") else [op("add", "/spec/suspend", value=True)]
    is_authors = annotations.get(labels.AUTHOR_SUSPENDED) == "true"
    is_ours = (is_gated and not is_authors) or wishes.is_suspended_for_queue
    if spec.get("suspend") and is_ours:
        return [op("add", "/spec/suspend", value=False)]
    return []


def _mark_author(job: Mapping[str, Any], *, is_gated: bool) -> Patch:
    """Record whether the author suspended the BatchJob.

    If a suspended BatchJob already has fluxqueue's gate, fluxqueue suspended it. That happened in
    an earlier round of this admission, or in the cluster that its manifest was exported from. A
    suspension for the queue (``is_gated``, too) is not recorded: the queue ends it.
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
    """Remove the number of a job from labels, as a manifest may be exported with it."""
    is_there = labels.JOBID in (at(obj, place) or {})
    return [op("remove", pointer(*place, labels.JOBID))] if is_there else []


def _unpin_exported(owner: Mapping[str, Any], spec: Mapping[str, Any], path: str) -> Patch:
    """Remove the node that an earlier release chose, as a manifest may be exported with it.

    ``owner``: the object with the pod's metadata. A released pod bears a job number or a list of
    nodes. Without either, the author has chosen the node.
    """
    meta = owner.get("metadata") or {}
    is_numbered = labels.JOBID in (meta.get("labels") or {})
    if not is_numbered and labels.NODES not in (meta.get("annotations") or {}):
        return []
    place = f"{path.removesuffix('/spec')}/metadata/annotations"
    notes = meta.get("annotations") or {}
    patch = [op("remove", place + pointer(labels.NODES))] if labels.NODES in notes else []
    if labels.HOSTNAME in (spec.get("nodeSelector") or {}):
        patch.append(op("remove", path + pointer("nodeSelector", labels.HOSTNAME)))
    node_affinity = (spec.get("affinity") or {}).get("nodeAffinity") or {}
    terms = (node_affinity.get(_REQUIRED) or {}).get("nodeSelectorTerms") or []
    if len(terms) == 1 and _is_by_name_alone(terms[0]):
        patch.append(op("remove", f"{path}/affinity/nodeAffinity/{_REQUIRED}"))
    return patch


def _is_by_name_alone(term: Mapping[str, Any]) -> bool:
    """Tell whether an affinity term is the one that ``_pinned`` writes."""
    fields = term.get("matchFields") or []
    is_name = len(fields) == 1 and fields[0].get("key") == NAME_KEY
    return is_name and not term.get("matchExpressions")


def _displace(job: Mapping[str, Any]) -> Patch:
    """Remove the placement of another BatchJob, as a manifest may be exported with it."""
    meta = ("spec", "template", "metadata")
    marks = [(*meta, "annotations", labels.PLACEMENT), (*meta, "labels", labels.PLACED)]
    return _unmark(job, marks)


def _unmark(obj: Mapping[str, Any], marks: Sequence[Path]) -> Patch:
    return [op("remove", pointer(*mark)) for mark in marks if at(obj, mark) is not None]


def _add_gate(pod_spec: Mapping[str, Any], path: str) -> Patch:
    if gate_index(pod_spec) is not None:
        return []
    if pod_spec.get("schedulingGates"):
        return [op("add", f"{path}/schedulingGates/-", value=_GATE)]
    return [op("add", f"{path}/schedulingGates", value=[_GATE])]


def _replace_former_scheduler(pod_spec: Mapping[str, Any], path: str) -> Patch:
    """Replace the scheduler name of a predecessor with a scheduler that exists."""
    if pod_spec.get("schedulerName") not in labels.FORMER_SCHEDULERS:
        return []
    return [op("replace", f"{path}/schedulerName", value=labels.DEFAULT_SCHEDULER)]


def _add_deadline(spec: Mapping[str, Any], wishes: Wishes, path: str = "/spec") -> Patch:
    if wishes.duration_s is None or spec.get("activeDeadlineSeconds") is not None:
        return []
    return [op("add", f"{path}/activeDeadlineSeconds", value=wishes.duration_s)]


def resume_patch(uid: str, *, is_pinned: bool = False) -> Merge:
    """Unsuspend the BatchJob of this UID, but no other one that now has its name.

    ``is_pinned``: its template names the node of an earlier release. The patch removes it and puts
    the gate back.
    """
    if is_pinned:
        return _of_job(uid, suspend=False, template=_UNPINNED)
    return _of_job(uid, suspend=False)


def pin_patch(
    uid: str, *, to: Destination, jobid: int, nodes: str, is_pinned: bool = False
) -> Merge:
    """Unsuspend a suspended BatchJob that has all slots on one node: its pods start pinned.

    The patch removes the gate from its template and adds the node, so no pod needs a patch of its
    own. A repetition has the same effect, also with another node after a suspension.

    ``is_pinned``: its template may name another node, of an earlier release.
    """
    spec: dict[str, Any] = {"schedulingGates": [_WITHOUT_GATE], **_pinned(to)}
    if is_pinned and "affinity" not in spec:
        spec["affinity"] = {"nodeAffinity": {_REQUIRED: None}}
    template = {"metadata": _named(jobid, nodes), "spec": spec}
    return _of_job(uid, suspend=False, template=template)


def repin_patch(old: Mapping[str, Any], new: Mapping[str, Any]) -> Patch:
    """Put the node of a released BatchJob back that an apply of its manifest removes.

    A server-side apply replaces the whole node selector of a template. The API server then refuses
    it, because the template of a running BatchJob cannot change. Empty if nothing was removed.
    """
    place = ("spec", "template")
    number = (*place, "metadata", "labels", labels.JOBID)
    # Without the job number it is our own patch, which takes the whole release back.
    if at(old, number) is None or at(new, number) is None:
        return []
    selector, applied = (at(one, (*place, "spec", "nodeSelector")) or {} for one in (old, new))
    if not isinstance(selector, dict) or not isinstance(applied, dict):
        return []
    if labels.HOSTNAME not in selector:
        return []
    if applied == selector or {**selector, **applied} != selector:
        return []
    path = "/spec/template/spec/nodeSelector"
    return [op("add", path, value=dict(selector))]


def place_patch(uid: str, placement: str | None) -> Merge:
    """Unsuspend a BatchJob with gated pods, with the placement of its indexes, or without one.

    Its template keeps the gate: the webhook removes it from the pods that it places
    (``index_placement``). None removes the placement of an earlier release.
    """
    return _of_job(uid, suspend=False, template=_placed(placement))


def displace_patch(job: Mapping[str, Any]) -> Patch:
    """Remove the placement from the template of a suspended ``job``.

    The suspension stays as it is. The patch fails (422) if its author has resumed it meanwhile.
    """
    return [same_uid(job), op("test", "/spec/suspend", value=True), *_displace(job)]


def _placed(placement: str | None) -> dict[str, Any]:
    mark = "true" if placement else None
    return {
        "metadata": {
            "annotations": {labels.PLACEMENT: placement},
            "labels": {labels.PLACED: mark},
        }
    }


def unpin_patch(uid: str, *, is_authors: bool = False) -> Merge:
    """Put the gate back into the template of a suspended BatchJob, and remove its last node.

    ``is_authors``: its author has suspended it. The suspension then stays the author's, and
    the author may end it. The patch fails (422) if that has happened meanwhile.
    """
    if is_authors:
        return {"metadata": {"uid": uid}, "spec": {"template": _UNPINNED}}
    return _of_job(uid, suspend=True, template=_UNPINNED)


def suspend_patch(uid: str) -> Merge:
    """Suspend the BatchJob of this UID: its pods end."""
    return _of_job(uid, suspend=True)


def _named(jobid: int | str, nodes: str) -> dict[str, Any]:
    """Return the metadata of a released pod: its job number and its nodes.

    The policy that guards queued pods exempts pods with the label
    (chart/templates/gatepolicy.yaml).
    """
    return {"labels": {labels.JOBID: str(jobid)}, "annotations": {labels.NODES: nodes}}


def _of_job(uid: str, *, suspend: bool, **spec: Any) -> Merge:
    whose = {labels.AUTHOR_SUSPENDED: "false" if suspend else None}
    return {"metadata": {"uid": uid, "annotations": whose}, "spec": {"suspend": suspend, **spec}}


def _pinned(to: Destination, *, has_affinity: bool = False) -> dict[str, Any]:
    """Return the part of a pod's spec that names its node.

    It uses the label, and also the name if the label is not enough. With the name kube-scheduler
    checks one node instead of all. The terms of a required affinity are one value, so a pod with
    its own affinity keeps its terms.
    """
    fields: dict[str, Any] = {}
    if to.hostname is not None:
        fields["nodeSelector"] = {labels.HOSTNAME: to.hostname}
    if not (has_affinity or to.is_labelled_index):
        term = {"matchFields": [{"key": NAME_KEY, "operator": "In", "values": [to.name]}]}
        fields["affinity"] = {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [term]}}}
    return fields


def suspend_again_patch(job: Mapping[str, Any]) -> Patch:
    """Suspend ``job`` again: its author unsuspended it, and now fluxqueue queues it.

    fluxqueue manages it as long as the gate is in its template (``managed.is_managed``). If the
    gate was removed in the meantime, the queue has been uninstalled, and the patch fails.
    """
    return [
        same_uid(job),
        *_test_gate(job["spec"]["template"]["spec"], "/spec/template/spec"),
        op("replace", "/spec/suspend", value=True),
        *set_in(job, ("metadata", "annotations"), labels.AUTHOR_SUSPENDED, "false"),
    ]


def leave_job_patch(job: Mapping[str, Any], *, is_unsuspended: bool) -> Patch:
    """Remove the gate from a suspended ``job`` for good, and end the suspension by fluxqueue.

    ``is_unsuspended`` False keeps the suspension. A Job that its author suspended stays suspended,
    and the patch removes the record of that. It fails (422) if the Job is no longer suspended,
    because its template cannot change then.
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


def leave_pod_patch(pod: Mapping[str, Any]) -> Patch:
    """Remove the gate from ``pod`` for good: the cluster's scheduler places it freely."""
    return [same_uid(pod), *_remove_gate(pod["spec"], "/spec")]


def _remove_gate(pod_spec: Mapping[str, Any], path: str) -> Patch:
    test = _test_gate(pod_spec, path)
    return [*test, op("remove", f"{path}/schedulingGates/{gate_index(pod_spec)}")]


def _test_gate(pod_spec: Mapping[str, Any], path: str) -> Patch:
    """Make the patch fail if the gate is not, or no longer, where it was read."""
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
    others: Sequence[str] = (),
    drops_managed_fields: bool = False,
) -> Merge:
    """Release the pod of this UID to a node, whatever else it contains. Nothing is read before.

    A strategic merge patch removes the gate by its name. A repetition changes nothing, and another
    pod of that name refuses it (422).

    Parameters
    ----------
    to : the chosen node. If it has no hostname, a pod with affinity of its own needs
        ``ungate_by_name_patch``.
    jobid, nodes : written as label and annotation for users. ``nodes`` is a hostlist.
    has_affinity : the pod requires node affinity of its own.
    others : hostnames of further nodes. kube-scheduler then chooses among all of them. A pod with
        affinity of its own needs ``ungate_by_name_patch``.
    drops_managed_fields : see ``drop_managed_fields``.
    """
    fields = _pinned(to, has_affinity=has_affinity)
    if others and to.hostname is not None:
        term = {"matchExpressions": [_on_any(to.hostname, others)]}
        fields = {"affinity": {"nodeAffinity": {_REQUIRED: {"nodeSelectorTerms": [term]}}}}
    # One empty entry removes the field. An empty list would change nothing.
    reset: dict[str, Any] = {"managedFields": [{}]} if drops_managed_fields else {}
    return {
        "metadata": {"uid": uid, **_named(jobid, nodes), **reset},
        "spec": {"schedulingGates": [_WITHOUT_GATE], **fields},
    }


def _on_any(hostname: str, others: Sequence[str]) -> dict[str, Any]:
    """Return the expression that a node is one of several."""
    return {"key": labels.HOSTNAME, "operator": "In", "values": [hostname, *others]}


def name_node_patch(
    pod: Mapping[str, Any], *, to: Destination, jobid: int | str, nodes: str
) -> Patch:
    """Return the admission patch that releases a gated pod at its creation, and names its node.

    The parameters are those of ``ungate_patch``. The pod requires no node affinity of its own.
    """
    index = gate_index(pod["spec"])
    assert index is not None, "callers choose what has our gate"
    fields = _pinned(to)
    selector = {**(pod["spec"].get("nodeSelector") or {}), **fields.get("nodeSelector", {})}
    affinity: Patch = []
    if "affinity" in fields:
        own = pod["spec"].get("affinity") or {}
        on_nodes = {**(own.get("nodeAffinity") or {}), **fields["affinity"]["nodeAffinity"]}
        affinity = [op("add", "/spec/affinity", value={**own, "nodeAffinity": on_nodes})]
    return [
        op("remove", f"/spec/schedulingGates/{index}"),
        op("add", "/spec/nodeSelector", value=selector),
        *affinity,
        *set_in(pod, ("metadata", "labels"), labels.JOBID, str(jobid)),
        *set_in(pod, ("metadata", "annotations"), labels.NODES, nodes),
        op("remove", pointer("metadata", "annotations", labels.PLACEMENT)),
        # Without the label, the pod is not sent here again after the changes of other webhooks.
        *_unmark(pod, [("metadata", "labels", labels.PLACED)]),
    ]


def drop_managed_fields(pod: Mapping[str, Any]) -> Patch:
    """Return the admission patch that has a new pod stored without ``managedFields``.

    The API server then records no owners of its fields at later updates either, which is a fifth of
    what a pod costs it. Kubernetes documents the reset ("Clearing managedFields"). A server-side
    apply begins them again. No author applies a pod that the Job controller makes.
    """
    has = bool(pod["metadata"].get("managedFields"))
    return [op("remove", "/metadata/managedFields")] if has else []


def ungate_by_name_patch(
    pod: Mapping[str, Any],
    *,
    to: Destination,
    jobid: int | str,
    nodes: str,
    others: Sequence[str] = (),
) -> Patch | None:
    """Release ``pod`` to a node without hostname label, or return None if the gate is gone.

    Each term of its affinity is narrowed to the node's name, or to the hostnames of several nodes.
    Fails (422) if the pod has changed since it was read.
    """
    index = gate_index(pod["spec"])
    if index is None:
        return None
    gate = f"/spec/schedulingGates/{index}"
    return [
        same_uid(pod),
        op("test", f"{gate}/name", value=labels.GATE),
        op("remove", gate),
        *_narrow(pod, to, others),
        *set_in(pod, ("metadata", "labels"), labels.JOBID, str(jobid)),
        *set_in(pod, ("metadata", "annotations"), labels.NODES, nodes),
    ]


def _narrow(pod: Mapping[str, Any], to: Destination, others: Sequence[str]) -> Patch:
    """Require the nodes in each affinity term: a gated pod's terms can only be narrowed."""
    part, field = "matchFields", {"key": NAME_KEY, "operator": "In", "values": [to.name]}
    if others and to.hostname is not None:
        part, field = "matchExpressions", _on_any(to.hostname, others)
    affinity = pod["spec"].get("affinity")
    node_affinity = (affinity or {}).get("nodeAffinity")
    terms = ((node_affinity or {}).get(_REQUIRED) or {}).get("nodeSelectorTerms")
    if terms:
        path = f"/spec/affinity/nodeAffinity/{_REQUIRED}/nodeSelectorTerms"
        return [
            op("add", f"{path}/{number}/{part}/-", value=field)
            if term.get(part)
            else op("add", f"{path}/{number}/{part}", value=[field])
            for number, term in enumerate(terms)
        ]
    required: Any = {"nodeSelectorTerms": [{part: [field]}]}
    if node_affinity:
        return [op("add", f"/spec/affinity/nodeAffinity/{_REQUIRED}", value=required)]
    if affinity:
        return [op("add", "/spec/affinity/nodeAffinity", value={_REQUIRED: required})]
    return [op("add", "/spec/affinity", value={"nodeAffinity": {_REQUIRED: required}})]
