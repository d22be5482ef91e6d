"""What makes pods and asks to be queued: its pods are made to ask, and are taken in."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fluxqueue_webhook.admit import admit
from tests.support.workloads import admission_review, bare_pod, batch_job, owner, patched

Obj = dict[str, Any]

ASKS = {"fluxqueue/managed": "true"}


def answered(
    obj: Obj, *, operation: str = "CREATE", all_ask: bool = False, old: Obj | None = None
) -> tuple[str, Obj]:
    """The verdict, and what ``obj`` is after it."""
    review = admission_review(obj)
    review["request"] |= {"operation": operation, "oldObject": old}
    answer = admit(review, all_ask=all_ask)
    response = answer.review["response"]
    assert response["allowed"], response
    return answer.verdict, patched(obj, response)


def deployment(**labels: str) -> Obj:
    return {
        "apiVersion": "apps/v1",
        "kind": "Deployment",
        "metadata": {"name": "web", "namespace": "default", "labels": labels},
        "spec": {"replicas": 2, "template": {"metadata": {"labels": {"app": "web"}}, "spec": {}}},
    }


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_the_pods_of_a_labelled_set_ask(operation: str) -> None:
    verdict, made = answered(deployment(**ASKS), operation=operation)
    assert verdict == "taken"
    assert made["spec"]["template"]["metadata"]["labels"] == {"app": "web", **ASKS}
    assert answered(made) == ("taken", made), "a second round changes nothing"


def test_a_set_that_is_not_labelled_is_left_as_it_is() -> None:
    assert answered(deployment()) == ("untouched", deployment())
    refused = deployment(**{"fluxqueue/managed": "false"})
    assert answered(refused, all_ask=True) == ("untouched", refused)


def test_a_template_that_says_no_is_not_overruled() -> None:
    web = deployment(**ASKS)
    web["spec"]["template"]["metadata"]["labels"]["fluxqueue/managed"] = "false"
    assert answered(web) == ("taken", web)


def test_what_a_set_makes_is_left_to_the_set() -> None:
    web = deployment(**ASKS) | {"kind": "ReplicaSet"}
    web["metadata"]["ownerReferences"] = [owner("Deployment", "web")]
    assert answered(web) == ("untouched", web)


def test_what_is_made_and_is_labelled_has_its_pods_ask() -> None:
    """As the JobSet of what hands its labels on. It is not suspended, nor changed."""
    made_by = {**owner("Sweep", "tune"), "apiVersion": "example.org/v1"}
    inner = {"parallelism": 2, "template": {"spec": {"containers": []}}}
    spec = {"replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": inner}}]}
    meta: Obj = {"name": "tune", "namespace": "default", "ownerReferences": [made_by]}
    obj = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "spec": spec}
    asking = obj | {"metadata": meta | {"labels": ASKS}}
    verdict, made = answered(asking)
    assert verdict == "taken"
    inner = made["spec"]["replicatedJobs"][0]["template"]["spec"]
    assert inner["template"]["metadata"]["labels"] == ASKS
    assert "suspend" not in made["spec"]
    assert answered(asking, operation="UPDATE") == ("untouched", asking)
    silent = obj | {"metadata": meta}
    assert answered(silent, all_ask=True) == ("untouched", silent)


@pytest.mark.parametrize(
    ("api_version", "kind", "spec", "found"),
    [
        (
            "jobset.x-k8s.io/v1alpha2",
            "JobSet",
            {"replicatedJobs": [{"name": n, "template": {"spec": {"template": {}}}} for n in "ab"]},
            2,
        ),
        ("kubeflow.org/v2beta1", "MPIJob", {"mpiReplicaSpecs": {"Launcher": {}, "Worker": {}}}, 2),
        ("kubeflow.org/v1", "PyTorchJob", {"pytorchReplicaSpecs": {"Master": {"template": {}}}}, 1),
        ("ray.io/v1", "RayCluster", {"headGroupSpec": {}, "workerGroupSpecs": [{}, {}]}, 3),
        ("ray.io/v1", "RayJob", {"rayClusterSpec": {"headGroupSpec": {}}}, 1),
        ("leaderworkerset.x-k8s.io/v1", "LeaderWorkerSet", {"leaderWorkerTemplate": {}}, 1),
        (
            "leaderworkerset.x-k8s.io/v1",
            "LeaderWorkerSet",
            {"leaderWorkerTemplate": {"leaderTemplate": {"spec": {}}}},
            2,
        ),
        ("flux-framework.org/v1alpha2", "MiniCluster", {"size": 4}, 1),
        ("sparkoperator.k8s.io/v1beta2", "SparkApplication", {"driver": {}, "executor": {}}, 2),
        ("argoproj.io/v1alpha1", "Workflow", {"templates": []}, 1),
    ],
)
def test_the_pods_of_a_labelled_operators_object_ask(
    api_version: str, kind: str, spec: Obj, found: int
) -> None:
    meta = {"name": "x", "namespace": "default", "labels": ASKS}
    obj = {"apiVersion": api_version, "kind": kind, "metadata": meta, "spec": spec}
    verdict, made = answered(obj)
    assert verdict == "taken"
    assert json.dumps(made).count('"fluxqueue/managed": "true"') == found + 1
    assert answered(made) == ("taken", made)


TRAINER = "trainer.kubeflow.org/v1alpha1"


def train_job(**more: Any) -> Obj:
    meta = {"name": "tune", "namespace": "default", "labels": ASKS, **more}
    spec = {"runtimeRef": {"name": "torch-distributed"}}
    return {"apiVersion": TRAINER, "kind": "TrainJob", "metadata": meta, "spec": spec}


def patched_labels(obj: Obj) -> Any:
    """Labels that each version of the Trainer gives to the JobSet."""
    patches = {one["manager"]: one for one in obj["spec"]["runtimePatches"]}
    template = patches["fluxqueue"]["trainingRuntimeSpec"]["template"]
    return obj["spec"]["labels"], template["metadata"]["labels"]


def test_a_trainjob_waits_suspended_and_hands_its_label_on() -> None:
    """Nothing is known yet of what it asks for: that stands in the JobSet that it makes."""
    verdict, made = answered(train_job())
    assert verdict == "taken"
    assert made["spec"]["suspend"] is True
    assert patched_labels(made) == (ASKS, ASKS)
    assert made["metadata"]["annotations"]["fluxqueue/suspended"] == "true"
    assert answered(made) == ("taken", made), "a second round changes nothing"
    others = train_job()
    others["spec"]["runtimePatches"] = [{"manager": "kueue.x-k8s.io/manager"}]
    _, made = answered(others)
    assert patched_labels(made) == (ASKS, ASKS)
    managers = [one["manager"] for one in made["spec"]["runtimePatches"]]
    assert managers == ["kueue.x-k8s.io/manager", "fluxqueue"]


def test_its_duration_is_its_own_deadline() -> None:
    _, made = answered(train_job(annotations={"fluxqueue/duration": "10m"}))
    assert made["spec"]["activeDeadlineSeconds"] == 600


def test_a_trainjob_of_a_named_group_has_its_pods_ask() -> None:
    """It goes on at once, and its pods wait for the others."""
    named = {"fluxqueue/pod-group": "all", "fluxqueue/group-size": "4"}
    verdict, made = answered(train_job(annotations=named))
    assert (verdict, made["spec"].get("suspend")) == ("taken", None)
    assert patched_labels(made) == (ASKS, ASKS)


def its_job_set(*, suspend: bool = True, **pod: Any) -> Obj:
    inner = {"parallelism": 2, "template": {"spec": {"containers": []}, **pod}}
    spec = {"replicatedJobs": [{"name": "node", "replicas": 1, "template": {"spec": inner}}]}
    made_by = {**owner("TrainJob", "tune"), "apiVersion": TRAINER}
    meta = {"name": "tune", "namespace": "default", "labels": ASKS, "ownerReferences": [made_by]}
    head = {"apiVersion": "jobset.x-k8s.io/v1alpha2", "kind": "JobSet", "metadata": meta}
    return head | {"spec": spec | {"suspend": suspend}}


@pytest.mark.parametrize("operation", ["CREATE", "UPDATE"])
def test_the_jobset_of_a_trainjob_says_which_slots_its_pods_need(operation: str) -> None:
    """It is not held by itself: its TrainJob is, and starts it."""
    verdict, made = answered(its_job_set(), operation=operation)
    assert verdict == "taken"
    (one,) = made["spec"]["replicatedJobs"]
    marks = one["template"]["spec"]["template"]["metadata"]["labels"]
    assert marks == {**ASKS, "fluxqueue/slots": marks["fluxqueue/slots"]}
    assert "annotations" not in made["metadata"]
    assert answered(made, operation="UPDATE") == ("taken", made)
    going = its_job_set(suspend=False)
    assert answered(going, operation="UPDATE", old=going) == ("untouched", going)
    again = answered(going, operation="UPDATE", old=its_job_set())
    assert again[0] == "taken", "it is written anew as it is let go"


def test_a_wish_in_a_runtime_that_cannot_be_read_is_refused_with_its_path() -> None:
    wrong = its_job_set(metadata={"annotations": {"fluxqueue/duration": "soon"}})
    answer = admit(admission_review(wrong)).review["response"]
    assert not answer["allowed"]
    (cause,) = answer["status"]["details"]["causes"]
    assert cause["field"].startswith("spec.replicatedJobs.0.template.spec.template")


def owned_pod(kind: str = "RayCluster", **meta: Any) -> Obj:
    made_by = {**owner(kind, "ray"), "apiVersion": "ray.io/v1"}
    return bare_pod(meta={"ownerReferences": [made_by], **meta})


def test_in_a_namespace_whose_sets_are_managed_pods_of_controllers_are_taken_in() -> None:
    assert answered(owned_pod())[0] == "untouched"
    verdict, made = answered(owned_pod(), all_ask=True)
    assert verdict == "taken"
    assert made["metadata"]["annotations"]["fluxqueue/group"] == "ray ?- RayCluster"
    assert made["spec"]["schedulingGates"] == [{"name": "fluxqueue"}]
    assert answered(made, all_ask=True) == ("taken", made)
    refused = owned_pod(labels={"fluxqueue/managed": "false"})
    assert answered(refused, all_ask=True) == ("untouched", refused)


@pytest.mark.parametrize("kind", ["DaemonSet", "Node", "Job"])
def test_pods_of_nodes_and_of_jobs_are_not(kind: str) -> None:
    assert answered(owned_pod(kind), all_ask=True) == ("untouched", owned_pod(kind))


def test_jobs_that_something_makes_are_of_that_where_they_ask() -> None:
    """Not suspended: their pods are counted with those of the others."""
    made_by = {**owner("JobSet", "train"), "apiVersion": "jobset.x-k8s.io/v1alpha2"}
    job = batch_job(meta={"ownerReferences": [made_by]})
    verdict, made = answered(job, all_ask=True)
    assert verdict == "taken"
    assert made["spec"]["suspend"] is False
    template = made["spec"]["template"]
    assert template["metadata"]["annotations"]["fluxqueue/group"] == "train ?- JobSet"
    assert template["spec"]["schedulingGates"] == [{"name": "fluxqueue"}]
    assert answered(made) == ("taken", made), "the webhook for Jobs is asked after that for sets"
    alone = answered(job)[1]
    assert alone["spec"]["suspend"] is True
    assert answered(alone, all_ask=True) == ("taken", alone)
