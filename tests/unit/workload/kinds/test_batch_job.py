"""BatchJobs: what they ask for, and how far they are."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.fluxjob.indexes import as_multirange
from fluxqueue.fluxjob.pod_facts import PodFact
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.jobspec.parse import parse_document
from fluxqueue.jobspec.render import render
from fluxqueue.workload.annotations import Wishes
from fluxqueue.workload.kinds import batch_job as batch
from fluxqueue.workload.kinds.admitted import size_of_job
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.pod_request import choose_priority
from fluxqueue.workload.site import Site
from tests.support.jobspecs import draw
from tests.support.workloads import batch_job, container

INDEXED = {"parallelism": 4, "completions": 8, "completionMode": "Indexed"}


def _with_status(job: dict[str, Any], **status: Any) -> dict[str, Any]:
    return {**job, "status": status}


def _condition(kind: str, status: str = "True") -> dict[str, str]:
    return {"type": kind, "status": status}


@pytest.mark.parametrize(
    ("parallelism", "completions", "expected"),
    [(4, 8, 4), (8, 4, 4), (4, 4, 4), (3, None, 3), (None, None, 1), (None, 5, 1), (0, 5, 0)],
)
def test_size_is_what_runs_at_once(
    parallelism: int | None, completions: int | None, expected: int
) -> None:
    job = batch_job(parallelism=parallelism, completions=completions)
    assert size_of_job(job) == expected
    assert BATCH_JOB.to_request(job).size == expected


def test_a_request_has_one_slot_per_pod() -> None:
    pod = {"containers": [container(requests={"cpu": "2"})], "nodeSelector": {"a": "b"}}
    job = batch_job(parallelism=3, completions=9, pod=pod, activeDeadlineSeconds=60)
    request = BATCH_JOB.to_request(job)
    assert draw(request) == "task[3]{cpu=2000 pods=1}"
    assert request.constraint is not None
    assert [one.values for one in request.constraint.requirements] == [("b",)]
    assert request.duration_s == 60
    assert parse_document(render(request)) == request


def test_a_batch_job_of_size_zero_asks_for_nothing() -> None:
    request = BATCH_JOB.to_request(batch_job(parallelism=0))
    assert request.size == 0
    assert draw(request) == "task[0]{cpu=1000 pods=1}", "what it takes if it is scaled up"


@pytest.mark.parametrize(
    ("parallelism", "completions", "is_paused"),
    [(0, None, True), (0, 5, True), (0, 0, False), (None, 0, False), (1, 5, False)],
)
def test_parallelism_of_zero_pauses_what_has_not_reached_its_completions(
    parallelism: int | None, completions: int | None, is_paused: bool
) -> None:
    """With completions of 0 the Job controller completes it, so it must be released."""
    job = batch_job(parallelism=parallelism, completions=completions)
    assert BATCH_JOB.is_paused(job) is is_paused


@pytest.mark.parametrize(
    ("deadline", "wish", "expected"),
    [(60, "1h", 60), (None, "1h", 3600), (None, None, 0), (0, None, 1)],
)
def test_the_deadline_wins_over_the_wished_duration(
    deadline: int | None, wish: str | None, expected: int
) -> None:
    meta = {"annotations": {"fluxqueue/duration": wish}} if wish else {}
    job = batch_job(meta=meta, activeDeadlineSeconds=deadline)
    assert BATCH_JOB.to_request(job).duration_s == expected


def test_the_default_core_can_be_chosen() -> None:
    assert draw(BATCH_JOB.to_request(batch_job(), site=Site(100))) == "task[1]{cpu=100 pods=1}"


def test_priority_annotation_then_class_then_default() -> None:
    wished = batch_job(
        meta={"annotations": {"fluxqueue/priority": "5"}}, pod={"priorityClassName": "high"}
    )
    classed = batch_job(pod={"priorityClassName": "high"})
    values = {"high": 1000}
    assert BATCH_JOB.priority(wished, class_values=values).value == 5
    assert BATCH_JOB.priority(classed, class_values=values).value == 1000
    assert BATCH_JOB.priority(classed, default=3).value == 3
    assert BATCH_JOB.priority(batch_job(), class_values=values).value == 0


def test_only_a_class_of_an_administrator_grants_a_priority() -> None:
    """Not an annotation, a number in a template, or a class that Kubernetes has for all."""
    values = {"high": 1000, "system-node-critical": 2_000_001_000}
    templates = (
        ({"priorityClassName": "high"}, True),
        ({"priorityClassName": "high", "priority": 1000}, True),
        ({"priorityClassName": "high", "priority": 1001}, False),
        ({"priority": 2_000_000_000}, False),
        ({"priorityClassName": "system-node-critical"}, False),
        ({"priorityClassName": "unknown"}, False),
    )
    for spec, is_granted in templates:
        assert choose_priority(spec, Wishes(), values, 0).is_granted == is_granted, spec
    for wishes in (Wishes(priority=5), Wishes(priority_class="high")):
        assert not choose_priority({"priorityClassName": "high"}, wishes, values, 0).is_granted


@pytest.mark.parametrize(
    ("spec", "status", "wanted"),
    [
        ({"parallelism": 4, "completions": 8}, {}, 4),
        ({"parallelism": 4, "completions": 8}, {"succeeded": 3}, 4),
        ({"parallelism": 4, "completions": 8}, {"succeeded": 6}, 2),
        ({"parallelism": 4, "completions": 8}, {"succeeded": 8}, 0),
        ({"parallelism": 4, "completions": 8}, {"failed": 6}, 4),
        (
            {"parallelism": 4, "completions": 8},
            {"succeeded": 5, "uncountedTerminatedPods": {"succeeded": ["a", "b"]}},
            1,
        ),
        (INDEXED, {"succeeded": 4, "completedIndexes": "4-7", "failedIndexes": "0,2-3"}, 1),
        (INDEXED | {"completions": 2}, {"succeeded": 3, "completedIndexes": "0,2-3"}, 1),
        ({"parallelism": 4, "completions": None}, {"active": 4}, 4),
        ({"parallelism": 4, "completions": None}, {"active": 2, "succeeded": 1}, 2),
        ({"parallelism": 4, "completions": None}, {"succeeded": 1}, 0),
        ({"parallelism": 1, "completions": 9}, {"active": 4, "succeeded": 1}, 1),
        ({"parallelism": 4, "completions": 8, "suspend": True}, {}, 4),
    ],
)
def test_wanted_is_bounded_by_what_is_left(
    spec: dict[str, Any], status: dict[str, Any], wanted: int
) -> None:
    assert BATCH_JOB.progress(_with_status(batch_job(**spec), **status)).wanted == wanted


@pytest.mark.parametrize(
    ("conditions", "result"),
    [
        ([], None),
        ([_condition("Suspended")], None),
        ([_condition("SuccessCriteriaMet")], None),
        ([_condition("FailureTarget")], None),
        ([_condition("Complete", "False")], None),
        ([_condition("SuccessCriteriaMet"), _condition("Complete")], FluxJobState.COMPLETED),
        ([_condition("FailureTarget"), _condition("Failed")], FluxJobState.FAILED),
    ],
)
def test_only_complete_and_failed_end_it(
    conditions: list[dict[str, str]], result: FluxJobState | None
) -> None:
    """FailureTarget comes while pods still terminate: ending on it would free too early."""
    fact = BATCH_JOB.progress(_with_status(batch_job(), conditions=conditions))
    assert fact.result is result


@pytest.mark.parametrize("kind", ["SuccessCriteriaMet", "FailureTarget", "Complete", "Failed"])
def test_no_pod_is_wanted_of_one_that_is_ending(kind: str) -> None:
    """Spare slots go back while its pods still terminate."""
    job = batch_job(parallelism=4, completions=8)
    assert BATCH_JOB.progress(_with_status(job, conditions=[_condition(kind)])).wanted == 0
    unmet = _with_status(job, conditions=[_condition(kind, "False")])
    assert BATCH_JOB.progress(unmet).wanted == 4


def test_a_deleted_or_absent_batch_job_is_over() -> None:
    going = batch_job(meta={"deletionTimestamp": "2026-01-01T00:00:00Z"})
    assert BATCH_JOB.progress(going).is_over


def test_what_pods_say_and_what_status_says_is_counted_once() -> None:
    """Whichever comes first, and of an index that was taken away not at all."""
    told = {"succeeded": 2, "completedIndexes": "0,1"}
    indexed = _with_status(batch_job(**INDEXED), **told)
    assert batch.wanted(indexed, [1, 2, 2, 3, 4, 9, None]) == 3
    assert batch.wanted(_with_status(batch_job(parallelism=4, completions=8), **told), [None]) == 4
    assert batch.wanted(batch_job(parallelism=4, completions=8), [None] * 7) == 1


def test_which_indexes_get_no_pod_any_more() -> None:
    """Completed, failed for good, seen to have succeeded, or beyond the completions."""
    job = _with_status(batch_job(**INDEXED), completedIndexes="0,3-5", failedIndexes="1")
    assert as_multirange(batch.ended_indexes(job, [6])) == "{[0,2),[3,7),[8,)}"
    assert batch.ended_indexes(batch_job(), [6]) == []


@pytest.mark.parametrize(
    ("suspend", "status", "is_idle"),
    [
        (True, {}, True),
        (True, {"conditions": [_condition("Suspended")]}, True),
        (False, {}, False),
        (True, {"active": 1, "conditions": [_condition("Suspended")]}, False),
        (True, {"terminating": 1}, False),
        (True, {"conditions": [_condition("Suspended", "False")]}, False),
    ],
)
def test_idle_is_what_is_suspended_and_has_no_pods(
    suspend: bool, status: dict[str, Any], is_idle: bool
) -> None:
    """The Job controller has seen that, and counts none. Only a change of it is news."""
    job = _with_status(batch_job("a", suspend=suspend), **status)
    assert BATCH_JOB.is_idle(job) is is_idle
    is_same = BATCH_JOB.news(job) == BATCH_JOB.news(batch_job("a", suspend=suspend))
    assert is_same is (is_idle is suspend)


def _pods(*phases: str, killed: bool = False) -> list[PodFact]:
    return [
        PodFact(f"u{n}", f"p{n}", phase, is_gated=False, index=n, is_killed=killed)
        for n, phase in enumerate(phases)
    ]


@pytest.mark.parametrize(
    ("spec", "status", "pods", "expected"),
    [
        # What the Job controller said, or had already decided.
        ({}, {"conditions": [_condition("Complete")]}, (), FluxJobState.COMPLETED),
        ({}, {"conditions": [_condition("SuccessCriteriaMet")]}, (), FluxJobState.COMPLETED),
        ({}, {"conditions": [_condition("FailureTarget")]}, (), FluxJobState.FAILED),
        # What its pods say, before the controller has counted them.
        ({"completions": 2, "parallelism": 2}, {}, ("Succeeded",) * 2, FluxJobState.COMPLETED),
        ({"completions": 2, "parallelism": 2}, {}, ("Succeeded", "Running"), None),
        ({"completions": 3}, {"succeeded": 3}, (), FluxJobState.COMPLETED),
        (
            {"completions": 3},
            {"succeeded": 2, "uncountedTerminatedPods": {"succeeded": ["u9"]}},
            (),
            FluxJobState.COMPLETED,
        ),
        (
            {**INDEXED, "completions": 3},
            {"completedIndexes": "2"},
            ("Succeeded", "Succeeded"),
            FluxJobState.COMPLETED,
        ),
        ({**INDEXED, "completions": 3}, {"completedIndexes": "0,1"}, ("Succeeded",), None),
        ({"completions": None, "parallelism": 2}, {}, ("Succeeded",), FluxJobState.COMPLETED),
        ({"completions": None, "parallelism": 2}, {}, ("Succeeded", "Running"), None),
        ({"backoffLimit": 0}, {}, ("Failed",), FluxJobState.FAILED),
        ({"backoffLimit": 1}, {}, ("Failed",), None),
        ({"backoffLimit": 0, "podFailurePolicy": {"rules": []}}, {}, ("Failed",), None),
        ({"completions": 0}, {}, (), None),
    ],
)
def test_how_one_ended_that_is_gone(
    spec: dict[str, Any], status: dict[str, Any], pods: tuple[str, ...], expected: FluxJobState
) -> None:
    job = _with_status(batch_job(**spec), **status)
    assert BATCH_JOB.last_result(job, _pods(*pods)) is expected


@pytest.mark.parametrize("phase", ["Succeeded", "Failed"])
def test_a_pod_that_was_killed_tells_nothing(phase: str) -> None:
    job = _with_status(batch_job(backoffLimit=0))
    assert BATCH_JOB.last_result(job, _pods(phase, killed=True)) is None
