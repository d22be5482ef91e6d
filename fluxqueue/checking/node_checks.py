"""Nodes: none over capacity, and free + allocated + foreign = capacity (invariants 1, 5).

The amounts are computed again from Node and Pod objects and from single slots. They are then
compared with the view ``node_usage``, on which people and the matcher rely. Pure.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping

from fluxqueue.checking.both_sides import CheckView, node_of, uid_of
from fluxqueue.checking.findings import Finding, Severity
from fluxqueue.fluxjob.follow import SlotState
from fluxqueue.fluxjob.node import ForeignPod, NodeFact
from fluxqueue.workload.node_object import foreign_pod, node_fact
from fluxqueue.workload.objects import Object
from fluxqueue.workload.pod_resources import raw_request

Amounts = dict[tuple[str, str], int]
"""(node, resource) -> base units."""


def over_capacity(view: CheckView) -> Iterator[Finding]:
    """Report nodes with more bound to them than they have, counting all pods.

    If none of the pods is managed by fluxqueue, another scheduler bound them: a warning.
    """
    capacity = _capacity(view)
    used: Counter[tuple[str, str]] = Counter()
    with_ours = set()
    for pod in view.bound_pods():
        node = node_of(pod)
        if view.is_ours(pod):
            with_ours.add(node)
        for name, amount in raw_request(pod["spec"], status=pod.get("status")).items():
            used[node, name] += amount
    nodes = {node for node, _ in capacity}
    for (node, name), amount in sorted(used.items()):
        # Devices of classes: the controller counts them, and kube-scheduler hands them out.
        is_of_class = "/" in name and (node, name) not in capacity
        if node in nodes and not is_of_class and amount > capacity.get((node, name), 0):
            detail = f"{name}: {amount} bound of {capacity.get((node, name), 0)}"
            severity = Severity.BROKEN if node in with_ours else Severity.WARNING
            yield Finding("node over capacity", f"Node {node} {name}", detail, severity)


def usage(view: CheckView) -> Iterator[Finding]:
    """Report where the rows' usage of a node differs from the cluster, or does not add up."""
    capacity, foreign, allocated = _capacity(view), _foreign(view), _allocated(view)
    seen = {(line.node, line.resource): line for line in view.rows.usage}
    nodes = {node for node, _ in capacity}
    for node, name in sorted(set(capacity) | set(seen)):
        line, subject = seen.get((node, name)), f"Node {node} {name}"
        if line is None:
            yield Finding("node unknown to the rows", subject, f"has {capacity[node, name]}")
            continue
        if (node, name) not in capacity and "/" in name and node in nodes:
            continue  # devices of a class, which the Node object does not show
        if (node, name) not in capacity:
            yield Finding("node that is gone", subject, f"rows give it {line.capacity}")
            continue
        if line.free + line.allocated + line.foreign_used != line.capacity:
            detail = f"{line.free} + {line.allocated} + {line.foreign_used} is not {line.capacity}"
            yield Finding("node usage does not add up", subject, detail, may_pass=False)
        counted = {
            "capacity": (line.capacity, capacity[node, name]),
            "foreign": (line.foreign_used, foreign.get((node, name), 0)),
            "allocated": (line.allocated, allocated.get((node, name), 0)),
        }
        yield from _differences(subject, counted)


def _differences(subject: str, counted: Mapping[str, tuple[int, int]]) -> Iterator[Finding]:
    for what, (rows_say, found) in counted.items():
        if rows_say != found:
            detail = f"the rows say {rows_say}, a new count gives {found}"
            yield Finding(f"node usage: {what} differs", subject, detail)


def _capacity(view: CheckView) -> Amounts:
    facts = readable_nodes(view)
    return {(fact.name, name): amount for fact in facts for name, amount in fact.capacity.items()}


def readable_nodes(view: CheckView) -> list[NodeFact]:
    """The nodes of the cluster, but those that cannot be read."""
    return [fact for node in view.cluster.nodes if (fact := _fact(node)) is not None]


def _fact(node: Object) -> NodeFact | None:
    """A node. None of one that cannot be read, which the controller sets aside and tells."""
    try:
        return node_fact(node)
    except Exception:  # noqa: BLE001  the finding "object set aside" tells it
        return None


def _foreign(view: CheckView) -> Amounts:
    used: Counter[tuple[str, str]] = Counter()
    for pod in view.bound_pods():
        found = foreign_pod(pod)
        if found is None:
            continue
        amounts = _uncovered(view, pod, found) if view.is_ours(pod) else found.resources
        for name, amount in amounts.items():
            used[found.node, name] += amount
    return dict(used)


def _uncovered(view: CheckView, pod: Object, asked: ForeignPod) -> Mapping[str, int]:
    """Return what a bound pod of a managed workload takes beside its slot."""
    slot = view.slot_of_pod.get(uid_of(pod))
    if slot is not None and slot.node == asked.node:
        over = {name: n - slot.resources.get(name, 0) for name, n in asked.resources.items()}
        return {name: amount for name, amount in over.items() if amount > 0}
    # A free slot on its node will be its slot, so nothing is beside it.
    is_to_come = any(
        one.state == SlotState.FREE and one.node == asked.node
        for one in view.slots_of.get(view.workload_of(pod), ())
    )
    return {} if is_to_come else asked.resources


def _allocated(view: CheckView) -> Amounts:
    used: Counter[tuple[str, str]] = Counter()
    for slot in view.rows.slots:
        if slot.state != SlotState.RETURNED:
            for name, amount in slot.resources.items():
                used[slot.node, name] += amount
    return dict(used)
