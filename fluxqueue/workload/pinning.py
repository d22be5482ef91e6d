"""Pod templates that name a node: which may, which do, and what they were before. Pure.

If all slots of a BatchJob are on one node, the release is in its template
(``release_patches.pin_patch``).
The controller uses this to see what the author asked for, and not what fluxqueue wrote there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.fluxjob.node import NAME_KEY, Destination
from fluxqueue.fluxjob.request import Operator
from fluxqueue.workload import labels
from fluxqueue.workload.json_patch import edited
from fluxqueue.workload.object_paths import Path
from fluxqueue.workload.pods import gate_index, template_spec

REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_DIGITS_MAX = 15


def pinned_to(to: Destination, *, has_affinity: bool = False) -> dict[str, Any]:
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
        fields["affinity"] = {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": [term]}}}
    return fields


def is_by_name_alone(pod_spec: Mapping[str, Any]) -> bool:
    """Tell whether the required affinity of a pod is the one that ``pinned_to`` writes."""
    terms = _terms(pod_spec)
    fields = (terms[0].get("matchFields") or []) if len(terms) == 1 else []
    is_name = len(fields) == 1 and fields[0].get("key") == NAME_KEY
    return is_name and not terms[0].get("matchExpressions")


def has_required_affinity(pod_spec: Mapping[str, Any]) -> bool:
    """Tell whether a pod requires node affinity."""
    return bool(_terms(pod_spec))


def named_node(pod_spec: Mapping[str, Any]) -> str | None:
    """Return the one node name that a pod's required affinity demands, or None."""
    names = [_name_in(term) for term in _terms(pod_spec)]
    return names[0] if len(set(names)) == 1 else None


def is_pinnable(job: Mapping[str, Any]) -> bool:
    """Tell whether the pods of ``job`` may start ungated once all its slots lie on one node.

    This needs two things. There can never be more pods than slots, because nothing could hold back
    further pods. A policy of the API server refuses to raise the parallelism of such a Job again
    after it was lowered. And what fluxqueue writes into the template can be removed again without
    loss of the author's input.
    """
    spec, pod_spec = job["spec"], template_spec(job["spec"])
    completions = spec.get("completions")
    return (
        spec.get("completionMode") != "Indexed"
        and completions is not None
        and int(spec.get("parallelism", 1)) >= int(completions)
        and not has_required_affinity(pod_spec)
        and labels.HOSTNAME not in (pod_spec.get("nodeSelector") or {})
    )


def is_placeable(job: Mapping[str, Any]) -> bool:
    """Tell whether the pods of ``job`` may be placed at their creation (``index_placement``).

    Each index has a slot of its own then: no two indexes share one after the other.
    """
    spec, pod_spec = job["spec"], template_spec(job["spec"])
    completions = spec.get("completions")
    return (
        spec.get("completionMode") == "Indexed"
        and completions is not None
        and int(spec.get("parallelism", 1)) >= int(completions) > 0
        and not has_required_affinity(pod_spec)
        and labels.HOSTNAME not in (pod_spec.get("nodeSelector") or {})
    )


def sealed_in(job: Mapping[str, Any]) -> str | None:
    """Return the placement of its indexes in the template of ``job``, or None."""
    meta = (job["spec"].get("template") or {}).get("metadata") or {}
    found = (meta.get("annotations") or {}).get(labels.PLACEMENT)
    return None if found is None else str(found)


def pinned_node(job: Mapping[str, Any]) -> str | None:
    """Return the node that the template of a managed ``job`` names instead of the gate, or None.

    If the template names it by its label alone, the label's value is returned (``pinned_to``).
    """
    pod_spec = template_spec(job["spec"])
    if gate_index(pod_spec) is not None:
        return None
    name = named_node(pod_spec)
    if name is not None:
        return name
    hostname = (pod_spec.get("nodeSelector") or {}).get(labels.HOSTNAME)
    return None if hostname is None or pinned_as(job) is None else str(hostname)


def pinned_as(job: Mapping[str, Any]) -> int | None:
    """Return the jobid that was written into the template of ``job`` together with its node."""
    meta = (job["spec"].get("template") or {}).get("metadata") or {}
    text = str((meta.get("labels") or {}).get(labels.JOBID, ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else None


def is_released(job: Mapping[str, Any]) -> bool:
    """Tell whether the template of ``job`` has the release: its node and its job number.

    If a user writes both, the job becomes managed, as with the gate. Admission removes the number.
    """
    return pinned_node(job) is not None and pinned_as(job) is not None


def without_pin(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return ``job`` as its author wrote it, if its template names a node, or else unchanged."""
    if pinned_node(job) is None:
        return job
    pod: Path = ("spec", "template", "spec")
    node = (*pod, "nodeSelector", labels.HOSTNAME), (*pod, "affinity", "nodeAffinity", REQUIRED)
    return edited(job, dict.fromkeys(node))


def _name_in(term: Mapping[str, Any]) -> str | None:
    for field in term.get("matchFields") or ():
        is_name = field.get("key") == NAME_KEY and field.get("operator") == Operator.IN
        values = list(field.get("values") or ())
        if is_name and len(values) == 1:
            return str(values[0])
    return None


def _terms(pod_spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    node_affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    found: list[Mapping[str, Any]] = (node_affinity.get(REQUIRED) or {}).get(
        "nodeSelectorTerms"
    ) or []
    return found
