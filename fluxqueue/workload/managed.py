"""Which objects are ours, and never the ones named here.

Called by the webhook at admission and by the controller when it lists. The webhook configuration
keeps most of the others away before we are called; nothing here relies on that. What speaks
against one object of a kind, its entry knows (``workload.kinds``).

Pods of a BatchJob keep what their template gives them, so they need no admission of their own.
"""

from __future__ import annotations

from collections.abc import Mapping, Set
from typing import Any

from fluxqueue.errors import InvalidInput
from fluxqueue.workload import labels
from fluxqueue.workload.kinds import kind_of

NEVER_MANAGED = labels.SYSTEM_NAMESPACES | {labels.OWN_NAMESPACE}


def why_untouched(
    workload: Mapping[str, Any],
    *,
    namespace: str,
    never_managed: Set[str] = NEVER_MANAGED,
) -> str | None:
    """Say why an object is not to be taken in; None where it is.

    Parameters: ``namespace`` is the request's (an object under admission may lack its own);
    ``never_managed`` are the namespaces of the system and our own.
    """
    try:
        kind, meta = kind_of(workload), workload.get("metadata") or {}
    except InvalidInput:
        return f"a {workload['kind']} is not managed"
    if namespace in never_managed:
        return f"namespace {namespace} is never managed"
    if meta.get("deletionTimestamp"):
        return "it is being deleted"
    if (meta.get("labels") or {}).get(labels.MANAGED) == "false":
        return f'label {labels.MANAGED} is "false"'
    if not kind.pod_spec(workload):
        return "it has no pod spec, so the API server will refuse it"
    return kind.why_not(workload)


def is_managed(workload: Mapping[str, Any]) -> bool:
    """Tell whether a stored object waits for us: our gate is on it (BatchJob: on its template).

    Labels do not decide: whoever removes one from a gated object would otherwise strand it
    (``controller.observing.batch_jobs`` puts it back).
    """
    return not _is_going(workload) and kind_of(workload).is_held(workload)


def is_taken_in(workload: Mapping[str, Any]) -> bool:
    """Tell whether a stored object waits for us, or shows that we let it go.

    For the controller, which wraps exactly these. A BatchJob that was released in its template
    shows it there. Of a Pod whose gate is gone its FluxJob alone knows. An object that admission
    leaves alone is not adopted, whatever it carries: its author wrote the gate and the submitter.
    """
    return has_our_marks(workload) and why_not_vouched(workload) is None


def has_our_marks(workload: Mapping[str, Any]) -> bool:
    """Tell whether a stored object carries our gate, or our release, whoever wrote it there."""
    return not _is_going(workload) and kind_of(workload).is_taken_in(workload)


def why_not_vouched(workload: Mapping[str, Any]) -> str | None:
    """Say why admission did not look at a stored object that carries our marks; None where it did.

    The policy of the API server refuses such objects (chart/files/policies.yaml). This rule holds
    without it, too. Of a group each pod is asked for itself (``controller.observing.groups``).
    """
    kind, meta = kind_of(workload), workload.get("metadata") or {}
    if (meta.get("labels") or {}).get(labels.MANAGED) == "false":
        return f'label {labels.MANAGED} is "false"'
    if not kind.is_built_in or not kind.has_object:
        return None
    if not kind.can_be_suspended and labels.OF_A_BATCH_JOB in (meta.get("labels") or {}):
        return f"label {labels.OF_A_BATCH_JOB} says that a Job made it"
    return kind.why_not(workload)


def _is_going(workload: Mapping[str, Any]) -> bool:
    return bool((workload.get("metadata") or {}).get("deletionTimestamp"))
