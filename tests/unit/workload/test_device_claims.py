"""ResourceClaims of pods: devices that are counted, places of claims, and what is left."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.fluxjob.levels import DEFAULT_LEVELS
from fluxqueue.fluxjob.node import NAME_KEY
from fluxqueue.fluxjob.request import Taint
from fluxqueue.jobspec.shape import slot_kinds
from fluxqueue.workload.constraints import ignored
from fluxqueue.workload.device_claims import device_needs, named_claims, templates_of
from fluxqueue.workload.kinds.batch_job import BATCH_JOB
from fluxqueue.workload.pod_bounds import KEY, bounds_of
from fluxqueue.workload.site import DEFAULT_SITE
from fluxqueue.workload.surroundings import complete
from tests.support.surroundings import KnownSurroundings
from tests.support.workloads import batch_job, container

GPU = "example.com/gpu"


def exactly(**more: Any) -> dict[str, Any]:
    return {"name": "one", "exactly": {"deviceClassName": "gpu", **more}}


def template(*requests: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"spec": {"spec": {"devices": {"requests": list(requests), **more}}}}


def pod(*templates: str, claims: tuple[str, ...] = ()) -> dict[str, Any]:
    entries = [{"name": f"t{n}", "resourceClaimTemplateName": t} for n, t in enumerate(templates)]
    entries += [{"name": f"c{n}", "resourceClaimName": c} for n, c in enumerate(claims)]
    return {"containers": [{"name": "main"}], "resourceClaims": entries}


@pytest.mark.parametrize(
    ("found", "amounts", "is_left"),
    [
        (template(exactly()), {GPU: 1}, False),
        (template(exactly(count=3, allocationMode="ExactCount")), {GPU: 3}, False),
        (template(exactly(), exactly(count=2)), {GPU: 3}, False),
        # It takes no device, but its node must have one.
        (template(exactly(adminAccess=True)), {}, True),
        (template(exactly(allocationMode="All")), {}, True),
        (template(exactly(deviceClassName="unknown")), {}, True),
        (template({"name": "one", "firstAvailable": [{"deviceClassName": "gpu"}]}), {}, True),
        (template(exactly(selectors=[{"cel": {"expression": "true"}}])), {GPU: 1}, True),
        (template(exactly(), constraints=[{"matchAttribute": "x/y"}]), {GPU: 1}, True),
        (template(*[exactly() for _ in range(1001)]), {}, True),
        (template(), {}, False),
        ({}, {}, False),
    ],
)
def test_requests_of_a_template(found: Any, amounts: dict[str, int], is_left: bool) -> None:
    around = KnownSurroundings(templates={"t": found}, device_classes={"gpu": GPU})
    needs = device_needs(pod("t"), "ns", around)
    assert (needs.amounts, needs.where, needs.is_left) == (amounts, [], is_left)


@pytest.mark.parametrize(
    ("spec", "is_left"),
    [
        (pod("t"), True),
        ({"containers": [{"resources": {"limits": {GPU: "1"}}}]}, True),
        ({"initContainers": [{"resources": {"requests": {GPU: "1"}}}]}, True),
        ({"containers": [{"resources": {"requests": {"example.com/nic": "1"}}}]}, False),
        ({"containers": [{}]}, False),
    ],
)
def test_devices_that_cannot_be_counted_are_left_and_said(spec: Any, is_left: bool) -> None:
    """By a claim, or as an extended resource. They count beside, never too low."""
    around = KnownSurroundings(
        templates={"t": template(exactly(count=2))},
        device_classes={"gpu": GPU},
        doubtful=frozenset({GPU}),
    )
    assert device_needs(spec, "ns", around).is_left is is_left
    spec = {"containers": [], **spec}
    job = {
        "kind": "Job",
        "metadata": {"name": "j", "namespace": "ns", "uid": "u"},
        "spec": {"parallelism": 2, "completions": 2, "template": {"spec": spec}},
    }
    done = complete(job, around, DEFAULT_LEVELS)
    assert ignored(BATCH_JOB.pod_spec(done)) == (["devices of DRA"] if is_left else [])


BROKEN = Taint("example.com/broken", "yes", "NoSchedule")


@pytest.mark.parametrize(
    ("toleration", "taints", "is_left"),
    [
        ({"operator": "Exists"}, (), False),
        ({"operator": "Exists"}, (BROKEN,), True),
        ({"key": "example.com/broken", "value": "yes"}, (BROKEN,), True),
        ({"key": "example.com/broken", "value": "no"}, (BROKEN,), False),
        ({"key": "example.com/broken", "operator": "Exists", "effect": "NoExecute"}, (BROKEN,), 0),
        ({"key": "other", "operator": "Exists"}, (BROKEN,), False),
    ],
)
def test_a_request_that_tolerates_a_taint_is_left_while_there_is_one(
    toleration: dict[str, Any], taints: tuple[Taint, ...], is_left: int
) -> None:
    """It may have tainted devices, which are not free for the others that are counted."""
    found = template(exactly(count=2, tolerations=[toleration]))
    around = KnownSurroundings(
        templates={"t": found}, device_classes={"gpu": GPU}, taints={"gpu": taints}
    )
    needs = device_needs(pod("t"), "ns", around)
    assert (needs.amounts, needs.is_left) == ({} if is_left else {GPU: 2}, bool(is_left))


def test_what_is_unknown_is_left() -> None:
    around = KnownSurroundings()
    assert device_needs(pod("t"), "ns", around).is_left
    assert device_needs(pod(claims=("c",)), "ns", around).is_left
    assert not device_needs({}, "ns", around).is_left


def test_an_allocated_claim_binds_its_pods() -> None:
    """Also several pods that share it. One that is not allocated is left."""
    terms = [{"matchFields": [{"key": NAME_KEY, "operator": "In", "values": ["n1"]}]}]
    selector = {"nodeSelectorTerms": terms}
    claims = {
        "bound": {"status": {"allocation": {"nodeSelector": selector}}},
        "anywhere": {"status": {"allocation": {"devices": {}}}},
        "new": {"status": {}},
    }
    around = KnownSurroundings(resource_claims=claims)
    bound = device_needs(pod(claims=("bound", "anywhere")), "ns", around)
    (where,) = bound.where
    assert (where.requirements[0].values, bound.is_left) == (("n1",), False)
    assert device_needs(pod(claims=("new",)), "ns", around).is_left


def test_names() -> None:
    spec = pod("a", "b", claims=("c",))
    assert (templates_of(spec), named_claims(spec)) == ({"a", "b"}, {"c"})


def test_the_request_of_a_job_has_its_devices() -> None:
    """Each pod gets a claim of its own from the template. What is left is named."""
    around = KnownSurroundings(
        templates={"t": template(exactly(count=2))}, device_classes={"gpu": GPU}
    )
    job = {
        "kind": "Job",
        "metadata": {"name": "j", "namespace": "ns"},
        "spec": {"parallelism": 3, "completions": 3, "template": {"spec": pod("t")}},
    }
    done = complete(job, around, DEFAULT_LEVELS)
    request = BATCH_JOB.to_request(done, site=DEFAULT_SITE)
    (slot,) = request.resources
    assert {one.type: one.count.minimum for one in slot.with_}[GPU] == 2
    spec = done["spec"]["template"]["spec"]
    assert bounds_of(spec) is not None
    assert ignored(spec) == []
    left = complete(job, KnownSurroundings(), DEFAULT_LEVELS)
    assert ignored(left["spec"]["template"]["spec"]) == ["devices of DRA"]
    assert KEY not in job["spec"]["template"]["spec"]


def test_what_devices_take_of_their_node_is_counted_for_the_pod() -> None:
    """A claim for two devices of eight cores each, beside the request in the spec (1.37)."""
    around = KnownSurroundings(
        templates={"t": template(exactly(count=2))},
        device_classes={"gpu": GPU},
        takes={"gpu": {"cpu": 8000, "memory": 1 << 30}},
    )
    job = batch_job(pod=pod("t"))
    assert _needs(job, around) == {GPU: 2, "cpu": 16_000, "memory": 2 << 30, "pods": 1}
    job = batch_job(pod=pod("t") | {"containers": [container(requests={"cpu": "500m"})]})
    assert _needs(job, around)["cpu"] == 16_500


def test_what_depends_on_the_claim_is_left_to_kube_scheduler() -> None:
    found = template(exactly())
    around = KnownSurroundings(
        templates={"t": found}, device_classes={"gpu": GPU}, takes={"gpu": None}
    )
    needs = device_needs(pod("t"), "ns", around)
    assert (needs.amounts, needs.is_left) == ({GPU: 1}, True)


def _needs(job: dict[str, Any], around: KnownSurroundings) -> dict[str, int]:
    made = complete(job, around, DEFAULT_LEVELS)
    (kind,) = slot_kinds(BATCH_JOB.to_request(made))
    return dict(kind.needs)
