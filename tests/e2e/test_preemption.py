"""Work is preempted for other work: what is said of it, what starts where, what continues."""

from __future__ import annotations

import pytest

from fluxqueue.kube.resources import FLUXJOBS
from tests.support.e2e.database import everybody_killed
from tests.support.e2e.explaining import ask
from tests.support.e2e.objects import FOR_EVER, Obj, bare_pod
from tests.support.e2e.queues import Queues
from tests.support.e2e.space import WAITING, Space
from tests.support.waiting import eventually

LOWER = {"within": "lowerPriority"}


async def _said(space: Space, body: Obj, event: str) -> str:
    """The message of an Event on an object of a user, once it is there."""
    found: list[str] = []

    async def look() -> bool:
        found[:] = [
            one["message"]
            for one in await space.events_on(body["metadata"]["uid"])
            if one["reason"] == event
        ]
        return bool(found)

    await eventually(look, f"the Event {event} on {body['metadata']['name']}")
    return found[0]


async def _uids(space: Space, name: str, count: int) -> set[str]:
    """The running pods of a Job, once there are so many."""
    found: set[str] = set()

    async def look() -> bool:
        pods = await space.pods(name)
        found.clear()
        found.update(
            pod["metadata"]["uid"] for pod in pods if pod["status"].get("phase") == "Running"
        )
        return len(found) == count

    await eventually(look, f"{count} pods of {name} run")
    return found


async def _jobid(space: Space, name: str) -> int:
    found = await space.fluxjob(name)
    assert found is not None
    return int(found["status"]["jobid"])


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_the_youngest_makes_way_and_waits_at_its_place(space: Space, queues: Queues) -> None:
    """Three of 5 cpu fill a node of 16: one of 6 needs the room of one of them, and gets it of the
    youngest that can be requeued, a bare Pod left alone. Both sides say so, and afterwards the one
    that left goes on."""
    await queues.make("scavenger")
    await queues.make(
        "urgent", priority=100, preemption={**LOWER, "queues": [queues.name("scavenger")]}
    )
    old = await space.create(queues.job("old", "scavenger", cpu="5", pool="single", run=FOR_EVER))
    await space.until_state("old", "Running")
    young = queues.job("young", "scavenger", cpu="5", pool="single", run=FOR_EVER)
    young = await space.create(young)
    await space.until_state("young", "Running")
    bare = bare_pod("bare", cpu="5", nodeSelector={"pool": "single"}, run=FOR_EVER)
    bare["metadata"]["labels"] = {"fluxqueue/queue": queues.name("scavenger")}
    await space.create(bare)
    await space.until_state("bare", "Running")
    before = await _uids(space, "old", 1)
    gone = await _uids(space, "young", 1)

    urgent = queues.job("urgent", "urgent", cpu="6", pool="single", run=FOR_EVER)
    urgent = await space.create(urgent)
    await space.until_state("urgent", "Running")
    waiting = await space.until_state("young", *WAITING)
    assert waiting["status"]["jobid"] == await _jobid(space, "young"), "its place is its own"
    number = await _jobid(space, "urgent")
    assert f"is preempted for job {number} (urgent)" in await _said(space, young, "Preempted")
    message = await _said(space, urgent, "Preempting")
    assert f"job {await _jobid(space, 'young')} is preempted for it" in message
    assert await _uids(space, "old", 1) == before, "the older one was left alone"
    assert not [
        one
        for one in await space.events_on(old["metadata"]["uid"])
        if one["reason"].startswith("Preempt")
    ]
    rows = await space.world.rows(
        "SELECT result, reason FROM accounting WHERE namespace = :space AND name = 'young'",
        space=space.name,
    )
    assert rows == [{"result": "Requeued", "reason": f"preempted for job {number}"}]

    await space.delete("urgent")
    await space.until_state("young", "Running")
    assert not await _uids(space, "young", 1) & gone
    assert await space.world.rows("SELECT victim FROM preemptions") == []


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_within_the_grace_it_is_a_notice(space: Space, queues: Queues) -> None:
    """A victim goes on when the preemptor is cancelled before the time has come: the same
    pods. Its FluxJob has said until then what would be, and does not any more."""
    await queues.make("low")
    preemption = {**LOWER, "queues": [queues.name("low")], "grace": "1h"}
    await queues.make("high", priority=100, preemption=preemption)
    low = await space.create(queues.job("low", "low", cpu="16", pool="single", run=FOR_EVER))
    pods = await _uids(space, "low", 1)
    await space.create(queues.job("high", "high", cpu="16", pool="single"))
    high = await space.until_state("high", "Reserved")
    words = f"for job {await _jobid(space, 'high')} (high)"
    assert words in await _said(space, low, "PreemptionPlanned")
    assert f"job {await _jobid(space, 'low')} is preempted for it" in high["status"]["reason"]
    await space.until_true(lambda: _tells(space, "low", words), "the notice")
    await space.client.delete(FLUXJOBS, space.name, "high-job")
    await _said(space, low, "PreemptionOff")
    await space.until_true(lambda: _is_silent(space, "low"), "no notice any more")
    assert await _uids(space, "low", 1) == pods
    found = await space.fluxjob("low")
    assert found is not None
    assert found["status"]["state"] == "Running"


@pytest.mark.long("seconds of processor time for a crash that a cheaper test covers in parts")
async def test_everybody_dies_while_two_make_way(space: Space, queues: Queues) -> None:
    """Controller and workers are killed as soon as it is decided: those that come have both leave,
    and no other job gets the room, though it comes before in the queue."""
    await queues.make("low", maxPriority=1000)
    await queues.make(
        "high", priority=100, preemption={**LOWER, "queues": [queues.name("low")], "grace": "10s"}
    )
    for name in ("one", "two"):
        await space.create(queues.job(name, "low", cpu="8", pool="single", run=FOR_EVER))
        await space.until_state(name, "Running")
    await space.create(queues.job("high", "high", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("high", "Reserved")
    async with everybody_killed(space.world.stack):
        first = queues.job("first", "low", cpu="8", pool="single", run=FOR_EVER)
        first["metadata"]["annotations"]["fluxqueue/priority"] = "1000"
        await space.create(first)
    await space.until_state("high", "Running")
    for name in ("one", "two", "first"):
        await space.until_state(name, *WAITING)
    await space.delete("high")
    await space.until_state("first", "Running")
    await space.until_state("one", "Running")


async def test_who_waits_may_ask_whether_others_would_make_way(
    space: Space, queues: Queues
) -> None:
    """A PlacementReview says it before the submission."""
    await queues.make("low")
    await queues.make("high", priority=100, preemption={**LOWER, "queues": [queues.name("low")]})
    await space.create(queues.job("low", "low", cpu="16", pool="single", run=FOR_EVER))
    await space.until_state("low", "Running")
    wanted = queues.job("high", "high", cpu="16", pool="single")
    asked = (await ask(space, manifest=wanted))["status"]
    assert "1 job of a lower priority is preempted for it" in asked["message"], asked
    found = await space.fluxjob("low")
    assert found is not None
    assert found["status"]["reason"] == ""
    await queues.change("high", preemption=None)
    await queues.until_observed("high")
    asked = (await ask(space, manifest=wanted))["status"]
    assert "makes way" not in asked["message"]


async def _tells(space: Space, name: str, words: str) -> bool:
    found = await space.fluxjob(name)
    return words in str(((found or {}).get("status") or {}).get("reason"))


async def _is_silent(space: Space, name: str) -> bool:
    found = await space.fluxjob(name)
    return not ((found or {}).get("status") or {}).get("reason")
