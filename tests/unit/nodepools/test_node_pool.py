"""A FluxNodePool's spec as rules: what is read, and what is refused with its field."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.nodepools.cluster.own_objects import whole_node
from fluxqueue.nodepools.pool import NodePool, read_node_pool
from fluxqueue.policy.provision_rules import read_provision_rules
from fluxqueue.workload.devices import read_class

Spec = dict[str, Any]


def spec(**more: Any) -> Spec:
    """A valid spec, with some fields replaced."""
    node = {"labels": {"pool": "gpu"}, "allocatable": {"cpu": "7500m", "memory": "4Gi"}}
    base = {"node": node, "max": 4, "provisioningTime": "4m", "provider": {"placeholder": {}}}
    return {**base, **more}


def test_devices_count_as_claims_count_them() -> None:
    """By their class. A pod that asks for a whole node leaves them out."""
    node = {"labels": {"pool": "gpu"}, "allocatable": {"cpu": 8}, "devices": {"gpu.example": 4}}
    pool = read_node_pool("gpu", spec(node=node))
    gpus = read_class({"metadata": {"name": "gpu.example"}}).resource
    assert pool.capacity == {"cpu": 8000, gpus: 4}
    (container,) = whole_node(pool, ())["containers"]
    assert container["resources"]["requests"] == {"cpu": "8000m"}
    for count in (0, 1001, "4"):
        with pytest.raises(InvalidInput, match="not usable"):
            read_node_pool("gpu", spec(node={**node, "devices": {"gpu.example": count}}))


def test_all_fields_are_read() -> None:
    """Amounts in base units, times in seconds."""
    node = {
        "labels": {"pool": "gpu"},
        "allocatable": {"cpu": 8, "nvidia.com/gpu": "2"},
        "taints": [{"key": "gpu", "effect": "NoSchedule"}],
        "levels": ["rack"],
    }
    scale = {"apiVersion": "cluster.x-k8s.io/v1beta1", "resource": "machinedeployments"}
    pool = read_node_pool(
        "gpu",
        spec(
            node=node,
            min=1,
            pricePerHour="3.10",
            priority=5,
            idleTime="10m",
            provider={"scale": {**scale, "namespace": "infra", "name": "gpu"}},
        ),
    )
    assert pool.capacity == {"cpu": 8000, "nvidia.com/gpu": 2}
    assert (pool.least, pool.most, pool.provisioning_s, pool.idle_s) == (1, 4, 240, 600)
    assert (pool.price, pool.priority, pool.levels) == (Decimal("3.10"), 5, ("rack",))
    assert (pool.provider, pool.parameters["name"]) == ("scale", "gpu")
    fact = pool.node(3)
    assert fact.labels["pool"] == "gpu"
    assert fact.labels["rack"] == pool.node(0).labels["rack"]
    assert fact.taints[0].key == "gpu"


@pytest.mark.parametrize(
    ("more", "where"),
    [
        ({"max": -1}, "spec.max"),
        ({"max": None}, "spec.max"),
        ({"min": 5}, "spec.min"),
        ({"provisioningTime": "soon"}, "spec.provisioningTime"),
        ({"idleTime": "0s"}, "spec.idleTime"),
        ({"pricePerHour": "3,10"}, "spec.pricePerHour"),
        ({"provider": {}}, "spec.provider"),
        ({"provider": {"placeholder": {}, "scale": {}}}, "spec.provider"),
        ({"provider": {"scale": {"name": "x"}}}, "spec.provider.scale.apiVersion"),
        (
            {"provider": {"provisioningRequest": {"provisioningClassName": 7}}},
            "spec.provider.provisioningRequest.provisioningClassName",
        ),
        (
            {"provider": {"provisioningRequest": {"provisioningClassName": "check-capacity.a.b"}}},
            "spec.provider.provisioningRequest.provisioningClassName",
        ),
        ({"node": {"labels": {}, "allocatable": {"cpu": 1}}}, "spec.node.labels"),
        ({"node": {"labels": {"a": "b"}, "allocatable": {}}}, "spec.node.allocatable"),
        (
            {"node": {"labels": {"a": "b"}, "allocatable": {"cpu": "x"}}},
            "spec.node.allocatable.cpu",
        ),
        (
            {"node": {"labels": {"a": "b"}, "allocatable": {"cpu": 1}, "levels": 1}},
            "spec.node.levels",
        ),
    ],
)
def test_a_wrong_field_is_named(more: Spec, where: str) -> None:
    """Each refusal names the path."""
    with pytest.raises(InvalidInput) as caught:
        read_node_pool("gpu", spec(**more))
    assert caught.value.where == where


@pytest.mark.parametrize("name", ["", "a.b", "A", "-a", "a-", "p" * 41])
def test_a_name_that_is_no_label_is_refused(name: str) -> None:
    """Pods, Jobs and requests of the pool have it in their names and as a label."""
    with pytest.raises(InvalidInput, match=r"metadata\.name"):
        read_node_pool(name, spec())
    assert read_node_pool("p" * 40, spec()).name == "p" * 40


def test_the_measured_times_replace_the_given_one() -> None:
    """From the third on, four of five nodes come within the expected time."""
    pool: NodePool = read_node_pool("gpu", spec())
    assert pool.expected_s([10, 20]) == 240
    assert pool.expected_s([30, 10, 20]) == 30
    assert pool.expected_s([10, 10, 10, 10, 900]) == 10


def test_nodes_belong_to_the_pool_by_their_labels() -> None:
    """All labels of the pool, and any others."""
    pool = read_node_pool("gpu", spec())
    assert pool.has(NodeFact("a", "a", {}, {"pool": "gpu", "zone": "z"}))
    assert not pool.has(NodeFact("a", "a", {}, {"zone": "z"}))


def test_the_rule_of_a_queue() -> None:
    """All fields may be left out."""
    assert read_provision_rules(None).earlier_s is None
    rule = read_provision_rules({"earlierBy": "10m", "budgetPerHour": "12.40", "pools": ["gpu"]})
    assert (rule.earlier_s, rule.budget, rule.pools) == (600, Decimal("12.40"), ("gpu",))
    with pytest.raises(InvalidInput, match="budgetPerHour"):
        read_provision_rules({"budgetPerHour": "much"})


def test_a_provider_takes_back_what_it_has_asked_for() -> None:
    """Objects of most providers are found by the name of the pool, and a scaled one by its own."""
    scale = {"apiVersion": "a.example/v1", "resource": "sets", "name": "one"}

    def pool(**provider: Any) -> NodePool:
        return read_node_pool("gpu", spec(provider=provider))

    placeholder = pool(placeholder={})
    assert placeholder.has_provider_of(pool(placeholder={"image": "other"}))
    assert not placeholder.has_provider_of(pool(scale=scale))
    assert pool(scale=scale).has_provider_of(pool(scale=dict(scale)))
    assert not pool(scale=scale).has_provider_of(pool(scale={**scale, "name": "two"}))
