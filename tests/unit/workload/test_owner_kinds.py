"""How many pods an object is to have, where their labels stand, and what an administrator adds."""

from __future__ import annotations

from typing import Any

import orjson
import pytest

from fluxqueue.errors import InvalidSettings
from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.workload.owner_kind_settings import parse_owner_kinds
from fluxqueue.workload.owner_kinds import (
    BUILT_IN,
    OwnerKind,
    OwnerKinds,
    can_be_suspended,
    is_suspended,
    labels_paths,
    parts_of,
    result_of,
    size_of,
)
from tests.support.owners import spec_of

Obj = dict[str, Any]

KUBEFLOW = "kubeflow.org"


def jobs(*sizes: tuple[int, int]) -> Obj:
    made = [{"replicas": n, "template": {"spec": {"parallelism": p}}} for n, p in sizes]
    return {"replicatedJobs": made}


@pytest.mark.parametrize(
    ("group", "kind", "spec", "size"),
    [
        ("jobset.x-k8s.io", "JobSet", jobs((2, 3), (1, 4)), 10),
        ("jobset.x-k8s.io", "JobSet", {"replicatedJobs": [{"template": {}}]}, 1),
        (
            "leaderworkerset.x-k8s.io",
            "LeaderWorkerSet",
            {"replicas": 2, "leaderWorkerTemplate": {"size": 4, "leaderTemplate": {}}},
            8,
        ),
        (KUBEFLOW, "MPIJob", {"mpiReplicaSpecs": {"Launcher": {}, "Worker": {"replicas": 24}}}, 25),
        (
            KUBEFLOW,
            "PyTorchJob",
            {"pytorchReplicaSpecs": {"Master": {}, "Worker": {"replicas": 3}}},
            4,
        ),
        (
            "ray.io",
            "RayCluster",
            {"headGroupSpec": {"rayStartParams": {}}, "workerGroupSpecs": []},
            1,
        ),
        (
            "ray.io",
            "RayCluster",
            {
                "headGroupSpec": {"rayStartParams": {}},
                "workerGroupSpecs": [{"replicas": 2, "numOfHosts": 4}, {"minReplicas": 3}],
            },
            12,
        ),
        (
            "ray.io",
            "RayJob",
            {"rayClusterSpec": {"headGroupSpec": {"a": 1}, "workerGroupSpecs": [{"replicas": 2}]}},
            3,
        ),
        ("flux-framework.org", "MiniCluster", {"size": 6}, 6),
        (
            "sparkoperator.k8s.io",
            "SparkApplication",
            {"driver": {"a": 1}, "executor": {"instances": 5}},
            1,
        ),
        ("trainer.kubeflow.org", "TrainJob", {"trainer": {"numNodes": 4}}, None),
        ("argoproj.io", "Workflow", {"templates": []}, None),
        ("apps", "Deployment", {"replicas": 5}, None),
        (KUBEFLOW, "MPIJob", {"mpiReplicaSpecs": {"Worker": {"replicas": "many"}}}, None),
        (KUBEFLOW, "MPIJob", {}, None),
    ],
)
def test_size(group: str, kind: str, spec: Obj, size: int | None) -> None:
    entry = OwnerKinds().find(group, kind)
    assert entry is not None
    assert size_of(entry, {"spec": spec}) == size


def test_labels_of_pods_stand_in_each_template() -> None:
    entry = OwnerKinds().find("jobset.x-k8s.io", "JobSet")
    assert entry is not None
    tail = ("template", "spec", "template", "metadata", "labels")
    assert labels_paths(entry, {"spec": jobs((1, 1), (1, 1))}) == [
        ("spec", "replicatedJobs", 0, *tail),
        ("spec", "replicatedJobs", 1, *tail),
    ]
    assert labels_paths(entry, {"spec": {}}) == []


GANG: Obj = {
    "kind": "Gang",
    "group": "example.org",
    "resource": "gangs",
    "pods": [{"each": "spec.roles.*", "count": ["replicas|min", 2], "template": "pod"}],
}


def test_an_administrator_adds_kinds_and_replaces_those_that_are_built_in() -> None:
    mini = GANG | {"kind": "MiniCluster", "group": "flux-framework.org", "resource": "miniclusters"}
    kinds = parse_owner_kinds(orjson.dumps([GANG, mini]).decode())
    for one in (GANG, mini):
        entry = kinds.find(one["group"], one["kind"])
        assert entry is not None
        obj = {"spec": {"roles": {"a": {"replicas": 2}, "b": {"min": 3}}}}
        assert size_of(entry, obj) == 10
        assert labels_paths(entry, obj)[0] == ("spec", "roles", "a", "pod", "metadata", "labels")
    assert kinds.find("ray.io", "RayJob") is not None


def test_an_entry_without_pods_has_an_arrival_window() -> None:
    kinds = parse_owner_kinds('[{"kind": "Gang", "group": "example.org", "resource": "gangs"}]')
    entry = kinds.find("example.org", "Gang")
    assert entry is not None
    assert size_of(entry, {"spec": {"replicas": 2}}) is None


def test_what_can_be_suspended_says_how_and_what_it_says_at_its_end() -> None:
    said = GANG | {"suspend": "spec.run.paused", "suspendIf": ["spec.mode=Batch"]}
    said |= {"completed": ["status.phase=Done"], "failed": ["status.phase=Lost"]}
    entry = parse_owner_kinds(orjson.dumps([said]).decode()).find("example.org", "Gang")
    assert entry is not None
    role = {"replicas": 2, "pod": {"spec": {"containers": []}}}
    obj: dict[str, Any] = {"spec": {"mode": "Batch", "roles": {"a": role, "b": role}}}
    assert can_be_suspended(entry, obj)
    parts = parts_of(entry, obj)
    assert parts is not None
    assert [(one.at, one.count) for one in parts] == [
        (("spec", "roles", name, "pod"), 4) for name in "ab"
    ]
    assert is_suspended(entry, obj) is None
    assert is_suspended(entry, {"spec": {"run": {"paused": True}}}) is True
    assert result_of(entry, obj) is None
    assert result_of(entry, {"status": {"phase": "Done"}}) is FluxJobState.COMPLETED
    assert result_of(entry, {"status": {"phase": "Lost"}}) is FluxJobState.FAILED
    assert not can_be_suspended(entry, {"spec": obj["spec"] | {"mode": "Service"}})
    without = {"a": role, "b": {"replicas": 1}}
    assert not can_be_suspended(entry, {"spec": obj["spec"] | {"roles": without}})


TELL = [one for one in BUILT_IN if one.suspend and one.templates_in is None]


@pytest.mark.parametrize("entry", TELL, ids=lambda e: e.kind)
def test_what_is_built_in_can_be_suspended(entry: OwnerKind) -> None:
    template = {"spec": {"containers": [{"name": "c"}]}}
    obj = {"spec": spec_of(entry, template, 3)}
    assert can_be_suspended(entry, obj)
    assert size_of(entry, obj) == 3
    parts = parts_of(entry, obj)
    assert parts is not None
    assert all(one.template is template for one in parts)


def test_what_a_trainjob_asks_for_stands_in_its_jobset() -> None:
    entry = OwnerKinds().find("trainer.kubeflow.org", "TrainJob")
    assert entry is not None
    assert entry.templates_in == ("jobset.x-k8s.io", "JobSet")
    assert can_be_suspended(entry, {"spec": {"runtimeRef": {"name": "torch-distributed"}}})


def test_conditions_tell_of_an_end_where_nothing_else_is_said() -> None:
    entry = OwnerKinds().find("jobset.x-k8s.io", "JobSet")
    assert entry is not None

    def says(kind: str, status: str) -> Any:
        return result_of(entry, {"status": {"conditions": [{"type": kind, "status": status}]}})

    assert says("Completed", "True") is FluxJobState.COMPLETED
    assert says("Completed", "False") is None
    assert says("Failed", "True") is FluxJobState.FAILED
    assert says("Suspended", "True") is None


@pytest.mark.parametrize(
    ("text", "field", "words"),
    [
        ("{", "KINDS", "is no JSON"),
        ("{}", "KINDS", "is no list"),
        ("[1]", "KINDS[0]", "is no entry"),
        ([GANG | {"size": 1}], "KINDS[0].size", "is no field of an entry"),
        ([{"kind": "Gang"}], "KINDS[0].group", "is missing"),
        ([GANG | {"kind": "gangs"}], "KINDS[0].kind", "'gangs' cannot be used"),
        ([GANG, GANG | {"group": "x"}], "KINDS[1].group", "'x' cannot be used"),
        ([GANG | {"resource": "Gang"}], "KINDS[0].resource", "plural in lower case"),
        ([GANG | {"pods": {}}], "KINDS[0].pods", "is no list"),
        ([GANG | {"pods": [{"each": "$.spec"}]}], "KINDS[0].pods[0].each", "keys joined by"),
        ([GANG | {"pods": [{"count": "x"}]}], "KINDS[0].pods[0].count", "is no list"),
        ([GANG | {"pods": [{"count": [-1]}]}], "KINDS[0].pods[0].count[0]", "-1 cannot be used"),
        ([GANG | {"pods": [{"count": ["a||b"]}]}], "KINDS[0].pods[0].count[0]", "number of pods"),
        ([GANG | {"pods": [{"template": ""}]}], "KINDS[0].pods[0].template", "cannot be used"),
        ([GANG | {"pods": [{"labels": "a b"}]}], "KINDS[0].pods[0].labels", "cannot be used"),
        ([GANG | {"suspend": "a.*"}], "KINDS[0].suspend", "keys joined by"),
        ([GANG | {"suspend": "a", "pods": []}], "KINDS[0].suspend", "what it asks for"),
        ([GANG | {"suspend": "a", "pods": [{}]}], "KINDS[0].suspend", "a count and a template"),
        ([GANG | {"failed": ["a=b"]}], "KINDS[0].failed", "needs suspend"),
        ([GANG | {"suspend": "a", "failed": ["a"]}], "KINDS[0].failed", "path=value"),
    ],
)
def test_says_what_is_wrong_and_where(text: Any, field: str, words: str) -> None:
    said = text if isinstance(text, str) else orjson.dumps(text).decode()
    with pytest.raises(InvalidSettings) as caught:
        parse_owner_kinds(said)
    assert caught.value.where == f"FLUXQUEUE_OWNER_{field}"
    assert words in str(caught.value)
