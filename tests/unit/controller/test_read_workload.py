"""From objects to observations: what its author wishes, and what remains when that is spoilt."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fluxqueue.controller.observing.read_workload import (
    see_progress,
    see_workload,
    trim_job,
    trim_pod,
)
from fluxqueue.errors import InvalidInput
from fluxqueue.workload.observed_pod import pod_fact
from fluxqueue.workload.site import Site
from tests.support.workloads import batch_job, owner


def job(annotations: dict[str, str], **spec: Any) -> dict[str, Any]:
    """A stored BatchJob."""
    return {
        "kind": "Job",
        "metadata": {
            "uid": "u",
            "name": "train",
            "namespace": "ns",
            "generation": 3,
            "creationTimestamp": "2030-01-01T00:00:00Z",
            "annotations": {f"fluxqueue/{key}": value for key, value in annotations.items()},
        },
        "spec": {"suspend": True, "template": {"spec": {"containers": [{"name": "c"}]}}, **spec},
    }


def pod(**status: Any) -> dict[str, Any]:
    """One of its pods, as an informer keeps it."""
    meta = {"uid": "p", "name": "train-x", "namespace": "ns"}
    return trim_pod({"metadata": meta, "spec": {}, "status": status})


def see(workload: dict[str, Any], *pods: dict[str, Any]) -> Any:
    """As the observer does."""
    return see_workload(workload, pods, flux_uid="f", class_values={}, site=Site())


def test_wishes_on_the_start_are_observed() -> None:
    """Edges as rows keep them, the begin time from the creation, the hold as its author's."""
    seen = see(job({"depends-on": "afterok:a after:7", "begin-time": "+1m", "hold": "true"}))
    assert seen.facts.depends_on == (
        {"type": "afterok", "job": "a"},
        {"type": "after", "job": "7"},
    )
    assert seen.begin_at_s == 1_893_456_060
    assert (seen.held_by, seen.has_hold, seen.facts.generation) == ("author", True, 3)


def test_a_suspension_by_its_author_is_no_annotated_hold() -> None:
    """Ours is neither."""
    seen = see(job({"author-suspended": "true"}))
    assert (seen.held_by, seen.has_hold) == ("author", False)
    assert see(job({})).held_by is None
    ours = see(job({"author-suspended": "false"}))
    assert (ours.held_by, ours.is_suspended_again) == (None, True)
    assert not see(job({"author-suspended": "false"}, suspend=False)).is_suspended_again


def test_a_job_of_no_pods_is_observed_as_paused() -> None:
    seen = see(job({}, parallelism=0))
    assert (seen.is_paused, seen.held_by, seen.size) == (True, None, 0)
    assert not see(job({})).is_paused


@pytest.mark.parametrize(("pods", "is_paused"), [(0, True), (1, False)])
def test_a_job_that_was_released_in_its_template_is_as_large_as_its_author_says(
    pods: int, is_paused: bool
) -> None:
    template = {
        "metadata": {"labels": {"fluxqueue/jobid": "7"}},
        "spec": {
            "containers": [{"name": "c"}],
            "nodeSelector": {"kubernetes.io/hostname": "n"},
        },
    }
    seen = see(job({}, parallelism=pods, completions=2, suspend=False, template=template))
    assert (seen.pinned_to, seen.is_paused, seen.size) == ("n", is_paused, pods)


@pytest.mark.parametrize(
    ("status", "is_refused"),
    [
        ({"phase": "Failed", "reason": "OutOfcpu"}, True),
        ({"phase": "Failed", "reason": "OutOfnvidia.com/gpu"}, True),
        ({"phase": "Failed", "reason": "NodeAffinity"}, True),
        ({"phase": "Failed", "reason": "Evicted"}, False),
        ({"phase": "Failed"}, False),
        ({"phase": "Running", "reason": "OutOfcpu"}, False),
    ],
)
def test_a_refusal_by_the_node_is_told_from_a_failure(
    status: dict[str, str], is_refused: bool
) -> None:
    """By the reason that the kubelet gives at its door."""
    told = [fact.is_refused for fact in see(job({}), pod(**status)).pods if fact.is_terminal]
    assert told == ([True] if is_refused else [])


def test_a_spoilt_annotation_does_not_stop_the_following() -> None:
    """What was read last counts on. How far it is is seen."""
    before = see(job({"priority": "5"}))
    spoilt = job({"priority": "high"}, suspend=False) | {
        "status": {"conditions": [{"type": "Complete", "status": "True"}]}
    }
    with pytest.raises(InvalidInput):
        see(spoilt)
    seen = see_progress(before, spoilt, [pod(phase="Succeeded")])
    assert (seen.facts.priority, seen.result, seen.facts.wanted) == (5, "Completed", 0)
    assert not seen.facts.is_suspended
    assert seen.pods == (), "a pod that has ended needs nothing any more"


def _of_index(index: int, phase: str) -> dict[str, Any]:
    made = pod(phase=phase)
    note = {"batch.kubernetes.io/job-completion-index": str(index)}
    uid = f"p{index}{phase}"
    return {**made, "metadata": {**made["metadata"], "uid": uid, "annotations": note}}


def test_what_has_ended_of_an_indexed_job() -> None:
    """Status, and pods before status. An index counts once, and none beyond the completions."""
    indexed = job({}, completionMode="Indexed", completions=4, parallelism=4)
    told = {**indexed, "status": {"completedIndexes": "0", "succeeded": 1}}
    pods = [_of_index(0, "Succeeded"), _of_index(2, "Succeeded"), _of_index(3, "Failed")]
    seen = see(told, *pods)
    assert (seen.facts.wanted, seen.facts.ended_indexes) == (2, "{[0,1),[2,3),[4,)}")
    smaller = {**told, "spec": {**told["spec"], "completions": 2, "parallelism": 2}}
    assert see_progress(seen, smaller, pods).facts.wanted == 1
    assert see_progress(seen, smaller, pods).facts.ended_indexes == "{[0,1),[2,)}"


def test_only_an_indexed_job_has_indexes() -> None:
    """Whatever its template says: else all its pods would share one slot."""
    seen = see(job({}, completions=4, parallelism=4), _of_index(7, "Running"))
    assert (seen.pods[0].index, seen.facts.ended_indexes) == (None, "{}")


@pytest.mark.parametrize(("marks", "uses"), [({"fluxqueue/managed": "true"}, 500), ({}, None)])
def test_what_a_running_pod_asks_for_is_read_of_ours_alone(
    marks: dict[str, str], uses: int | None
) -> None:
    """Pods are resized in place. Of others only what they take of their nodes counts."""
    meta = {"uid": "p", "name": "train-x", "namespace": "ns", "labels": marks}
    container = {"name": "c", "resources": {"requests": {"cpu": "500m"}}}
    raw = {"metadata": meta, "spec": {"containers": [container]}, "status": {"phase": "Running"}}
    assert dict(pod_fact(trim_pod(raw)).uses).get("cpu") == uses


@pytest.mark.parametrize("part", ["containers", "initContainers"])
def test_what_a_container_runs_is_not_kept(part: str) -> None:
    """A few hundred Jobs of a megabyte each must not fill the memory of the controller."""
    bulk = [{"name": f"V{n}", "value": "x" * 60} for n in range(5_000)]
    ports = [{"containerPort": 80, "hostPort": 8080}]
    needs = {"requests": {"cpu": "3", "memory": "1Gi"}}
    one = {"name": "c", "image": "i", "resources": needs, "ports": ports}
    large = {
        **one,
        "env": bulk,
        "args": ["y" * 90_000],
        "command": ["z"] * 9_000,
        "volumeMounts": [{"name": f"v{n}", "mountPath": f"/{n}"} for n in range(900)],
    }
    small = {"containers": [{"name": "main"}], part: [one]}
    applied = {"kubectl.kubernetes.io/last-applied-configuration": "x" * 90_000}
    told = batch_job(meta={"annotations": {**applied, "a": "b"}}, pod={**small, part: [large]})
    kept = trim_job(told)
    assert len(json.dumps(kept)) < 3_000
    assert kept == trim_job(batch_job(meta={"annotations": {"a": "b"}}, pod=small))
    assert told["spec"]["template"]["spec"][part] == [large], "the object itself is as it was"
    raw = {"metadata": {"uid": "p", "name": "p", "namespace": "n"}, "spec": {part: [large]}}
    assert trim_pod(raw)["spec"] == {part: [one]}


def test_what_limits_a_job_and_when_its_pods_have_ended() -> None:
    """Its limit counts from its start. An informer keeps what is read of its pods."""
    spec = {"activeDeadlineSeconds": 20, "suspend": False}
    running = job({}, **spec) | {"status": {"startTime": "2030-01-01T00:00:00Z"}}
    running["spec"]["template"]["spec"]["terminationGracePeriodSeconds"] = 90
    meta = {"uid": "p", "name": "train-x", "namespace": "ns"}
    owned = {**meta, "ownerReferences": [owner("Job")]}
    own = {"nodeName": "n0", "terminationGracePeriodSeconds": 600}
    there = trim_pod({"metadata": owned, "spec": own, "status": {"phase": "Running"}})
    seen = see(running, there)
    assert (seen.duration_s, seen.facts.grace_s, seen.facts.is_limited) == (20, 90, True)
    assert seen.request["attributes"]["system"]["fluxqueue"]["grace"] == 90
    assert seen.ends_at_s == 1_893_456_000 + 20 + 600
    unbound = trim_pod({"metadata": owned, "spec": {}, "status": {}})
    assert see(running, unbound).ends_at_s is None, "it uses no node"


def test_a_wish_that_nothing_enforces_is_no_limit() -> None:
    seen = see(job({"duration": "1h"}))
    assert (seen.duration_s, seen.facts.is_limited) == (3600, False)


def test_nothing_that_a_container_is_given_is_observed() -> None:
    """What is observed becomes rows, and rows are read by more than its author."""
    secret = {"secretKeyRef": {"name": "db", "key": "password"}}
    given = {
        "env": [{"name": "TOKEN", "value": "hunter2"}, {"name": "PASSWORD", "valueFrom": secret}],
        "envFrom": [{"secretRef": {"name": "hunter2"}}],
        "args": ["--token=hunter2"],
        "command": ["sh", "-c", "hunter2"],
    }
    template = {"spec": {"containers": [{"name": "c", **given}]}}
    seen = see(job({}, template=template))
    assert seen.size == 1
    assert "hunter2" not in repr(seen)
    assert "password" not in repr(seen).lower()


def test_the_label_chooses_the_queue() -> None:
    plain = job({})
    assert see(plain).queue == "default"
    labelled = {**plain, "metadata": {**plain["metadata"], "labels": {"fluxqueue/queue": "batch"}}}
    assert see(labelled).queue == "batch"
