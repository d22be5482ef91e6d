"""A job that is deleted or cancelled before its end is Cancelled, whatever its controller reports.

The deletion kills its pods, and the Job controller counts them as failed. Of any kind, of one to
ten pods, at any moment, in each way to end it.
"""

from __future__ import annotations

import asyncio
import os
import random
from collections.abc import Awaitable, Callable
from contextlib import suppress

import pytest

from fluxqueue.errors import NotFound
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import FLUXJOBS, JOBS, NAMESPACES, PODS, ApiResource
from tests.support.e2e.custom_kinds import JOB_SET, MPI_JOB, TRAIN_JOB
from tests.support.e2e.group_members import member
from tests.support.e2e.objects import FOR_EVER, bare_pod, job
from tests.support.e2e.operators import Operators
from tests.support.e2e.owned_pods import RUNTIMES, asks, create, template
from tests.support.e2e.space import Space
from tests.support.figures import write_down
from tests.support.owners import job_set_spec
from tests.support.waiting import eventually

EACH = int(os.environ.get("FLUXQUEUE_TEST_CANCELLED", "1"))
"""How many jobs of each kind, way and moment. 5 make more than 200 Jobs."""

MOMENTS = ("Pending", "Allocated", "Running")
RESULTS = "SELECT name, state, reason, workload_kind FROM fluxjobs WHERE namespace = :space"


async def _cancel(space: Space, resource: ApiResource, name: str, fluxjob: str) -> None:
    patch = {"spec": {"cancel": True}}
    await space.client.patch(FLUXJOBS, space.name, fluxjob, patch, kind=PatchKind.MERGE)


def _deletes(propagation: str) -> Callable[[Space, ApiResource, str, str], Awaitable[None]]:
    async def delete(space: Space, resource: ApiResource, name: str, fluxjob: str) -> None:
        await space.client.delete(resource, space.name, name, propagation=propagation)

    return delete


WAYS = {
    "cancel": _cancel,
    "background": _deletes("Background"),
    "foreground": _deletes("Foreground"),
}


async def _assert_cancelled(space: Space, count: int) -> None:
    async def have_ended() -> bool:
        rows = await space.world.rows(f"{RESULTS} AND ended_at IS NOT NULL", space=space.name)
        return len(rows) == count

    await eventually(have_ended, f"all {count} have ended")
    rows = await space.world.rows(RESULTS, space=space.name)
    for kind in {row["workload_kind"] for row in rows}:
        states = [row["state"] for row in rows if row["workload_kind"] == kind]
        write_down("cancelled", kind=kind, count=states.count("Cancelled"), of=len(states))
    assert not [row for row in rows if row["state"] != "Cancelled"]
    accounts = await space.world.rows(
        "SELECT result FROM accounting WHERE namespace = :space", space=space.name
    )
    assert {one["result"] for one in accounts} <= {"Cancelled"}


async def _until_shown(space: Space, fluxjob: str, moment: str) -> None:
    later = MOMENTS[MOMENTS.index(moment) :]
    with suppress(NotFound):
        await space.until_state(fluxjob.removesuffix("-job"), *later)


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize("way", WAYS)
async def test_a_deleted_job_is_cancelled(space: Space, way: str) -> None:
    """One after the other on the same nodes, so that some wait."""
    chosen = random.Random(way)
    names = {
        f"{moment.lower()}-{size}-{number}": (moment, size)
        for moment in MOMENTS
        for size in (1, 1, 2, 3, 10)
        for number in range(EACH)
    }

    async def one(name: str, moment: str, size: int) -> None:
        limit = chosen.choice([0, 6])
        held = {"hold": "true"} if moment == "Pending" else {}
        run = job(name, pods=size, cpu="100m", run=FOR_EVER, wishes=held, backoffLimit=limit)
        await space.create(run)
        if moment == "Pending":
            await space.until_state(name, "Held")
        else:
            await _until_shown(space, f"{name}-job", moment)
        await WAYS[way](space, JOBS, name, f"{name}-job")
        await space.until_gone(JOBS, name)

    await asyncio.gather(*(one(name, *chosen) for name, chosen in names.items()))
    await _assert_cancelled(space, len(names))


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize("way", WAYS)
async def test_a_deleted_pod_or_group_is_cancelled(space: Space, way: str) -> None:
    for number in range(EACH):
        alone, pair = f"alone-{number}", f"pair-{number}"
        await space.create(bare_pod(alone, cpu="100m", run=FOR_EVER))
        members = [f"{side}-{number}" for side in ("left", "right")]
        for name in members:
            await space.create(member(name, pair, 2, cpu="100m", run=FOR_EVER))
        for name in (f"{alone}-pod", f"{pair}-group"):
            await _until_running(space, name)
        await WAYS[way](space, PODS, alone, f"{alone}-pod")
        if way == "cancel":
            await _cancel(space, PODS, "", f"{pair}-group")
        else:
            for name in members:
                await WAYS[way](space, PODS, name, "")
    await _assert_cancelled(space, 2 * EACH)


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize("way", WAYS)
async def test_a_deleted_owner_is_cancelled(space: Space, way: str) -> None:
    """Its operator may report that a Job of it has failed, because its pods were killed."""
    endless = template(cpu="1", run=FOR_EVER)
    one = {"replicas": 1, "template": endless}
    owners = (
        (JOB_SET, job_set_spec(main=(2, endless))),
        (MPI_JOB, {"mpiReplicaSpecs": {"Launcher": one, "Worker": {**one, "replicas": 2}}}),
        (TRAIN_JOB, asks("endless", 1)),
    )
    runtimes = {**RUNTIMES, "endless": job_set_spec(node=(1, endless))}
    async with Operators(space, runtimes):
        for number, (resource, spec) in enumerate(owners * EACH):
            name = f"a{number}-{resource.kind.lower()}"
            await create(space, resource, name, spec)
            await _until_running(space, f"{name}-{resource.kind.lower()}")
            await WAYS[way](space, resource, name, f"{name}-{resource.kind.lower()}")
            await space.until_gone(resource, name)
        await _assert_cancelled(space, len(owners) * EACH)


async def test_jobs_of_a_deleted_namespace_are_cancelled(space: Space) -> None:
    """Kubernetes deletes the pods first. Their controllers then report failed Jobs."""
    for name, size in (("one", 1), ("two", 2)):
        await space.create(job(name, pods=size, run=FOR_EVER, backoffLimit=0))
    await space.create(bare_pod("alone", run=FOR_EVER))
    for name in ("one-job", "two-job", "alone-pod"):
        await _until_running(space, name)
    await space.client.delete(NAMESPACES, None, space.name)
    await _assert_cancelled(space, 3)


async def test_a_job_that_failed_before_its_deletion_has_failed(space: Space) -> None:
    """Deleted at the first sight of its failure."""
    fails = {"duration": "100ms", "exit-code": "1"}
    names = [f"bad-{number}" for number in range(4)]

    async def one(name: str, propagation: str) -> None:
        await space.create(job(name, run=fails, backoffLimit=0))

        async def has_failed() -> bool:
            pods = await space.pods(name)
            return bool(pods) and all(pod["status"].get("phase") == "Failed" for pod in pods)

        await eventually(has_failed, f"{name} fails")
        await space.client.delete(JOBS, space.name, name, propagation=propagation)

    await asyncio.gather(
        *(one(name, ("Background", "Foreground")[number % 2]) for number, name in enumerate(names))
    )

    async def have_failed() -> bool:
        rows = await space.world.rows(f"{RESULTS} AND state = 'Failed'", space=space.name)
        return len(rows) == len(names)

    await eventually(have_failed, "all have failed")


async def _until_running(space: Space, fluxjob: str) -> None:
    async def runs() -> bool:
        with suppress(NotFound):
            found = await space.client.get(FLUXJOBS, space.name, fluxjob)
            return bool((found.get("status") or {}).get("state") == "Running")
        return False

    await eventually(runs, f"{fluxjob} runs")
