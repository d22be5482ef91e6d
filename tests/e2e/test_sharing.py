"""Sharing policies as administrators apply them: KubeFlux's picture, and changes of a policy."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from fluxqueue.errors import Invalid, NotFound
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import PODS, SHARING_POLICIES
from tests.support.e2e.objects import FOR_EVER, bare_pod, job
from tests.support.e2e.sharing import Policies
from tests.support.e2e.space import WAITING, Space
from tests.support.waiting import eventually, until


@pytest_asyncio.fixture(loop_scope="session")
async def policies(space: Space) -> AsyncIterator[Policies]:
    """Policies of the test's own."""
    made = Policies(space)
    yield made
    await made.remove()


async def _starts_within_a_second(space: Space, unmanaged: Space, name: str) -> None:
    """End their pod. The job's pod is bound within a second after its resources are free."""
    await unmanaged.delete("theirs", PODS)

    async def is_gone() -> bool:
        try:
            await unmanaged.client.get(PODS, unmanaged.name, "theirs")
        except NotFound:
            return True
        return False

    await eventually(is_gone, "their pod has ended")
    began_s = time.monotonic()

    await until(
        lambda: space.pods(name),
        lambda found: any(pod["spec"].get("nodeName") for pod in found),
        f"the pod of {name} is bound",
    )
    took_s = time.monotonic() - began_s
    print(f"bound {took_s:.2f} s after their pod ended")
    assert took_s < 1, f"{took_s:.2f} s"


async def test_the_picture_of_kubeflux(space: Space, unmanaged: Space, policies: Policies) -> None:
    """A node of 16 cores: ours 8, theirs 8, ours waits, theirs ends, ours starts."""
    name = await policies.make(policy="subtract")
    await eventually(lambda: _gives(policies, name, "16"), "it counts for the node")
    await space.create(job("first", cpu="8", pool="single", run=FOR_EVER))
    await space.until_state("first", "Running")
    await unmanaged.create(bare_pod("theirs", cpu="8", run=FOR_EVER, nodeName="single"))
    await eventually(lambda: _gives(policies, name, "8"), "their cores are subtracted")
    await space.create(job("second", cpu="8", pool="single"))
    await space.until_state("second", *WAITING)
    assert (await space.fluxjob("first") or {})["status"]["state"] == "Running"
    await _starts_within_a_second(space, unmanaged, "second")
    status = await policies.until(name, exceededNodes=0, violations=0)
    assert {one["type"]: one["status"] for one in status["conditions"]} == {
        "Valid": "True",
        "Respected": "True",
    }


async def _gives(policies: Policies, name: str, cpu: str) -> bool:
    return bool((await policies.status(name)).get("given", {}).get("cpu") == cpu)


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_a_partition_changed_to_less_and_to_dedicated(
    space: Space, unmanaged: Space, policies: Policies
) -> None:
    """Jobs never get more than their part. A change evicts nothing, and says what exceeds it."""
    name = await policies.make(policy="partition", partition={"cpu": "50%"})
    await policies.until(name, nodes=1)
    await space.create(job("whole", cpu="16", pool="single"))
    whole = await space.until_state("whole", "Unsatisfiable")
    assert f"may give jobs 8 cpu, by sharing policy {name}" in whole["status"]["reason"]
    await space.create(job("half", cpu="8", pool="single", run=FOR_EVER))
    await space.until_state("half", "Running")
    await space.create(job("more", cpu="1", pool="single"))
    await space.until_state("more", *WAITING)

    less = {"spec": {"partition": {"cpu": "2"}}}
    await space.client.patch(SHARING_POLICIES, None, name, less, kind=PatchKind.MERGE)
    status = await policies.until(name, exceededNodes=1, observedGeneration=2)
    (excess,) = status["exceeding"]
    assert excess["jobs"] == [f"{space.name}/half"]
    assert (excess["held"]["cpu"], excess["given"]["cpu"]) == ("8", "2")
    assert (await space.fluxjob("half") or {})["status"]["state"] == "Running"

    await unmanaged.create(bare_pod("theirs", run=FOR_EVER, nodeName="single"))
    dedicated = {"spec": {"policy": "dedicated", "partition": None}}
    await space.client.patch(SHARING_POLICIES, None, name, dedicated, kind=PatchKind.MERGE)
    status = await policies.until(name, violations=1, exceededNodes=0)
    assert status["violatingPods"] == [
        {"namespace": unmanaged.name, "name": "theirs", "node": "single"}
    ]
    await space.until_job("more")
    await space.until_state("whole", *WAITING)


async def test_a_bad_policy_is_refused_or_set_aside(space: Space, policies: Policies) -> None:
    """The definition refuses a bad value. A policy that is not installed is set aside, in words."""
    with pytest.raises(Invalid, match="a percentage of the node"):
        await policies.make(policy="headroom", headroom={"cpu": "200%"})
    name = await policies.make(policy="of-another-package", order=1)
    status = await policies.until(name, nodes=0)
    (valid,) = [one for one in status["conditions"] if one["type"] == "Valid"]
    assert valid["status"] == "False"
    assert "is no installed sharing policy" in valid["message"]
    await space.create(job("plain", pool="single"))
    await space.until_job("plain")

    async def is_listed() -> bool:
        sql = "SELECT reason FROM quarantine WHERE name = :name AND held_by = 'sharing policy'"
        return bool(await space.world.rows(sql, name=name))

    await eventually(is_listed, "psql shows it")
