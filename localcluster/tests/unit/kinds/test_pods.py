"""What may change in a pod: gated, ungated, and its first status."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from localcluster.kinds.pods import PodStrategy
from localcluster.kinds.request_context import RequestContext, UserInfo
from localcluster.obj import Obj
from tests.support.resource_requests import EmptyReader

GATE = {"name": "example.com/queue"}
REQUIRED = "requiredDuringSchedulingIgnoredDuringExecution"


def context() -> RequestContext:
    """A request at a fixed time."""
    return RequestContext(
        user=UserInfo("admin"), reader=EmptyReader(), namespace="ns", now="2026-01-01T00:00:00Z"
    )


def make_pod(**spec: Any) -> Obj:
    """A pod as it is stored after its POST."""
    strategy, ctx = PodStrategy(), context()
    pod: Obj = {
        "metadata": {"name": "p", "namespace": "ns"},
        "spec": {"containers": [{"name": "main", "image": "i:1"}], **copy.deepcopy(spec)},
    }
    strategy.decode(pod, ctx)
    pod["metadata"] |= {"uid": "u-1", "creationTimestamp": ctx.now}
    strategy.prepare_create(pod, ctx)
    assert strategy.validate_create(pod, ctx) == []
    return pod


def judge(old: Obj, **spec: Any) -> list[str]:
    """The fields that refuse an update which sets ``spec`` (None removes)."""
    strategy, ctx = PodStrategy(), context()
    new = copy.deepcopy(old)
    new["spec"].update(copy.deepcopy(spec))
    strategy.decode(new, ctx)
    strategy.prepare_update(new, old, "", ctx)
    return [error.field for error in strategy.validate_update(new, old, "", ctx)]


def node_affinity(*terms: list[Obj]) -> Obj:
    """Required node affinity with these terms."""
    listed = [{"matchExpressions": term} for term in terms]
    return {"nodeAffinity": {REQUIRED: {"nodeSelectorTerms": listed}}}


ZONE = {"key": "zone", "operator": "In", "values": ["a", "b"]}
HOST = {"key": "kubernetes.io/hostname", "operator": "In", "values": ["node-1"]}
NARROW = {"key": "zone", "operator": "In", "values": ["a"]}


def test_a_gated_pod_says_so_in_the_answer_to_its_post() -> None:
    """The API server sets the condition, not the scheduler."""
    status = make_pod(schedulingGates=[GATE])["status"]
    assert status["conditions"] == [
        {
            "type": "PodScheduled",
            "status": "False",
            "lastProbeTime": None,
            "lastTransitionTime": "2026-01-01T00:00:00Z",
            "reason": "SchedulingGated",
            "message": "Scheduling is blocked due to non-empty scheduling gates",
        }
    ]
    assert "conditions" not in make_pod()["status"]


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"schedulingGates": None}, []),
        ({"schedulingGates": []}, []),
        ({"schedulingGates": [GATE, {"name": "a/b"}]}, ["spec.schedulingGates[1].name"]),
        ({"nodeSelector": {"disk": "ssd", "kubernetes.io/hostname": "node-1"}}, []),
        ({"nodeSelector": {"disk": "hdd"}}, ["spec.nodeSelector"]),
        ({"nodeSelector": None}, ["spec.nodeSelector"]),
        ({"schedulingGates": None, "nodeSelector": {"disk": "hdd"}}, ["spec.nodeSelector"]),
        ({"schedulerName": "other"}, ["spec"]),
        ({"priority": 5}, ["spec"]),
        ({"activeDeadlineSeconds": 100}, []),
    ],
)
def test_a_gated_pod(change: Obj, fields: list[str]) -> None:
    """Gates only go, selectors only grow."""
    old = make_pod(schedulingGates=[GATE], nodeSelector={"disk": "ssd"})
    assert judge(old, **change) == fields


@pytest.mark.parametrize(
    ("before", "after", "is_accepted"),
    [
        (None, node_affinity([HOST]), True),
        (node_affinity([ZONE]), node_affinity([ZONE, HOST]), True),
        (node_affinity([ZONE]), node_affinity([NARROW]), False),
        (node_affinity([ZONE]), node_affinity([ZONE], [HOST]), False),
        (node_affinity([ZONE], [HOST]), node_affinity([HOST], [ZONE]), False),
        (node_affinity([ZONE]), None, False),
    ],
)
def test_affinity_of_a_gated_pod_only_tightens(
    before: Obj | None, after: Obj | None, is_accepted: bool
) -> None:
    """Terms gain expressions. They are not lost, gained, reordered or narrowed."""
    spec = {"affinity": before} if before is not None else {}
    old = make_pod(schedulingGates=[GATE], **spec)
    assert (judge(old, affinity=after) == []) is is_accepted


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"nodeSelector": {"a": "b"}}, ["spec"]),
        ({"affinity": node_affinity([HOST])}, ["spec"]),
        ({"nodeName": "node-2"}, ["spec"]),
        ({"schedulingGates": [GATE]}, ["spec.schedulingGates[0].name"]),
        ({"tolerations": [{"key": "k", "operator": "Exists"}]}, []),
        ({"containers": [{"name": "main", "image": "i:2", "imagePullPolicy": "IfNotPresent"}]}, []),
    ],
)
def test_a_pod_without_gates(change: Obj, fields: list[str]) -> None:
    """Its place is decided. Images and added tolerations are what is left."""
    assert judge(make_pod(), **change) == fields


def test_gates_raise_the_generation_and_labels_do_not() -> None:
    """Pods have a generation. Only the spec counts."""
    strategy, ctx = PodStrategy(), context()
    old = make_pod(schedulingGates=[GATE])
    ungated, labelled = copy.deepcopy(old), copy.deepcopy(old)
    del ungated["spec"]["schedulingGates"]
    labelled["metadata"]["labels"] = {"a": "b"}
    strategy.prepare_update(ungated, old, "", ctx)
    strategy.prepare_update(labelled, old, "", ctx)
    assert ungated["metadata"]["generation"] == 2
    assert labelled["metadata"]["generation"] == 1


@pytest.mark.parametrize(
    ("spec", "phase", "requested_s", "grace_s"),
    [
        ({}, "Pending", None, 0),
        ({"nodeName": "n"}, "Running", None, 30),
        ({"nodeName": "n"}, "Running", 5, 5),
        ({"nodeName": "n"}, "Succeeded", None, 0),
        ({"nodeName": "n"}, "Running", -1, 1),
    ],
)
def test_grace_of_a_deletion(spec: Obj, phase: str, requested_s: int | None, grace_s: int) -> None:
    """Only what runs on a node is given time."""
    pod = make_pod(**spec)
    pod["status"]["phase"] = phase
    assert PodStrategy().delete_grace_s(pod, requested_s) == grace_s


def test_requests_follow_limits_and_decide_the_quality_of_service() -> None:
    """Quantities are written in canonical form."""
    resources = {"limits": {"cpu": "1000m", "memory": "1024Mi"}}
    pod = make_pod(containers=[{"name": "main", "image": "i", "resources": resources}])
    made = pod["spec"]["containers"][0]["resources"]
    assert made["requests"] == made["limits"] == {"cpu": "1", "memory": "1Gi"}
    assert pod["status"]["qosClass"] == "Guaranteed"
