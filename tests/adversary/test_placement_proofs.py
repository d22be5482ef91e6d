"""A tenant tries to start pods on nodes that were decided for others, or twice.

The annotation with which the pods of an Indexed Job are placed can be read by its author. Nothing
that a tenant does with it may release a pod.
"""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.kube.resources import JOBS, PODS
from fluxqueue.workload import labels
from fluxqueue.workload.pinning import sealed_in
from fluxqueue.workload.pods import gate_index
from tests.adversary.tenants import Tenant
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.objects import FOR_EVER, Obj, job
from tests.support.steering import requeue
from tests.support.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.long("gangs run, are suspended and run again")]


def _gang(name: str, sealed: str | None = None, **more: Any) -> Obj:
    """Two pods of a node each, with an annotation of another Job if one is given."""
    body = job(name, pods=2, cpu="12", run=FOR_EVER, completionMode="Indexed", **more)
    if sealed is not None:
        body["spec"]["template"]["metadata"]["annotations"][labels.PLACEMENT] = sealed
    return body


async def _sealed(tenant: Tenant, name: str) -> str:
    """Wait until the pods of a gang run, and read its annotation as its author does."""
    assert (await tenant.create(JOBS, _gang(name))).is_taken
    await tenant.space.until_running(name, 2)
    stored = await tenant.space.client.get(JOBS, tenant.space.name, name)
    sealed = sealed_in(stored)
    assert sealed is not None, "the gang was placed"
    return sealed


async def _stored(tenant: Tenant, name: str) -> Obj:
    return await tenant.space.client.get(JOBS, tenant.space.name, name)


async def test_a_copy_in_another_job_and_in_another_namespace_is_worth_nothing(
    mallory: Tenant, victim: Tenant
) -> None:
    """Admission removes it. A held Job gets no pods by it, and the policies refuse it later."""
    sealed = await _sealed(mallory, "mine")
    late = {"metadata": {"annotations": {labels.PLACEMENT: sealed}}}
    for one in (mallory, victim):
        held = _gang("copy", sealed, wishes={"hold": "true"})
        assert (await one.create(JOBS, held)).is_taken
        stored = await _stored(one, "copy")
        assert sealed_in(stored) is None
        assert stored["spec"]["suspend"]
        for spec in ({"template": late}, {"template": late, "suspend": False}):
            assert not (await one.patch(JOBS, "copy", {"spec": spec})).is_taken
            assert sealed_in(await _stored(one, "copy")) is None
        assert await one.space.pods("copy") == []
    await assert_invariants(mallory.space.world)


async def test_a_pod_of_ones_own_is_not_placed(mallory: Tenant) -> None:
    """With the marks of a pod of the gang, its owner included."""
    sealed = await _sealed(mallory, "mine")
    uid = (await _stored(mallory, "mine"))["metadata"]["uid"]
    owner = {"apiVersion": "batch/v1", "kind": "Job", "name": "mine", "uid": uid}
    body = {
        "metadata": {
            "generateName": "mine-1-",
            "labels": {
                labels.MANAGED: "true",
                labels.OF_A_BATCH_JOB: uid,
                labels.COMPLETION_INDEX: "1",
            },
            "annotations": {labels.PLACEMENT: sealed, labels.COMPLETION_INDEX: "1"},
            "ownerReferences": [{**owner, "controller": True}],
        },
        "spec": {
            "restartPolicy": "Never",
            "schedulingGates": [{"name": labels.GATE}],
            "containers": [{"name": "main", "image": "none"}],
        },
    }
    assert not (await mallory.create(PODS, body)).is_taken
    body["spec"]["schedulingGates"] = [{"name": "example.org/mine"}]  # type: ignore[index]
    answer = await mallory.create(PODS, body)
    if answer.is_taken:
        assert labels.HOSTNAME not in answer.body["spec"].get("nodeSelector", {})
        assert labels.JOBID not in answer.body["metadata"]["labels"]
        await mallory.delete(PODS, answer.body["metadata"]["name"])


async def test_a_template_with_a_placement_cannot_be_edited(mallory: Tenant) -> None:
    """Suspended, edited and resumed: larger pods would start in slots of the smaller ones."""
    sealed = await _sealed(mallory, "mine")
    for template in (
        {"metadata": {"annotations": {labels.PLACEMENT: None}}},
        {"metadata": {"annotations": {labels.PLACEMENT: sealed.replace('"cpu":', '"cpu":9')}}},
        {"metadata": {"labels": {"more": "1"}}},
        {"spec": {"nodeSelector": {"pool": "gpu"}}},
        {"spec": {"schedulingGates": []}},
    ):
        # In one request, and after the suspension: whichever comes before fluxqueue's own patch.
        patch = {"spec": {"suspend": True, "template": template}}
        assert not (await mallory.patch(JOBS, "mine", patch)).is_taken, template
    assert (await mallory.patch(JOBS, "mine", {"spec": {"suspend": True}})).is_taken
    larger = {"metadata": {"annotations": {labels.PLACEMENT: sealed}}}
    resumed = {"spec": {"suspend": False, "template": larger}}

    await until(
        lambda: _stored(mallory, "mine"),
        lambda found: sealed_in(found) is None,
        "its template has no placement",
    )
    assert not (await mallory.patch(JOBS, "mine", resumed)).is_taken
    assert (await mallory.patch(JOBS, "mine", {"spec": {"suspend": False}})).is_taken
    await mallory.space.until_running("mine", 2)
    await assert_invariants(mallory.space.world)


async def test_a_placement_from_before_a_requeue_is_not_written_back(mallory: Tenant) -> None:
    """Its nodes may be allocated to others by then."""
    sealed = await _sealed(mallory, "mine")
    world, name = mallory.space.world, mallory.space.name
    keep = {"metadata": {"annotations": {labels.HOLD: "true"}}}
    assert (await mallory.patch(JOBS, "mine", keep)).is_taken
    await requeue(world.database, name, ["mine"], "admin")
    await mallory.space.until_state("mine", "Held")

    await until(
        lambda: _stored(mallory, "mine"),
        lambda found: sealed_in(found) is None,
        "its template has no placement",
    )
    back = {"metadata": {"annotations": {labels.PLACEMENT: sealed}}}
    for spec in ({"template": back}, {"template": back, "suspend": False}):
        assert not (await mallory.patch(JOBS, "mine", {"spec": spec})).is_taken
    # Its pods may be created by a resumption, and then they come gated.
    await mallory.patch(JOBS, "mine", {"spec": {"suspend": False}})
    await mallory.space.until_state("mine", "Held")
    for pod in await mallory.space.pods("mine"):
        is_old = bool(pod["metadata"].get("deletionTimestamp")) or pod["spec"].get("nodeName")
        assert is_old or gate_index(pod["spec"]) is not None
    await assert_invariants(world)
