"""Pod objects as data: a bare Pod as a workload of one, and any pod of ours as a ``PodFact``.

Called by the controller when it wraps a bare Pod and by the worker when it follows pods.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.fluxjob.follow import PodFact, WorkloadFact
from fluxqueue.fluxjob.indexes import DIGITS_MAX, INDEX_MAX
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.jobspec import Jobspec
from fluxqueue.workload import labels
from fluxqueue.workload.annotations import read_wishes
from fluxqueue.workload.shape import DEFAULT_PRIORITY, build_request, choose_priority
from fluxqueue.workload.site import DEFAULT_SITE, Site

_REFUSALS = frozenset(
    {"NodeAffinity", "UnexpectedAdmissionError", "TopologyAffinityError", "NodePorts"}
)
"""``status.reason`` of a pod that its node's kubelet refused, beside ``OutOf<resource>``."""

_RESULTS = {"Succeeded": FluxJobState.COMPLETED, "Failed": FluxJobState.FAILED}


def to_request(pod: Mapping[str, Any], *, site: Site = DEFAULT_SITE) -> Jobspec:
    """Describe what a bare ``pod`` needs: one slot.

    Raises
    ------
    InvalidInput
        An annotation, a quantity or an affinity term cannot be read.
    """
    spec = pod["spec"]
    return build_request(
        spec,
        read_wishes(pod),
        count=1,
        deadline_s=spec.get("activeDeadlineSeconds"),
        where="spec",
        site=site,
    )


def priority(
    pod: Mapping[str, Any],
    *,
    class_values: Mapping[str, int] | None = None,
    default: int = DEFAULT_PRIORITY,
) -> int:
    """Choose the priority of ``pod``: its annotation, else what admission gave it.

    Raises
    ------
    InvalidInput
        An annotation cannot be read.
    """
    return choose_priority(pod["spec"], read_wishes(pod), class_values or {}, default)


def workload_fact(pod: Mapping[str, Any] | None) -> WorkloadFact:
    """Tell how far a bare ``pod`` is as a workload; None is one that no longer exists.

    The phase decides, whatever its restart policy: containers that are restarted in place keep
    the pod, and its slot, running.
    """
    if pod is None:
        return WorkloadFact(wanted=0, is_deleting=True)
    result = _RESULTS.get((pod.get("status") or {}).get("phase", ""))
    return WorkloadFact(
        wanted=0 if result else 1,
        result=result,
        is_deleting=bool(pod["metadata"].get("deletionTimestamp")),
    )


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
    )


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
