"""What a workload is while the gates of its pods hold it: the objects that admission wants. Pure.

The entries of kinds call it (``workload.kinds``), and ``index_placement`` for pods that are
released at their creation. A suspended BatchJob and a gated Pod allow the later changes of
``release_patches``: nodeSelector keys can be added, node affinity terms can gain expressions, and
fluxqueue's own gate can be removed (``docs/developer/state-machine.md``).

All functions are idempotent: an object that is as it should be is returned itself, so that
reinvocation changes nothing.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.fluxjob.node import Destination
from fluxqueue.workload import labels
from fluxqueue.workload.annotations import Wishes
from fluxqueue.workload.groups import Membership
from fluxqueue.workload.json_patch import at, edited
from fluxqueue.workload.object_paths import Path
from fluxqueue.workload.objects import Object
from fluxqueue.workload.pinning import REQUIRED, is_by_name_alone, pinned_to
from fluxqueue.workload.pods import controller_owner, gate_index

GATE = {"name": labels.GATE}
TEMPLATE: Path = ("spec", "template")
NOTES: Path = ("metadata", "annotations")
MARKS: Path = ("metadata", "labels")
_DEADLINE: Path = ("spec", "activeDeadlineSeconds")
Changes = Mapping[Path, Any]
"""Values by path, None for what must not be there."""


def gated_pod(
    pod: Object,
    wishes: Wishes,
    user: str,
    group: Membership | None = None,
    *,
    followers: str = "",
) -> Object:
    """Return a Pod as it waits: gated, labelled, with its deadline and group mark.

    ``user`` is the submitter that the API server authenticated. It replaces any value in the
    manifest. ``followers``: the annotation for a driver that has none, as its arguments tell.
    """
    changes: dict[Path, Any] = {
        **_waiting_pods(pod, ()),
        **_deadline(pod, wishes),
        (*NOTES, labels.USER): user or None,
        (*NOTES, labels.GROUP): None if group is None else group.mark(),
    }
    return edited(pod, changes | ({(*NOTES, labels.FOLLOWERS): followers} if followers else {}))


def gated_members(job: Object, wishes: Wishes, user: str, group: Membership) -> Object:
    """Return a BatchJob that starts together with other workloads, as it waits.

    Its pods belong to a wider group. They are created, gated and marked. The BatchJob is not
    suspended, or its pods could never be counted. Its template receives what its pods must know:
    wishes, submitter, and its deadline, which counts from a pod's start.
    """
    notes, marks = at(job, NOTES) or {}, at(job, MARKS) or {}
    ours = {labels.AUTHOR_SUSPENDED, labels.USER}
    wished = {k: v for k, v in notes.items() if k.startswith(labels.PREFIX) and k not in ours}
    told = wished | {labels.USER: user or None, labels.GROUP: group.mark()}
    changes: dict[Path, Any] = {
        **_waiting_pods(job, TEMPLATE),
        **_deadline(job, wishes, TEMPLATE),
        (*MARKS, labels.MANAGED): "true",
        (*NOTES, labels.USER): user or None,
        **{(*TEMPLATE, *NOTES, key): value for key, value in told.items()},
    }
    if labels.QUEUE in marks:
        changes[*TEMPLATE, *MARKS, labels.QUEUE] = marks[labels.QUEUE]
    return edited(job, changes)


def suspended_job(job: Object, wishes: Wishes, user: str, *, keeps_group: bool = False) -> Object:
    """Return a BatchJob as it waits: suspended, pods gated, labelled, with its deadline.

    ``keeps_group``: its pods stay in the PodGroup that Kubernetes makes for them.
    """
    changes: dict[Path, Any] = {
        **_waiting_pods(job, TEMPLATE),
        **_deadline(job, wishes, TEMPLATE if wishes.is_timed_by_pod else ()),
        **_suspension(job, wishes),
        (*MARKS, labels.MANAGED): "true",
        (*NOTES, labels.USER): user or None,
        (*TEMPLATE, *NOTES, labels.NATIVE_GROUP): "true" if keeps_group else None,
    }
    return edited(job, changes)


def _suspension(job: Object, wishes: Wishes) -> Changes:
    """Return whether the BatchJob is suspended, and the record that its author suspended it.

    A BatchJob that waits with gated pods is not suspended. If a suspended BatchJob already has
    fluxqueue's gate, fluxqueue suspended it. That happened in an earlier round of this admission,
    or in the cluster that its manifest was exported from. A suspension for the queue is not
    recorded: the queue ends it.
    """
    field, origin = ("spec", "suspend"), (*NOTES, labels.AUTHOR_SUSPENDED)
    is_gated = gate_index(at(job, (*TEMPLATE, "spec")) or {}) is not None
    if not at(job, field):
        return {origin: None} if wishes.waits_gated else {origin: None, field: True}
    if not (is_gated or wishes.is_suspended_for_queue):
        return {origin: "true"}
    is_ours = at(job, origin) != "true" or wishes.is_suspended_for_queue
    return {field: False} if wishes.waits_gated and is_ours else {}


def _waiting_pods(obj: Object, place: Path) -> Changes:
    """Return what pods have while they wait. ``place`` leads to their metadata and spec.

    A manifest may be exported with an earlier release: a job number, nodes, a placement. The node
    in the spec was chosen by that release if there is a job number or a list of nodes. Without
    either, the author has chosen it.
    """
    spec = at(obj, (*place, "spec")) or {}
    notes, marks = (at(obj, (*place, *one)) or {} for one in (NOTES, MARKS))
    changes: dict[Path, Any] = {
        (*place, *MARKS, labels.MANAGED): "true",
        (*place, *MARKS, labels.JOBID): None,
        (*place, *MARKS, labels.PLACED): None,
        (*place, *NOTES, labels.PLACEMENT): None,
    }
    if gate_index(spec) is None:
        gates = [*(spec.get("schedulingGates") or ()), GATE]
        changes[*place, "spec", "schedulingGates"] = gates
    if spec.get("schedulerName") in labels.FORMER_SCHEDULERS:
        changes[*place, "spec", "schedulerName"] = labels.DEFAULT_SCHEDULER
    if labels.JOBID in marks or labels.NODES in notes:
        changes[*place, *NOTES, labels.NODES] = None
        changes[*place, "spec", "nodeSelector", labels.HOSTNAME] = None
        if is_by_name_alone(spec):
            changes[*place, "spec", "affinity", "nodeAffinity", REQUIRED] = None
    return changes


def _deadline(obj: Object, wishes: Wishes, place: Path = ()) -> Changes:
    """Return the deadline that the author wished, if there is none yet."""
    is_set = wishes.duration_s is None or at(obj, (*place, *_DEADLINE)) is not None
    return {} if is_set else {(*place, *_DEADLINE): wishes.duration_s}


def asking(obj: Object, path: Path) -> Object:
    """Return an object with pods that ask to be queued, unless they say otherwise.

    ``path`` leads to the labels of the pods.
    """
    is_said = labels.MANAGED in (at(obj, path) or {})
    return obj if is_said else edited(obj, {(*path, labels.MANAGED): "true"})


def without_legacy_scheduler(pod: Object) -> Object:
    """Return an unmanaged Pod with a scheduler that exists, if it names a predecessor's."""
    is_former = at(pod, ("spec", "schedulerName")) in labels.FORMER_SCHEDULERS
    return edited(pod, {("spec", "schedulerName"): labels.DEFAULT_SCHEDULER}) if is_former else pod


def is_resumed(old: Object, new: Object) -> bool:
    """Tell whether an edit would resume a BatchJob that waits in the queue.

    An author may resume a Job that the author suspended, and an operator the Jobs that it makes.
    """
    meta, field = old.get("metadata") or {}, ("spec", "suspend")
    is_gated = gate_index(at(old, (*TEMPLATE, "spec")) or {}) is not None
    if not at(old, field) or at(new, field) or not is_gated:
        return False
    maker = controller_owner(old)
    if maker is not None and maker["kind"] != "CronJob":
        return False
    origin = at(old, (*NOTES, labels.AUTHOR_SUSPENDED))
    # After its first start, a Job without the mark was suspended by a user. A user may resume it.
    return origin == "false" or (origin != "true" and meta.get("generation") == 1)


def repinned(old: Object, new: Object) -> Object:
    """Return ``new`` with the node of a released BatchJob that an apply of its manifest removes.

    A server-side apply replaces the whole node selector of a template. The API server then refuses
    it, because the template of a running BatchJob cannot change.
    """
    number = (*TEMPLATE, *MARKS, labels.JOBID)
    # Without the job number it is our own patch, which takes the whole release back.
    if at(old, number) is None or at(new, number) is None:
        return new
    place = (*TEMPLATE, "spec", "nodeSelector")
    selector, applied = (at(one, place) or {} for one in (old, new))
    if not isinstance(selector, dict) or not isinstance(applied, dict):
        return new
    if labels.HOSTNAME not in selector or {**selector, **applied} != selector:
        return new
    return edited(new, {place: selector})


def placed_pod(
    pod: Object, *, to: Destination, jobid: int | str, nodes: str, group: str = ""
) -> Object:
    """Return a gated pod as it is released at its creation: with its node, without the gate.

    The parameters are those of ``release_patches.ungate_patch``. The pod requires no node affinity
    of its own. ``group``: the PodGroup that it joins, unless it is in one already.
    """
    changes: dict[Path, Any] = {
        ("spec", "schedulingGates"): without_gate(pod["spec"]),
        (*MARKS, labels.JOBID): str(jobid),
        (*NOTES, labels.NODES): nodes,
        (*NOTES, labels.PLACEMENT): None,
        # Without the label, the pod is not sent here again after the changes of other webhooks.
        (*MARKS, labels.PLACED): None,
    }
    if group and at(pod, ("spec", "schedulingGroup")) is None:
        changes["spec", "schedulingGroup"] = {"podGroupName": group}
    pinned = pinned_to(to)
    if "nodeSelector" in pinned:
        changes["spec", "nodeSelector", labels.HOSTNAME] = to.hostname
    if "affinity" in pinned:
        required = pinned["affinity"]["nodeAffinity"][REQUIRED]
        changes["spec", "affinity", "nodeAffinity", REQUIRED] = required
    return edited(pod, changes)


def without_gate(pod_spec: Object) -> list[Any]:
    """Return the scheduling gates of a pod without fluxqueue's own."""
    return [one for one in pod_spec.get("schedulingGates") or () if one.get("name") != labels.GATE]
