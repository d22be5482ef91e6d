"""What may change in a Job, and what the server makes of a new one."""

from __future__ import annotations

import copy
from typing import Any

import pytest

from localcluster.kinds.builtin import build_registry
from localcluster.kinds.jobs import JobStrategy
from localcluster.kinds.request_context import RequestContext, UserInfo
from localcluster.obj import Obj
from tests.support.resource_requests import EmptyReader


def context() -> RequestContext:
    """A request of an administrator at a fixed time."""
    return RequestContext(
        user=UserInfo("admin"), reader=EmptyReader(), namespace="ns", now="2026-01-01T00:00:00Z"
    )


def make_job(**spec: Any) -> Obj:
    """A Job as it is stored after its POST."""
    strategy = JobStrategy()
    job: Obj = {
        "apiVersion": "batch/v1",
        "kind": "Job",
        "metadata": {"name": "j", "namespace": "ns"},
        "spec": {
            "template": {
                "spec": {
                    "restartPolicy": "Never",
                    "containers": [{"name": "main", "image": "i:1"}],
                }
            },
            **spec,
        },
    }
    ctx = context()
    strategy.decode(job, ctx)
    job["metadata"] |= {"uid": "u-1", "creationTimestamp": ctx.now}
    strategy.prepare_create(job, ctx)
    assert strategy.validate_create(job, ctx) == []
    return job


def judge(old: Obj, new: Obj) -> list[str]:
    """The fields that refuse a main-path update."""
    strategy, ctx = JobStrategy(), context()
    strategy.decode(new, ctx)
    strategy.prepare_update(new, old, "", ctx)
    return [error.field for error in strategy.validate_update(new, old, "", ctx)]


TEMPLATE_CHANGES: dict[str, Obj] = {
    "nodeSelector": {"kubernetes.io/hostname": "node-1"},
    "tolerations": [{"key": "k", "operator": "Exists"}],
    "schedulingGates": [{"name": "example.com/queue"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [{"matchExpressions": [{"key": "a", "operator": "Exists"}]}]
            }
        }
    },
}


@pytest.mark.parametrize("key", TEMPLATE_CHANGES)
def test_scheduling_directives_of_a_suspended_job_may_change(key: str) -> None:
    """Also together with ``suspend: false``: that is how a queue places a Job."""
    old = make_job(suspend=True)
    new = copy.deepcopy(old)
    new["spec"]["template"]["spec"][key] = TEMPLATE_CHANGES[key]
    assert judge(old, copy.deepcopy(new)) == []
    new["spec"]["suspend"] = False
    assert judge(old, new) == []


@pytest.mark.parametrize("key", TEMPLATE_CHANGES)
@pytest.mark.parametrize("suspend", [False, True])
def test_the_template_of_a_running_job_is_immutable(key: str, suspend: bool) -> None:
    """Even when the same change suspends it."""
    old = make_job(suspend=False)
    new = copy.deepcopy(old)
    new["spec"]["template"]["spec"][key] = TEMPLATE_CHANGES[key]
    new["spec"]["suspend"] = suspend
    assert judge(old, new) == ["spec.template"]


def test_labels_and_resources_of_a_suspended_template_may_change_but_not_the_image() -> None:
    """Container resources are among what a queue may set. The program is not."""
    old = make_job(suspend=True)
    new = copy.deepcopy(old)
    new["spec"]["template"]["metadata"]["labels"]["placed"] = "yes"
    new["spec"]["template"]["metadata"]["annotations"] = {"a": "b"}
    new["spec"]["template"]["spec"]["containers"][0]["resources"] = {"requests": {"cpu": "2"}}
    assert judge(old, copy.deepcopy(new)) == []
    new["spec"]["template"]["spec"]["containers"][0]["image"] = "i:2"
    assert judge(old, new) == ["spec.template.spec"]


@pytest.mark.parametrize(
    ("change", "fields"),
    [
        ({"parallelism": 4}, []),
        ({"backoffLimit": 1}, []),
        ({"activeDeadlineSeconds": 10}, []),
        ({"ttlSecondsAfterFinished": 10}, []),
        ({"completions": 3}, ["spec.completions"]),
        ({"completionMode": "Indexed"}, ["spec.completionMode"]),
        ({"managedBy": "example.com/other"}, ["spec.managedBy"]),
    ],
)
def test_fields_of_a_running_job(change: Obj, fields: list[str]) -> None:
    """The rest of the mutability table."""
    old = make_job(parallelism=2, completions=2)
    new = copy.deepcopy(old)
    new["spec"] |= change
    assert judge(old, new) == fields


def test_completions_of_an_indexed_job_change_only_with_parallelism() -> None:
    """Elastic indexed Jobs."""
    old = make_job(parallelism=2, completions=2, completionMode="Indexed")
    alone, together = copy.deepcopy(old), copy.deepcopy(old)
    alone["spec"]["completions"] = 3
    together["spec"] |= {"completions": 3, "parallelism": 3}
    assert judge(old, alone) == ["spec.completions"]
    assert judge(old, together) == []


def test_a_new_job_gets_selector_labels_and_defaults() -> None:
    """Both spellings of the generated labels, on the template and on the Job itself."""
    job = make_job()
    labels = job["spec"]["template"]["metadata"]["labels"]
    assert labels == {
        "batch.kubernetes.io/controller-uid": "u-1",
        "batch.kubernetes.io/job-name": "j",
        "controller-uid": "u-1",
        "job-name": "j",
    }
    assert job["metadata"]["labels"] == labels
    assert job["spec"]["selector"] == {"matchLabels": {"batch.kubernetes.io/controller-uid": "u-1"}}
    defaults = {k: job["spec"][k] for k in ("parallelism", "completions", "backoffLimit")}
    assert defaults == {"parallelism": 1, "completions": 1, "backoffLimit": 6}
    assert job["metadata"]["generation"] == 1


def test_generation_follows_the_spec_only() -> None:
    """Labels do not raise it, the spec does, the status never."""
    strategy, ctx = JobStrategy(), context()
    old = make_job(suspend=True)
    labelled, started = copy.deepcopy(old), copy.deepcopy(old)
    labelled["metadata"]["labels"]["a"] = "b"
    started["spec"]["suspend"] = False
    strategy.prepare_update(labelled, old, "", ctx)
    assert labelled["metadata"]["generation"] == 1
    through_status = copy.deepcopy(started)
    strategy.prepare_update(started, old, "", ctx)
    assert started["metadata"]["generation"] == 2
    strategy.prepare_update(through_status, old, "status", ctx)
    assert through_status["spec"]["suspend"] is True
    assert through_status["metadata"]["generation"] == 1


def test_jobs_are_deleted_with_orphans_by_default() -> None:
    """The old default of the batch API."""
    info = build_registry().lookup("batch", "v1", "jobs")
    assert info is not None
    assert info.strategy.default_propagation({}) == "Orphan"
