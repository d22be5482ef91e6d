"""Bare Pods as workloads: one slot, held by the gate, over with the phase."""

from __future__ import annotations

import pytest

from fluxqueue.fluxjob.pod_facts import WorkloadProgress
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.workload.kinds.bare_pod import BARE_POD
from tests.support.jobspecs import draw
from tests.support.workloads import bare_pod, container


def test_a_bare_pod_asks_for_one_slot() -> None:
    pod = bare_pod(containers=[container(requests={"cpu": "8"})], activeDeadlineSeconds=30)
    request = BARE_POD.to_request(pod)
    assert draw(request) == "task[1]{cpu=8000 pods=1}"
    assert request.duration_s == 30


@pytest.mark.parametrize("policy", ["Never", "OnFailure", "Always"])
@pytest.mark.parametrize(
    ("phase", "expected"),
    [
        ("Pending", WorkloadProgress(wanted=1)),
        ("Running", WorkloadProgress(wanted=1)),
        ("Unknown", WorkloadProgress(wanted=1)),
        ("Succeeded", WorkloadProgress(wanted=0, result=FluxJobState.COMPLETED)),
        ("Failed", WorkloadProgress(wanted=0, result=FluxJobState.FAILED)),
    ],
)
def test_the_phase_decides_whatever_the_restart_policy(
    policy: str, phase: str, expected: WorkloadProgress
) -> None:
    pod = {**bare_pod(restartPolicy=policy), "status": {"phase": phase}}
    assert BARE_POD.progress(pod) == expected


def test_a_pod_without_status_and_one_that_is_going() -> None:
    assert BARE_POD.progress(bare_pod()) == WorkloadProgress(wanted=1)
    going = bare_pod(meta={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert BARE_POD.progress(going).is_deleting


def test_the_zero_that_admission_writes_is_not_a_priority() -> None:
    assert BARE_POD.priority(bare_pod(priority=0), default=4).value == 4
    assert BARE_POD.priority(bare_pod(priority=9), default=4).value == 9
