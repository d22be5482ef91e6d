"""Pods: a bare one as a workload, any of ours as a fact."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.fluxjob.follow import PodFact, WorkloadFact
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.workload import pods
from tests.support.jobspecs import draw
from tests.support.workloads import bare_pod, container, owner

OURS = {"name": "fluxqueue"}


def test_a_bare_pod_asks_for_one_slot() -> None:
    pod = bare_pod(containers=[container(requests={"cpu": "8"})], activeDeadlineSeconds=30)
    request = pods.to_request(pod)
    assert draw(request) == "task[1]{cpu=8000 pods=1}"
    assert request.duration_s == 30


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "Always"])
@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("Pending", WorkloadFact(wanted=1)),
        ("Running", WorkloadFact(wanted=1)),
        ("Unknown", WorkloadFact(wanted=1)),
        ("Succeeded", WorkloadFact(wanted=0, result=FluxJobState.COMPLETED)),
        ("Failed", WorkloadFact(wanted=0, result=FluxJobState.FAILED)),
    ],
)
def test_the_phase_decides_whatever_the_restart_policy(
    policy: str, phase: str, expected: WorkloadFact
) -> None:
    pod = {**bare_pod(restartPolicy=policy), "status": {"phase": phase}}
    assert pods.workload_fact(pod) == expected


def test_an_absent_pod_and_one_without_status() -> None:
    assert pods.workload_fact(None) == WorkloadFact(wanted=0, is_deleting=True)
    assert pods.workload_fact(bare_pod()) == WorkloadFact(wanted=1)
    going = bare_pod(meta={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert pods.workload_fact(going).is_deleting


def test_reads_a_pod_of_an_indexed_batch_job() -> None:
    meta = {
        "annotations": {"batch.kubernetes.io/job-completion-index": "12"},
        "ownerReferences": [owner("Job")],
        "deletionTimestamp": "2026-01-01T00:00:00Z",
    }
    pod = {**bare_pod(meta=meta, nodeName="n1"), "status": {"phase": "Running"}}
    assert pods.pod_fact(pod) == PodFact(
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
    assert pods.pod_fact(bare_pod(schedulingGates=gates)).is_gated is is_gated


@pytest.mark.parametrize("text", ["", "x", "-1", "٣", "2147483648", "9" * 99])
def test_an_unreadable_index_is_none(text: str) -> None:
    """Annotations are user-writable: a broken one must not stop the pod's slot."""
    meta = {"annotations": {"batch.kubernetes.io/job-completion-index": text}}
    assert pods.pod_fact(bare_pod(meta=meta)).index is None


def test_an_owner_that_does_not_control_is_not_the_controller() -> None:
    loose = {**owner("Job"), "controller": False}
    assert pods.controller_owner(bare_pod(meta={"ownerReferences": [loose]})) is None


def test_the_zero_that_admission_writes_is_not_a_priority() -> None:
    assert pods.priority(bare_pod(priority=0), default=4) == 4
    assert pods.priority(bare_pod(priority=9), default=4) == 9
