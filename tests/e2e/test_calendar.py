"""FluxReservations as administrators apply them, while Jobs of users run and wait."""

from __future__ import annotations

import time
from collections.abc import AsyncIterator
from datetime import UTC, datetime

import pytest_asyncio

from fluxqueue.kube.client import PatchKind
from fluxqueue.kube.resources import EVENTS, FLUX_RESERVATIONS, NODES
from tests.support.e2e.maintenance import NODE, Reservations
from tests.support.e2e.objects import FOR_EVER, Obj, job
from tests.support.e2e.space import WAITING, Space
from tests.support.waiting import eventually, until


@pytest_asyncio.fixture(loop_scope="session")
async def reservations(space: Space) -> AsyncIterator[Reservations]:
    """Reservations of the test's own."""
    made = Reservations(space)
    yield made
    await made.remove()


async def _status(space: Space, name: str) -> Obj:
    found = await space.fluxjob(name)
    return dict((found or {}).get("status") or {})


async def test_a_maintenance_lets_short_work_in_and_keeps_long_work_out(
    space: Space, reservations: Reservations
) -> None:
    """A Job that ends before it starts. One without a limit waits, and starts once it is gone."""
    name = await reservations.make(600, duration="4h")
    await reservations.until(name, nodes=1, nodeList=NODE, Active="False", jobs=0)
    await space.create(job("endless", pool=NODE))
    await space.create(job("long", pool=NODE, wishes={"duration": "11m"}))
    await space.create(job("short", pool=NODE, wishes={"duration": "2m"}))
    await space.until_job("short")
    words = f"would run into maintenance {name} on {NODE}"
    end = (await reservations.status(name))["end"]
    for waiting in ("endless", "long"):
        found = await until(
            lambda at=waiting: _status(space, at),
            lambda told: words in str(told.get("reason")) and told.get("expectedStart", "") >= end,
            f"{waiting} says why, and that it starts behind the maintenance",
        )
        assert found["state"] in WAITING
    await space.client.delete(FLUX_RESERVATIONS, None, name)
    await space.until_all_complete(["endless", "long"])


async def _says(space: Space, name: str, words: str) -> bool:
    return words in str((await _status(space, name)).get("reason"))


async def test_it_ends_no_job_and_says_when_the_node_is_empty(
    space: Space, reservations: Reservations
) -> None:
    """What began before it was made goes on. Nothing joins it. Its end opens the node again."""
    await space.create(job("before", pool=NODE, run=FOR_EVER))
    await space.until_state("before", "Running")
    name = await reservations.make(0, duration="1h")
    found = await reservations.until(name, Active="True", Empty="False", jobs=1)
    assert found["jobNames"] == [f"{space.name}/before"]
    await space.create(job("late", pool=NODE, wishes={"duration": "1m"}))
    words = f"in maintenance {name} until"
    await eventually(lambda: _says(space, "late", words), "it says why it waits")
    await space.finish("before")
    await reservations.until(name, Active="True", Empty="True", jobs=0)
    start = datetime.fromtimestamp(int(time.time()) - 7200, UTC).replace(tzinfo=None)
    over = {"spec": {"schedule": {"start": start.isoformat()}}}
    await space.client.patch(FLUX_RESERVATIONS, None, name, over, kind=PatchKind.MERGE)
    await reservations.until(name, Planned="False")
    await space.until_job("late")


async def test_a_spec_that_only_the_controller_can_judge_is_refused_with_an_event(
    space: Space, reservations: Reservations
) -> None:
    """A zone that does not exist: its former spec stays in force, and an Event says why."""
    name = await reservations.make(600, duration="1h")
    await reservations.until(name, Valid="True")
    wrong = {"spec": {"schedule": {"timeZone": "Europe/Atlantis"}}}
    await space.client.patch(FLUX_RESERVATIONS, None, name, wrong, kind=PatchKind.MERGE)
    await reservations.until(name, Valid="False", nodes=1)
    found = await space.client.get(FLUX_RESERVATIONS, None, name)
    uid = found["metadata"]["uid"]

    async def is_told() -> bool:
        events = (await space.client.list(EVENTS, field_selector=f"involvedObject.uid={uid}")).items
        return any("Europe/Atlantis" in one["message"] for one in events)

    await eventually(is_told, "an Event names the zone")
    assert (await space.client.get(NODES, None, NODE))["spec"].get("unschedulable") is None
