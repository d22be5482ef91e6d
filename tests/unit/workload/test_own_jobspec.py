"""The annotation fluxqueue/jobspec: what it changes, and what it may not say."""

from __future__ import annotations

import json
from typing import Any

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.fluxjob.levels import DEFAULT_LEVELS
from fluxqueue.fluxjob.node import NodeFact
from fluxqueue.jobspec import Jobspec
from fluxqueue.jobspec.parse import parse_document
from fluxqueue.jobspec.render import render
from fluxqueue.jobspec.shape import slot_needs
from fluxqueue.workload.annotations import read_wishes
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.pod_request import check_levels
from fluxqueue_webhook.admit import admit
from tests.support.jobspecs import draw
from tests.support.workloads import admission_review, batch_job, container

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


def _request(resource: Any, **requests: str) -> Jobspec:
    return BATCH_JOB.to_request(_job([resource], **requests))


def test_widens_each_pod_and_never_narrows_it() -> None:
    memory = {"type": "memory", "count": 2, "unit": "GiB"}
    request = _request(_slot(2, CORE, memory), cpu="1", memory="3Gi")
    assert draw(request) == f"default[2]{{cpu=4000 memory={3 * 2**30} pods=1}}"
    assert draw(_request(_slot(2, CORE), cpu="6")) == "default[2]{cpu=6000 pods=1}"


SOME = {"min": 1, "max": 4, "operator": "+", "operand": 1}


@pytest.mark.parametrize(
    ("resource", "drawn"),
    [
        ({**_slot(1), "count": SOME}, "default[2]{cpu=4000 pods=1}"),
        (
            {**_above("node", 1, {**_slot(1), "count": SOME}), "count": SOME},
            "node[2] > default[1]{cpu=4000 pods=1}",
        ),
        (
            _above("rack", 1, _above("node", 1, {**_slot(1), "count": SOME})),
            "rack[1] > node[1] > default[2]{cpu=4000 pods=1}",
        ),
    ],
)
def test_a_count_that_is_not_fixed_fits_the_pods(resource: dict[str, Any], drawn: str) -> None:
    """The largest from the top down with which there are as many slots as pods."""
    assert draw(_request(resource)) == drawn


def test_all_gpus_of_a_node() -> None:
    """A pool may be taken whole. How much of it there must be stays said."""
    gpu = {"type": "gpu", "count": 4, "exclusive": True}
    (slot,) = _request(_slot(2, CORE, gpu)).resources
    (pool,) = (one for one in slot.with_ if one.type == "nvidia.com/gpu")
    assert (pool.count.minimum, pool.is_exclusive) == (4, True)


def test_counts_that_never_give_as_many_slots_are_refused() -> None:
    """Two pods, and from three slots on."""
    with pytest.raises(InvalidInput, match="asks for at least 3 slots and the workload runs 2"):
        _request({**_slot(1), "count": {"min": 3}})


@pytest.mark.parametrize(
    ("own", "expected"),
    [({}, "nvidia.com/gpu"), ({"amd.com/gpu": "1"}, "amd.com/gpu")],
)
def test_a_gpu_is_of_the_kind_that_the_pod_asks_for(own: dict[str, str], expected: str) -> None:
    request = _request(_slot(2, CORE, {"type": "gpu", "count": 2}), **own)
    assert f"{expected}=2" in draw(request)


POOLS = "{cpu=4000 pods=1}"


@pytest.mark.parametrize(
    ("resource", "drawn"),
    [
        (_slot(2), "default[2]"),
        (_above("node", 2, _slot(1)), "node[2] > default[1]"),
        (_above("node", 1, _slot(2), exclusive=True), "node[1]! > default[2]"),
        (_slot(2, _above("node", 1, CORE)), "node[2]! > default[1]"),
        (_above("rack", 1, _slot(2)), "rack[1] > default[2]"),
        (_above("topology.kubernetes.io/rack", 1, _slot(2)), "rack[1] > default[2]"),
        (_above("rack", 1, _slot(2), exclusive=True), "rack[1]! > default[2]"),
        (_above("rack", 1, _above("node", 2, _slot(1))), "rack[1] > node[2] > default[1]"),
        (_above("cluster", 1, _above("zone", 1, _slot(2))), "zone[1] > default[2]"),
        (
            _above("zone", 1, _above("rack", 2, _above("node", 1, _slot(1)))),
            "zone[1] > rack[2] > node[1] > default[1]",
        ),
    ],
)
def test_gives_the_shape(resource: Any, drawn: str) -> None:
    assert draw(_request(resource)) == drawn + POOLS


def test_racks_of_nodes_of_slots() -> None:
    """The commonest shape of Flux, and two levels above it."""
    tree = _above("rack", 2, _above("node", 4, _slot(2)))
    job = _job([tree])
    job["spec"] |= {"parallelism": 16, "completions": 16}
    request = BATCH_JOB.to_request(job)
    assert draw(request) == f"rack[2] > node[4] > default[2]{POOLS}"
    assert request.size == 16


def test_launcher_and_workers() -> None:
    """Two kinds of slots: the pods in the order of their indexes, each with room of its own."""
    big = {**_slot(1, {"type": "core", "count": 8}), "label": "launcher"}
    tree = _above("rack", 1, big, _slot(3), exclusive=True)
    job = _job([tree])
    job["spec"] |= {"parallelism": 4, "completions": 4}
    request = BATCH_JOB.to_request(job)
    assert draw(request) == (
        "rack[1]! > (launcher[1]{cpu=8000 pods=1} & default[3]{cpu=4000 pods=1})"
    )
    assert [dict(needs)["cpu"] for needs in slot_needs(request)] == [8000, 4000, 4000, 4000]
    assert [task.slot for task in request.tasks] == ["launcher", "default"]


def test_the_stored_form_is_a_jobspec_that_an_author_may_give() -> None:
    """``spec.jobspec`` of one workload, put into the annotation of another, asks for the same."""
    first = _request(_above("rack", 1, _above("node", 2, _slot(1))), cpu="500m", memory="1Gi")
    job = batch_job(
        meta={"annotations": {"fluxqueue/jobspec": json.dumps(render(first))}},
        parallelism=2,
        completions=2,
    )
    assert BATCH_JOB.to_request(job) == first


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
    fluxqueue: {match-policy: pack, exclusive: true, prefer-within: rack}
"""
    job = _job(text)
    wishes, request = read_wishes(job), BATCH_JOB.to_request(job)
    assert (wishes.duration_s, wishes.queue, request.duration_s) == (91, "batch", 91)
    assert request.queue == "batch"
    assert [_admits(request, name) for name in ("n1", "n2", "n3")] == [True, True, False]
    assert (request.match_policy, request.is_node_exclusive, request.prefer_within) == (
        "pack",
        True,
        "rack",
    )


def _admits(request: Jobspec, name: str, **labels: str) -> bool:
    return request.where.admits(NodeFact(name, "u", {}, labels))


def test_constraints_narrow_what_the_pod_says() -> None:
    """Properties are labels. The pod's own affinity holds beside them, term by term."""
    terms = [
        {"matchExpressions": [{"key": "a", "operator": "Exists"}]},
        {"matchExpressions": [{"key": "b", "operator": "Exists"}]},
    ]
    required = {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": terms}}
    constraints = {"and": [{"hostlist": ["n1"]}, {"properties": ["^slow"]}]}
    job = _job({"resources": [_slot()], "attributes": {"system": {"constraints": constraints}}})
    job["spec"]["template"]["spec"]["affinity"] = {"nodeAffinity": required}
    request = BATCH_JOB.to_request(job)
    assert _admits(request, "n1", a="1")
    assert _admits(request, "n1", b="1")
    assert not _admits(request, "n1")
    assert not _admits(request, "n2", a="1")
    assert not _admits(request, "n1", a="1", slow="")
    assert parse_document(render(request)) == request


def test_constraints_of_one_kind_of_slots() -> None:
    launcher = {**_slot(1), "label": "launcher"}
    slots = {"launcher": {"constraints": {"properties": ["login"]}}}
    system = {"constraints": {"properties": ["^slow"]}, "fluxqueue": {"slots": slots}}
    job = _job({"resources": [launcher, _slot(1)], "attributes": {"system": system}})
    job["spec"]["template"]["spec"]["nodeSelector"] = {"disk": "ssd"}
    request = BATCH_JOB.to_request(job)
    plain, login = NodeFact("n", "u", {}, {"disk": "ssd"}), {"disk": "ssd", "login": ""}
    assert request.where_of("default").admits(plain)
    assert not request.where_of("launcher").admits(plain)
    assert request.where_of("launcher").admits(NodeFact("n", "u", {}, login))
    assert parse_document(render(request)) == request


def test_an_annotation_of_its_own_wins_over_the_jobspec() -> None:
    job = _job({"resources": [_slot()], "attributes": {"system": {"duration": 60}}})
    job["metadata"]["annotations"]["fluxqueue/duration"] = "5m"
    assert read_wishes(job).duration_s == 300


def _admit(job: dict[str, Any]) -> None:
    check_levels(read_wishes(job), DEFAULT_LEVELS)
    BATCH_JOB.to_request(job)


def _system(**system: Any) -> dict[str, Any]:
    return {"resources": [_slot()], "attributes": {"system": system}}


@pytest.mark.parametrize(
    ("jobspec", "field", "words"),
    [
        ("{", "line", ""),
        ("5", "jobspec", "mapping"),
        ([], "resources", "nothing"),
        ([_above("node", 2, CORE)], "resources[0].with[0].type", "inside a slot"),
        ([_above("node", 2)], "resources[0].with", "holds no slot"),
        ([_above("node", 1, _above("rack", 1, _slot(2)))], "with[0].type", "below a node"),
        ([_above("node", 1, _above("node", 2, _slot(1)))], "resources[0].with", "one node"),
        ([_above("node", 2, _slot(1, _above("node", 1, CORE)))], "with", "one node"),
        ([_slot(2, _above("node", 2, CORE))], "with[0].count", "one node"),
        ([_above("socket", 2, _slot(1))], "resources[0].type", "from within the node"),
        ([_above("cluster", 2, _slot(1))], "resources[0]", "one cluster"),
        ([_above("chassis", 1, _slot(2))], "resources[0].type", "no level of this cluster"),
        ([_above("rack", 1, _above("zone", 1, _slot(2)))], "with[0].type", "below 'rack'"),
        ([_slot(2, {"type": "socket", "count": 1})], "with[0].type", "socket"),
        ([_slot(2, {"type": "memory", "count": 1})], "with[0].unit", "unit"),
        ([_slot(2, {"type": "cpu", "count": 1, "unit": "GB"})], "with[0].unit", "millicores"),
        ([_slot(2, {"type": "core", "count": {"min": 1}})], "with[0].count", "one number"),
        ([_slot(2, {"type": "core", "count": 0})], "with[0].count", "at least 1"),
        ([_slot(2, {**CORE, "with": [CORE]})], "with[0].with", "nothing inside"),
        ([_slot(2, CORE, CORE)], "with[1].type", "stands twice"),
        ([_slot(2, {**CORE, "exclusive": False})], "with[0].exclusive", "its pod's alone"),
        ([_slot(3)], "", "3 slots and the workload runs 2 pods"),
        (_system(constraints={"or": [{"ranks": ["0"]}]}), "constraints.or[0].ranks", "hostlist"),
        (_system(fluxqueue={"tolerations": [{"operator": "Exists"}]}), "tolerations", "the pod's"),
        (_system(fluxqueue={"numa": [{"cpu": 1}]}), "fluxqueue.numa", "containers"),
        (_system(fluxqueue={"within": "x"}), "fluxqueue.within", "one of"),
        (_system(fluxqueue={"slots": {"x": {}}}), "fluxqueue.slots.x", "no slot of this label"),
    ],
)
def test_refuses_at_admission_what_pods_cannot_be_given(
    jobspec: Any, field: str, words: str
) -> None:
    """Nothing of a jobspec is dropped silently."""
    job = _job(jobspec)
    with pytest.raises(InvalidInput) as caught:
        _admit(job)
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
