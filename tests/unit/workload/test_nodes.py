"""Node and foreign Pod objects as facts."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.fluxjob.node import ForeignPod, NodeFact
from fluxqueue.fluxjob.request import Taint
from fluxqueue.workload.node_object import foreign_pod, node_fact
from tests.support.workloads import bare_pod, container


def _node(*, meta: dict[str, Any] | None = None, ready: str = "True", **spec: Any) -> Any:
    return {
        "metadata": {"name": "n1", "uid": "u1", **(meta or {})},
        "spec": spec,
        "status": {
            "capacity": {"cpu": "64"},
            "allocatable": {
                "cpu": "31800m", "memory": "128Gi", "nvidia.com/gpu": "4", "pods": "110"
            },
            "conditions": [
                {"type": "MemoryPressure", "status": "True"},
                {"type": "Ready", "status": ready},
            ],
        },
    }  # fmt: skip


def test_reads_allocatable_labels_taints() -> None:
    taints = [
        {"key": "gpu", "value": "a100", "effect": "NoSchedule"},
        {"key": "old", "effect": "NoExecute"},
    ]
    node = _node(meta={"labels": {"zone": "a"}}, taints=taints)
    assert node_fact(node) == NodeFact(
        name="n1",
        uid="u1",
        capacity={"cpu": 31800, "memory": 128 * 2**30, "nvidia.com/gpu": 4, "pods": 110},
        labels={"zone": "a", "metadata.name": "n1"},
        taints=(Taint("gpu", "a100", "NoSchedule"), Taint("old", "", "NoExecute")),
        is_up=True,
        is_schedulable=True,
    )


@pytest.mark.parametrize("ready", ["False", "Unknown"])
def test_a_node_that_is_not_ready_is_down(ready: str) -> None:
    assert not node_fact(_node(ready=ready)).is_up


def test_a_node_being_deleted_is_down() -> None:
    assert not node_fact(_node(meta={"deletionTimestamp": "2026-01-01T00:00:00Z"})).is_up


def test_a_node_that_has_reported_nothing_is_down_and_offers_nothing() -> None:
    fact = node_fact({"metadata": {"name": "n", "uid": "u"}})
    assert (fact.is_up, dict(fact.capacity)) == (False, {})


def test_a_cordoned_node_is_up_but_takes_no_pods() -> None:
    fact = node_fact(_node(unschedulable=True))
    assert (fact.is_up, fact.is_schedulable) == (True, False)


@pytest.mark.parametrize("key", ["unschedulable", "not-ready", "unreachable"])
def test_the_taint_of_a_passing_condition_is_not_a_constraint(key: str) -> None:
    """Readiness is a fact of its own: such a node is busy, it is not impossible."""
    taint = {"key": f"node.kubernetes.io/{key}", "effect": "NoSchedule"}
    fact = node_fact(_node(taints=[taint], unschedulable=True))
    assert fact.taints == ()
    assert not fact.is_schedulable


def test_a_node_survives_its_stored_form() -> None:
    fact = node_fact(_node(meta={"labels": {"a/b": "c"}}, taints=[{"key": "k", "effect": "X"}]))
    assert NodeFact.from_json(fact.to_json()) == fact


def test_a_bound_pod_counts_with_its_own_words_only() -> None:
    pod = bare_pod(nodeName="n1", containers=[container(requests={"memory": "1Mi"})])
    pod["status"] = {"phase": "Running"}
    assert foreign_pod(pod) == ForeignPod(
        uid="uid-solo",
        namespace="default",
        name="solo",
        node="n1",
        resources={"memory": 2**20, "pods": 1},
    )


@pytest.mark.parametrize(
    ("kind", "expected"), [("DaemonSet", True), ("Node", True), ("ReplicaSet", False)]
)
def test_pods_that_end_with_their_node_only(kind: str, expected: bool) -> None:
    """DaemonSets and static pods with a mirror that the Node owns."""
    owner = {"kind": kind, "name": "x", "uid": "u", "controller": True}
    pod = bare_pod(meta={"ownerReferences": [owner]}, nodeName="n1")
    found = foreign_pod(pod)
    assert found is not None
    assert found.is_permanent is expected


def test_a_pod_that_is_only_being_deleted_still_counts() -> None:
    pod = bare_pod(meta={"deletionTimestamp": "2026-01-01T00:00:00Z"}, nodeName="n1")
    assert foreign_pod(pod) is not None


@pytest.mark.parametrize(
    ("spec", "phase"),
    [({}, "Pending"), ({"nodeName": "n"}, "Succeeded"), ({"nodeName": "n"}, "Failed")],
)
def test_unbound_and_ended_pods_take_nothing(spec: dict[str, Any], phase: str) -> None:
    assert foreign_pod({**bare_pod(**spec), "status": {"phase": phase}}) is None
