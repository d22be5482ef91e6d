"""Pod objects and templates as data: gates, owners, deadlines.

Called by the kinds of workloads, by admission and by the code that follows pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from fluxqueue.workload import labels

DEFAULT_GRACE_S = 30
"""Kubernetes' default of ``terminationGracePeriodSeconds``."""

INT32_MAX = 2**31 - 1


def grace_s(spec: Mapping[str, Any]) -> int:
    """Return how long a pod of this spec may take to end, in seconds. Rows accept an int32."""
    said = spec.get("terminationGracePeriodSeconds")
    # The kubelet takes a negative value as 1.
    return DEFAULT_GRACE_S if said is None else min(INT32_MAX, int(said) if said >= 0 else 1)


def longest_deadline(specs: Sequence[Mapping[str, Any]]) -> int | None:
    """Return the longest deadline of pods that run together, None if one of them has none."""
    found = [int(one["activeDeadlineSeconds"]) for one in specs if one.get("activeDeadlineSeconds")]
    return max(found) if found and len(found) == len(specs) else None


def gate_index(spec: Mapping[str, Any]) -> int | None:
    """Return the index of fluxqueue's gate in ``spec.schedulingGates``, or None."""
    for number, gate in enumerate(spec.get("schedulingGates") or ()):
        if gate.get("name") == labels.GATE:
            return number
    return None


def template_spec(spec: Mapping[str, Any]) -> Mapping[str, Any]:
    """Return the pod spec in the template of a workload's ``spec``, or empty if it has none."""
    found: Mapping[str, Any] = (spec.get("template") or {}).get("spec") or {}
    return found


def controller_owner(obj: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the owner reference with ``controller: true``, if any."""
    for owner in obj["metadata"].get("ownerReferences") or ():
        if owner.get("controller"):
            found: Mapping[str, Any] = owner
            return found
    return None
