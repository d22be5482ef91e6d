"""Which stored objects fluxqueue manages.

Called by the controller when it lists. ``holding.why_untouched`` says the same at admission. The
entry of each kind knows why an object of that kind is excluded (``workload.kinds``).
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.workload import labels
from fluxqueue.workload.kinds.table import kind_of


def is_managed(workload: Mapping[str, Any]) -> bool:
    """Tell whether a stored object waits for fluxqueue: it has the gate.

    For a BatchJob, its template has the gate.

    Labels do not decide. Otherwise the removal of a label would strand a gated object
    (``controller.observing.batch_jobs`` restores the label).
    """
    return not _is_going(workload) and kind_of(workload).is_held(workload)


def is_taken_in(workload: Mapping[str, Any]) -> bool:
    """Tell whether a stored object waits for fluxqueue, or shows that it was released.

    The controller wraps exactly these objects. A BatchJob that was released in its template shows
    the release there. For a Pod without gate, only its FluxJob shows it. An object that admission
    leaves alone is not adopted, whatever it carries: its author wrote the gate and the submitter.
    """
    return has_our_marks(workload) and why_not_vouched(workload) is None


def has_our_marks(workload: Mapping[str, Any]) -> bool:
    """Tell whether a stored object carries the gate or the release, whatever its origin."""
    return not _is_going(workload) and kind_of(workload).is_taken_in(workload)


def why_not_vouched(workload: Mapping[str, Any]) -> str | None:
    """Return why admission did not check a stored object with fluxqueue's marks, or None.

    The policy of the API server refuses such objects (chart/files/policies.yaml). This rule holds
    without the policy, too. In a group, each pod is checked by itself
    (``controller.observing.group_assembly``).
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
