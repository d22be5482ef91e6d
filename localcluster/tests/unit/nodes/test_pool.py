"""Which nodes a simulated autoscaler adds for pods that fit no present node."""

from __future__ import annotations

from typing import Any

import pytest

from localcluster.__main__ import parse
from localcluster.nodes.pool import POOL_LABEL, Room, SimulatedPool, is_unschedulable
from localcluster.nodes.shape import NodeShape
from localcluster.obj import Obj
from localcluster.scheduler.decision import demand_of
from tests.support.builders import NOW

LARGE = SimulatedPool(NodeShape("large", cpu="8", labels={"size": "large"}), most=4)
SMALL = SimulatedPool(NodeShape("small", cpu="2"), most=4)


def _pod(cpu: str, **spec: Any) -> Obj:
    container = {"name": "c", "resources": {"requests": {"cpu": cpu}}}
    return {
        "metadata": {"name": "p", "namespace": "n"},
        "spec": {"containers": [container], **spec},
    }


def _new(*pods: Obj, small: int = 4, large: int = 4) -> dict[str, int]:
    room = Room([])
    for pod in pods:
        room.place(demand_of(pod), [(SMALL, small), (LARGE, large)], NOW)
    return room.new


def test_pods_share_the_nodes_that_are_added() -> None:
    """Four pods of one core need two nodes of two cores, and a large pod a large node."""
    assert _new(*[_pod("1")] * 4) == {"small": 2}
    assert _new(_pod("1"), _pod("6")) == {"small": 1, "large": 1}
    assert _new(_pod("1", nodeSelector={"size": "large"})) == {"large": 1}


def test_a_pool_has_a_maximum() -> None:
    """What fits no pool with room gets nothing."""
    assert _new(*[_pod("2")] * 3, small=1, large=0) == {"small": 1}
    assert _new(_pod("9")) == {}


def test_only_a_pod_that_the_scheduler_gave_up_on_counts() -> None:
    """A gated pod has the same condition with another reason."""
    status = {"phase": "Pending", "conditions": [{"type": "PodScheduled", "status": "False"}]}
    pod = {**_pod("1"), "status": status}
    assert not is_unschedulable(pod)
    status["conditions"][0]["reason"] = "SchedulingGated"
    assert not is_unschedulable(pod)
    status["conditions"][0]["reason"] = "Unschedulable"
    assert is_unschedulable(pod)
    assert not is_unschedulable({**pod, "spec": {**pod["spec"], "nodeName": "n1"}})


def test_the_nodes_of_a_pool_bear_its_name() -> None:
    """And the labels of its shape."""
    assert LARGE.node(3).name == "large-3"
    assert LARGE.node(3).labels == {POOL_LABEL: "large", "size": "large"}


def test_the_option() -> None:
    """Three keys are those of the pool, all others those of a node."""
    (pool,) = parse(["--node-pool", "gpu,max=3,delay=0.5,cpu=16,gpus=4,tier=demo"]).node_pool
    shape = NodeShape("gpu", cpu="16", gpus=4, labels={"tier": "demo"})
    assert pool == SimulatedPool(shape, 3, 0.5, 10.0)
    with pytest.raises(SystemExit):
        parse(["--node-pool", "gpu,max=many"])
