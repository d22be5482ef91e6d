"""Pods of others: what counts is kept and told once. The rest of their life costs nothing."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from fluxqueue.controller.observing.read_workload import trim_pod
from fluxqueue.controller.observing.unmanaged_pods import ForeignPods
from fluxqueue.workload.node_object import foreign_pod
from fluxqueue.workload.observed_pod import pod_fact
from tests.support.workloads import bare_pod, container, owner

Obj = dict[str, Any]


def pod(node: str = "", phase: str = "Pending", cpu: str = "100m", **status: Any) -> Obj:
    """A pod of a Deployment, as the API server tells of it."""
    meta = {
        "ownerReferences": [owner("ReplicaSet")],
        "labels": {"app": "web"},
        "annotations": {"note": "long"},
        "managedFields": [{"manager": "kubelet"}],
    }
    spec: Obj = {"containers": [container(requests={"cpu": cpu})], "volumes": [{"name": "v"}]}
    if node:
        spec["nodeName"] = node
    told = {"phase": phase, "podIP": "10.0.0.1", "conditions": [{"type": "Ready"}], **status}
    return {**bare_pod("web-1", meta=meta, **spec), "status": told}


def resized(cpu: str) -> list[Obj]:
    """What the kubelet says that the container has."""
    return [{"name": "main", "resources": {"requests": {"cpu": cpu}}, "state": {"running": {}}}]


class World:
    """One pod, and what its rows would get."""

    def __init__(self) -> None:
        self.now: Obj | None = None
        self.foreign = ForeignPods(lambda _uid: self.now)

    def see(self, raw: Obj | None) -> bool:
        """Whether that is news."""
        old, self.now = self.now, None if raw is None else trim_pod(deepcopy(raw))
        return self.foreign.is_news(old, self.now, "uid-web-1")

    def write(self) -> tuple[list[Any], list[str]]:
        """What is written of it."""
        change = self.foreign.changes(["uid-web-1"])
        self.foreign.remember(change)
        return change


def test_a_whole_life_is_told_twice() -> None:
    """When it is bound, and when it has ended."""
    world = World()
    assert not world.see(pod())
    assert world.see(pod("n1"))
    assert [one.resources for one in world.write()[0]] == [{"cpu": 100, "pods": 1}]
    assert not world.see(pod("n1", containerStatuses=[{"name": "main", "state": {"waiting": {}}}]))
    assert not world.see(pod("n1", "Running", containerStatuses=resized("100m")))
    assert world.see(pod("n1", "Succeeded"))
    assert world.write() == ([], ["uid-web-1"])
    assert not world.see(pod("n1", "Succeeded", reason="Done"))
    assert not world.see(None)


def test_what_came_and_went_between_two_batches_is_not_told() -> None:
    """There is nothing to be taken back."""
    world = World()
    assert world.see(pod("n1"))
    assert world.see(pod("n1", "Failed"))
    assert world.write() == ([], [])
    assert not world.see(None)


def test_a_resize_is_told() -> None:
    """Of what is asked for, and of what is in use until it is made smaller."""
    world = World()
    assert world.see(pod("n1", "Running"))
    world.write()
    assert world.see(pod("n1", "Running", cpu="50m", containerStatuses=resized("100m")))
    assert world.write()[0][0].resources["cpu"] == 100
    assert world.see(pod("n1", "Running", cpu="50m", containerStatuses=resized("50m")))
    assert world.write()[0][0].resources["cpu"] == 50


@pytest.mark.parametrize("is_ours", [False, True])
def test_a_resize_beyond_the_node_is_not_counted(is_ours: bool) -> None:
    """The kubelet says that it can never be made. What the pod holds counts as before."""
    world = World()
    condition = {"type": "PodResizePending", "status": "True", "reason": "Infeasible"}
    raw = pod("n1", "Running", cpu="640", containerStatuses=resized("100m"), conditions=[condition])
    if is_ours:
        raw["metadata"]["labels"]["fluxqueue/managed"] = "true"
        assert dict(pod_fact(trim_pod(raw)).uses)["cpu"] == 100
    assert world.see(raw)
    assert world.write()[0][0].resources["cpu"] == 100


def test_ports_and_claims_of_a_pod_are_told() -> None:
    """Its port of the node and its claim for one pod, though its containers are trimmed."""
    world = World()
    world.foreign.volumes_of = lambda _: {"one-pod-claim:ns:data": 1}
    raw = pod("n1", "Running")
    raw["spec"]["containers"][0]["ports"] = [
        {"containerPort": 80, "hostPort": 8080, "protocol": "TCP"},
        {"containerPort": 81, "protocol": "TCP"},
    ]
    assert world.see(raw)
    (found,) = world.write()[0]
    beside = {"host-port:TCP:8080": 1 << 20, "one-pod-claim:ns:data": 1}
    assert found.resources == {"cpu": 100, "pods": 1, **beside}


def test_gone_without_an_end() -> None:
    """Its node was removed, say."""
    world = World()
    world.see(pod("n1"))
    world.write()
    assert world.see(None)
    assert world.write() == ([], ["uid-web-1"])


def test_one_known_from_the_rows() -> None:
    """It ended while no one watched."""
    world = World()
    world.foreign.know(["uid-web-1"])
    assert world.see(pod("n1", "Succeeded"))
    assert world.write() == ([], ["uid-web-1"])


def test_a_quantity_that_cannot_be_read_fails_nobody() -> None:
    """The API server lets none pass. Should one, the batch is written without it."""
    world = World()
    world.see(pod("n1", cpu="much"))
    assert world.write() == ([], [])


def test_trimming_keeps_what_counts() -> None:
    """Less than a third of it, and the same facts."""
    raw = pod("n1", "Running", containerStatuses=resized("200m"))
    kept = trim_pod(deepcopy(raw))
    assert foreign_pod(kept) == foreign_pod(raw)
    assert set(kept["spec"]) == {"nodeName", "containers"}
    assert "annotations" not in kept["metadata"]
    bare = {**raw, "metadata": {**raw["metadata"], "ownerReferences": []}}
    assert trim_pod(bare)["spec"] == raw["spec"], "a Pod without owner may be a workload"
