"""Filters, choice and texts of the scheduler. The texts are those a real one was recorded with."""

from __future__ import annotations

from typing import Any

import pytest

from localcluster.obj import Obj
from localcluster.scheduler.decision import (
    NO_NODES,
    NodeState,
    choose_node,
    demand_of,
    explain,
    lacking,
    matches_terms,
    tolerates,
    why_not,
)
from localcluster.types.pod_requests import pod_requests


def _node(name: str, cpu: str = "64", memory: str = "256Gi", **extra: Any) -> NodeState:
    state = NodeState(name)
    labels = {"kubernetes.io/hostname": name, **extra.pop("labels", {})}
    capacity = {"cpu": cpu, "memory": memory, "pods": extra.pop("pods", "110")}
    state.take_object(
        {
            "metadata": {"name": name, "labels": labels},
            "spec": extra,
            "status": {"allocatable": capacity},
        }
    )
    return state


def _pod(requests: Obj | None = None, **spec: Any) -> Obj:
    container = {"name": "m", "resources": {"requests": requests or {}}}
    return {"metadata": {"name": "p"}, "spec": {"containers": [container], **spec}}


def _recorded_nodes() -> list[NodeState]:
    taint = {"key": "dedicated", "value": "hpc", "effect": "NoSchedule"}
    return [
        _node("node-1"),
        _node("node-2", "2", "4Gi", taints=[taint], labels={"disk": "ssd"}),
    ]


def _affinity(*terms: Obj) -> Obj:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


TAIL = (
    ". no new claims to deallocate, preemption: 0/2 nodes are available: "
    "2 Preemption is not helpful for scheduling."
)


@pytest.mark.parametrize(
    ("pod", "reasons"),
    [
        (
            _pod(nodeSelector={"disk": "none"}),
            (
                "1 node(s) didn't match Pod's node affinity/selector, "
                "1 node(s) had untolerated taint(s)"
            ),
        ),
        (_pod({"cpu": "100"}), "1 Insufficient cpu, 1 node(s) had untolerated taint(s)"),
        (
            _pod({"cpu": "100", "memory": "500Gi"}),
            "1 Insufficient cpu, 1 Insufficient memory, 1 node(s) had untolerated taint(s)",
        ),
        (
            _pod({"example.com/gpu": "1"}),
            "1 Insufficient example.com/gpu, 1 node(s) had untolerated taint(s)",
        ),
        (
            _pod(
                {"cpu": "100"},
                nodeSelector={"disk": "ssd"},
                tolerations=[{"key": "dedicated", "operator": "Exists"}],
            ),
            "1 Insufficient cpu, 1 node(s) didn't match Pod's node affinity/selector",
        ),
        (
            _pod(
                affinity=_affinity(
                    {"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["no"]}]}
                )
            ),
            "2 node(s) didn't satisfy plugin(s) [NodeAffinity]",
        ),
    ],
)
def test_recorded_texts(pod: Obj, reasons: str) -> None:
    """Reasons sorted as text, one per node, the preemption sentence at the end."""
    assert explain(demand_of(pod), _recorded_nodes()) == f"0/2 nodes are available: {reasons}{TAIL}"


def test_recorded_text_of_a_cordoned_node() -> None:
    """Cordon is looked at before anything else."""
    nodes = [_node("node-1", unschedulable=True), _recorded_nodes()[1]]
    message = explain(demand_of(_pod({"cpu": "100"})), nodes)
    assert "1 node(s) had untolerated taint(s), 1 node(s) were unschedulable" in message


def test_recorded_text_without_preemption() -> None:
    """preemptionPolicy Never."""
    nodes = [_node("a", "2")]
    nodes[0].take_pod({"cpu": 2000})
    message = explain(demand_of(_pod({"cpu": "2"}, preemptionPolicy="Never")), nodes)
    assert message.endswith("preemption: not eligible due to preemptionPolicy=Never.")


def test_busy_nodes_could_have_had_victims() -> None:
    """A node that is only full now differs from one that could never do."""
    nodes = [_node("full", "4"), _node("small", "1")]
    nodes[0].take_pod({"cpu": 4000})
    message = explain(demand_of(_pod({"cpu": "2"})), nodes)
    assert message.endswith(
        "1 No preemption victims found for incoming pod, "
        "1 Preemption is not helpful for scheduling."
    )


def test_no_nodes() -> None:
    """An empty cluster has its own text."""
    assert explain(demand_of(_pod()), []) == NO_NODES


def test_emptiest_node_wins() -> None:
    """By free share, then by number of pods. A node without room never."""
    busy, idle, small = _node("busy"), _node("idle"), _node("small", "1")
    busy.take_pod({"cpu": 32000})
    demand = demand_of(_pod({"cpu": "2"}))
    assert choose_node(demand, [busy, idle, small]) is idle
    nothing = demand_of(_pod())
    first, second = _node("first"), _node("second")
    first.take_pod({})
    assert choose_node(nothing, [first, second]) is second


def test_room_is_exact() -> None:
    """Millicores and pods add up and come back."""
    node = _node("n", "1", pods="2")
    half = demand_of(_pod({"cpu": "500m"}))
    node.take_pod(half.requests)
    assert why_not(half, node) == []
    node.take_pod(half.requests)
    assert why_not(half, node) == ["Too many pods", "Insufficient cpu"]
    node.drop_pod(half.requests)
    assert lacking(half, node) == []


@pytest.mark.parametrize(
    ("toleration", "expected"),
    [
        ({"key": "k", "operator": "Exists"}, True),
        ({"operator": "Exists"}, True),
        ({"key": "k", "value": "v"}, True),
        ({"key": "k", "operator": "Equal", "value": "other"}, False),
        ({"key": "k", "operator": "Exists", "effect": "NoExecute"}, False),
        ({"key": "x", "operator": "Exists"}, False),
    ],
)
def test_tolerations(toleration: Obj, expected: bool) -> None:
    """Key, operator, value and effect."""
    taint = {"key": "k", "value": "v", "effect": "NoSchedule"}
    assert tolerates([toleration], taint) is expected


@pytest.mark.parametrize(
    ("operator", "values", "expected"),
    [
        ("In", ["4", "5"], True),
        ("NotIn", ["5"], True),
        ("NotIn", ["4"], False),
        ("Exists", [], True),
        ("DoesNotExist", [], False),
        ("Gt", ["3"], True),
        ("Gt", ["4"], False),
        ("Lt", ["10"], True),
        ("Lt", ["x"], False),
    ],
)
def test_node_affinity_operators(operator: str, values: list[str], expected: bool) -> None:
    """All six, on a label with the value 4."""
    node = _node("n", labels={"size": "4"})
    expression = {"key": "size", "operator": operator, "values": values}
    assert matches_terms([{"matchExpressions": [expression]}], node) is expected


def test_terms_are_alternatives_and_empty_ones_match_nothing() -> None:
    """Any of several terms is enough. A term without content is no wildcard."""
    node = _node("n", labels={"a": "1"})
    no = {"matchExpressions": [{"key": "b", "operator": "Exists"}]}
    yes = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
    assert matches_terms([no, yes], node)
    assert not matches_terms([no, {}], node)


def test_effective_requests() -> None:
    """Containers add up, init containers count by their maximum, sidecars on top, overhead too."""

    def container(cpu: str, **extra: Any) -> Obj:
        return {"resources": {"requests": {"cpu": cpu}}, **extra}

    pod = {
        "spec": {
            "containers": [container("1"), container("500m")],
            "initContainers": [
                container("100m", restartPolicy="Always"),
                container("3"),
                container("200m", restartPolicy="Always"),
            ],
            "overhead": {"cpu": "50m"},
        }
    }
    assert pod_requests(pod) == {"cpu": 3150}
    limits = {"spec": {"containers": [{"resources": {"limits": {"nvidia.com/gpu": "2"}}}]}}
    assert pod_requests(limits) == {"nvidia.com/gpu": 2}
