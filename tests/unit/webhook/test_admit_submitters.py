"""Admission of what is created for a user: by a controller, by a GitOps tool, from a template."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fluxqueue.process.cluster_accounts import CLUSTER_CONTROLLERS
from fluxqueue.workload.holding import AdmitSettings
from fluxqueue.workload.submitter import Submitters
from fluxqueue_webhook.__main__ import _parse
from fluxqueue_webhook.admit import admit
from tests.support.owners import job_set_spec
from tests.support.workloads import admission_review, bare_pod, batch_job, owner, patched

Obj = dict[str, Any]

ASKS = {"fluxqueue/managed": "true"}
FLUX = "system:serviceaccount:flux-system:kustomize-controller"
SETTINGS = AdmitSettings(
    submitters=Submitters(frozenset(CLUSTER_CONTROLLERS), frozenset({FLUX})),
)
CONTROLLER = "system:serviceaccount:kube-system:{}-controller"


def answered(obj: Obj, user: str, *, old: Obj | None = None, **more: Any) -> tuple[Obj, Obj]:
    """The response, and what ``obj`` is after it. ``more`` are fields of the request."""
    review = admission_review(obj, operation="CREATE" if old is None else "UPDATE")
    review["request"] |= {"userInfo": {"username": user}, "oldObject": old, **more}
    response = admit(review, SETTINGS).review["response"]
    return response, patched(obj, response)


def user_of(obj: Obj) -> str | None:
    found: str | None = (obj["metadata"].get("annotations") or {}).get("fluxqueue/user")
    return found


def note(user: str, key: str = "user") -> Obj:
    return {"annotations": {f"fluxqueue/{key}": user}}


def made(kind: str, **meta: Any) -> Obj:
    """A pod, a Job, or a group's Job, with these metadata."""
    if kind == "Pod of a set":
        meta["ownerReferences"] = [owner("ReplicaSet", "web")]
        return bare_pod(meta={**meta, "labels": ASKS})
    if kind == "Job of a group":
        labels = {"fluxqueue/pod-group": "g", "fluxqueue/group-size": "5"}
        return batch_job(meta={**meta, "labels": labels})
    return batch_job(meta=meta) if kind == "Job" else bare_pod(meta=meta)


@pytest.mark.parametrize("kind", ["Job", "Job of a group", "Pod", "Pod of a set"])
@pytest.mark.parametrize(
    ("user", "meta", "expected"),
    [
        ("mallory", note("alice"), "mallory"),
        ("mallory", note("alice", "submitter"), "mallory"),
        (CONTROLLER.format("replicaset"), note("alice"), "alice"),
        (CONTROLLER.format("cronjob"), note("alice"), "alice"),
        (CONTROLLER.format("made-up"), note("alice"), CONTROLLER.format("made-up")),
        (FLUX, note("alice", "submitter"), "alice"),
        (FLUX, note("alice"), FLUX),
    ],
)
def test_who_a_workload_counts_for(kind: str, user: str, meta: Obj, expected: str) -> None:
    response, after = answered(made(kind, **meta), user)
    assert response["allowed"]
    assert user_of(after) == expected
    if kind == "Job of a group":
        assert user_of(after["spec"]["template"]) == expected


def template_of(user: str | None = None) -> Obj:
    notes = {} if user is None else note(user)
    return {"metadata": {"labels": {"app": "web", **ASKS}, **notes}, "spec": {"containers": []}}


def maker(kind: str, user: str | None = None, **labels: str) -> Obj:
    """An object that makes pods or Jobs, whose template names a user."""
    group = {"CronJob": "batch/v1", "ReplicationController": "v1"}.get(kind, "apps/v1")
    template = template_of(user)
    spec: Obj = {"template": template}
    if kind == "CronJob":
        spec = {"jobTemplate": {**template, "spec": {"template": template_of(user)}}}
    meta = {"name": "web", "namespace": "default", "labels": labels}
    return {"apiVersion": group, "kind": kind, "metadata": meta, "spec": spec}


def stamped(obj: Obj) -> str | None:
    return user_of(obj["spec"].get("jobTemplate") or obj["spec"]["template"])


MAKERS = ["Deployment", "ReplicaSet", "StatefulSet", "ReplicationController", "CronJob"]


@pytest.mark.parametrize("kind", MAKERS)
@pytest.mark.parametrize("labels", [{}, ASKS], ids=["by-template", "by-label"])
def test_a_template_gets_its_submitter(kind: str, labels: dict[str, str]) -> None:
    response, after = answered(maker(kind, "root", **labels), "alice")
    assert response["allowed"]
    assert stamped(after) == "alice"
    assert "patch" not in answered(after, "alice")[0], "a second round changes nothing"
    if kind == "CronJob":
        assert user_of(after["spec"]["jobTemplate"]["spec"]["template"]) is None
    changed = maker(kind, "bob", **labels)
    assert stamped(answered(changed, "bob", old=after)[1]) == "alice"


@pytest.mark.parametrize("kind", MAKERS)
def test_nothing_is_written_into_what_is_not_ours(kind: str) -> None:
    obj = maker(kind)
    for more in ({"subResource": "scale"}, {"namespace": "kube-system"}, {"operation": "DELETE"}):
        assert "patch" not in answered(obj, "alice", **more)[0]
    assert "patch" not in answered(maker(kind, "alice"), CONTROLLER.format("deployment"))[0]


@pytest.mark.parametrize(
    "obj",
    [*map(maker, MAKERS), made("Job"), made("Pod")],
    ids=lambda obj: str(obj["kind"]),
)
def test_a_name_that_is_none_is_refused_with_its_field(obj: Obj) -> None:
    obj["metadata"] |= note("a b", "submitter")
    response, _ = answered(obj, FLUX)
    assert not response["allowed"]
    (cause,) = response["status"]["details"]["causes"]
    assert cause["field"] == "metadata.annotations[fluxqueue/submitter]"
    assert "letters, digits" in cause["message"]
    assert answered(obj, "alice")[0]["allowed"], "of other accounts it is not read"


def test_what_waits_suspended_counts_for_whom_a_gitops_tool_names() -> None:
    pods = {"spec": {"containers": [{"name": "c", "image": "i"}]}}
    meta = {"name": "train", "namespace": "default", "labels": ASKS, **note("alice", "submitter")}
    obj = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta}
    obj["spec"] = job_set_spec(node=(2, pods))
    assert user_of(answered(obj, FLUX)[1]) == "alice"
    assert user_of(answered(obj, "mallory")[1]) == "mallory"


def test_a_leader_worker_set_keeps_its_submitter_and_nothing_else_is_changed_later() -> None:
    """Its pods get the label when it is made, and not by an edit."""
    lws = "system:serviceaccount:lws-system:lws-controller-manager"
    submitters = Submitters(SETTINGS.submitters.controllers | {lws})
    settings = AdmitSettings(submitters=submitters)
    template = {"workerTemplate": {"metadata": {}, "spec": {"containers": []}}, "size": 2}
    obj = {
        "apiVersion": "leaderworkerset.x-k8s.io/v1",
        "kind": "LeaderWorkerSet",
        "metadata": {"name": "l", "namespace": "default", "labels": ASKS},
        "spec": {"replicas": 1, "leaderWorkerTemplate": template},
    }

    def after(obj: Obj, user: str, old: Obj | None = None) -> Obj:
        review = admission_review(obj, operation="CREATE" if old is None else "UPDATE")
        review["request"] |= {"userInfo": {"username": user}, "oldObject": old}
        answer = admit(review, settings).review["response"]
        found = patched(obj, answer)
        return found["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"]  # type: ignore[no-any-return]

    made = after(obj, "alice")
    assert made == {"labels": ASKS, **note("alice")}
    stored = json.loads(json.dumps(obj))
    stored["spec"]["leaderWorkerTemplate"]["workerTemplate"]["metadata"] = made
    assert after(obj, "bob", stored) == note("alice")


def test_no_controller_is_believed_by_default(monkeypatch: pytest.MonkeyPatch) -> None:
    """Without the policies any tenant could write what it copies."""
    needed = ["--cert-dir", "."]
    assert _parse(needed).controllers == ""
    for name in ("CONTROLLERS", "SUBMITTER_ACCOUNTS", "SUBMITTER_ANNOTATION"):
        monkeypatch.setenv(f"FLUXQUEUE_{name}", f"example.org/{name.lower()}")
        assert getattr(_parse(needed), name.lower()) == f"example.org/{name.lower()}"
