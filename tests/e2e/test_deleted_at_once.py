"""Work that has succeeded stays Completed, however and how soon its object is deleted.

A Job may be deleted between the end of its last pod and the controller's look at it: by its TTL, by
a hook, or by hand. Its successors wait for ``afterok`` and accounting counts what it did.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable

import pytest

from fluxqueue.client.follower import FluxJobFollower
from fluxqueue.client.handles import handle_of
from fluxqueue.errors import NotFound
from fluxqueue.kube.resources import JOBS, PODS
from tests.support.e2e.objects import bare_pod, job
from tests.support.e2e.space import Space
from tests.support.waiting import WAIT_S, eventually

ROUNDS = int(os.environ.get("FLUXQUEUE_TEST_DELETED", "2"))
"""How many Jobs are deleted in each way. 50 make 200 in all."""
MOMENT = {"duration": "100ms"}


async def _at_once(look: Callable[[], Awaitable[bool]]) -> None:
    """Wait without a pause: what follows is to come before the Job controller."""
    async with asyncio.timeout(WAIT_S):
        while not await look():
            pass


async def _when_complete(space: Space, name: str, propagation: str) -> None:
    """Delete at the first sight of success: before or after the Job controller has counted it."""

    async def has_succeeded() -> bool:
        pods = await space.pods(name)
        return bool(pods) and all(pod["status"].get("phase") == "Succeeded" for pod in pods)

    await _at_once(has_succeeded)
    await space.client.delete(JOBS, space.name, name, propagation=propagation)


def _deletes(propagation: str) -> Callable[[Space, str], Awaitable[None]]:
    return lambda space, name: _when_complete(space, name, propagation)


async def _nothing(space: Space, name: str) -> None:
    """Its TTL is over at once."""


WAYS: dict[str, Callable[[Space, str], Awaitable[None]]] = {
    "ttl": _nothing,
    "background": _deletes("Background"),
    "foreground": _deletes("Foreground"),
    "orphan": _deletes("Orphan"),
}


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize("way", WAYS)
async def test_a_job_that_succeeded_is_completed(space: Space, way: str) -> None:
    """In rows and in accounting. Its successor runs."""
    names = [f"{way}-{number}" for number in range(ROUNDS)]
    ttl = {"ttlSecondsAfterFinished": 0} if way == "ttl" else {}

    async def one(name: str) -> None:
        await space.create(job(name, pods=2, run=MOMENT, **ttl))
        await space.create(job(f"next-{name}", wishes={"depends-on": f"afterok:{name}"}))
        await WAYS[way](space, name)
        await space.until_gone(JOBS, name)

    await asyncio.gather(*map(one, names))
    if way == "orphan":
        await _delete_pods(space)
    states = (
        "SELECT name, state, reason FROM fluxjobs"
        " WHERE namespace = :space AND name NOT LIKE 'next-%'"
    )

    async def have_ended() -> bool:
        rows = await space.world.rows(f"{states} AND ended_at IS NULL", space=space.name)
        return not rows

    await eventually(have_ended, "all have ended")
    rows = await space.world.rows(states, space=space.name)
    wrong = [row for row in rows if row["state"] != "Completed"]
    assert not wrong, wrong
    accounts = await space.world.rows(
        "SELECT result FROM accounting WHERE namespace = :space AND name NOT LIKE 'next-%'",
        space=space.name,
    )
    assert [one["result"] for one in accounts] == ["Completed"] * ROUNDS
    await space.until_all_complete(f"next-{name}" for name in names)


async def test_a_client_learns_how_a_job_ended_that_is_gone(space: Space) -> None:
    """Its FluxJob goes with the Job, mostly before it says that the job has completed."""
    follower = FluxJobFollower(space.client, space.name)
    names = [f"brief-{number}" for number in range(2 * ROUNDS)]

    async def one(name: str) -> tuple[bool, str]:
        made = await space.create(job(name, run=MOMENT, ttlSecondsAfterFinished=0))
        handle = await handle_of(space.client, follower, {**made, "kind": "Job"})
        return await handle.reach(frozenset({"Completed"})), handle.state

    async def cancelled() -> str:
        made = await space.create(job("stopped", run={"duration": "60s"}))
        handle = await handle_of(space.client, follower, {**made, "kind": "Job"})
        assert await handle.reach(frozenset({"Running"}))
        await space.delete("stopped")
        return (await handle.wait()).state

    try:
        *ended, state = await asyncio.gather(*map(one, names), cancelled())
    finally:
        await follower.close()
    assert ended == [(True, "Completed")] * len(names)
    assert state == "Cancelled"


async def _delete_pods(space: Space) -> None:
    for pod in (await space.client.list(PODS, space.name)).items:
        await space.client.delete(PODS, space.name, pod["metadata"]["name"])


async def test_one_that_is_deleted_while_it_runs_is_cancelled(space: Space) -> None:
    """Its pods succeed when they get a signal to end. That is not success."""
    await space.create(job("stopped", run={"duration": "60s"}))
    await space.until_state("stopped", "Running")
    await space.delete("stopped")
    await space.until_gone(JOBS, "stopped")

    async def state() -> bool:
        rows = await space.world.rows(
            "SELECT state FROM fluxjobs WHERE namespace = :space", space=space.name
        )
        return [row["state"] for row in rows] == ["Cancelled"]

    await eventually(state, "it is cancelled")


async def test_a_bare_pod_that_succeeded_is_completed(space: Space) -> None:
    """Deleted as soon as it has."""
    await space.create(bare_pod("brief", run=MOMENT))

    async def has_succeeded() -> bool:
        try:
            pod = await space.client.get(PODS, space.name, "brief")
        except NotFound:
            return False
        return bool(pod["status"].get("phase") == "Succeeded")

    await _at_once(has_succeeded)
    await space.client.delete(PODS, space.name, "brief")

    async def is_completed() -> bool:
        rows = await space.world.rows(
            "SELECT state FROM fluxjobs WHERE namespace = :space", space=space.name
        )
        return [row["state"] for row in rows] == ["Completed"]

    await eventually(is_completed, "it is Completed")
