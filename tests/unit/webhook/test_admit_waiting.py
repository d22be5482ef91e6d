"""How a Job waits: suspended, or with gated pods. And what its own suspension means."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.workload.holding import AdmitSettings
from fluxqueue.workload.owner_kinds import OwnerKinds
from fluxqueue_webhook.admit import admit
from tests.support.workloads import admission_review, bare_pod, batch_job, patched

Obj = dict[str, Any]
KUEUE = {"kueue.x-k8s.io/queue-name": "team"}
GATED = {"fluxqueue/wait": "gated"}


def answer(obj: Obj, **settings: Any) -> tuple[Obj, list[str]]:
    """Return the object after admission, and the warnings. A second round changes nothing."""
    made = AdmitSettings(**settings)
    response = admit(admission_review(obj), made).review["response"]
    assert response["allowed"], response
    changed = patched(obj, response)
    again = admit(admission_review(changed), made).review["response"]
    assert "patch" not in again, "admission may be asked twice"
    return changed, response.get("warnings", [])


def a_job(notes: Obj | None = None, labels: Obj | None = None, **spec: Any) -> Obj:
    """A Job with annotations and labels."""
    return batch_job(meta={"annotations": notes or {}, "labels": labels or {}}, **spec)


def is_gated(job: Obj) -> bool:
    """Tell whether the template has the gate."""
    return {"name": "fluxqueue"} in job["spec"]["template"]["spec"].get("schedulingGates", [])


def test_a_gated_job_is_not_suspended() -> None:
    """Its pods come gated, and the answer says what that costs."""
    job, warnings = answer(a_job(GATED))
    assert not job["spec"].get("suspend")
    assert is_gated(job)
    assert len(warnings) == 1
    assert "requeue" in warnings[0]
    _, warnings = answer(a_job(GATED, activeDeadlineSeconds=60))
    assert any("activeDeadlineSeconds (60) counts while it waits" in one for one in warnings)


@pytest.mark.parametrize(
    ("notes", "labels", "settings", "expected"),
    [
        ({}, {}, {}, False),
        ({}, {}, {"gated_namespaces": {"default"}}, True),
        ({}, {}, {"gated_namespaces": {"other"}}, False),
        ({}, {}, {"gated_queues": {"default"}}, True),
        ({}, {"fluxqueue/queue": "slow"}, {"gated_queues": {"default"}}, False),
        ({}, {"fluxqueue/queue": "slow"}, {"gated_queues": {"slow"}}, True),
        ({}, KUEUE, {"gated_queues": {"team"}}, True),
        ({"fluxqueue/wait": "suspended"}, {}, {"gated_queues": {"default"}}, False),
        (GATED, {}, {}, True),
    ],
)
def test_namespace_and_queue_have_defaults(
    notes: Obj, labels: Obj, settings: Obj, expected: bool
) -> None:
    """What the Job says wins. The result stands on the Job, for every reader."""
    job, _ = answer(a_job(notes, labels), **settings)
    assert bool(job["spec"].get("suspend")) is not expected
    said = job["metadata"]["annotations"].get("fluxqueue/wait")
    assert (said == "gated") is expected


@pytest.mark.parametrize("group", ["No Name!", "a" * 64, ""])
def test_a_group_with_an_invalid_name_is_refused_in_words(group: str) -> None:
    """Whether it is a member is asked first, and is no place for an error."""
    job = a_job({"fluxqueue/pod-group": group})
    response = admit(admission_review(job), AdmitSettings(gated_namespaces=frozenset({"default"})))
    status = response.review["response"]["status"]
    assert status["code"] == 422
    assert "fluxqueue/pod-group" in status["message"]


def test_what_the_template_says_stands_on_the_job() -> None:
    """The policies of the API server read it there. They refuse a Job that seems to start."""
    job = a_job()
    job["spec"]["template"].setdefault("metadata", {})["annotations"] = GATED
    admitted, _ = answer(job)
    assert admitted["metadata"]["annotations"]["fluxqueue/wait"] == "gated"
    assert not admitted["spec"].get("suspend")
    job["metadata"]["annotations"]["fluxqueue/wait"] = "suspended"
    admitted, _ = answer(job)
    assert admitted["spec"]["suspend"] is True
    assert admitted["metadata"]["annotations"]["fluxqueue/wait"] == "suspended"


def test_an_exported_job_that_waited_suspended_waits_gated() -> None:
    """Its suspension was fluxqueue's, in the cluster that it comes from."""
    exported, _ = answer(a_job())
    exported["metadata"]["annotations"] |= GATED
    job, _ = answer(exported)
    assert job["spec"]["suspend"] is False


def test_the_author_of_a_gated_job_may_create_it_suspended() -> None:
    """It is held, as any other Job."""
    job, warnings = answer(a_job(GATED, suspend=True))
    assert job["spec"]["suspend"] is True
    assert job["metadata"]["annotations"]["fluxqueue/author-suspended"] == "true"
    assert any("created suspended" in one for one in warnings)


@pytest.mark.parametrize(
    ("labels", "settings", "is_authors"),
    [
        ({}, {}, True),
        (KUEUE, {}, False),
        (KUEUE, {"takes_kueue_suspension": False}, True),
        ({"fluxqueue/queue": "team"}, {}, True),
    ],
)
def test_a_suspension_for_kueue_is_the_queues(labels: Obj, settings: Obj, is_authors: bool) -> None:
    """All others wait for their author, and their reason says so."""
    job, warnings = answer(a_job({}, labels, suspend=True), **settings)
    assert job["spec"]["suspend"] is True
    assert is_gated(job)
    mark = job["metadata"]["annotations"].get("fluxqueue/author-suspended")
    assert (mark == "true") is is_authors
    assert any("spec.suspend to false" in one for one in warnings) is is_authors


def test_a_job_for_kueue_may_wait_gated() -> None:
    """It is resumed at once then."""
    job, _ = answer(a_job(GATED, KUEUE, suspend=True))
    assert job["spec"]["suspend"] is False


def test_a_jobset_for_kueue_waits_for_the_queue() -> None:
    """As a Job does."""
    template = {"spec": {"template": batch_job()["spec"]["template"], "parallelism": 1}}
    jobset: Obj = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "x", "namespace": "default", "labels": dict(KUEUE)},
        "spec": {
            "suspend": True,
            "replicatedJobs": [{"name": "w", "replicas": 1, "template": template}],
        },
    }
    settings = {"owner_kinds": OwnerKinds()}
    job, warnings = answer(jobset, **settings)
    assert "fluxqueue/author-suspended" not in job["metadata"]["annotations"]
    assert not warnings
    alone = {**jobset, "metadata": {**jobset["metadata"], "labels": {"fluxqueue/managed": "true"}}}
    job, warnings = answer(alone, **settings)
    assert job["metadata"]["annotations"]["fluxqueue/author-suspended"] == "true"
    assert any("spec.suspend to false" in one for one in warnings)


@pytest.mark.parametrize(
    ("obj", "is_allowed"),
    [
        (a_job({"fluxqueue/wait": "somehow"}), False),
        (bare_pod(meta={"annotations": {"fluxqueue/wait": "suspended"}}), False),
        (bare_pod(meta={"annotations": GATED}), True),
    ],
)
def test_what_cannot_be_is_refused(obj: Obj, is_allowed: bool) -> None:
    """A Pod always waits gated."""
    assert admit(admission_review(obj)).review["response"]["allowed"] is is_allowed
