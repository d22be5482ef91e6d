"""Which objects are ours: bare Pods and BatchJobs, and never the ones named here.

Called by the webhook at admission and by the controller when it lists. The webhook configuration
keeps most of the others away before we are called; nothing here relies on that.

Pods of Deployments, ReplicaSets and StatefulSets are not managed in this release. Pods of a
BatchJob keep what their template gives them, so they need no admission of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from fluxqueue.workload import labels
from fluxqueue.workload.pods import gate_index

JOB = "Job"
POD = "Pod"
OWN_JOB_CONTROLLER = "kubernetes.io/job-controller"

NEVER_MANAGED = labels.SYSTEM_NAMESPACES | {labels.OWN_NAMESPACE}


def kind_of(workload: Mapping[str, Any]) -> str:
    """Tell a BatchJob from a Pod, also where a list left ``kind`` out."""
    kind = workload.get("kind")
    if kind:
        return str(kind)
    return JOB if "template" in (workload.get("spec") or {}) else POD


def why_untouched(
    workload: Mapping[str, Any],
    *,
    namespace: str,
    never_managed: Set[str] = NEVER_MANAGED,
) -> str | None:
    """Say why a BatchJob or Pod is not to be taken in; None where it is.

    Parameters: ``namespace`` is the request's (an object under admission may lack its own);
    ``never_managed`` are the namespaces of the system and our own.
    """
    kind, meta = kind_of(workload), workload.get("metadata") or {}
    if kind not in {JOB, POD}:
        return f"a {kind} is not managed"
    if namespace in never_managed:
        return f"namespace {namespace} is never managed"
    if meta.get("deletionTimestamp"):
        return "it is being deleted"
    if _opts_out(meta):
        return f'label {labels.MANAGED} is "false"'
    spec = workload.get("spec") or {}
    if not (pod_template_spec(spec) if kind == JOB else spec):
        return "it has no pod spec, so the API server will refuse it"
    return _why_not_job(spec) if kind == JOB else _why_not_pod(meta, spec)


def is_managed(workload: Mapping[str, Any]) -> bool:
    """Tell whether a stored object waits for us: our gate is on it (BatchJob: on its template).

    For the controller, which wraps exactly these. Labels do not decide: whoever removes one from
    a gated object would otherwise strand it. A Pod whose gate is gone was released before.
    """
    meta = workload.get("metadata") or {}
    if meta.get("deletionTimestamp"):
        return False
    spec = workload.get("spec") or {}
    if kind_of(workload) == POD:
        return not meta.get("ownerReferences") and gate_index(spec) is not None
    return gate_index(pod_template_spec(spec)) is not None


def pod_template_spec(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Give the pod spec of a BatchJob's ``spec``, empty where it has none."""
    found: Mapping[str, Any] = (spec.get("template") or {}).get("spec") or {}
    return found


def is_author_suspended(job: Mapping[str, Any]) -> bool:
    """Tell whether its author created ``job`` suspended and has not yet unsuspended it."""
    annotations = (job.get("metadata") or {}).get("annotations") or {}
    is_suspended = bool((job.get("spec") or {}).get("suspend"))
    return is_suspended and annotations.get(labels.AUTHOR_SUSPENDED) == "true"


def _opts_out(meta: Mapping[str, Any]) -> bool:
    return (meta.get("labels") or {}).get(labels.MANAGED) == "false"


def _why_not_job(spec: Mapping[str, Any]) -> str | None:
    template = spec.get("template") or {}
    managed_by = spec.get("managedBy")
    if managed_by and managed_by != OWN_JOB_CONTROLLER:
        return f"spec.managedBy is {managed_by}"
    if _opts_out(template.get("metadata") or {}):
        return f'label {labels.MANAGED} of the pod template is "false"'
    if pod_template_spec(spec).get("nodeName"):
        return "the pod template names its node"
    return None


def _why_not_pod(meta: Mapping[str, Any], spec: Mapping[str, Any]) -> str | None:
    owners = meta.get("ownerReferences") or ()
    if owners:
        # DaemonSet and node-owned mirror pods are among these, and pods of workload controllers.
        return f"it belongs to {owners[0].get('kind')} {owners[0].get('name')}"
    if labels.MIRROR in (meta.get("annotations") or {}):
        return "it is a mirror pod"
    if spec.get("nodeName"):
        return f"it is bound to {spec['nodeName']}"
    return None
