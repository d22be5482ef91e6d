"""What a stored pod shows: its facts, its end, and why it is unbound.

Called by the kinds of workloads and by the code that follows pods. Admission does not load it.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from datetime import datetime
from typing import Any

from fluxqueue.fluxjob.indexes import DIGITS_MAX, INDEX_MAX
from fluxqueue.fluxjob.pod_facts import NOT_SEEN, OF_GROUP, PodFact, cut
from fluxqueue.fluxjob.times import LAST_S, epoch_s
from fluxqueue.workload import labels
from fluxqueue.workload.pods import gate_index, grace_s

_OF_NODES = re.compile(r"\d+/\d+ nodes are available")
"""How kube-scheduler begins what it says of a pod that fits no node."""

_REFUSALS = frozenset(
    {"NodeAffinity", "UnexpectedAdmissionError", "TopologyAffinityError", "NodePorts"}
)
"""Values of ``status.reason`` of a pod that its kubelet refused, beside ``OutOf<resource>``."""

_ENDED = frozenset({"Succeeded", "Failed"})

USES = "fluxqueueUses"
"""Field in the stored status of a running pod in which the controller keeps its request."""

KILLED = "fluxqueueKilled"
"""Field in the stored status of an ended pod in which the controller keeps ``was_killed``.

None: only the states before tell."""

UNSCHEDULABLE = "fluxqueueUnschedulable"
"""Field in the stored status of an unbound pod in which the controller keeps ``why_unbound``."""


def pod_fact(pod: Mapping[str, Any]) -> PodFact:
    """Read any managed pod. ``is_gated`` refers to fluxqueue's gate only, not to other gates."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    return PodFact(
        uid=meta["uid"],
        name=meta["name"],
        phase=status.get("phase") or "Pending",
        is_gated=gate_index(spec) is not None,
        is_terminating=bool(meta.get("deletionTimestamp")),
        node=spec.get("nodeName") or None,
        index=completion_index(meta),
        is_refused=_is_refused(status),
        uses=tuple(status.get(USES) or ()),
        is_killed=bool(status.get(KILLED)),
        unschedulable=status.get(UNSCHEDULABLE) or "",
    )


def is_grouped(pod: Mapping[str, Any]) -> bool:
    """Tell whether a pod is in a PodGroup of Kubernetes, which is scheduled as one."""
    return bool((pod.get("spec") or {}).get("schedulingGroup"))


def why_unbound(pod: Mapping[str, Any]) -> str:
    """Return why kube-scheduler cannot bind a pod, in its own words, or empty.

    If one pod of a PodGroup fits nowhere, all of its pods count as unschedulable. Only the words of
    that pod name nodes. Return ``OF_GROUP`` and the words for the others: no node refused them.

    A pod with a nominated node is no such pod: kube-scheduler makes room for it there. For a pod of
    another scheduler that has not looked at it, return ``NOT_SEEN`` and the name of the scheduler.
    """
    spec, status = pod.get("spec") or {}, pod.get("status") or {}
    if spec.get("nodeName") or status.get("nominatedNodeName"):
        return ""
    for one in status.get("conditions") or ():
        # The API server itself writes of gates, and the condition outlives them.
        if one.get("type") != "PodScheduled" or one.get("reason") == "SchedulingGated":
            continue
        if one.get("status") == "False" and one.get("reason") == "Unschedulable":
            said = str(one.get("message") or "") or "kube-scheduler gives no reason"
            return cut(said if _OF_NODES.match(said) or not is_grouped(pod) else OF_GROUP + said)
        return ""
    scheduler = spec.get("schedulerName") or labels.DEFAULT_SCHEDULER
    is_own = scheduler == labels.DEFAULT_SCHEDULER
    return "" if is_own or spec.get("schedulingGates") else cut(f"{NOT_SEEN}{scheduler}")


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Tell whether it ended by itself. The input is a pod as the controller stores it."""
    fact = pod_fact(pod)
    return fact.is_terminal and not fact.is_killed


def was_killed(pod: Mapping[str, Any]) -> bool | None:
    """Tell whether the deletion of a pod was requested before its containers ended.

    The API server keeps the time of the request as ``deletionTimestamp`` less the grace period, in
    whole seconds. None: both were in the same second, and the grace period is 0. So it is when an
    ended pod is deleted, and when the kubelet deletes a killed pod. The latter can also set a later
    time. ``carry_kill`` tells the two apart.
    """
    meta, status = pod["metadata"], pod.get("status") or {}
    if status.get("phase") not in _ENDED or not meta.get("deletionTimestamp"):
        return False
    grace_s = int(meta.get("deletionGracePeriodSeconds") or 0)
    ends = [
        (one.get("state") or {}).get("terminated", {}).get("finishedAt")
        for one in status.get("containerStatuses") or ()
    ]
    ended = max((datetime.fromisoformat(end) for end in ends if end), default=None)
    # The author chooses the grace period. As a timedelta it could overflow.
    asked_s = datetime.fromisoformat(meta["deletionTimestamp"]).timestamp() - grace_s
    if ended is not None and ended.timestamp() != asked_s:
        return ended.timestamp() > asked_s
    return True if grace_s > 0 else None


def carry_kill(old: Mapping[str, Any], new: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the state ``new`` of a watched pod, marked as killed if ``old`` shows that.

    A killed pod stays one. A pod that had not ended when it was seen to be deleted was killed, if
    the times leave it open.
    """
    was, now = old["status"], new["status"]
    is_open = KILLED in now and now[KILLED] is None
    ran_on = "deletionTimestamp" in old["metadata"] and was.get("phase") not in _ENDED
    if now.get(KILLED) or not (was.get(KILLED) or (is_open and ran_on)):
        return new
    return {**new, "status": {**now, KILLED: True}}


def _is_refused(status: Mapping[str, Any]) -> bool:
    reason = status.get("reason") or ""
    is_refusal = reason.startswith("OutOf") or reason in _REFUSALS
    return status.get("phase") == "Failed" and is_refusal


def enforced_end(pod: Mapping[str, Any], own_end: int | None) -> int | None:
    """Return when Kubernetes has ended a pod at the latest (epoch seconds), None if it is unknown.

    Parameters
    ----------
    own_end : when its controller deletes it. None: only the pod's own deadline may end it.
    """
    meta, spec = pod["metadata"], pod.get("spec") or {}
    if meta.get("deletionTimestamp"):
        return min(epoch_s(meta["deletionTimestamp"]) or LAST_S, LAST_S)
    started_s = epoch_s((pod.get("status") or {}).get("startTime"))
    if own_end is None and started_s is not None and spec.get("activeDeadlineSeconds"):
        own_end = started_s + int(spec["activeDeadlineSeconds"])
    return None if own_end is None else min(own_end + grace_s(spec), LAST_S)


def completion_index(meta: Mapping[str, Any]) -> int | None:
    """Return the completion index of a pod with this metadata, or None."""
    text = (meta.get("annotations") or {}).get(labels.COMPLETION_INDEX)
    # Any user can write this annotation on a pod of their own. The rows accept an int32.
    if text is None or len(text) > DIGITS_MAX or not (text.isascii() and text.isdigit()):
        return None
    return int(text) if int(text) <= INDEX_MAX else None
