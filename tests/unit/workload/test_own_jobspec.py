"""The annotation fluxqueue/jobspec: what it changes, and what it may not say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fluxqueue.errors import InvalidInput, InvalidJobspec
from fluxqueue.fluxjob.request import NodeRequirement, Operator, ResourceRequest
from fluxqueue.workload import batch
from fluxqueue.workload.annotations import read_wishes
from tests.support.workloads import admission_review, batch_job, container
from webhook.admit import admit

WHERE = "metadata.annotations[fluxqueue/jobspec]"
CORE = {"type": "core", "count": 4}


def _slot(count: int = 2, *inside: dict[str, Any]) -> dict[str, Any]:
    return {"type": "slot", "count": count, "label": "default", "with": list(inside) or [CORE]}


def _above(kind: str, count: int, *inside: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"type": kind, "count": count, "with": list(inside), **more}


def _job(jobspec: Any, **requests: str) -> dict[str, Any]:
    text = jobspec if isinstance(jobspec, str) else json.dumps(jobspec)
    return batch_job(
        meta={"annotations": {"fluxqueue/jobspec": text}},
        parallelism=2,
        completions=2,
        pod={"containers": [container(requests=requests)]},
    )


def _request(resource: Any, **requests: str) -> ResourceRequest:
    return batch.to_request(_job([resource], **requests))


def test_widens_each_pod_and_never_narrows_it() -> None:
    memory = {"type": "memory", "count": 2, "unit": "GiB"}
    request = _request(_slot(2, CORE, memory), cpu="1", memory="3Gi")
    (slot,) = request.slots
    assert (slot.count, slot.needs) == (2, {"cpu": 4000, "memory": 3 * 2**30, "pods": 1})
    assert _request(_slot(2, CORE), cpu="6").slots[0].needs["cpu"] == 6000


@pytest.mark.parametrize(
    ("own", "expected"),
    [({}, "nvidia.com/gpu"), ({"amd.com/gpu": "1"}, "amd.com/gpu")],
)
def test_a_gpu_is_of_the_kind_that_the_pod_asks_for(own: dict[str, str], expected: str) -> None:
    request = _request(_slot(2, CORE, {"type": "gpu", "count": 2}), **own)
    assert request.slots[0].needs[expected] == 2


@pytest.mark.parametrize(
    ("resource", "exclusive", "spread", "within"),
    [
        (_slot(2), False, False, None),
        (_above("node", 2, _slot(1)), False, True, None),
        (_above("node", 2, _slot(1), exclusive=True), True, True, None),
        (_above("node", 1, _slot(2)), False, False, "kubernetes.io/hostname"),
        (_above("node", 1, _slot(2), exclusive=True), True, False, "kubernetes.io/hostname"),
        (_slot(2, _above("node", 1, CORE)), True, True, None),
        (_above("rack", 1, _slot(2)), False, False, "rack"),
        (_above("rack", 1, _above("node", 2, _slot(1))), False, True, "rack"),
        (_above("cluster", 1, _above("zone", 1, _slot(2))), False, False, "zone"),
    ],
)
def test_gives_the_shape(resource: Any, exclusive: bool, spread: bool, within: str | None) -> None:
    request = _request(resource)
    assert (request.is_exclusive, request.is_spread, request.within) == (exclusive, spread, within)


def test_a_whole_jobspec_in_yaml_with_duration_queue_and_hosts() -> None:
    text = """
version: 1
resources:
  - type: slot
    count: 2
    label: default
    with: [{type: core, count: 1}]
tasks: [{command: [app], slot: default, count: {per_slot: 1}}]
attributes:
  system:
    duration: 90.5
    queue: batch
    constraints: {hostlist: ["n[1-2]"]}
"""
    job = _job(text)
    wishes, request = read_wishes(job), batch.to_request(job)
    assert (wishes.duration_s, wishes.queue, request.duration_s) == (91, "batch", 91)
    assert request.slots[0].constraint.terms == (
        (NodeRequirement("metadata.name", Operator.IN, ("n1", "n2")),),
    )


def test_hosts_narrow_every_affinity_term() -> None:
    term = {"matchExpressions": [{"key": "a", "operator": "Exists"}]}
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [term] * 2}}
    job = _job(
        {"resources": [_slot()], "attributes": {"system": {"constraints": {"hostlist": ["n1"]}}}}
    )
    job["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": required}
    named = NodeRequirement("metadata.name", Operator.IN, ("n1",))
    (slot,) = batch.to_request(job).slots
    assert slot.constraint.terms == ((NodeRequirement("a", Operator.EXISTS), named),) * 2


def test_an_annotation_of_its_own_wins_over_the_jobspec() -> None:
    job = _job({"resources": [_slot()], "attributes": {"system": {"duration": 60}}})
    job["metadata"]["annotations"]["fluxqueue/duration"] = "5m"
    assert read_wishes(job).duration_s == 300


@pytest.mark.parametrize(
    ("jobspec", "field", "words"),
    [
        ("{", "line", ""),
        ("5", "jobspec", "mapping"),
        ([], "resources", "nothing"),
        ([_slot(2), _slot(2)], "resources", "one resource"),
        ([_above("node", 2, CORE)], "resources[0].with[0].with", "one resource"),
        ([_above("node", 2, _slot(2))], "resources[0]", "not supported"),
        ([_above("rack", 2, _slot(1))], "resources[0].count", "must be 1"),
        ([_above("rack", 1, _above("zone", 1, _slot(2)))], "resources[0]", "levels"),
        ([_above("rack", 1, _slot(2), exclusive=True)], "resources[0].exclusive", "only nodes"),
        ([_above("node", 2, _slot(1, _above("node", 1, CORE)))], "with", "both"),
        ([_slot(2, _above("node", 2, CORE))], "with[0].count", "one node"),
        ([_slot(2, {"type": "socket", "count": 1})], "with[0].type", "socket"),
        ([_slot(2, {"type": "memory", "count": 1})], "with[0].unit", "unit"),
        ([_slot(2, {"type": "core", "count": {"min": 1}})], "with[0].count", "one number"),
        ([_slot(2, {"type": "core", "count": 0})], "with[0].count", "at least 1"),
        ([_slot(2, {**CORE, "with": [CORE]})], "with[0].with", "nothing inside"),
        (
            {
                "resources": [_slot()],
                "attributes": {"system": {"constraints": {"properties": ["gpu"]}}},
            },
            "attributes.system.constraints.properties",
            "not supported",
        ),
        ([_slot(3)], "", "3 slots and the workload runs 2 pods"),
    ],
)
def test_refuses_at_admission_what_pods_cannot_be_given(
    jobspec: Any, field: str, words: str
) -> None:
    """Nothing of a jobspec is dropped silently."""
    job = _job(jobspec)
    with pytest.raises(InvalidJobspec) as caught:
        batch.to_request(job)
    assert caught.value.where.startswith(WHERE)
    assert field in caught.value.where
    assert words in str(caught.value)
    response = admit(admission_review(job)).review["response"]
    assert (response["allowed"], response["status"]["code"]) == (False, 422)


def test_a_duration_that_no_deadline_can_be_is_refused() -> None:
    job = _job({"resources": [_slot()], "attributes": {"system": {"duration": 1e12}}})
    with pytest.raises(InvalidInput, match=r"attributes\.system\.duration"):
        read_wishes(job)


def test_a_fitting_jobspec_is_admitted() -> None:
    response = admit(admission_review(_job([_slot()]))).review["response"]
    assert response["allowed"] is True
    assert "patch" in response
