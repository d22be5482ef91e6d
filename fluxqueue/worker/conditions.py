"""Conditions of the status of queues, sharing policies and node pools. Pure.

``queue_keeping``, ``sharing_keeping`` and ``node_pool_keeping`` call it. Conditions of FluxJobs are
written elsewhere (``fluxjob``), because they follow the lifecycle.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.fluxjob.times import to_rfc3339


def condition(
    old: Mapping[str, Any] | None, name: str, holds: bool, reason: str, message: str, at_s: int
) -> dict[str, Any]:
    """Return a condition at ``at_s`` (epoch seconds). Without a change it keeps its time."""
    status = "True" if holds else "False"
    is_same = old is not None and old["status"] == status
    return {
        "type": name,
        "status": status,
        "reason": reason,
        "message": message,
        "lastTransitionTime": old["lastTransitionTime"] if is_same and old else to_rfc3339(at_s),
    }
