"""Started means running: pods that no node takes, and pods that cannot be created.

The moment between release and binding is held open by a scheduling gate of another user. Then the
cluster is changed under the released pods.
"""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest
import pytest_asyncio

from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import NODES, PODS
from fluxqueue.workload.labels import HOSTNAME
from tests.support.e2e.health import assert_invariants
from tests.support.e2e.objects import FOR_EVER, bare_pod, job
from tests.support.e2e.refusals import REFUSAL, refused_pods
from tests.support.e2e.space import Space
from tests.support.e2e.starting import (
    HELD_OPEN,
    close,
    let_in,
    released_pods,
    sent_to,
    until_silent,
    words_of,
)
from tests.support.waiting import eventually

MAIN = ("node-1", "node-2", "node-3", "node-4")


@pytest_asyncio.fixture(loop_scope="session")
async def open_again(space: Space) -> AsyncIterator[None]:
    """The nodes of the pool take pods again after the test."""
    yield
    for name in MAIN:
        body = {"spec": {"unschedulable": None, "taints": None}}
        await space.client.patch(NODES, None, name, body, kind=PatchKind.MERGE)


@pytest.mark.long("a pod is left to kube-scheduler for 5 s, and a deleted one is made again")
@pytest.mark.parametrize("how", ["cordon", "taint", "expel"])
async def test_a_node_that_is_closed_after_the_release_is_given_up(
    space: Space, open_again: None, how: str
) -> None:
    """One of three pods is sent elsewhere, the others stay, and the reason says it meanwhile."""
    body = job("late", pods=3, cpu="10", pool="main", run=FOR_EVER, pod=HELD_OPEN)
    await space.create(body)
    before = {
        pod["metadata"]["name"]: sent_to(pod) for pod in await released_pods(space, "late", 3)
    }
    closed = sorted(str(node) for node in before.values())[1]
    await close(space, closed, how)
    await let_in(space, "late", 3)
    after = {pod["metadata"]["name"]: pod["spec"]["nodeName"] for pod in await space.pods("late")}
    assert closed not in after.values()
    assert len(set(after.values())) == 3
    kept = {name for name, node in before.items() if node != closed}
    assert kept <= set(after), "pods on other nodes are left alone"
    await until_silent(space, "late")
    fluxjob = await space.fluxjob("late")
    assert fluxjob is not None
    told = [one["reason"] for one in await space.events_on(fluxjob["spec"]["workload"]["uid"])]
    assert "Unschedulable" in told, told
    await assert_invariants(space.world)


@pytest.mark.long("a pod is left to kube-scheduler for 5 s, and a requeued Job waits for 10 s")
async def test_a_node_that_others_fill_first_is_left_to_them(
    space: Space, unmanaged: Space
) -> None:
    """A Job of one node, which its template names, goes back to the queue and runs elsewhere."""
    await space.create(job("late", cpu="12", pool="main", run=FOR_EVER, pod=HELD_OPEN))
    (pod,) = await released_pods(space, "late", 1)
    node = str(sent_to(pod))
    web = bare_pod("web", cpu="8", run=FOR_EVER, nodeSelector={HOSTNAME: node})
    await unmanaged.create(web)

    async def is_taken() -> bool:
        found = await unmanaged.client.get(PODS, unmanaged.name, "web")
        return bool(found["status"].get("phase") == "Running")

    await eventually(is_taken, "the other pod runs first")
    await let_in(space, "late", 1)
    (after,) = await space.pods("late")
    assert after["spec"]["nodeName"] != node
    rows = await space.world.rows(
        "SELECT reason FROM accounting WHERE namespace = :of AND result = 'Requeued'", of=space.name
    )
    assert "Insufficient cpu" in rows[0]["reason"]
    await assert_invariants(space.world)


@pytest.mark.long("the Job controller tries again after 10 s, and longer")
async def test_pods_that_cannot_be_created_are_explained_in_the_controllers_words(
    space: Space,
) -> None:
    """Until they are, the FluxJob says why. Then it runs as if nothing had been."""
    body = job("barred", pods=2, cpu="2", pool="main", run=FOR_EVER)
    body["spec"]["template"]["metadata"]["labels"] = {"team": "true"}
    async with refused_pods(space, label="team"):
        await space.create(body)
        status = await words_of(space, "barred", "2 of its 2 pods are not created", REFUSAL)
        (condition,) = (one for one in status["conditions"] if one["type"] == "Allocated")
        assert condition["reason"] == "FailedCreate"
        assert REFUSAL in condition["message"]
    await eventually(lambda: _runs(space, "barred", 2), "both pods run", timeout_s=120)
    await until_silent(space, "barred")


@pytest.mark.long("it is tried twice")
async def test_a_start_timeout_sends_it_back_to_the_queue(space: Space) -> None:
    """The author says how long a start may take. Other work uses the nodes meanwhile."""
    body = job("barred", pods=2, cpu="16", pool="main", wishes={"start-timeout": "8s"})
    body["spec"]["template"]["metadata"]["labels"] = {"team": "true"}
    async with refused_pods(space, label="team"):
        await space.create(body)
        await words_of(space, "barred", "it is tried again from", REFUSAL)
        status = (await space.fluxjob("barred") or {})["status"]
        assert status["state"] == "Pending"
        assert not status.get("nodes")
    await space.until_job("barred")


async def _runs(space: Space, name: str, count: int) -> bool:
    phases = [pod["status"].get("phase") for pod in await space.pods(name)]
    return phases == ["Running"] * count
