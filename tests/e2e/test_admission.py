"""What is taken in, what is refused, and what is never touched."""

from __future__ import annotations

import base64
import copy
import ssl

import aiohttp
import pytest

from fluxqueue.errors import ApiError, NotFound
from fluxqueue.kube.resources import JOBS, MUTATING_WEBHOOKS, PODS
from tests.support.e2e.objects import FOR_EVER, bare_pod, job
from tests.support.e2e.space import WAITING, Space

GATE = [{"name": "fluxqueue"}]


async def test_a_job_is_suspended_and_gated_and_labelled(space: Space) -> None:
    """The stored object shows that it was taken in."""
    made = await space.create(job("taken", wishes={"duration": "5m"}))
    spec = made["spec"]
    assert (spec["suspend"], spec["activeDeadlineSeconds"]) == (True, 300)
    assert spec["template"]["spec"]["schedulingGates"] == GATE
    assert made["metadata"]["labels"]["fluxqueue/managed"] == "true"
    await space.until_job("taken")


@pytest.mark.parametrize(
    ("wishes", "field", "allowed"),
    [
        ({"duration": "soon"}, "metadata.annotations[fluxqueue/duration]", "15m"),
        ({"spread": "zone"}, "metadata.annotations[fluxqueue/spread]", '"node"'),
        ({"exclusive": "yes"}, "metadata.annotations[fluxqueue/exclusive]", '"true"'),
        ({"priorty": "5"}, "metadata.annotations[fluxqueue/priorty]", "fluxqueue/priority"),
    ],
)
async def test_an_invalid_wish_is_refused_with_field_value_and_way_out(
    space: Space, wishes: dict[str, str], field: str, allowed: str
) -> None:
    """At admission, so that nothing wrong ever waits in the queue."""
    with pytest.raises(ApiError) as refused:
        await space.create(job("wrong", wishes=wishes))
    said = str(refused.value)
    assert refused.value.code == 422
    assert field in said
    assert allowed in said
    assert next(iter(wishes.values())) in said or "priorty" in wishes
    assert not (await space.client.list(JOBS, space.name)).items


async def test_a_dry_run_has_no_side_effect(space: Space) -> None:
    """The answer shows what would be stored. Nothing is, anywhere."""
    answer = await space.create(job("dry"), dry_run=True)
    assert answer["spec"]["suspend"] is True
    assert answer["spec"]["template"]["spec"]["schedulingGates"] == GATE
    await space.create(job("wet"))
    await space.until_job("wet")
    assert await space.fluxjob("dry") is None
    sql = "SELECT workload_name FROM fluxjobs WHERE namespace = :namespace"
    found = await space.world.rows(sql, namespace=space.name)
    assert [row["workload_name"] for row in found] == ["wet"]
    with pytest.raises(NotFound):
        await space.client.get(JOBS, space.name, "dry")


async def test_a_namespace_that_opted_out_is_left_alone(unmanaged: Space) -> None:
    """Its Jobs and Pods start by themselves and are in no queue."""
    made = await unmanaged.create(job("free"))
    assert not made["spec"].get("suspend")
    assert "schedulingGates" not in made["spec"]["template"]["spec"]
    pod = await unmanaged.create(bare_pod("free"))
    assert "schedulingGates" not in pod["spec"]
    await unmanaged.until_job("free")
    assert await unmanaged.fluxjob("free") is None


async def test_an_object_that_opts_out_is_left_alone(space: Space) -> None:
    """One label on the Job is enough."""
    body = job("free")
    body["metadata"]["labels"] = {"fluxqueue/managed": "false"}
    made = await space.create(body)
    assert not made["spec"].get("suspend")
    await space.until_job("free")
    assert await space.fluxjob("free") is None


async def test_system_namespaces_are_never_touched(space: Space) -> None:
    """A Job of the system must not wait for us."""
    system = Space(space.world, "kube-system")
    made = await system.create(job("e2e-system"))
    try:
        assert not made["spec"].get("suspend")
        assert (
            "labels" not in made["metadata"]
            or "fluxqueue/managed" not in made["metadata"]["labels"]
        )
        await system.until_job("e2e-system")
        assert await system.fluxjob("e2e-system") is None
    finally:
        await system.delete("e2e-system")
        await system.until_gone(JOBS, "e2e-system")


async def test_pods_of_a_taken_job_are_not_taken_a_second_time(space: Space) -> None:
    """A Job's pods have its gate from the template. There is one FluxJob, the Job's."""
    await space.create(job("whole", pods=3))
    await space.until_job("whole")
    sql = "SELECT workload_kind FROM fluxjobs WHERE namespace = :namespace"
    found = await space.world.rows(sql, namespace=space.name)
    assert [row["workload_kind"] for row in found] == ["Job"]
    gated = [pod for pod in await space.pods("whole") if pod["spec"].get("schedulingGates")]
    assert not gated
    assert len((await space.client.list(PODS, space.name)).items) == 3


async def test_up_has_the_api_server_show_its_certificate(space: Space) -> None:
    """Another program of the machine is refused, whatever its review says."""
    if space.world.stack.options.kubeconfig is not None:
        pytest.skip("up did not start the API server, which has no certificate for webhooks")
    name = (await space.client.list(MUTATING_WEBHOOKS)).items[0]["metadata"]["name"]
    asked = (await space.client.get(MUTATING_WEBHOOKS, None, name))["webhooks"][0]["clientConfig"]
    authority = base64.b64decode(asked["caBundle"]).decode()
    context = ssl.create_default_context(cadata=authority)
    async with (
        aiohttp.ClientSession() as session,
        session.post(asked["url"], data=b"{}", ssl=context) as answer,
    ):
        assert answer.status == 403, await answer.text()


WRITTEN_BY_ADMISSION = {"fluxqueue/user": "root", "fluxqueue/group": "theirs 1-1"}
FORGED = {
    "fluxqueue/nodes": "single",
    "fluxqueue/pod-group": "theirs",
    "fluxqueue/group-size": "1",
    "fluxqueue/author-suspended": "false",
}


async def test_what_bears_our_marks_and_is_not_ours_is_foreign(
    space: Space, unmanaged: Space
) -> None:
    """Forged marks in an unmanaged namespace: policies refuse those of admission. A pod with the
    others is in no queue, joins no group of that name, and counts as unmanaged use."""
    body = bare_pod("forged", cpu="10", run=FOR_EVER, nodeSelector={"pool": "single"})
    body["metadata"] |= {"annotations": {**body["metadata"]["annotations"], **FORGED}}
    refused = copy.deepcopy(body)
    refused["metadata"]["annotations"] |= WRITTEN_BY_ADMISSION
    with pytest.raises(ApiError, match="written by admission alone"):
        await unmanaged.create(refused)
    body["metadata"]["labels"] = {
        "fluxqueue/managed": "true",
        "fluxqueue/queue": "default",
        "fluxqueue/jobid": "1",
    }
    made = await unmanaged.create(body)
    assert not made["spec"].get("schedulingGates")

    async def is_foreign() -> bool:
        rows = await space.world.rows(
            "SELECT resources FROM foreign_usage WHERE namespace = :namespace AND name = 'forged'",
            namespace=unmanaged.name,
        )
        return [row["resources"]["cpu"] for row in rows] == [10_000]

    await space.until_true(is_foreign, "10 foreign cores")
    assert await unmanaged.fluxjob("forged") is None
    assert await unmanaged.fluxjob("theirs") is None
    waits = await space.create(job("waits", cpu="8", pool="single"))
    assert waits["metadata"]["annotations"].get("fluxqueue/user") != "root"
    await space.until_state("waits", *WAITING)
    await unmanaged.delete("forged", PODS)
    await space.until_job("waits")
