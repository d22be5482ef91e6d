"""A TrainJob waits suspended: what it asks for stands in the JobSet that its operator makes.

The Trainer and the JobSet controller are played (``operators``). The API server is a real one where
the world is.
"""

from __future__ import annotations

import pytest

from fluxqueue.kube import steer
from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import FLUXJOBS
from fluxqueue.scheduler.resource_set import read_resource_set
from tests.support.e2e.custom_kinds import JOB_SET, TRAIN_JOB, define
from tests.support.e2e.kills import kill_part
from tests.support.e2e.objects import Obj
from tests.support.e2e.operators import Operators
from tests.support.e2e.owned_pods import (
    RUNTIMES,
    all_are,
    asks,
    create,
    fill,
    make_room,
    until_told,
    until_waiting,
)
from tests.support.e2e.space import Space
from tests.support.waiting import eventually


async def until_suspended(space: Space, name: str, expected: bool) -> None:
    """Until both it and its JobSet wait, or go on."""

    async def look() -> bool:
        both = [await space.client.get(kind, space.name, name) for kind in (TRAIN_JOB, JOB_SET)]
        return all(bool(one["spec"].get("suspend")) is expected for one in both)

    await eventually(look, f"{name} and its JobSet suspended: {expected}")


async def test_a_trainjob_waits_suspended_and_starts_whole(space: Space) -> None:
    """Its size is known before any of its pods is there. All of them start as one."""
    for resource in (TRAIN_JOB, JOB_SET):
        await define(space, resource)
    await fill(space)
    made = await create(space, TRAIN_JOB, "tune", asks("torch", 3))
    assert made["spec"]["suspend"] is True
    told = "waits for its JobSet, which says what it asks for"
    waiting = await until_told(space, "tune-trainjob", "Gathering", told)
    assert waiting["spec"]["workload"]["uid"] == made["metadata"]["uid"]
    async with Operators(space, RUNTIMES) as operators:
        waiting = await until_waiting(space, "tune-trainjob")
        assert waiting["spec"]["size"] == 4
        await until_suspended(space, "tune", True)
        await all_are(space, "Running", 4)  # those that fill the pool, and no other
        await make_room(space)
        done = await until_told(space, "tune-trainjob", "Completed")
    slots = read_resource_set(done["status"]["R"]).slots
    assert sorted(has["cpu"] for _, has in slots) == [1000, 8000, 8000, 8000]
    assert len((await space.client.list(FLUXJOBS, space.name)).items) == 1
    assert operators.refused == []


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_it_is_requeued_and_found_again_by_another_controller(space: Space) -> None:
    async with Operators(space, RUNTIMES) as operators:
        made = await create(space, TRAIN_JOB, "again", asks("endless", 2))
        await steer.requeue(space.client, await until_told(space, "again-trainjob", "Running"))
        sql = "SELECT requeues FROM fluxjobs WHERE uid = :uid AND requeues = 1 AND state = :state"

        async def runs_again() -> bool:
            uid = made["metadata"]["uid"]
            return bool(await space.world.rows(sql, uid=uid, state="Running"))

        await eventually(runs_again, "it runs for the second time")
        await kill_part(space.world, "controller")
        stop: Obj = {"spec": {"suspend": True}}
        at = (TRAIN_JOB, space.name, "again")
        await space.client.patch(*at, stop, kind=PatchKind.MERGE)
        await until_told(space, "again-trainjob", "Held", "suspended by its author")
        await space.client.delete(*at, propagation="Background")
        await space.until_gone(FLUXJOBS, "again-trainjob")
    assert operators.refused == []
