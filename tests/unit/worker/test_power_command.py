"""The Jobs that power nodes on and off: what a command receives, and how its end is read."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.policy.node_pool import NodePool
from fluxqueue.worker.node_providers.power_command import (
    BATCH,
    RESUME,
    SUSPEND,
    end_of,
    is_back,
    is_stopped,
    power_job,
)

POOL = NodePool("gpu", {"cpu": 8000}, {"pool": "gpu"}, 4, 60, "command")
TEMPLATE = {
    "template": {
        "metadata": {"labels": {"app": "power"}, "annotations": {"a": "b"}},
        "spec": {
            "restartPolicy": "Always",
            "containers": [
                {"name": "power", "image": "ipmi", "args": ["on"], "env": [{"name": "USER"}]},
                {"name": "log", "image": "log"},
            ],
        },
    }
}


def _job(action: str, **labels: str) -> dict[str, Any]:
    meta = {"name": "gpu-7", "labels": labels}
    return power_job(POOL, meta, TEMPLATE, action, ["n08", "n09", "x"])


def test_the_first_container_receives_the_hostlist() -> None:
    """As its last argument and in variables. Everything else is as the template has it."""
    template = _job(RESUME)["spec"]["template"]
    power, log = template["spec"]["containers"]
    assert power["args"] == ["on", "n[08-09],x"]
    assert {one["name"]: one.get("value") for one in power["env"]} == {
        "USER": None,
        "FLUXQUEUE_ACTION": "resume",
        "FLUXQUEUE_NODES": "n[08-09],x",
        "FLUXQUEUE_NODE_NAMES": "n08 n09 x",
        "FLUXQUEUE_POOL": "gpu",
    }
    assert log == {"name": "log", "image": "log"}
    assert template["spec"]["restartPolicy"] == "Never"
    assert template["metadata"]["labels"] == {"app": "power", "fluxqueue/managed": "false"}
    assert template["metadata"]["annotations"] == {"a": "b"}
    assert TEMPLATE["template"]["spec"]["containers"][0]["args"] == ["on"], "it is unchanged"


def test_only_a_command_that_powers_off_is_repeated() -> None:
    """One that powers on has failed when it fails. A batch of idle nodes cleans up by itself."""
    on, off, batch = _job(RESUME), _job(SUSPEND), _job(SUSPEND, **{BATCH: "5"})
    assert on["spec"]["backoffLimit"] == 0
    assert off["spec"]["backoffLimit"] > 0
    assert "activeDeadlineSeconds" in off["spec"]
    assert "ttlSecondsAfterFinished" not in off["spec"]
    assert "ttlSecondsAfterFinished" in batch["spec"]


@pytest.mark.parametrize("kind", ["Complete", "Failed"])
def test_the_end_of_a_job(kind: str) -> None:
    """How and when it ended."""
    condition = {"type": kind, "status": "True", "lastTransitionTime": "1970-01-01T00:01:00Z"}
    assert end_of({"status": {"conditions": [condition]}}) == (kind, 60)
    assert end_of({"status": {"conditions": [{**condition, "status": "False"}]}}) is None
    assert end_of({}) is None


def test_a_job_is_stopped_when_its_last_pod_has_gone() -> None:
    """The controller has seen the suspension, and no pod is active or terminating."""
    suspended = {"conditions": [{"type": "Suspended", "status": "True"}]}
    assert is_stopped({"status": suspended})
    assert not is_stopped({"status": {}})
    assert not is_stopped({"status": {**suspended, "active": 1}})
    assert not is_stopped({"status": {**suspended, "terminating": 1}})


def test_a_node_is_back_when_pods_can_be_bound_to_it() -> None:
    """A node becomes ready before Kubernetes removes the taints of its absence."""
    ready = {"conditions": [{"type": "Ready", "status": "True"}]}
    node = {"metadata": {"name": "n1", "uid": "u1"}, "spec": {}, "status": ready}
    assert is_back(node)
    assert not is_back({**node, "status": {}})
    for key, expected in (("not-ready", False), ("unreachable", False), ("unschedulable", True)):
        taint = {"key": f"node.kubernetes.io/{key}", "effect": "NoSchedule"}
        assert is_back({**node, "spec": {"taints": [taint]}}) is expected
