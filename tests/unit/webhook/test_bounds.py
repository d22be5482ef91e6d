"""Admission of hostile jobspecs: taken or refused in words, within half a second, and what is taken
can be stored and read back."""

from __future__ import annotations

import json
import time
from typing import Any

import orjson
import pytest

from fluxqueue.errors import TooComplex
from fluxqueue.jobspec import Jobspec, Resource
from fluxqueue.jobspec.bounds import BUILT, WRITTEN
from fluxqueue.jobspec.model import Count, check_storable
from fluxqueue.jobspec.parse import read_stored
from fluxqueue.jobspec.render import render
from fluxqueue.workload.kinds.table import kind_of
from fluxqueue_webhook.admit import admit
from tests.support.hostile_jobspecs import HOSTILE, above, slot
from tests.support.workloads import admission_review, batch_job, container

ADMISSION_S = 0.5
SIZES = (4, 15, 400, 499, 4_999, 99_991, 1_000_000, (1 << 31) - 1)


def _job(jobspec: Any, pods: int, **pod: Any) -> dict[str, Any]:
    text = json.dumps(jobspec, separators=(",", ":"))
    return batch_job(
        meta={"annotations": {"fluxqueue/jobspec": text}},
        parallelism=pods,
        completions=pods,
        pod={"containers": [container(requests={"cpu": "100m", "memory": "1Gi"})], **pod},
    )


def _admit(job: dict[str, Any]) -> tuple[dict[str, Any], float]:
    review = admission_review(job)
    began = time.process_time()
    response = admit(review).review["response"]
    return response, time.process_time() - began


def _is_read_back(job: dict[str, Any]) -> None:
    request = kind_of(job).to_request(job)
    stored = orjson.loads(orjson.dumps(render(request)))
    assert read_stored(stored) == request


@pytest.mark.parametrize("pods", SIZES)
@pytest.mark.parametrize("name", HOSTILE)
def test_is_answered_soon_and_what_is_taken_can_be_read(name: str, pods: int) -> None:
    job = _job(HOSTILE[name], pods)
    response, took_s = _admit(job)
    assert took_s < ADMISSION_S
    if response["allowed"]:
        _is_read_back(job)
    else:
        assert "fluxqueue/jobspec" in response["status"]["message"]


def test_as_wide_as_may_be_written_is_taken_and_read() -> None:
    """Each slot has more in it when it is stored than its author wrote."""
    most = WRITTEN.resources // 2
    for pods, is_taken in ((most, True), (most + 1, False)):
        job = _job([slot(1, f"v{i}") for i in range(pods)], pods)
        response, _ = _admit(job)
        assert response["allowed"] is is_taken
        if is_taken:
            _is_read_back(job)


def test_as_deep_as_may_be_written_is_taken_and_read() -> None:
    """Admission puts a level above what the author wrote, and constraints of pods beside theirs."""
    constraints: Any = {"hostlist": ["n1"]}
    for _ in range(WRITTEN.depth):
        constraints = {"not": [constraints]}
    jobspec = {
        "resources": [above("rack", 1, above("node", 1, slot(2)))],
        "attributes": {"system": {"constraints": constraints}},
    }
    job = _job(jobspec, 2, nodeSelector={"pool": "a"})
    job["metadata"]["annotations"]["fluxqueue/within"] = "zone"
    response, _ = _admit(job)
    assert response["allowed"] is True
    _is_read_back(job)


def _affine(terms: int) -> dict[str, Any]:
    one = {"matchExpressions": [{"key": "pool", "operator": "In", "values": ["a", "b"]}]}
    required = {"nodeSelectorTerms": [one] * terms}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def test_pods_with_too_many_terms_are_refused_without_any_annotation() -> None:
    job = batch_job(parallelism=1, completions=1)
    spec = job["spec"]["template"]["spec"]
    spec["affinity"] = _affine(BUILT.parts)
    response, took_s = _admit(job)
    assert took_s < ADMISSION_S
    assert response["allowed"] is False
    assert "label the nodes" in response["status"]["message"]
    spec["affinity"] = _affine(BUILT.parts // 8)
    response, _ = _admit(job)
    assert response["allowed"] is True
    _is_read_back(job)


@pytest.mark.parametrize("kinds", [300, 340, 2_000, BUILT.resources // 5])
def test_groups_of_unequal_pods_are_read_back(kinds: int) -> None:
    inside = tuple(Resource(name, Count(1, 1)) for name in ("cpu", "memory", "pods", "x.y/z"))
    request = Jobspec(
        9999, tuple(Resource("slot", Count(1, 1), inside, label=f"k{i}") for i in range(kinds))
    )
    check_storable(request)
    assert read_stored(orjson.loads(orjson.dumps(render(request)))) == request


def test_what_is_beyond_the_bounds_is_refused_before_it_is_stored() -> None:
    inside = tuple(Resource(name, Count(1, 1)) for name in ("cpu", "memory", "pods", "x.y/z"))
    one = Resource("slot", Count(1, 1), inside, label="k")
    with pytest.raises(TooComplex, match="more than 20000 resources"):
        check_storable(Jobspec(9999, (one,) * (BUILT.resources // 5 + 1)))
