"""What makes pods and asks to be queued: its pods are made to ask, and are taken in."""

from __future__ import annotations

import base64
import json
from typing import Any

import jsonpatch
import pytest

from tests.support.workloads import admission_review, bare_pod, batch_job, owner
from webhook.admit import admit

Obj = dict[str, Any]

ASKS = {"fluxqueue/managed": "true"}


def answered(obj: Obj, *, operation: str = "CREATE", all_ask: bool = False) -> tuple[str, Obj]:
    """The verdict, and what ``obj`` is after it."""
    review = admission_review(obj)
    review["request"]["operation"] = operation
    answer = admit(review, all_ask=all_ask)
    response = answer.review["response"]
    assert response["allowed"], response
    patch = json.loads(base64.b64decode(response.get("patch", base64.b64encode(b"[]"))))
    return answer.verdict, jsonpatch.apply_patch(obj, patch)


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
    """As the JobSet of a TrainJob, which hands its labels on; it is not suspended, nor changed."""
    made_by = {**owner("TrainJob", "tune"), "apiVersion": "trainer.kubeflow.org/v1alpha1"}
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
        ("trainer.kubeflow.org/v1alpha1", "TrainJob", {"runtimeRef": {"name": "torch"}}, 1),
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
