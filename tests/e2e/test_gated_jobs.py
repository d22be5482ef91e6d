"""Jobs that are not suspended while they wait: their pods exist, gated (``fluxqueue/wait``)."""

from __future__ import annotations

import os
import signal
from typing import Any

import pytest

from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import FLUXJOBS, FLUXQUEUES, JOBS, PODS
from fluxqueue.workload.labels import WAIT
from fluxqueue.workload.pods import gate_index
from tests.support.e2e.database import empty, everybody_killed
from tests.support.e2e.group_members import until_reason
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod, job
from tests.support.e2e.queues import Queues
from tests.support.e2e.replica_sets import until_held
from tests.support.e2e.space import WAITING, Space
from tests.support.e2e.world import GATED_QUEUE
from tests.support.waiting import eventually

SINGLE = {"pool": "single"}


def gated(name: str = "x", **more: Any) -> Obj:
    """Make a Job of two pods that wait gated, on a node of 16 cpu."""
    wishes = {"wait": "gated", **more.pop("wishes", {})}
    return job(name, wishes=wishes, **{"pods": 2, "cpu": "8", **SINGLE, **more})


async def fill(space: Space) -> None:
    """Fill the node until the pod is deleted."""
    await space.create(bare_pod("filler", cpu="16", run=FOR_EVER, nodeSelector=SINGLE))
    await space.until_state("filler", "Running")


async def until_gated(space: Space, name: str = "x", count: int = 2) -> set[str]:
    """Wait until its pods are there, held by their gates. Return their UIDs."""

    async def are_gated() -> set[str]:
        pods = [p for p in await space.pods(name) if "deletionTimestamp" not in p["metadata"]]
        if len(pods) != count or any(gate_index(pod["spec"]) is None for pod in pods):
            return set()
        return {pod["metadata"]["uid"] for pod in pods}

    return await eventually(are_gated, f"{count} gated pods of {name}") or set()


async def is_suspended(space: Space, name: str = "x") -> bool:
    """Tell whether the Job is suspended now."""
    found = await space.client.get(JOBS, space.name, name)
    return bool(found["spec"].get("suspend"))


async def test_its_pods_wait_and_start_together(space: Space) -> None:
    """It is never suspended, and the pods that waited are those that run."""
    await fill(space)
    made = await space.create(gated(run=FOR_EVER))
    assert not made["spec"].get("suspend")
    await space.until_state("x", *WAITING)
    waiting = await until_gated(space)
    assert not await is_suspended(space)
    await space.delete("filler", PODS)
    running = await space.until_running("x", 2)
    assert {pod["metadata"]["uid"] for pod in running} == waiting
    await space.finish("x")
    await space.until_state("x", "Completed")


async def test_a_template_may_say_how_its_job_waits(space: Space) -> None:
    """The policies of the API server let it pass, because admission writes it on the Job."""
    body = gated()
    notes = body["metadata"]["annotations"]
    meta = body["spec"]["template"].setdefault("metadata", {})
    meta["annotations"] = {**meta.get("annotations", {}), WAIT: notes.pop(WAIT)}
    made = await space.create(body)
    assert made["metadata"]["annotations"][WAIT] == "gated"
    assert not made["spec"].get("suspend")
    await space.until_state("x", "Completed")


async def test_a_requeue_makes_new_pods_that_wait(space: Space) -> None:
    """It is suspended until its pods have ended, and then waits as before."""
    later = gated(run=FOR_EVER)
    later["metadata"]["annotations"]["fluxqueue/priority"] = "-100"
    await space.create(later)
    ran = {pod["metadata"]["uid"] for pod in await space.until_running("x", 2)}
    await space.create(
        bare_pod("first", cpu="16", run=FOR_EVER, nodeSelector=SINGLE)
        | {
            "metadata": {
                "name": "first",
                "annotations": {"localcluster/never-ends": "true"},
            }
        }
    )
    patch = {"spec": {"requeue": "again"}}
    await space.client.patch(FLUXJOBS, space.name, "x-job", patch, kind=PatchKind.MERGE)
    await space.until_state("first", "Running")
    waiting = await until_gated(space)
    assert not waiting & ran
    assert not await is_suspended(space)
    await space.delete("first", PODS)
    await space.until_running("x", 2)
    await space.delete("x")
    await until_held(space, 0)


async def test_its_author_may_suspend_it_while_it_waits(space: Space) -> None:
    """It is held then. Resumed, it waits in its turn."""
    await fill(space)
    await space.create(gated(run={"duration": "200ms"}))
    await until_gated(space)
    at = (JOBS, space.name, "x")
    await space.client.patch(*at, {"spec": {"suspend": True}}, kind=PatchKind.MERGE)
    await until_reason(space, "x", "Held", "suspended by its author")
    await space.delete("filler", PODS)
    await until_held(space, 0)
    assert await is_suspended(space)
    await space.client.patch(*at, {"spec": {"suspend": False}}, kind=PatchKind.MERGE)
    await space.until_job("x")
    await space.until_state("x", "Completed")


async def test_its_author_may_suspend_it_before_anything_has_seen_it(space: Space) -> None:
    """The controller first sees it suspended, without pods, and leaves it so."""

    async def has_no_pods() -> bool:
        return not await space.pods("x")

    controller = space.world.pid("controller")
    os.kill(controller, signal.SIGSTOP)
    try:
        await space.create(gated())
        await until_gated(space)
        suspended = {"spec": {"suspend": True}}
        await space.client.patch(JOBS, space.name, "x", suspended, kind=PatchKind.MERGE)
        await eventually(has_no_pods, "it has no pods")
    finally:
        os.kill(controller, signal.SIGCONT)
    await until_reason(space, "x", "Held", "suspended by its author")
    assert await is_suspended(space)
    await space.client.patch(
        JOBS, space.name, "x", {"spec": {"suspend": False}}, kind=PatchKind.MERGE
    )
    await space.until_state("x", "Completed")


async def test_a_queue_may_forbid_it(space: Space) -> None:
    """The job is held, with the field and the way out."""
    queues = Queues(space)
    await queues.make("strict", gatedJobs="forbidden")
    try:
        body = gated(run=FOR_EVER)
        body["metadata"]["labels"] = {"fluxqueue/queue": queues.name("strict")}
        await space.create(body)
        await until_reason(space, "x", "Held", "spec.gatedJobs is forbidden")
        await queues.change("strict", gatedJobs="allowed")
        await space.until_running("x", 2)
        await space.delete("x")
        await until_held(space, 0)
    finally:
        await queues.delete("strict")


async def test_a_queue_may_have_its_jobs_wait_gated(space: Space) -> None:
    """The Job says nothing, and shows afterwards how it waits."""
    kind = {"apiVersion": FLUXQUEUES.api_version, "kind": FLUXQUEUES.kind}
    body = {**kind, "metadata": {"name": GATED_QUEUE}, "spec": {"started": False}}
    await space.client.create(FLUXQUEUES, None, body)
    try:
        asked = job("x", **SINGLE)
        asked["metadata"]["labels"] = {"fluxqueue/queue": GATED_QUEUE}
        made = await space.create(asked)
        assert made["metadata"]["annotations"]["fluxqueue/wait"] == "gated"
        await until_gated(space, count=1)
        start = {"spec": {"started": True}}
        await space.client.patch(FLUXQUEUES, None, GATED_QUEUE, start, kind=PatchKind.MERGE)
        await space.until_job("x")
    finally:
        await space.client.delete(FLUXQUEUES, None, GATED_QUEUE)


async def test_the_time_counts_from_the_start(space: Space) -> None:
    """``fluxqueue/duration`` is the deadline of each pod, which a gated pod does not use up."""
    made = await space.create(gated(wishes={"duration": "90s"}, run=FOR_EVER))
    assert "activeDeadlineSeconds" not in made["spec"]
    assert made["spec"]["template"]["spec"]["activeDeadlineSeconds"] == 90
    await space.until_running("x", 2)
    await space.delete("x")
    await until_held(space, 0)


@pytest.mark.long("seconds of processor time for a crash that a cheaper test covers in parts")
async def test_it_waits_on_after_the_loss_of_the_database(space: Space) -> None:
    """Its object says all: it is neither suspended nor started by the rebuild."""
    await fill(space)
    await space.create(gated(run={"duration": "200ms"}))
    waiting = await until_gated(space)
    async with everybody_killed(space.world.stack):
        await empty(space.world.stack)
    await space.until_state("x", *WAITING)
    assert await until_gated(space) == waiting
    assert not await is_suspended(space)
    await space.delete("filler", PODS)
    await space.until_job("x")
