"""Pods: any of ours as a fact."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.fluxjob.pod_facts import NOT_SEEN, OF_GROUP, PodFact
from fluxqueue.fluxjob.times import LAST_S
from fluxqueue.workload import observed_pod, pods
from tests.support.workloads import bare_pod, owner

OURS = {"name": "fluxqueue"}


def test_reads_a_pod_of_an_indexed_batch_job() -> None:
    meta = {
        "annotations": {"batch.kubernetes.io/job-completion-index": "12"},
        "ownerReferences": [owner("Job")],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }
    pod = {**bare_pod(meta=meta, nodeName="n1"), "status": {"phase": "Running"}}
    assert observed_pod.pod_fact(pod) == PodFact(
        uid="uid-solo",
        name="solo",
        phase="Running",
        is_gated=False,
        is_terminating=True,
        node="n1",
        index=12,
    )
    assert pods.controller_owner(pod) == owner("Job")


@pytest.mark.parametrize(
    ("gates", "is_gated"),
    [(None, False), ([], False), ([{"name": "other"}], False), ([{"name": "o"}, OURS], True)],
)
def test_gated_means_by_our_gate(gates: list[Any] | None, is_gated: bool) -> None:
    assert observed_pod.pod_fact(bare_pod(schedulingGates=gates)).is_gated is is_gated


@pytest.mark.parametrize("text", ["", "x", "-1", "٣", "2147483648", "9" * 99])
def test_an_unreadable_index_is_none(text: str) -> None:
    """Annotations are user-writable: a broken one must not stop the pod's slot."""
    meta = {"annotations": {"batch.kubernetes.io/job-completion-index": text}}
    assert observed_pod.pod_fact(bare_pod(meta=meta)).index is None


def test_an_owner_that_does_not_control_is_not_the_controller() -> None:
    loose = {**owner("Job"), "controller": False}
    assert pods.controller_owner(bare_pod(meta={"ownerReferences": [loose]})) is None


@pytest.mark.parametrize("grace_s", [2**31, 2**40, 2**63 - 1])
@pytest.mark.parametrize("finished_at", [None, "2026-01-01T00:00:00Z"])
def test_a_grace_period_beyond_the_calendar_is_read(grace_s: int, finished_at: str | None) -> None:
    """The author of a pod chooses it freely."""
    meta = {
        "deletionTimestamp": "2026-01-01T00:00:10Z",
        "deletionGracePeriodSeconds": grace_s,
    }
    ended = {"state": {"terminated": {"finishedAt": finished_at}}}
    status = {"phase": "Succeeded", "containerStatuses": [ended]}
    assert observed_pod.was_killed({**bare_pod(meta=meta), "status": status})


_GATED = {"type": "PodScheduled", "status": "False", "reason": "SchedulingGated"}
_UNBOUND = {"type": "PodScheduled", "status": "False", "reason": "Unschedulable", "message": "full"}


@pytest.mark.parametrize(
    ("spec", "status", "why"),
    [
        ({"schedulerName": "volcano"}, {}, f"{NOT_SEEN}volcano"),
        ({"schedulerName": "volcano"}, {"conditions": [_GATED]}, f"{NOT_SEEN}volcano"),
        ({"schedulerName": "volcano"}, {"conditions": [_UNBOUND]}, "full"),
        ({"schedulerName": "volcano", "nodeName": "n1"}, {}, ""),
        ({"schedulerName": "volcano", "schedulingGates": [{"name": "x"}]}, {}, ""),
        ({"schedulerName": "volcano"}, {"nominatedNodeName": "n1"}, ""),
        ({"schedulerName": "default-scheduler"}, {"conditions": [_GATED]}, ""),
        ({}, {}, ""),
    ],
)
def test_a_pod_of_a_scheduler_that_is_not_there_is_known(
    spec: dict[str, Any], status: dict[str, Any], why: str
) -> None:
    """The cluster's own scheduler may be behind, and its pods are not reported."""
    pod = bare_pod()
    pod["spec"].pop("schedulingGates", None)
    assert observed_pod.why_unbound({**pod, "spec": pod["spec"] | spec, "status": status}) == why


@pytest.mark.parametrize(
    ("said", "is_of_node"),
    [
        ("0/200 nodes are available: 1 node(s) were unschedulable.", True),
        ("minCount (3) cannot be satisfied: 2 scheduled, 0 remaining", False),
        ("", False),
    ],
)
def test_of_a_refused_native_group_only_the_pod_that_fits_nowhere_is_refused(
    said: str, is_of_node: bool
) -> None:
    """kube-scheduler 1.37 marks all pods of the group Unschedulable, each with its own words."""
    pod = bare_pod()
    pod["status"] = {"conditions": [_UNBOUND | {"message": said}]}
    words = said or "kube-scheduler gives no reason"
    assert observed_pod.why_unbound(pod) == words
    pod["spec"]["schedulingGroup"] = {"podGroupName": "g"}
    assert observed_pod.why_unbound(pod) == (words if is_of_node else f"{OF_GROUP}{words}")


@pytest.mark.parametrize(
    ("said", "grace_s"),
    [(None, 30), (0, 0), (1, 1), (-5, 1), (3600, 3600), (2**31, 2**31 - 1), (2**63 - 1, 2**31 - 1)],
)
def test_the_grace_of_a_pod(said: int | None, grace_s: int) -> None:
    """Kubernetes' default, its reading of a negative number, and no more than a row holds."""
    spec = {} if said is None else {"terminationGracePeriodSeconds": said}
    assert pods.grace_s(spec) == grace_s


@pytest.mark.parametrize(
    ("own_end", "spec", "deleted_at", "end"),
    [
        (None, {}, None, None),  # nothing ends it
        (1000, {}, None, 1030),
        (1000, {"activeDeadlineSeconds": 5, "terminationGracePeriodSeconds": 7}, None, 1007),
        (None, {"activeDeadlineSeconds": 60}, None, 100 + 60 + 30),
        (1000, {}, "1970-01-01T10:00:00Z", 36_000),  # kubectl delete pod --grace-period=36000
        (None, {}, "10000-01-01T00:00:00Z", LAST_S),
        (None, {}, "9999-12-31T23:59:59Z", LAST_S),
        (None, {"activeDeadlineSeconds": 2**62}, None, LAST_S),
        (2**62, {}, None, LAST_S),
    ],
)
def test_when_kubernetes_has_ended_a_pod(
    own_end: int | None, spec: dict[str, Any], deleted_at: str | None, end: int | None
) -> None:
    meta = {} if deleted_at is None else {"deletionTimestamp": deleted_at}
    pod = {**bare_pod(meta=meta, **spec), "status": {"startTime": "1970-01-01T00:01:40Z"}}
    assert observed_pod.enforced_end(pod, own_end) == end
