"""``spec.scheduling`` of a Job: what the matcher takes from it, and what is refused."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.errors import InvalidInput
from fluxqueue.jobspec.shape import levels_named
from fluxqueue.workload import labels
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from tests.support.workloads import batch_job

RACK = "topology.kubernetes.io/rack"
GANG = {"schedulingPolicy": {"gang": {"minCount": 2}}}
NEAR = {"schedulingConstraints": {"topology": [{"key": RACK}]}}


def job(scheduling: dict[str, Any], **annotations: str) -> dict[str, Any]:
    """A Job of three pods. ``gang="false"`` sets that annotation."""
    made = batch_job(parallelism=3, completions=3)
    notes = {f"{labels.PREFIX}{key}": value for key, value in annotations.items()}
    made["metadata"].setdefault("annotations", {}).update(notes)
    made["spec"]["scheduling"] = scheduling
    return made


def held(made: dict[str, Any]) -> dict[str, Any]:
    """The Job as it waits."""
    return dict(BATCH_JOB.held(made, BATCH_JOB.wishes(made), "alice"))


def keeps_group(made: dict[str, Any]) -> bool:
    """Whether its pods stay in the PodGroup that Kubernetes makes for them."""
    meta = held(made)["spec"]["template"]["metadata"]
    return (meta.get("annotations") or {}).get(labels.NATIVE_GROUP) == "true"


def test_its_topology_is_the_level_that_its_pods_share() -> None:
    """Our nodes then never contradict those that kube-scheduler considers."""
    assert levels_named(BATCH_JOB.to_request(job(NEAR))) == ("rack",)
    assert levels_named(BATCH_JOB.to_request(job(GANG))) == ()


def test_all_of_its_pods_start_together_whatever_its_least_count_is() -> None:
    assert BATCH_JOB.size(job(GANG)) == 3


@pytest.mark.parametrize(
    ("scheduling", "keeps"),
    [
        ({}, False),
        ({"schedulingPolicy": {"basic": {}}}, False),
        ({"disruptionMode": {"single": {}}}, False),
        (GANG, True),
        (NEAR, True),
        ({"disruptionMode": {"all": {}}}, True),
    ],
)
def test_its_pods_stay_in_their_group_if_its_author_asks_for_it(
    scheduling: dict[str, Any], keeps: bool
) -> None:
    assert keeps_group(job(scheduling)) is keeps


def test_a_mark_of_its_author_does_not_count() -> None:
    made = job({})
    meta = made["spec"]["template"].setdefault("metadata", {})
    meta["annotations"] = {labels.NATIVE_GROUP: "true"}
    assert not keeps_group(made)


def test_independent_pods_leave_their_group() -> None:
    """kube-scheduler would bind none of them while one is gated."""
    assert not keeps_group(job({"schedulingPolicy": {"basic": {}}}, gang="false"))


@pytest.mark.parametrize(
    ("made", "where"),
    [
        (job(NEAR, within="topology.kubernetes.io/zone"), f"metadata.annotations[{labels.WITHIN}]"),
        (job(GANG, gang="false"), f"metadata.annotations[{labels.GANG}]"),
        (job({"disruptionMode": {"all": {}}}, gang="false"), labels.GANG),
        (job({"resourceClaims": [{"name": "gpus"}]}), "spec.scheduling.resourceClaims"),
    ],
)
def test_what_cannot_be_honoured_is_refused_with_its_field(
    made: dict[str, Any], where: str
) -> None:
    with pytest.raises(InvalidInput) as refused:
        held(made)
    assert where in refused.value.where
    assert refused.value.hint


def test_the_same_level_may_be_said_twice() -> None:
    assert keeps_group(job(NEAR, within=RACK))
