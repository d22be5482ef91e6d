"""Whether something adds nodes to the cluster: read from nodes, a ConfigMap and NodePools.

``controller.observing.autoscalers`` reads the objects. A reason of a job that no node fits then
says that more nodes may come. It is only a hint: nothing here knows which nodes. Pure.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime
from typing import Any

LABELS: Mapping[str, tuple[str | None, str]] = {
    "karpenter.sh/nodepool": (None, "Karpenter"),
    "karpenter.sh/provisioner-name": (None, "Karpenter"),
    "eks.amazonaws.com/compute-type": ("auto", "EKS Auto Mode"),
    "cloud.google.com/gke-provisioned-by": (None, "GKE"),
}
"""Label of nodes that were added by a program -> its value (None: any), and the program."""

STATUS_NAMESPACE, STATUS_NAME = "kube-system", "cluster-autoscaler-status"
"""The ConfigMap with the status of cluster-autoscaler."""

LAST_UPDATED = "cluster-autoscaler.kubernetes.io/last-updated"
STALE_S = 900
"""A status of cluster-autoscaler that is older (seconds) is of one that was removed."""


def autoscaler_of_status(config_map: Mapping[str, Any], now_s: int) -> str | None:
    """Return ``cluster-autoscaler`` if its ConfigMap is of one that runs, else None.

    A status without a time counts. ``now_s`` is in epoch seconds.
    """
    notes = (config_map.get("metadata") or {}).get("annotations") or {}
    updated_s = _time(str(notes.get(LAST_UPDATED, "")))
    is_old = updated_s is not None and now_s - updated_s > STALE_S
    return None if is_old else "cluster-autoscaler"


def _time(text: str) -> float | None:
    """Return the time of Go's text ``2026-11-26 08:00:00.123456789 +0000 UTC``, or None."""
    try:
        return datetime.strptime(text[:19], "%Y-%m-%d %H:%M:%S").replace(tzinfo=UTC).timestamp()
    except ValueError:
        return None


def autoscaler_of_pools(pools: Sequence[Mapping[str, Any]]) -> str | None:
    """Return ``Karpenter`` if a NodePool may add nodes, else None.

    One with a limit of zero for a resource adds none.
    """
    limits = [((pool.get("spec") or {}).get("limits") or {}).values() for pool in pools]
    return "Karpenter" if any(not any(map(_is_zero, each)) for each in limits) else None


def _is_zero(value: object) -> bool:
    return str(value) in {"0", "0m", "0Gi", "0Mi"}


def autoscalers_of_nodes(nodes: Iterable[Mapping[str, Any]]) -> set[str]:
    """Return the programs that have added some of the nodes, by their labels."""
    found = set[str]()
    for node in nodes:
        labels = (node.get("metadata") or {}).get("labels") or {}
        for label, (value, program) in LABELS.items():
            if label in labels and value in {None, labels[label]}:
                found.add(program)
    return found
