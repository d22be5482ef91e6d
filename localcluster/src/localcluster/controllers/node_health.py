"""What follows from a node's conditions: taints, and which pods must leave. Pure.

It follows ``pkg/controller/nodelifecycle`` and ``pkg/controller/tainteviction``.
"""

from __future__ import annotations

from datetime import UTC, datetime

from localcluster.loops.objects import condition_of, later, read_time, write_time
from localcluster.obj import Obj
from localcluster.scheduler.decision import tolerates

NOT_READY = "node.kubernetes.io/not-ready"
UNREACHABLE = "node.kubernetes.io/unreachable"
UNSCHEDULABLE = "node.kubernetes.io/unschedulable"
PRESSURES = {
    "MemoryPressure": "node.kubernetes.io/memory-pressure",
    "DiskPressure": "node.kubernetes.io/disk-pressure",
    "PIDPressure": "node.kubernetes.io/pid-pressure",
    "NetworkUnavailable": "node.kubernetes.io/network-unavailable",
}
OURS = frozenset({NOT_READY, UNREACHABLE, UNSCHEDULABLE, *PRESSURES.values()})
TTL_ANNOTATION = "node.alpha.kubernetes.io/ttl"
UNKNOWN_REASON = "NodeStatusUnknown"
UNKNOWN_MESSAGE = "Kubelet stopped posting node status."


def _readiness(node: Obj) -> str:
    ready = condition_of(node, "Ready")
    return str(ready.get("status")) if ready is not None else "Unknown"


def wanted_taints(node: Obj) -> set[tuple[str, str]]:
    """Return (key, effect) of the taints that conditions and cordon require."""
    wanted: set[tuple[str, str]] = set()
    readiness = _readiness(node)
    if readiness != "True":
        key = NOT_READY if readiness == "False" else UNREACHABLE
        wanted |= {(key, "NoSchedule"), (key, "NoExecute")}
    if (node.get("spec") or {}).get("unschedulable"):
        wanted.add((UNSCHEDULABLE, "NoSchedule"))
    for kind, key in PRESSURES.items():
        condition = condition_of(node, kind)
        if condition is not None and condition.get("status") == "True":
            wanted.add((key, "NoSchedule"))
    return wanted


def taint_steps(node: Obj, at: datetime, effect: str) -> list[list[Obj]]:
    """Return the writes that update the node's taints: additions first, then removals.

    They are for one ``effect``. NoSchedule follows immediately. NoExecute evicts, so it follows
    only with the regular check of all nodes.
    """
    taints: list[Obj] = (node.get("spec") or {}).get("taints") or []
    wanted = {pair for pair in wanted_taints(node) if pair[1] == effect}
    present = {
        (t["key"], t["effect"]) for t in taints if t["key"] in OURS and t["effect"] == effect
    }
    steps: list[list[Obj]] = []
    if wanted - present:
        taints = taints + [
            {"key": key, "effect": effect, "timeAdded": write_time(at)}
            for key, effect in sorted(wanted - present)
        ]
        steps.append(taints)
    if present - wanted:
        steps.append([t for t in taints if (t["key"], t["effect"]) not in present - wanted])
    return steps


def missing_marks(node: Obj) -> list[Obj]:
    """Return metadata that the control plane adds to every node, one write each."""
    metadata = node["metadata"]
    marks: list[Obj] = []
    if TTL_ANNOTATION not in (metadata.get("annotations") or {}):
        marks.append({"annotations": {TTL_ANNOTATION: "0"}})
    labels = metadata.get("labels") or {}
    old_names = {
        f"beta.{name}": labels[name]
        for name in ("kubernetes.io/os", "kubernetes.io/arch")
        if name in labels and labels.get(f"beta.{name}") != labels[name]
    }
    if old_names:
        marks.append({"labels": old_names})
    return marks


def unknown_conditions(node: Obj, at: datetime) -> list[Obj]:
    """Return the conditions of a node that has become silent."""
    return [
        {
            **condition,
            "status": "Unknown",
            "reason": UNKNOWN_REASON,
            "message": UNKNOWN_MESSAGE,
            "lastTransitionTime": write_time(at),
        }
        for condition in (node.get("status") or {}).get("conditions") or ()
    ]


def with_condition(pod: Obj, condition: Obj) -> list[Obj]:
    """Return the pod's conditions with one replaced, or appended if it is new."""
    conditions: list[Obj] = list((pod.get("status") or {}).get("conditions") or ())
    for number, old in enumerate(conditions):
        if old["type"] == condition["type"]:
            conditions[number] = {**old, **condition}
            return conditions
    return [*conditions, condition]


def evicted_at(pod: Obj, node: Obj) -> datetime | None:
    """Return when a pod must leave a node with NoExecute taints, or None if it may stay."""
    due: datetime | None = None
    tolerations: list[Obj] = pod["spec"].get("tolerations") or []
    for taint in (node.get("spec") or {}).get("taints") or ():
        if taint.get("effect") != "NoExecute":
            continue
        since = read_time(taint.get("timeAdded")) or datetime.min.replace(tzinfo=UTC)
        matching = [t for t in tolerations if tolerates([t], taint)]
        if not matching:
            leaves = since
        else:
            limits = [t["tolerationSeconds"] for t in matching if "tolerationSeconds" in t]
            if not limits:
                continue
            leaves = later(since, max(0, min(limits)))
        due = leaves if due is None else min(due, leaves)
    return due
