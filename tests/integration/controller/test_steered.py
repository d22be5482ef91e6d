"""What people do to FluxJobs becomes rows: under the leader's term, and if it was meant."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager, suppress
from dataclasses import dataclass, field
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.clock import SystemClock
from fluxqueue.controller.steering_watch import SteeringWatch
from fluxqueue.db.database import Transaction
from fluxqueue.db.leadership import CONTROLLER, check_term, seize
from fluxqueue.errors import DatabaseUnavailable, NotFound
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.installation import install_definitions
from fluxqueue.kube.resources import CRDS, EVENTS, FLUXJOBS, JOBS
from fluxqueue.workload.labels import OWN_NAMESPACE
from localcluster import LocalCluster
from tests.support.clusters import InProcessTransport, config_of
from tests.support.rows import Rows
from tests.support.waiting import eventually
from tests.support.workers import QUIET, rows_of, submit

Obj = dict[str, Any]
LATER = "2100-01-01T00:00:00Z"
DEFINITION = f"{FLUXJOBS.plural}.{FLUXJOBS.group}"


@dataclass
class Steering:
    """A watch at work, beside rows and an API server, told of FluxJobs by the test."""

    rows: Rows
    admin: KubeClient
    term: int = 0
    failing: int = 0
    watch: SteeringWatch = field(init=False)
    lost: list[str] = field(default_factory=list)
    gone: set[str] = field(default_factory=set)

    def __post_init__(self) -> None:
        """As the controller makes it."""
        self.watch = SteeringWatch(
            self.admin,
            SystemClock(),
            begin=self.begin,
            stands=lambda uid: uid not in self.gone,
            find=lambda uid: None,
            on_lost=self.lost.append,
        )

    @asynccontextmanager
    async def begin(self) -> AsyncIterator[Transaction]:
        """A transaction under the term, so many fail at first."""
        if self.failing:
            self.failing -= 1
            raise DatabaseUnavailable("the test says so")
        async with self.rows.database.begin() as tx:
            await check_term(tx, CONTROLLER, self.term)
            yield tx

    async def fluxjob(self, name: str, **spec: Any) -> Obj:
        """The FluxJob of a new BatchJob, as kopf tells of it. In the cluster it is no more."""
        uid = await submit(self.rows, self.admin, name)
        workload = {"apiVersion": "batch/v1", "kind": "Job", "name": name, "uid": uid}
        meta = {
            "name": f"{name}-job",
            "namespace": "default",
            "uid": f"flux-{uid}",
            "creationTimestamp": LATER,
        }
        return {"metadata": meta, "spec": {"size": 1, "workload": workload, **spec}}

    async def cancelled_by(self, fluxjob: Obj) -> str | None:
        """Its row says which user cancels it."""
        uid = fluxjob["spec"]["workload"]["uid"]
        by = await self.rows.value("SELECT cancel_by FROM fluxjobs WHERE uid = :uid", uid=uid)
        return None if by is None else str(by)

    async def is_made_again(self, fluxjob: Obj) -> None:
        """The workload is not cancelled, and gets another FluxJob."""
        uid = fluxjob["spec"]["workload"]["uid"]

        await eventually(lambda: uid in self.lost, "it is to be made again")
        assert await self.cancelled_by(fluxjob) is None


@pytest_asyncio.fixture
async def steering(database_url: str) -> AsyncIterator[Steering]:
    """A leader's watch. FluxJobs are defined."""
    async with LocalCluster(QUIET) as cluster, rows_of(database_url) as rows:
        client = KubeClient(config_of(cluster), transport=InProcessTransport(cluster))
        async with client as admin:
            await install_definitions(admin, OWN_NAMESPACE)
            made = Steering(rows, admin, await seize(rows.database, CONTROLLER, "test"))
            running = asyncio.create_task(made.watch.run())
            yield made
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running


async def test_deleting_a_fluxjob_cancels_its_workload(steering: Steering) -> None:
    """Also if the database is away at first."""
    fluxjob = await steering.fluxjob("a")
    steering.failing = 1
    steering.watch.see_deleted(fluxjob)
    await eventually(lambda: steering.cancelled_by(fluxjob), "it is cancelled")
    assert steering.lost == []


@pytest.mark.parametrize("why", ["ours", "its workload goes"])
async def test_not_every_deletion_is_meant(steering: Steering, why: str) -> None:
    fluxjob = await steering.fluxjob("a")
    if why == "ours":
        steering.watch.forgive(fluxjob)
    else:
        steering.gone.add(fluxjob["spec"]["workload"]["uid"])
    steering.watch.see_deleted(fluxjob)
    await steering.is_made_again(fluxjob)


async def test_one_that_went_with_its_workload_is_neither_made_again_nor_cancelled(
    steering: Steering,
) -> None:
    """The watch of workloads is behind, and the API server knows. Deletions are taken in order."""
    fluxjob, other = await steering.fluxjob("a"), await steering.fluxjob("b")
    await steering.admin.delete(JOBS, "default", "a", propagation="Background")
    steering.watch.see_deleted(fluxjob)
    steering.watch.see_deleted(other)
    await eventually(lambda: steering.cancelled_by(other), "the other one is cancelled")
    assert steering.lost == []
    assert await steering.cancelled_by(fluxjob) is None


@pytest.mark.parametrize("is_defined_again", [False, True])
async def test_taking_away_the_definition_cancels_nothing(
    steering: Steering, is_defined_again: bool
) -> None:
    """All FluxJobs go with it. `kubectl replace --force` makes it again at once."""
    fluxjob = await steering.fluxjob("a")
    await steering.admin.delete(CRDS, None, DEFINITION)
    if is_defined_again:
        await eventually(lambda: _is_undefined(steering), "the definition is gone")
        await install_definitions(steering.admin, OWN_NAMESPACE)
        created = (await steering.admin.get(CRDS, None, DEFINITION))["metadata"]
        fluxjob["metadata"]["creationTimestamp"] = created["creationTimestamp"]
    steering.watch.see_deleted(fluxjob)
    await steering.is_made_again(fluxjob)


async def test_a_leader_that_was_stopped_heeds_nothing(steering: Steering) -> None:
    """It wakes up with a spec that has been changed since, while another leads."""
    old = await steering.fluxjob("a", priority=1, steeredBy={"priority": "bob"})
    new = {**old, "spec": {**old["spec"], "priority": 2}}
    term = steering.term
    steering.term = await seize(steering.rows.database, CONTROLLER, "another")
    steering.watch.see(new)
    await eventually(lambda: _priority(steering, 2), "the new one is applied")
    frozen = Steering(steering.rows, steering.admin, term)
    frozen.watch.see(old)
    tries = asyncio.create_task(frozen.watch.run())
    steering.watch.see_deleted(await steering.fluxjob("b"))
    await eventually(lambda: _cancelled(steering), "others go on")
    assert await _priority(steering, 2)
    tries.cancel()


async def test_the_status_says_which_spec_was_heeded(steering: Steering) -> None:
    """Also one that changes nothing of what people steer by. One made again begins anew."""
    fluxjob = await steering.fluxjob("a", priority=1, steeredBy={"priority": "bob"})
    uid = fluxjob["spec"]["workload"]["uid"]

    async def applied() -> int:
        sql = "SELECT published -> 'generation' FROM fluxjobs WHERE uid = :uid"
        return int(await steering.rows.value(sql, uid=uid) or 1)

    assert await applied() == 1
    for generation in (2, 3):
        meta = {**fluxjob["metadata"], "generation": generation}
        steering.watch.see({**fluxjob, "metadata": meta})

        async def is_heeded(generation: int = generation) -> bool:
            return await applied() == generation

        await eventually(is_heeded, f"generation {generation} is applied")
    assert await steering.rows.value(
        "SELECT version > coalesce((published ->> 'version')::bigint, 0) FROM fluxjobs"
    )
    await steering.rows.execute("UPDATE fluxjobs SET flux_uid = 'another'")
    assert await applied() == 1


async def test_what_cannot_be_is_told_on_the_fluxjob(steering: Steering) -> None:
    fluxjob = await steering.fluxjob("a", queue="nowhere", steeredBy={"queue": "bob"})
    fluxjob["metadata"]["resourceVersion"] = "7"
    steering.watch.see(fluxjob)

    async def told() -> bool:
        events = await steering.admin.list(EVENTS, "default")
        return any(one["reason"] == "SteeringRefused" for one in events.items)

    await eventually(told, "an Event says so")


async def _is_undefined(steering: Steering) -> bool:
    try:
        await steering.admin.get(CRDS, None, DEFINITION)
    except NotFound:
        return True
    return False


async def _priority(steering: Steering, value: int) -> bool:
    sql = "SELECT (overrides ->> 'priority')::int = :value FROM fluxjobs WHERE workload_name = 'a'"
    return bool(await steering.rows.value(sql, value=value))


async def _cancelled(steering: Steering) -> bool:
    sql = "SELECT cancel_by IS NOT NULL FROM fluxjobs WHERE workload_name = 'b'"
    return bool(await steering.rows.value(sql))
