"""The mutation table: kind x situation -> taken in, untouched or refused, and what the answer says.

The objects are compared after applying the patch. Reviews recorded from a real API server are
answered too, where ``../shared/realapi`` is at hand.
"""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator
from typing import Any

import orjson
import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.workload.holding import AdmitSettings
from fluxqueue_webhook.admit import admit
from tests.support.upstream import SHARED
from tests.support.workloads import admission_review, bare_pod, batch_job, container, owner, patched

OURS = {"name": "fluxqueue"}
OPTED_OUT = {"labels": {"fluxqueue/managed": "false"}}
GOING = {"deletionTimestamp": "2026-01-01T00:00:00Z"}
MIRROR = {"annotations": {"kubernetes.io/config.mirror": "x"}}
LABEL = {"fluxqueue/managed": "true"}
USER = {"fluxqueue/user": "someone"}


def _answer(review: dict[str, Any]) -> dict[str, Any]:
    before = copy.deepcopy(review)
    answer = admit(review)
    assert review == before, "the review must not be changed"
    sent = orjson.loads(orjson.dumps(answer.review))
    assert sent["apiVersion"] == "admission.k8s.io/v1"
    assert sent["kind"] == "AdmissionReview"
    assert sent["response"]["uid"] == review["request"]["uid"]
    response: dict[str, Any] = sent["response"]
    return response


def _mutated(obj: dict[str, Any]) -> dict[str, Any]:
    response = _answer(admission_review(obj))
    assert response["allowed"] is True
    assert response["patchType"] == "JSONPatch"
    return patched(obj, response)


def _taken_job(job: dict[str, Any], **spec: Any) -> dict[str, Any]:
    """What ``job`` must be afterwards. ``spec`` are further changes."""
    taken = copy.deepcopy(job)
    taken["metadata"].setdefault("labels", {}).update(LABEL)
    taken["metadata"].setdefault("annotations", {}).update(USER)
    taken["spec"].update({"suspend": True, **spec})
    taken["spec"]["template"]["metadata"].setdefault("labels", {}).update(LABEL)
    taken["spec"]["template"]["spec"].setdefault("schedulingGates", []).append(OURS)
    return taken


def _taken_pod(pod: dict[str, Any], **spec: Any) -> dict[str, Any]:
    taken = copy.deepcopy(pod)
    taken["metadata"].setdefault("labels", {}).update(LABEL)
    taken["metadata"].setdefault("annotations", {}).update(USER)
    taken["spec"].setdefault("schedulingGates", []).append(OURS)
    taken["spec"].update(spec)
    return taken


@pytest.mark.parametrize(
    ("job", "changes"),
    [
        pytest.param(batch_job(), {}, id="plain"),
        pytest.param(batch_job(completionMode="Indexed", parallelism=8), {}, id="indexed"),
        pytest.param(batch_job(pod={"schedulingGates": [{"name": "o"}]}), {}, id="other-gate"),
        pytest.param(batch_job(meta={"labels": {"a": "b"}}), {}, id="labelled"),
        pytest.param(batch_job(meta={"labels": LABEL}), {}, id="managed-by-label"),
        pytest.param(batch_job(meta={"ownerReferences": [owner("CronJob")]}), {}, id="cronjob"),
        pytest.param(
            batch_job(meta={"annotations": {"fluxqueue/duration": "1h"}}),
            {"activeDeadlineSeconds": 3600},
            id="duration",
        ),
        pytest.param(
            batch_job(meta={"annotations": {"fluxqueue/duration": "1h"}}, activeDeadlineSeconds=60),
            {},
            id="deadline-wins",
        ),
    ],
)
def test_batch_jobs_are_taken_in(job: dict[str, Any], changes: dict[str, Any]) -> None:
    assert _mutated(job) == _taken_job(job, **changes)


def test_an_author_suspended_batch_job_is_annotated_as_such() -> None:
    job = batch_job(suspend=True)
    expected = _taken_job(job)
    expected["metadata"]["annotations"] = {"fluxqueue/author-suspended": "true", **USER}
    assert _mutated(job) == expected


@pytest.mark.parametrize("kind", ["Job", "suspended Job", "Pod"])
def test_who_submits_is_what_the_api_server_says(kind: str) -> None:
    """A name in the manifest is overwritten, and taken out where the API server gives none."""
    forged = {"annotations": {"fluxqueue/user": "root", "a": "b"}}
    made = {
        "Job": batch_job(meta=forged),
        "suspended Job": batch_job(meta=forged, suspend=True),
        "Pod": bare_pod(meta=forged),
    }[kind]
    annotations = _mutated(made)["metadata"]["annotations"]
    assert (annotations["fluxqueue/user"], annotations["a"]) == ("someone", "b")
    review = admission_review(made)
    del review["request"]["userInfo"]
    assert "fluxqueue/user" not in patched(made, _answer(review))["metadata"]["annotations"]


def test_a_second_user_who_applies_the_same_patch_is_stamped() -> None:
    """Reinvocation for the same user changes nothing. A copied manifest is its submitter's."""
    taken = _mutated(batch_job())
    assert "patch" not in _answer(admission_review(taken))
    review = admission_review(taken)
    review["request"]["userInfo"]["username"] = "bob"
    again = patched(taken, _answer(review))
    assert again["metadata"]["annotations"]["fluxqueue/user"] == "bob"


@pytest.mark.parametrize(
    ("pod", "changes"),
    [
        pytest.param(bare_pod(), {}, id="plain"),
        pytest.param(bare_pod(schedulingGates=[{"name": "o"}]), {}, id="other-gate"),
        pytest.param(bare_pod(restartPolicy="Always"), {}, id="restarting"),
        pytest.param(
            bare_pod(meta={"annotations": {"fluxqueue/duration": "90"}}),
            {"activeDeadlineSeconds": 90},
            id="duration",
        ),
    ],
)
def test_bare_pods_are_taken_in(pod: dict[str, Any], changes: dict[str, Any]) -> None:
    assert _mutated(pod) == _taken_pod(pod, **changes)


def test_objects_with_a_generated_name_are_taken_in() -> None:
    pod = bare_pod()
    del pod["metadata"]["name"]
    pod["metadata"]["generateName"] = "solo-"
    assert _mutated(pod) == _taken_pod(pod)


@pytest.mark.parametrize(
    "review",
    [
        pytest.param(admission_review(batch_job(meta=OPTED_OUT)), id="job-opted-out"),
        pytest.param(admission_review(batch_job(template_meta=OPTED_OUT)), id="template-opted-out"),
        pytest.param(admission_review(batch_job(meta=GOING)), id="job-terminating"),
        pytest.param(admission_review(batch_job(managedBy="x/y")), id="job-managed-by-other"),
        pytest.param(admission_review(batch_job(pod={"nodeName": "n"})), id="job-names-node"),
        pytest.param(admission_review(bare_pod(meta=OPTED_OUT)), id="pod-opted-out"),
        pytest.param(admission_review(bare_pod(meta=GOING)), id="pod-terminating"),
        pytest.param(admission_review(bare_pod(meta=MIRROR)), id="pod-mirror"),
        pytest.param(admission_review(bare_pod(nodeName="n")), id="pod-bound"),
        *(
            pytest.param(
                admission_review(bare_pod(meta={"ownerReferences": [owner(kind)]})),
                id=f"pod-of-{kind}",
            )
            for kind in ("Job", "DaemonSet", "ReplicaSet", "StatefulSet", "Node")
        ),
        *(
            pytest.param(admission_review(obj, namespace=namespace), id=f"{kind}-in-{namespace}")
            for namespace in ("kube-system", "kube-public", "kube-node-lease", "fluxqueue-system")
            for kind, obj in (("job", batch_job()), ("pod", bare_pod()))
        ),
        *(
            pytest.param(
                admission_review(obj, operation=operation), id=f"{obj['kind']}-{operation}"
            )
            for operation in ("UPDATE", "DELETE", "CONNECT")
            for obj in (batch_job(), bare_pod())
        ),
        pytest.param(admission_review({**batch_job(), "kind": "Deployment"}), id="deployment"),
    ],
)
def test_everything_else_passes_untouched(review: dict[str, Any]) -> None:
    assert _answer(review) == {"uid": "review-1", "allowed": True}
    assert admit(review).verdict == "untouched"


def test_what_admission_made_passes_a_second_round_without_patch() -> None:
    """Reinvocation after a later webhook's change."""
    for obj in (batch_job(), batch_job(suspend=True), bare_pod()):
        once = _mutated(obj)
        assert _answer(admission_review(once)) == {"uid": "review-1", "allowed": True}


def test_a_dry_run_gets_the_same_answer() -> None:
    review = admission_review(batch_job())
    wet = _answer(review)
    review["request"]["dryRun"] = True
    assert _answer(review) == wet


@pytest.mark.parametrize("make", [batch_job, bare_pod])
def test_an_invalid_annotation_is_refused_with_field_value_and_allowed(make: Any) -> None:
    obj = make(meta={"annotations": {"fluxqueue/spread": "zone"}})
    response = _answer(admission_review(obj))
    assert response["allowed"] is False
    assert "patch" not in response
    status = response["status"]
    assert (status["code"], status["reason"]) == (422, "Invalid")
    for part in ("metadata.annotations[fluxqueue/spread]", "'zone'", '"node"'):
        assert part in status["message"]
    details = status["details"]
    assert (details["kind"], details["name"]) == (obj["kind"], obj["metadata"]["name"])
    (cause,) = details["causes"]
    assert cause["field"] == "metadata.annotations[fluxqueue/spread]"
    assert cause["field"] not in cause["message"], "kubectl would print it twice"


def test_an_unmanaged_object_is_not_refused_for_its_annotations() -> None:
    meta = {**OPTED_OUT, "annotations": {"fluxqueue/nonsense": "1"}}
    assert _answer(admission_review(batch_job(meta=meta)))["allowed"] is True


def test_warns_about_what_will_not_be_considered() -> None:
    rule = {"maxSkew": 1, "whenUnsatisfiable": "ScheduleAnyway"}
    spread = {"topologySpreadConstraints": [rule]}
    meta = {"annotations": {"fluxqueue/duration": "1h"}}
    job = batch_job(meta=meta, pod=spread, activeDeadlineSeconds=5)
    warnings = _answer(admission_review(job))["warnings"]
    assert len(warnings) == 2
    assert "activeDeadlineSeconds (5) wins" in warnings[0]
    assert "preferred topology spread" in warnings[1]
    assert all(len(text) <= 256 for text in warnings)


def test_settings_choose_the_own_namespace() -> None:
    settings = AdmitSettings(never_managed=frozenset({"queue"}))
    review = admission_review(bare_pod(), namespace="queue")
    assert admit(review, settings).verdict == "untouched"
    assert admit(review).verdict == "taken"


@pytest.mark.parametrize(
    "review",
    [
        [],
        None,
        {},
        {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1beta1", "request": {}},
        {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1"},
        {"kind": "AdmissionReview", "apiVersion": "admission.k8s.io/v1", "request": {"uid": 3}},
    ],
)
def test_what_is_no_review_is_said_to_be_none(review: Any) -> None:
    with pytest.raises(InvalidInput):
        admit(review)


@pytest.mark.parametrize(
    "obj",
    [
        {"kind": "Job", "metadata": {}},
        {"kind": "Job", "metadata": {}, "spec": {"template": {}}},
        {"kind": "Pod", "metadata": {}, "spec": {}},
        {**bare_pod(), "spec": {"containers": [container(requests={"cpu": "lots"})]}},
    ],
)
def test_what_the_api_server_will_refuse_is_left_to_it(obj: dict[str, Any]) -> None:
    """Admission runs before validation, and the server's own message is the better one."""
    assert _answer(admission_review(obj))["allowed"] is True


def _recorded_reviews() -> Iterator[Any]:
    for name in ("webhook-review-job", "webhook-review-pod"):
        path = SHARED / "realapi" / f"{name}.json"
        if not path.exists():
            reason = f"no recordings in {SHARED} (FLUXQUEUE_SHARED names their folder)"
            yield pytest.param(None, id=name, marks=pytest.mark.skip(reason=reason))
            continue
        for number, step in enumerate(json.loads(path.read_text())["steps"]):
            if "webhook" in step:
                yield pytest.param(step["webhook"]["review"], id=f"{name}-{number}")


@pytest.mark.parametrize("review", list(_recorded_reviews()))
def test_reviews_of_a_real_api_server_are_answered(review: dict[str, Any]) -> None:
    """Every recorded creation of a Job or a bare Pod is taken in, everything else untouched."""
    request = review["request"]
    obj = request.get("object") or {}
    is_ours = (
        request["operation"] == "CREATE"
        and request["kind"]["kind"] in {"Job", "Pod"}
        and not obj.get("metadata", {}).get("ownerReferences")
    )
    response = _answer(review)
    assert response["allowed"] is True
    assert ("patch" in response) is is_ours
    if is_ours:
        result = patched(obj, response)
        pod_spec = (
            result["spec"]["template"]["spec"] if "template" in result["spec"] else result["spec"]
        )
        assert OURS in pod_spec["schedulingGates"]
