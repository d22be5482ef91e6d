"""What makes a Job a sweep, what admission does with it, and what contradicts it."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.facts import WorkloadFacts
from fluxqueue.workload.annotations import SWEEP_PODS_MAX, read_wishes
from fluxqueue.workload.json_patch import diff
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from tests.support.workloads import batch_job

Obj = dict[str, Any]


def a_job(parallelism: int = 8, *, gang: str = "false", **notes: str) -> Obj:
    """A Job of ``parallelism`` pods at once."""
    said = {f"fluxqueue/{key.replace('_', '-')}": value for key, value in notes.items()}
    return batch_job(
        meta={"annotations": {"fluxqueue/gang": gang, **said}},
        parallelism=parallelism,
        completions=100,
    )


def patch_of(job: Obj) -> list[dict[str, Any]]:
    """Return what admission answers."""
    return diff(job, BATCH_JOB.held(job, read_wishes(job), "alice"))


@pytest.mark.parametrize(("gang", "size"), [("false", 1), ("true", 8)])
def test_a_sweep_asks_for_one_pod(gang: str, size: int) -> None:
    """Its template never names nodes, because pods come one by one."""
    job = a_job(gang=gang)
    assert BATCH_JOB.to_request(job).size == size
    assert BATCH_JOB.is_sweep(job) == (gang == "false")
    job["spec"]["completions"] = 8
    assert BATCH_JOB.facts(job, WorkloadFacts()).is_pinnable == (gang == "true")


def test_an_annotation_of_the_job_wins_over_the_template() -> None:
    """As for every other wish."""
    job = a_job(gang="true")
    job["spec"]["template"].setdefault("metadata", {})["annotations"] = {"fluxqueue/gang": "false"}
    assert not BATCH_JOB.is_sweep(job)
    del job["metadata"]["annotations"]["fluxqueue/gang"]
    assert BATCH_JOB.is_sweep(job)


@pytest.mark.parametrize("gang", ["false", "true"])
def test_the_time_is_that_of_a_pod(gang: str) -> None:
    """Of a gang it is that of the Job."""
    paths = {one["path"] for one in patch_of(a_job(gang=gang, duration="5m"))}
    of_pod = "/spec/template/spec/activeDeadlineSeconds"
    expected = of_pod if gang == "false" else "/spec/activeDeadlineSeconds"
    assert [path for path in paths if "Deadline" in path] == [expected]


def test_the_deadline_of_the_pod_is_planned() -> None:
    """The shorter one of Job and pod."""
    job = a_job()
    job["spec"]["template"]["spec"]["activeDeadlineSeconds"] = 90
    assert BATCH_JOB.to_request(job).duration_s == 90
    job["spec"]["activeDeadlineSeconds"] = 40
    assert BATCH_JOB.to_request(job).duration_s == 40


@pytest.mark.parametrize(
    ("notes", "where"),
    [
        ({"within": "rack"}, "fluxqueue/within"),
        ({"prefer_within": "rack"}, "fluxqueue/prefer-within"),
        ({"spread": "node"}, "fluxqueue/spread"),
        ({"on_node_loss": "requeue"}, "fluxqueue/on-node-loss"),
        ({"pod_group": "all", "group_size": "20"}, "fluxqueue/gang"),
        ({"gang": "no"}, "fluxqueue/gang"),
    ],
)
def test_a_contradiction_names_its_field(notes: dict[str, str], where: str) -> None:
    """And the way out."""
    with pytest.raises(InvalidInput) as refused:
        patch_of(a_job(**notes))
    assert where in refused.value.where
    assert refused.value.hint


def test_the_number_of_waiting_pods_is_bounded() -> None:
    """Completions are not."""
    job = a_job(SWEEP_PODS_MAX)
    job["spec"]["completions"] = 100_000
    assert patch_of(job)
    job["spec"]["parallelism"] += 1
    with pytest.raises(InvalidInput, match=r"spec\.parallelism"):
        patch_of(job)
