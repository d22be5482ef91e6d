"""Node objects and unmanaged Pod objects as facts for the matcher.

Called by the controller for every Node and Pod that it sees. It must stay cheap and pure.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from fluxqueue.fluxjob.node import CAPACITY_MAX, NAME_KEY, ForeignPod, NodeFact
from fluxqueue.fluxjob.request import Taint
from fluxqueue.workload.numa import NodeZones, read_zones
from fluxqueue.workload.pod_resources import raw_request
from fluxqueue.workload.pods import controller_owner
from fluxqueue.workload.quantity import to_base_units

_READINESS_TAINTS = frozenset(
    {
        "node.kubernetes.io/not-ready",
        "node.kubernetes.io/unreachable",
        "node.kubernetes.io/unschedulable",
    }
)
"""Taints that Kubernetes adds to express ``is_up`` and ``is_schedulable``.

Read as taints, they would make a node that is cordoned for an hour count as one that never fits.
"""


def node_fact(node: Mapping[str, Any], topology: Mapping[str, Any] | None = None) -> NodeFact:
    """Read a Node object, and its NodeResourceTopology if the cluster has such objects.

    The capacity for pods is ``status.allocatable``. A node that has not reported it yet offers
    nothing, whatever its capacity field contains.

    Raises
    ------
    InvalidInput
        A quantity of ``status.allocatable`` cannot be read.
    """
    meta, spec, status = node["metadata"], node.get("spec") or {}, node.get("status") or {}
    allocatable = status.get("allocatable") or {}
    zones = NodeZones() if topology is None else read_zones(topology)
    return NodeFact(
        name=meta["name"],
        uid=meta["uid"],
        capacity={
            name: min(CAPACITY_MAX, to_base_units(name, value, where=f"status.allocatable.{name}"))
            for name, value in allocatable.items()
        },
        labels={**(meta.get("labels") or {}), NAME_KEY: meta["name"]},
        taints=_taints(spec),
        is_up=_is_ready(status) and not meta.get("deletionTimestamp"),
        is_schedulable=not spec.get("unschedulable", False),
        numa_zones=zones.zones,
        is_numa_for_pods=zones.is_for_pods,
    )


def _taints(spec: Mapping[str, Any]) -> tuple[Taint, ...]:
    return tuple(
        Taint(taint["key"], taint.get("value") or "", taint.get("effect") or "")
        for taint in spec.get("taints") or ()
        if taint["key"] not in _READINESS_TAINTS
    )


def placed_node(node: Mapping[str, Any]) -> NodeFact:
    """Read only the labels and the taints of a Node object. It seems to have no capacity."""
    meta = node["metadata"]
    labels = {**(meta.get("labels") or {}), NAME_KEY: meta["name"]}
    return NodeFact(meta["name"], meta["uid"], {}, labels, _taints(node.get("spec") or {}))


def _is_ready(status: Mapping[str, Any]) -> bool:
    return any(
        condition.get("type") == "Ready" and condition.get("status") == "True"
        for condition in status.get("conditions") or ()
    )


def foreign_pod(pod: Mapping[str, Any]) -> ForeignPod | None:
    """Return what an unmanaged Pod takes of its node, or None if it takes nothing.

    A pod counts from its binding until it is terminal or gone. A pod with a pending deletion still
    runs. The caller knows from the rows whether a pod is managed. It is not read from the object.

    Raises
    ------
    InvalidInput
        A quantity cannot be read (the API server lets none such pass).
    """
    meta, spec, status = pod["metadata"], pod.get("spec") or {}, pod.get("status") or {}
    node = spec.get("nodeName")
    if not node or status.get("phase") in {"Succeeded", "Failed"}:
        return None
    return ForeignPod(
        uid=meta["uid"],
        namespace=meta["namespace"],
        name=meta["name"],
        node=node,
        resources=raw_request(spec, status=status),
        is_permanent=_is_permanent(pod),
    )


def _is_permanent(pod: Mapping[str, Any]) -> bool:
    """Tell whether a DaemonSet, or its node (static pods), would start it again at once."""
    owner = controller_owner(pod)
    return owner is not None and owner.get("kind") in {"DaemonSet", "Node"}
