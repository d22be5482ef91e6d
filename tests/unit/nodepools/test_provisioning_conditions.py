"""Which conditions of a ProvisioningRequest fail the request of a pool, and with which words."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from fluxqueue.nodepools.cluster.own_objects import whole_node
from fluxqueue.nodepools.cluster.template_objects import (
    buffer_spec,
    buffers,
    request_spec,
    why_request_failed,
)
from fluxqueue.nodepools.plan.node_orders import OrderedNodes
from fluxqueue.nodepools.pool import NodePool

WAITS = OrderedNodes(7, 3, ("n1",))
COMPLETE = OrderedNodes(7, 1, ("n1",))


def _told(*types: str, status: str = "True", message: str = "no stock") -> dict[str, Any]:
    conditions = [{"type": one, "status": status, "message": message} for one in types]
    return {"status": {"conditions": conditions}}


@pytest.mark.parametrize(
    ("found", "one", "why"),
    [
        ({}, WAITS, ""),
        (_told("Accepted", "Provisioned"), WAITS, ""),
        (_told("Failed"), WAITS, "Failed: no stock"),
        (_told("Failed", status="False"), WAITS, ""),
        (_told("Provisioned", "CapacityRevoked"), COMPLETE, "CapacityRevoked: no stock"),
        (_told("Provisioned", "BookingExpired"), WAITS, "BookingExpired: no stock"),
        (_told("Provisioned", "BookingExpired"), COMPLETE, ""),
    ],
)
def test_a_condition_fails_the_request(found: dict[str, Any], one: OrderedNodes, why: str) -> None:
    """A booking that expires does no harm once all nodes are here."""
    assert why_request_failed(found, one) == why


def test_only_nodes_that_have_yet_to_come_are_asked_for() -> None:
    """Present nodes of the pool are excluded, or the autoscaler would count them as new ones."""
    pool = NodePool(
        "gpu",
        {"cpu": 7500, "pods": 110},
        {"pool": "gpu"},
        4,
        60,
        "provisioningRequest",
        parameters={"provisioningClassName": "atomic.example.org"},
    )
    asked = request_spec(pool, WAITS, "gpu-7")
    assert asked["podSets"] == [{"count": 2, "podTemplateRef": {"name": "gpu-7"}}]
    assert "parameters" not in asked
    spec = whole_node(pool, ("n1",))
    assert spec["containers"][0]["resources"]["requests"] == {"cpu": "7500m"}
    affinity = spec["affinity"]["nodeAffinity"]["requiredDuringSchedulingIgnoredDuringExecution"]
    (excluded,) = affinity["nodeSelectorTerms"][0]["matchFields"]
    assert (excluded["operator"], excluded["values"]) == ("NotIn", ["n1"])


def test_a_buffer_counts_nodes_that_have_come_as_empty() -> None:
    """It asks for all nodes of the request, in the version that the cluster serves."""
    pool = NodePool("gpu", {"cpu": 7500}, {"pool": "gpu"}, 4, 60, "capacityBuffer")
    assert buffers(pool).api_version == "autoscaling.x-k8s.io/v1beta1"
    assert buffer_spec(pool, WAITS, "gpu-7") == {
        "podTemplateRef": {"name": "gpu-7"},
        "replicas": 3,
    }
    strategy = "buffer.x-k8s.io/active-capacity"
    other = replace(pool, parameters={"version": "v1", "provisioningStrategy": strategy})
    assert buffers(other).api_version == "autoscaling.x-k8s.io/v1"
    assert buffer_spec(other, WAITS, "gpu-7")["provisioningStrategy"] == strategy
