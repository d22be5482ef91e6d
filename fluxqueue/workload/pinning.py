"""Pod templates that name a node: whose may, whose does, and how it was before. Pure.

A BatchJob whose slots all lie on one node is released in its template (``gates.pin_patch``). Used
by the controller, which must see what its author asked for and not what we wrote there.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.fluxjob.node import NAME_KEY
from fluxqueue.fluxjob.request import Operator
from fluxqueue.workload import labels
from fluxqueue.workload.pods import gate_index, template_spec

_REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"
_DIGITS_MAX = 15


def has_required_affinity(pod_spec: Mapping[str, Any]) -> bool:
    """Whether a pod requires node affinity."""
    return bool(_terms(pod_spec))


def named_node(pod_spec: Mapping[str, Any]) -> str | None:
    """The one node whose name a pod's required affinity demands; None where it has none."""
    names = [_name_in(term) for term in _terms(pod_spec)]
    return names[0] if len(set(names)) == 1 else None


def is_pinnable(job: Mapping[str, Any]) -> bool:
    """Whether the pods of ``job`` may come without a gate once all its slots lie on one node.

    Only where there can never be more of them than slots: whose parallelism is raised gets pods
    that nobody could hold back. And only where what we write into its template can be taken out
    again without a word of its author's.
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


def pinned_node(job: Mapping[str, Any]) -> str | None:
    """The node that the template of a managed ``job`` names in place of our gate; None mostly.

    Where we name it by its label alone, that is its name (``gates``).
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
    """The jobid that was written into the template of a ``job`` together with its node."""
    meta = (job["spec"].get("template") or {}).get("metadata") or {}
    text = str((meta.get("labels") or {}).get(labels.JOBID, ""))
    return int(text) if text.isascii() and text.isdigit() and len(text) <= _DIGITS_MAX else None


def is_released(job: Mapping[str, Any]) -> bool:
    """Whether our release stands in the template of ``job``: its node, and as which number.

    Whoever writes both himself has it taken in, as by our gate; admission takes the number out.
    """
    return pinned_node(job) is not None and pinned_as(job) is not None


def without_pin(job: Mapping[str, Any]) -> Mapping[str, Any]:
    """``job`` as its author wrote it, where its template names a node; itself otherwise.

    But for its parallelism, which counts as if it were not there: its author may raise it again at
    any time, and the pods that come then cannot be held back.
    """
    if pinned_node(job) is None:
        return job
    spec = job["spec"]
    pod_spec = dict(template_spec(spec))
    selector = dict(pod_spec.get("nodeSelector") or {})
    selector.pop(labels.HOSTNAME, None)
    affinity = dict(pod_spec.get("affinity") or {})
    node_affinity = dict(affinity.get("nodeAffinity") or {})
    node_affinity.pop(_REQUIRED, None)
    pod_spec |= {"nodeSelector": selector, "affinity": affinity | {"nodeAffinity": node_affinity}}
    template = {**spec["template"], "spec": pod_spec}
    whole = {"parallelism": spec.get("completions", spec.get("parallelism", 1))}
    return {**job, "spec": {**spec, **whole, "template": template}}


def _name_in(term: Mapping[str, Any]) -> str | None:
    for field in term.get("matchFields") or ():
        is_name = field.get("key") == NAME_KEY and field.get("operator") == Operator.IN
        values = list(field.get("values") or ())
        if is_name and len(values) == 1:
            return str(values[0])
    return None


def _terms(pod_spec: Mapping[str, Any]) -> list[Mapping[str, Any]]:
    node_affinity = (pod_spec.get("affinity") or {}).get("nodeAffinity") or {}
    found: list[Mapping[str, Any]] = (node_affinity.get(_REQUIRED) or {}).get(
        "nodeSelectorTerms"
    ) or []
    return found
