"""The patches that release a stored workload, and that take its release back. Pure.

The worker sends them. The uninstallation sends ``leave_job_patch`` and ``leave_pod_patch``. Where
nothing is read before, the patch is a merge patch with the UID in its metadata. Else it is the
difference to the wanted object, with tests of what was read.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fluxqueue.fluxjob.node import NAME_KEY, Destination
from fluxqueue.workload import labels
from fluxqueue.workload.gates import GATE, MARKS, NOTES, TEMPLATE, without_gate
from fluxqueue.workload.json_patch import Patch, at, edited, guarded_diff
from fluxqueue.workload.object_paths import Path
from fluxqueue.workload.objects import Object
from fluxqueue.workload.pinning import REQUIRED, pinned_to
from fluxqueue.workload.pods import gate_index

Merge = dict[str, Any]
"""A strategic merge patch. With a UID in its metadata, any other object refuses it (422)."""

_WITHOUT_GATE = {"$patch": "delete", **GATE}
_ORIGIN: Path = (*NOTES, labels.AUTHOR_SUSPENDED)
_SUSPEND: Path = ("spec", "suspend")
_POD: Path = (*TEMPLATE, "spec")
_UNPINNED = {
    "metadata": {"labels": {labels.JOBID: None}},
    "spec": {
        "schedulingGates": [GATE],
        "nodeSelector": {labels.HOSTNAME: None},
        "affinity": {"nodeAffinity": {REQUIRED: None}},
    },
}


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
    spec: dict[str, Any] = {"schedulingGates": [_WITHOUT_GATE], **pinned_to(to)}
    if is_pinned and "affinity" not in spec:
        spec["affinity"] = {"nodeAffinity": {REQUIRED: None}}
    template = {"metadata": _named(jobid, nodes), "spec": spec}
    return _of_job(uid, suspend=False, template=template)


def place_patch(uid: str, placement: str | None) -> Merge:
    """Unsuspend a BatchJob with gated pods, with the placement of its indexes, or without one.

    Its template keeps the gate: the webhook removes it from the pods that it places
    (``index_placement``). None removes the placement of an earlier release.
    """
    mark = {labels.PLACED: "true" if placement else None}
    meta = {"annotations": {labels.PLACEMENT: placement}, "labels": mark}
    return _of_job(uid, suspend=False, template={"metadata": meta})


def displace_patch(job: Object) -> Patch:
    """Remove the placement from the template of a suspended ``job``.

    The suspension stays as it is. The patch fails (422) if its author has resumed it meanwhile.
    """
    places = ((*NOTES, labels.PLACEMENT), (*MARKS, labels.PLACED))
    return guarded_diff(job, edited(job, {(*TEMPLATE, *one): None for one in places}), _SUSPEND)


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


def suspend_again_patch(job: Object) -> Patch:
    """Suspend ``job`` again: its author unsuspended it, and now fluxqueue queues it.

    fluxqueue manages it as long as the gate is in its template (``managed.is_managed``). If the
    gate was removed in the meantime, the queue has been uninstalled, and the patch fails.
    """
    return guarded_diff(job, edited(job, {_SUSPEND: True, _ORIGIN: "false"}), _gate(job, _POD))


def leave_job_patch(job: Object, *, is_unsuspended: bool) -> Patch:
    """Remove the gate from a suspended ``job`` for good, and end the suspension by fluxqueue.

    ``is_unsuspended`` False keeps the suspension. A Job that its author suspended stays suspended,
    and the patch removes the record of that. It fails (422) if the Job is no longer suspended,
    because its template cannot change then.
    """
    changes: dict[Path, Any] = {(*_POD, "schedulingGates"): without_gate(at(job, _POD))}
    changes[_ORIGIN] = None
    if is_unsuspended and at(job, _ORIGIN) != "true":
        changes[_SUSPEND] = False
    return guarded_diff(job, edited(job, changes), _SUSPEND, _gate(job, _POD))


def leave_pod_patch(pod: Object) -> Patch:
    """Remove the gate from ``pod`` for good: the cluster's scheduler places it freely."""
    free = edited(pod, {("spec", "schedulingGates"): without_gate(pod["spec"])})
    return guarded_diff(pod, free, _gate(pod, ("spec",)))


def _gate(obj: Object, spec: Path) -> Path:
    """Return where the gate is. A test of this place fails if it is no longer there."""
    index = gate_index(at(obj, spec))
    assert index is not None, "callers choose what has our gate"
    return (*spec, "schedulingGates", index, "name")


def _named(jobid: int | str, nodes: str) -> dict[str, Any]:
    """Return the metadata of a released pod: its job number and its nodes.

    The policy that guards queued pods exempts pods with the label
    (chart/templates/gatepolicy.yaml).
    """
    return {"labels": {labels.JOBID: str(jobid)}, "annotations": {labels.NODES: nodes}}


def _of_job(uid: str, *, suspend: bool, **spec: Any) -> Merge:
    whose = {labels.AUTHOR_SUSPENDED: "false" if suspend else None}
    return {"metadata": {"uid": uid, "annotations": whose}, "spec": {"suspend": suspend, **spec}}


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
    drops_managed_fields : see ``index_placement.IndexPlacement``.
    """
    fields = pinned_to(to, has_affinity=has_affinity)
    if others and to.hostname is not None:
        term = {"matchExpressions": [_on_any(to.hostname, others)]}
        fields = {"affinity": {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}}
    # One empty entry removes the field. An empty list would change nothing.
    reset: dict[str, Any] = {"managedFields": [{}]} if drops_managed_fields else {}
    return {
        "metadata": {"uid": uid, **_named(jobid, nodes), **reset},
        "spec": {"schedulingGates": [_WITHOUT_GATE], **fields},
    }


def _on_any(hostname: str, others: Sequence[str]) -> dict[str, Any]:
    """Return the expression that a node is one of several."""
    return {"key": labels.HOSTNAME, "operator": "In", "values": [hostname, *others]}


def ungate_by_name_patch(
    pod: Object, *, to: Destination, jobid: int | str, nodes: str, others: Sequence[str] = ()
) -> Patch | None:
    """Release ``pod`` to a node without hostname label, or return None if the gate is gone.

    Each term of its affinity is narrowed to the node's name, or to the hostnames of several nodes:
    the terms of a gated pod can only be narrowed. Fails (422) if the pod has changed since it was
    read.
    """
    if gate_index(pod["spec"]) is None:
        return None
    part, field = "matchFields", {"key": NAME_KEY, "operator": "In", "values": [to.name]}
    if others and to.hostname is not None:
        part, field = "matchExpressions", _on_any(to.hostname, others)
    place = ("spec", "affinity", "nodeAffinity", REQUIRED, "nodeSelectorTerms")
    terms: Sequence[Mapping[str, Any]] = at(pod, place) or [{}]
    changes: dict[Path, Any] = {
        ("spec", "schedulingGates"): without_gate(pod["spec"]),
        place: [{**term, part: [*(term.get(part) or ()), field]} for term in terms],
        (*MARKS, labels.JOBID): str(jobid),
        (*NOTES, labels.NODES): nodes,
    }
    return guarded_diff(pod, edited(pod, changes), _gate(pod, ("spec",)))
