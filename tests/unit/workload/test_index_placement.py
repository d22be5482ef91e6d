"""Placements in pod templates: which pods they release, and which proofs hold."""

from __future__ import annotations

import copy
from dataclasses import replace
from typing import Any

import jsonpatch
import pytest
from hypothesis import given
from hypothesis import strategies as st

from fluxqueue.fluxjob.node import Destination
from fluxqueue.workload import labels
from fluxqueue.workload.annotations import read_wishes
from fluxqueue.workload.gates import placed_pod, suspended_job
from fluxqueue.workload.index_placement import (
    LONGEST,
    OPEN_S,
    IndexPlacement,
    placed_by_proof,
    plan_placement,
    read_placement,
    seal,
    unseal,
)
from fluxqueue.workload.pinning import is_placeable, sealed_in
from fluxqueue.workload.release_patches import displace_patch, place_patch
from tests.support.workloads import bare_pod, batch_job, container, owner

KEY, OTHER_KEY = b"k" * 32, b"o" * 32
JOB_CONTROLLER = "system:serviceaccount:kube-system:job-controller"
CONTROLLERS = frozenset({JOB_CONTROLLER})
USES = {"cpu": 4000, "memory": 2**26, "pods": 1}
PLACED = IndexPlacement(7, ("a1", "a1", "a2"), USES, until_s=1000.0)
GATE = {"name": labels.GATE}


def _pod(
    index: int = 2, *, sealed: Any = None, cpu: str = "4", of: str = "Job", **spec: Any
) -> Any:
    """A pod as the Job controller creates it."""
    text = seal(PLACED, "uid-gang", KEY) if sealed is None else sealed
    meta = {
        "labels": {labels.MANAGED: "true", labels.PLACED: "true"},
        "annotations": {labels.PLACEMENT: text, labels.COMPLETION_INDEX: str(index)},
        "ownerReferences": [owner(of, "gang")],
    }
    gates = [{"name": "example.org/other"}, GATE]
    main = container(requests={"cpu": cpu, "memory": "64Mi"})
    return bare_pod(meta=meta, containers=[main], schedulingGates=gates, **spec)


def _placed(pod: Any, **more: Any) -> Any:
    given_ = {"requester": JOB_CONTROLLER, "controllers": CONTROLLERS, "key": KEY, "now_s": 999.0}
    before = copy.deepcopy(pod)
    placed = placed_by_proof(pod, **(given_ | more))
    assert pod == before
    return placed


def test_a_pod_is_released_to_the_node_of_its_index() -> None:
    """Gates of others stay. The annotation goes, and so does the label by which it is asked for."""
    pod = _pod(nodeSelector={"pool": "main"})
    made = _placed(pod)
    assert made["spec"]["schedulingGates"] == [{"name": "example.org/other"}]
    assert made["spec"]["nodeSelector"] == {"pool": "main", labels.HOSTNAME: "a2"}
    assert made["metadata"]["labels"] == {labels.MANAGED: "true", labels.JOBID: "7"}
    assert made["metadata"]["annotations"] == {
        labels.COMPLETION_INDEX: "2",
        labels.NODES: "a[1-2]",
    }
    assert "affinity" not in made["spec"]


def test_a_pod_is_stored_without_the_owners_of_its_fields_if_the_placement_says_so() -> None:
    """Its authors are not known from them: the Job controller makes it."""
    owners = [{"manager": "kube-controller-manager", "operation": "Update"}]
    sealed = seal(replace(PLACED, drops_managed_fields=True), "uid-gang", KEY)
    for text, kept in ((sealed, False), (None, True)):
        pod = _pod(sealed=text)
        pod["metadata"]["managedFields"] = owners
        made = _placed(pod)
        assert ("managedFields" in made["metadata"]) is kept
    assert _placed(_pod(sealed=sealed)), "an API server may send none"


def test_a_pod_joins_the_group_that_the_placement_names() -> None:
    """A pod that is in a group already stays there: ``spec.scheduling`` of its Job asks for it."""
    sealed = seal(replace(PLACED, group="fluxqueue-uid-gang"), "uid-gang", KEY)
    group = {"podGroupName": "fluxqueue-uid-gang"}
    assert _placed(_pod(sealed=sealed))["spec"]["schedulingGroup"] == group
    own = {"podGroupName": "its-own"}
    kept = _placed(_pod(sealed=sealed, schedulingGroup=own))
    assert kept["spec"]["schedulingGroup"] == own
    assert "schedulingGroup" not in _placed(_pod())["spec"]
    assert "group" not in (seal(PLACED, "uid-gang", KEY) or ""), "it is sent again as it was"


def test_a_placement_of_a_former_worker_holds() -> None:
    """It says nothing of managed fields, and they stay."""
    text = '{"job":7,"nodes":[["a1",2],["a2",1]],"uses":{"cpu":1},"until":9,"byName":false}'
    assert read_placement(place_patch("u", f"x {text}")) == IndexPlacement(
        7, ("a1", "a1", "a2"), {"cpu": 1}, 9
    )


def test_in_large_clusters_the_node_is_named_beside_the_authors_preferences() -> None:
    preferred = [{"weight": 1, "preference": {}}]
    affinity = {
        "podAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": []},
        "nodeAffinity": {"preferredDuringSchedulingIgnoredDuringExecution": preferred},
    }
    pod = _pod(affinity=affinity)
    placed = placed_pod(pod, to=Destination("a2", "a2"), jobid=7, nodes="a2")
    made = copy.deepcopy(placed["spec"]["affinity"])
    required = made["nodeAffinity"].pop("requiredDuringSchedulingIgnoredDuringExecution")
    assert made == affinity
    [term] = required["nodeSelectorTerms"]
    assert term["matchFields"] == [{"key": "metadata.name", "operator": "In", "values": ["a2"]}]


REQUIRED = {
    "nodeAffinity": {
        "requiredDuringSchedulingIgnoredDuringExecution": {
            "nodeSelectorTerms": [{"matchExpressions": [{"key": "x", "operator": "Exists"}]}]
        }
    }
}


@pytest.mark.parametrize(
    ("pod", "more"),
    [
        (_pod(sealed=seal(PLACED, "uid-other", KEY)), {}),
        (_pod(of="ReplicaSet"), {}),
        (_pod(), {"key": OTHER_KEY}),
        (_pod(), {"key": b""}),
        (_pod(), {"requester": "mallory"}),
        (_pod(), {"controllers": frozenset()}),
        (_pod(), {"now_s": 1000.5}),
        (_pod(), {"now_s": float("inf")}),
        (_pod(3), {}),
        (_pod(sealed=""), {}),
        (_pod(sealed="no proof"), {}),
        (_pod(sealed=f"é {seal(PLACED, 'uid-gang', KEY)}"), {}),
        (_pod(sealed=(seal(PLACED, "uid-gang", KEY) or "").replace('"a2"', '"b2"')), {}),
        (_pod(sealed=(seal(PLACED, "uid-gang", KEY) or "") + " "), {}),
        (_pod(cpu="4001m"), {}),
        (_pod(overhead={"example.org/device": "1"}), {}),
        (_pod(nodeSelector={labels.HOSTNAME: "a2"}), {}),
        (_pod(affinity=REQUIRED), {}),
    ],
)
def test_any_other_pod_comes_gated(pod: Any, more: dict[str, Any]) -> None:
    assert _placed(pod, **more) is None


def test_a_pod_without_our_gate_or_after_a_failure_is_left_alone() -> None:
    ungated, second = _pod(), _pod()
    ungated["spec"]["schedulingGates"] = []
    second["metadata"]["annotations"][labels.INDEX_FAILURES] = "1"
    assert _placed(ungated) is _placed(second) is None
    second["metadata"]["annotations"][labels.INDEX_FAILURES] = "0"
    assert _placed(second)


def test_an_empty_key_makes_no_proof_that_holds() -> None:
    sealed = seal(PLACED, "uid-gang", b"") or ""
    assert unseal(sealed, "uid-gang", b"") is None


@given(
    st.lists(st.from_regex(r"[a-z][a-z0-9-]{0,8}[0-9]{0,3}", fullmatch=True), max_size=40),
    st.booleans(),
    st.booleans(),
)
def test_what_is_sealed_is_unsealed(nodes: list[str], is_by_name: bool, drops: bool) -> None:
    placed = IndexPlacement(1, tuple(nodes), USES, 5.0, is_by_name, drops)
    sealed = seal(placed, "u", KEY)
    assert sealed is not None
    assert unseal(sealed, "u", KEY) == placed
    assert unseal(sealed, "v", KEY) is None


@pytest.mark.parametrize(
    "text",
    [
        "",
        "x",
        "x {",
        "x null",
        "x []",
        "x {}",
        'x {"job":"a","nodes":[],"uses":{},"until":1,"byName":false}',
        'x {"job":1,"nodes":[["a[",1]],"uses":{},"until":1,"byName":false}',
        'x {"job":1,"nodes":[["a",null]],"uses":{},"until":1,"byName":false}',
        'x {"job":1,"nodes":7,"uses":{},"until":1,"byName":false}',
    ],
)
def test_a_template_without_rows_is_read_if_it_can_be(text: str) -> None:
    """Rows are rebuilt from it without the key. A damaged one tells nothing."""
    job = batch_job()
    meta = job["spec"]["template"].setdefault("metadata", {})
    meta["annotations"] = {labels.PLACEMENT: text}
    assert read_placement(job) is None
    meta["annotations"] = {labels.PLACEMENT: seal(PLACED, "uid-gang", KEY)}
    assert read_placement(job) == PLACED
    assert read_placement(batch_job()) is None


def test_large_gangs_of_numbered_nodes_fit_and_others_are_not_placed() -> None:
    """Each pod is created with the annotation, so it may not grow with the gang."""
    numbered = [f"node-{number:05}" for number in range(5000) for _ in range(2)]
    assert len(seal(IndexPlacement(1, tuple(numbered), USES, 5.0), "u", KEY) or "") < 500
    scattered = tuple(f"{number * 7919:x}-node" for number in range(LONGEST // 4))
    assert seal(IndexPlacement(1, scattered, USES, 5.0), "u", KEY) is None


def _to(name: str, hostname: str | None = None, *, few: bool = True) -> Destination:
    return Destination(name, hostname or name, is_labelled_index=few)


def test_slots_are_planned_if_they_are_equal_and_their_nodes_have_their_names() -> None:
    slots = [(_to("b"), USES), (_to("a"), USES)]
    assert plan_placement(3, slots, 40.0) == IndexPlacement(3, ("b", "a"), USES, 40 + OPEN_S)
    crowded = plan_placement(3, [*slots, (_to("c", few=False), USES)], 40.0)
    assert crowded is not None
    assert crowded.is_by_name
    assert plan_placement(3, [], 40.0) is None
    assert plan_placement(3, [*slots, (_to("c", "other"), USES)], 40.0) is None
    assert plan_placement(3, [*slots, (Destination("c", None), USES)], 40.0) is None
    assert plan_placement(3, [*slots, (_to("c"), USES | {"cpu": 1})], 40.0) is None


@pytest.mark.parametrize(
    ("spec", "pod", "expected"),
    [
        ({"completions": 4, "parallelism": 4}, {}, True),
        ({"completions": 4, "parallelism": 9}, {}, True),
        ({"completions": 4, "parallelism": 3}, {}, False),
        ({"completions": 0, "parallelism": 4}, {}, False),
        ({"completions": 4, "parallelism": 4, "completionMode": "NonIndexed"}, {}, False),
        ({"completions": 4, "parallelism": 4}, {"nodeSelector": {labels.HOSTNAME: "a"}}, False),
        ({"completions": 4, "parallelism": 4}, {"nodeSelector": {"pool": "a"}}, True),
        ({"completions": 4, "parallelism": 4}, {"affinity": REQUIRED}, False),
    ],
)
def test_which_jobs_are_placed(spec: dict[str, Any], pod: dict[str, Any], expected: bool) -> None:
    job = batch_job(**{"completionMode": "Indexed", **spec})
    job["spec"]["template"]["spec"] |= pod
    assert is_placeable(job) is expected


def test_the_release_writes_it_and_admission_removes_it_from_a_copy() -> None:
    """A manifest may be exported with it, and a user may have copied it from another Job."""
    sealed = seal(PLACED, "uid-gang", KEY)
    template = place_patch("uid-gang", sealed)["spec"]["template"]
    job = batch_job()
    meta = job["spec"]["template"].setdefault("metadata", {})
    for kind in ("annotations", "labels"):
        meta[kind] = {"mine": "1", **template["metadata"][kind]}
    assert sealed_in(job) == sealed
    taken = suspended_job(job, read_wishes(job), "alice")
    assert sealed_in(taken) is None
    left = taken["spec"]["template"]["metadata"]
    assert left["annotations"] == {"mine": "1"}
    assert left["labels"] == {"mine": "1", labels.MANAGED: "true"}
    suspended = {**job, "spec": {**job["spec"], "suspend": True}}
    left = jsonpatch.apply_patch(suspended, displace_patch(suspended))["spec"]["template"]
    assert left["metadata"] == {"annotations": {"mine": "1"}, "labels": {"mine": "1"}}
