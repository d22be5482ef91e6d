"""Where a pod fits: the filters of the default scheduler, and its explanations.

Pure. The filters are in the scheduler's order: cordon, node name, taints, node affinity and
selector, host ports, resources and pod count, places of bound volumes, topology spread, inter-pod
affinity. Scoring prefers the emptiest node. There is no preemption here, and the texts say so in
the scheduler's words.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

import orjson

from localcluster.obj import Obj
from localcluster.scheduler.neighbours import PORT_REASON, Neighbour, Place, View, neighbour_of
from localcluster.types.pod_requests import (
    Amounts,
    add,
    amounts_of,
    pod_requests,
    subtract,
)

SCHEDULER_NAME = "default-scheduler"
HOSTNAME_LABEL = "kubernetes.io/hostname"
UNSCHEDULABLE_TAINT: Obj = {
    "key": "node.kubernetes.io/unschedulable",
    "effect": "NoSchedule",
}

AFFINITY_REASON = "node(s) didn't match Pod's node affinity/selector"
TAINT_REASON = "node(s) had untolerated taint(s)"
CORDON_REASON = "node(s) were unschedulable"
UNKNOWN_NODE_REASON = "node(s) didn't satisfy plugin(s) [NodeAffinity]"
VOLUME_REASON = "node(s) had volume node affinity conflict"
NO_NODES = "no nodes available to schedule pods"
NOT_HELPFUL = "Preemption is not helpful for scheduling"
NO_VICTIMS = "No preemption victims found for incoming pod"
NEVER = "not eligible due to preemptionPolicy=Never."


@dataclass(slots=True)
class NodeState:
    """A node as the scheduler sees it: parts of its object, and what bound pods use."""

    name: str
    labels: dict[str, str] = field(default_factory=dict)
    taints: list[Obj] = field(default_factory=list)
    is_cordoned: bool = False
    allocatable: Amounts = field(default_factory=dict)
    used: Amounts = field(default_factory=dict)
    pods: int = 0
    is_known: bool = False

    def take_object(self, node: Obj) -> None:
        """Update from the Node object. What is used stays."""
        spec, status = node.get("spec") or {}, node.get("status") or {}
        self.labels = node["metadata"].get("labels") or {}
        self.taints = [
            taint
            for taint in spec.get("taints") or ()
            if taint.get("effect") in {"NoSchedule", "NoExecute"}
        ]
        self.is_cordoned = bool(spec.get("unschedulable"))
        self.allocatable = amounts_of(status.get("allocatable") or status.get("capacity"))
        self.is_known = True

    def take_pod(self, requests: Amounts) -> None:
        """Add a pod that was bound here."""
        add(self.used, requests)
        self.pods += 1

    def drop_pod(self, requests: Amounts) -> None:
        """Remove a pod that finished or was deleted."""
        subtract(self.used, requests)
        self.pods -= 1


@dataclass(frozen=True, slots=True)
class PodDemand:
    """What decides the place of a pod. Equal signatures mean equal answers."""

    requests: Amounts
    selector: dict[str, str]
    terms: list[Obj] | None
    tolerations: list[Obj]
    node_name: str
    never_preempts: bool
    signature: bytes
    neighbour: Neighbour = field(default_factory=Neighbour)
    claims: tuple[str, ...] = ()
    whole_signature: bytes = b""
    """With its labels and rules. They matter if pods on nodes can refuse it."""


@dataclass(frozen=True, slots=True)
class Around:
    """What is around a pod that is tried: the pods on nodes, and the places of its volumes.

    ``volumes`` has the terms of each bound volume with a node affinity.
    """

    view: View | None = None
    volumes: tuple[list[Obj], ...] = ()


NOTHING_AROUND = Around()


def demand_of(pod: Obj) -> PodDemand:
    """Return the demand of a pod."""
    spec = pod["spec"]
    required = ((spec.get("affinity") or {}).get("nodeAffinity") or {}).get(
        "requiredDuringSchedulingIgnoredDuringExecution"
    )
    terms = required.get("nodeSelectorTerms") or [] if required else None
    requests = pod_requests(pod)
    selector = spec.get("nodeSelector") or {}
    tolerations = spec.get("tolerations") or []
    never = spec.get("preemptionPolicy") == "Never"
    neighbour, claims = neighbour_of(pod), tuple(_claims(spec))
    beside = [neighbour.namespace, neighbour.labels, sorted(neighbour.ports), claims]
    beside += [spec.get("affinity"), spec.get("topologySpreadConstraints")]
    signature = orjson.dumps(
        [requests, selector, terms, tolerations, never], option=orjson.OPT_SORT_KEYS
    )
    return PodDemand(
        requests,
        selector,
        terms,
        tolerations,
        spec.get("nodeName") or "",
        never,
        signature,
        neighbour,
        claims,
        signature + orjson.dumps(beside, option=orjson.OPT_SORT_KEYS),
    )


def _claims(spec: Obj) -> Iterable[str]:
    for volume in spec.get("volumes") or ():
        claim = volume.get("persistentVolumeClaim") or {}
        if claim.get("claimName"):
            yield claim["claimName"]


def place_of(demand: PodDemand, node: NodeState) -> Place:
    """Return a node as the view of its neighbours needs it."""
    is_tolerated = all(tolerates(demand.tolerations, taint) for taint in node.taints)
    return Place(node.name, node.labels, matches_node(demand, node), is_tolerated)


# -- filters ---------------------------------------------------------------------------------------


def tolerates(tolerations: Iterable[Obj], taint: Obj) -> bool:
    """Return whether any toleration matches the taint."""
    for toleration in tolerations:
        effect = toleration.get("effect")
        if effect and effect != taint.get("effect"):
            continue
        key = toleration.get("key")
        if key and key != taint.get("key"):
            continue
        operator = toleration.get("operator") or "Equal"
        if operator == "Exists":
            return True
        if key and (toleration.get("value") or "") == (taint.get("value") or ""):
            return True
    return False


def _matches_expression(expression: Obj, values: dict[str, str]) -> bool:
    key, operator = expression["key"], expression["operator"]
    wanted: list[str] = expression.get("values") or []
    value = values.get(key)
    if operator == "In":
        return value in wanted
    if operator == "NotIn":
        return value is None or value not in wanted
    if operator == "Exists":
        return value is not None
    if operator == "DoesNotExist":
        return value is None
    try:  # Gt and Lt compare whole numbers. Anything else does not match.
        left, right = int(value or ""), int(wanted[0])
    except (ValueError, IndexError):
        return False
    return left > right if operator == "Gt" else left < right


def matches_terms(terms: list[Obj], node: NodeState) -> bool:
    """Return whether required node affinity matches.

    One term is enough, with all its expressions and fields. Empty terms never match.
    """
    for term in terms:
        expressions: list[Obj] = term.get("matchExpressions") or []
        fields: list[Obj] = term.get("matchFields") or []
        if not expressions and not fields:
            continue
        if all(_matches_expression(e, node.labels) for e in expressions) and all(
            _matches_expression(f, {"metadata.name": node.name}) for f in fields
        ):
            return True
    return False


def matches_node(demand: PodDemand, node: NodeState) -> bool:
    """Return whether nodeSelector and required node affinity match."""
    labels = node.labels
    if any(labels.get(key) != value for key, value in demand.selector.items()):
        return False
    return demand.terms is None or matches_terms(demand.terms, node)


def lacking(demand: PodDemand, node: NodeState) -> list[str]:
    """Return the reasons of the resources filter, or nothing if the pod fits."""
    reasons = []
    if node.pods + 1 > node.allocatable.get("pods", 0):
        reasons.append("Too many pods")
    for name, amount in demand.requests.items():
        if amount and amount > node.allocatable.get(name, 0) - node.used.get(name, 0):
            reasons.append(f"Insufficient {name}")
    return reasons


def why_not(demand: PodDemand, node: NodeState, around: Around = NOTHING_AROUND) -> list[str]:
    """Return the reasons of the first filter that refuses the pod on the node."""
    if node.is_cordoned and not tolerates(demand.tolerations, UNSCHEDULABLE_TAINT):
        return [CORDON_REASON]
    for taint in node.taints:
        if not tolerates(demand.tolerations, taint):
            return [TAINT_REASON]
    if not matches_node(demand, node):
        return [AFFINITY_REASON]
    beside = [] if around.view is None else around.view.why_not(node.name)
    if beside == [PORT_REASON]:
        return beside
    reasons = lacking(demand, node)
    if reasons:
        return reasons
    if not all(matches_terms(terms, node) for terms in around.volumes):
        return [VOLUME_REASON]
    return beside


def _score(demand: PodDemand, node: NodeState) -> float:
    """Return "least allocated": the free share of cpu and memory after placing the pod."""
    total = 0.0
    for name in ("cpu", "memory"):
        capacity = node.allocatable.get(name, 0)
        if capacity:
            used = node.used.get(name, 0) + demand.requests.get(name, 0)
            total += (capacity - used) / capacity
    return total


def choose_node(
    demand: PodDemand, candidates: Iterable[NodeState], around: Around = NOTHING_AROUND
) -> NodeState | None:
    """Return the emptiest candidate on which the pod fits. Of equals take fewer pods."""
    best: NodeState | None = None
    best_rank: tuple[float, int] = (0.0, 0)
    for node in candidates:
        if not why_not(demand, node, around):
            rank = (_score(demand, node), -node.pods)
            if best is None or rank > best_rank:
                best, best_rank = node, rank
    return best


# -- explanations ----------------------------------------------------------------------------------


def explain(demand: PodDemand, nodes: list[NodeState], around: Around = NOTHING_AROUND) -> str:
    """Return the message of FailedScheduling for a pod that fits none of ``nodes``."""
    if not nodes:
        return NO_NODES
    total = len(nodes)
    reasons: Counter[str] = Counter()
    hopeful = 0
    if _names_unknown_node(demand, nodes):
        reasons[UNKNOWN_NODE_REASON] = total
    else:
        for node in nodes:
            found = why_not(demand, node, around)
            reasons.update(found)
            hopeful += _could_preempt(demand, node, found)
    preemption = NEVER
    if not demand.never_preempts:
        counts = Counter({NO_VICTIMS: hopeful, NOT_HELPFUL: total - hopeful})
        preemption = f"0/{total} nodes are available: {_listed(+counts)}."
    return (
        f"0/{total} nodes are available: {_listed(reasons)}. "
        f"no new claims to deallocate, preemption: {preemption}"
    )


def _listed(reasons: Counter[str]) -> str:
    return ", ".join(sorted(f"{count} {reason}" for reason, count in reasons.items()))


def _could_preempt(demand: PodDemand, node: NodeState, reasons: list[str]) -> bool:
    """Return whether a search for victims could help.

    It could only on a node that lacks capacity now, but not in principle.
    """
    if not all(r.startswith("Insufficient ") or r == "Too many pods" for r in reasons):
        return False
    return (
        all(amount <= node.allocatable.get(name, 0) for name, amount in demand.requests.items())
        and node.allocatable.get("pods", 0) > 0
    )


def _names_unknown_node(demand: PodDemand, nodes: list[NodeState]) -> bool:
    """Return whether the pod names only nodes (by metadata.name) that do not exist.

    The scheduler refuses this before any filter runs.
    """
    if not demand.terms:
        return False
    wanted: set[Any] = set()
    for term in demand.terms:
        names = [
            set(f.get("values") or ())
            for f in term.get("matchFields") or ()
            if f.get("key") == "metadata.name" and f.get("operator") == "In"
        ]
        if not names:
            return False
        wanted |= set.intersection(*names)
    return not any(node.name in wanted for node in nodes)
