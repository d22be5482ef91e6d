"""Pod objects as data, whosever they are: facts, gates, owners, templates.

Called by the kinds of workloads and by whoever follows pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from typing import Any

from fluxqueue.fluxjob.follow import PodFact
from fluxqueue.fluxjob.indexes import DIGITS_MAX, INDEX_MAX
from fluxqueue.workload import labels

_REFUSALS = frozenset(
    {"NodeAffinity", "UnexpectedAdmissionError", "TopologyAffinityError", "NodePorts"}
)
"""``status.reason`` of a pod that its node's kubelet refused, beside ``OutOf<resource>``."""


USES = "fluxqueueUses"
"""Where the controller notes, in what it keeps of a running pod's status, what that asks for."""

KILLED = "fluxqueueKilled"
"""Where the controller notes, in what it keeps of an ended pod's status, that it ``was_killed``."""


def pod_fact(pod: Mapping[str, Any]) -> PodFact:
    """Read any pod of ours; ``is_gated`` means by *our* gate, whoever else has one on it."""
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    return PodFact(
        uid=meta["uid"],
        name=meta["name"],
        phase=status.get("phase") or "Pending",
        is_gated=gate_index(spec) is not None,
        is_terminating=bool(meta.get("deletionTimestamp")),
        node=spec.get("nodeName") or None,
        index=_completion_index(meta),
        is_refused=_is_refused(status),
        uses=tuple(status.get(USES) or ()),
        is_killed=bool(status.get(KILLED)),
    )


def has_ended(pod: Mapping[str, Any]) -> bool:
    """Whether it ended by itself; of pods in the form in which the controller keeps them."""
    fact = pod_fact(pod)
    return fact.is_terminal and not fact.is_killed


def was_killed(pod: Mapping[str, Any]) -> bool:
    """Whether the deletion of a pod was asked for before its containers ended.

    Deleting a pod that has ended takes effect without a grace period. The API server keeps the time
    of the first request: ``deletionTimestamp`` less the grace period, in whole seconds.
    """
    meta, status = pod["metadata"], pod.get("status") or {}
    if status.get("phase") not in {"Succeeded", "Failed"} or not meta.get("deletionTimestamp"):
        return False
    grace_s = int(meta.get("deletionGracePeriodSeconds") or 0)
    ends = [
        (one.get("state") or {}).get("terminated", {}).get("finishedAt")
        for one in status.get("containerStatuses") or ()
    ]
    ended = max((datetime.fromisoformat(end) for end in ends if end), default=None)
    if ended is None:
        return grace_s > 0
    # The author chooses the grace period. As a timedelta it could overflow.
    asked_s = datetime.fromisoformat(meta["deletionTimestamp"]).timestamp() - grace_s
    ended_s = ended.timestamp()
    return ended_s > asked_s or (ended_s == asked_s and grace_s > 0)


def _is_refused(status: Mapping[str, Any]) -> bool:
    reason = status.get("reason") or ""
    is_refusal = reason.startswith("OutOf") or reason in _REFUSALS
    return status.get("phase") == "Failed" and is_refusal


def gate_index(spec: Mapping[str, Any]) -> int | None:
    """Find our gate among ``spec.schedulingGates``; None where it is not."""
    for number, gate in enumerate(spec.get("schedulingGates") or ()):
        if gate.get("name") == labels.GATE:
            return number
    return None


def template_spec(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the pod spec in the template of a workload's ``spec``, empty where it has none."""
    found: Mapping[str, Any] = (spec.get("template") or {}).get("spec") or {}
    return found


def controller_owner(obj: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Give the owner reference with ``controller: true``, if any."""
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            found: Mapping[str, Any] = owner
            return found
    return None


def _completion_index(meta: Mapping[str, Any]) -> int | None:
    text = (meta.get("annotations") or {}).get(labels.COMPLETION_INDEX)
    # Anybody may write this annotation on a pod of theirs; the rows take an int32.
    if text is None or len(text) > DIGITS_MAX or not (text.isascii() and text.isdigit()):
        return None
    return int(text) if int(text) <= INDEX_MAX else None
