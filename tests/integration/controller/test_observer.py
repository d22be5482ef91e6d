"""The observer between events and rows: what happens while it writes is not lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.controller import term
from fluxqueue.controller.observing import flusher
from fluxqueue.controller.observing.observer import Observer
from fluxqueue.db.database import Database
from fluxqueue.db.store.known import Known, read_known
from fluxqueue.db.store.observations import save_workloads
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import ClusterConfig
from fluxqueue.kube.installation import install_definitions
from fluxqueue.kube.resources import FLUXJOBS, JOBS, PODS, ApiResource
from localcluster import LocalCluster
from tests.support.clusters import InProcessTransport, config_of
from tests.support.gated_jobs import job as gated_job
from tests.support.observers import make_observer, observing
from tests.support.rows import settings_for
from tests.support.sql import dicts
from tests.support.waiting import WAIT_S, eventually, until
from tests.support.workers import QUIET
from tests.support.workloads import bare_pod, batch_job, owner

Obj = dict[str, Any]
UID = "uid-work"


@pytest_asyncio.fixture
async def observer(database: Database, database_url: str) -> AsyncIterator[Observer]:
    """An observer that leads, with events from the test. It has seen a BatchJob run."""
    async with KubeClient(ClusterConfig(server="http://127.0.0.1:9")) as client:
        made = await make_observer(database, client, settings_for(database_url))
        made.workloads.know({UID: "flux-uid"})  # as after a restart: no FluxJob has to be made
        made.router.on_job(None, JOB)
        made.router.on_pod(None, POD)
        await made.flusher.flush()
        yield made


def _pod_of(owners: list[Obj]) -> Obj:
    meta = {"ownerReferences": owners, "resourceVersion": "5"}
    pod = bare_pod("work-0", meta=meta, nodeName="node-1")
    return {**pod, "status": {"phase": "Running"}}


JOB = batch_job("work")
POD = _pod_of([owner("Job", "work")])


async def _pods(database: Database) -> list[str]:
    async with database.begin() as tx:
        return [row["uid"] for row in await dicts(tx, "SELECT uid FROM pods ORDER BY uid")]


async def _foreign(database: Database) -> list[str]:
    async with database.begin() as tx:
        return [row["pod_uid"] for row in await dicts(tx, "SELECT pod_uid FROM foreign_usage")]


async def _known(database: Database) -> Known:
    async with database.begin() as tx:
        return await read_known(tx)


async def test_a_pod_that_goes_while_its_batchjob_is_written_off(
    database: Database, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slot would be held for ever if the observer forgot the workload with that write."""
    assert await _pods(database) == [POD["metadata"]["uid"]]
    observer.router.on_job(JOB, None)

    async def save_while_the_pod_goes(*given: Any, **named: Any) -> None:
        await save_workloads(*given, **named)
        observer.router.on_pod(POD, None)

    monkeypatch.setattr(flusher, "save_workloads", save_while_the_pod_goes)
    await observer.flusher.flush()
    assert await _pods(database) == [POD["metadata"]["uid"]], "written as it was before"
    monkeypatch.setattr(flusher, "save_workloads", save_workloads)
    await observer.flusher.flush()
    assert await _pods(database) == []


PAIR = batch_job("pair", parallelism=2, completions=2)
COUNTED = {
    **PAIR,
    "status": {"active": 1, "uncountedTerminatedPods": {"succeeded": ["uid-pair-0"]}},
}
DELETED = {**COUNTED, "metadata": {**PAIR["metadata"], "deletionTimestamp": "2026-01-01T00:00:00Z"}}


def _ended_pod(number: int) -> Obj:
    meta = {"ownerReferences": [owner("Job", "pair")], "resourceVersion": "7"}
    pod = bare_pod(f"pair-{number}", meta=meta, nodeName="node-1")
    return {**pod, "status": {"phase": "Succeeded"}}


async def _result(database: Database) -> list[Any]:
    async with database.begin() as tx:
        rows = await dicts(tx, "SELECT is_deleting, result FROM fluxjobs WHERE uid = 'uid-pair'")
        return [(row["is_deleting"], row["result"]) for row in rows]


async def _delete_pair(observer: Observer) -> None:
    observer.workloads.know({"uid-pair": "flux-pair"})
    observer.router.on_job(None, PAIR)
    await observer.flusher.flush()
    observer.router.on_job(PAIR, COUNTED)
    observer.router.on_job(COUNTED, DELETED)
    observer.router.on_job(DELETED, None)
    await observer.flusher.flush()


async def test_a_deletion_that_overtakes_its_pods_waits_for_them(
    database: Database, observer: Observer
) -> None:
    """Else the job counts as cancelled, and its slots return while its pods may still run."""
    await _delete_pair(observer)
    assert await _result(database) == [(False, None)]
    for number in range(2):
        observer.router.on_pod(None, _ended_pod(number))
    await observer.flusher.flush()
    assert await _result(database) == [(True, "Completed")]


async def test_a_deletion_waits_for_unseen_pods_only_for_a_while(
    database: Database, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """They may have gone before this controller began."""
    await _delete_pair(observer)
    assert await _result(database) == [(False, None)]
    monkeypatch.setattr(flusher, "PODS_BEHIND_S", -1.0)
    await observer.flusher.flush()
    assert await _result(database) == [(True, None)]


async def test_a_pod_of_another_namespace_than_its_owners_is_nobodys(
    database: Database, observer: Observer
) -> None:
    """Knowing the UID of a Job is enough to write it. The API server checks no owner reference."""
    meta = {"ownerReferences": [owner("Job", "work")], "namespace": "elsewhere"}
    leech = {**bare_pod("leech", meta=meta, nodeName="node-1"), "status": {"phase": "Running"}}
    observer.router.on_pod(None, leech)
    await observer.flusher.flush()
    assert await _pods(database) == [POD["metadata"]["uid"]]
    assert await _foreign(database) == [leech["metadata"]["uid"]]


@pytest.mark.parametrize("is_known", [True, False], ids=["its row is", "nothing is"])
async def test_a_pod_that_is_seen_before_the_job_of_another_namespace(
    database: Database, database_url: str, is_known: bool
) -> None:
    """Informers begin together: a pod may come before the object that it claims."""
    meta = {"ownerReferences": [owner("Job", "work")], "namespace": "elsewhere"}
    leech = {**bare_pod("leech", meta=meta, nodeName="node-1"), "status": {"phase": "Running"}}
    async with KubeClient(ClusterConfig(server="http://127.0.0.1:9")) as client:
        made = await make_observer(database, client, settings_for(database_url))
        made.workloads.know({UID: "flux-uid"}, {UID: "default"} if is_known else {})
        made.router.on_pod(None, leech)
        made.router.on_job(None, JOB)
        await made.flusher.flush()
        assert await _pods(database) == []
        assert await _foreign(database) == [leech["metadata"]["uid"]]


async def test_a_pod_that_its_batchjob_left_behind_is_foreign(
    database: Database, observer: Observer
) -> None:
    """Deleted with propagation Orphan: the slot is free again, the node's resources are not."""
    observer.router.on_job(JOB, None)
    await observer.flusher.flush()
    assert await _foreign(database) == []
    orphan = _pod_of([])
    observer.router.on_pod(POD, orphan)
    await observer.flusher.flush()
    assert (await _pods(database), await _foreign(database)) == ([], [POD["metadata"]["uid"]])
    observer.router.on_pod(orphan, None)
    await observer.flusher.flush()
    assert await _foreign(database) == []


async def test_a_restart_between_the_end_of_a_batchjob_and_of_its_pods(
    database: Database, observer: Observer
) -> None:
    """The next observer still knows the workload, and writes that its pod has gone."""
    observer.router.on_job(JOB, None)
    await observer.flusher.flush()
    known = await _known(database)
    assert known.flux_uids == {UID: "flux-uid"}
    async with database.begin() as tx:
        await tx.execute("UPDATE fluxjobs SET state = 'Cancelled', ended_at = now()")
    assert (await _known(database)).flux_uids == {}


async def test_a_loop_beside_that_fails_ends_all(
    database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it were only missing, no process would say that the rows are true, and all would wait."""

    async def confirm_wrongly(*_: Any, **__: Any) -> bool:
        raise ZeroDivisionError

    async with LocalCluster(QUIET) as cluster:
        transport = InProcessTransport(cluster)
        async with KubeClient(config_of(cluster), transport=transport) as client:
            await install_definitions(client, "fluxqueue-system")
            settings = settings_for(database_url, lease_duration_s=1.0, lease_renew_s=0.2)
            made = await make_observer(database, client, settings)
            running = asyncio.create_task(made.run())

            await eventually(lambda: made.is_synced, "the first comparison")
            monkeypatch.setattr(term, "confirm", confirm_wrongly)
            with pytest.raises(ZeroDivisionError):
                await asyncio.wait_for(running, WAIT_S)


async def test_the_row_knows_the_version_of_the_fluxjob_that_was_made(
    database_url: str, database: Database
) -> None:
    """Also of one that is made again, so that its first status is put without a look at it."""
    settings = settings_for(database_url)
    async with LocalCluster(QUIET) as cluster:
        transport = InProcessTransport(cluster)
        async with KubeClient(config_of(cluster), transport=transport) as client:
            await install_definitions(client, "fluxqueue-system")
            await client.create(JOBS, "default", gated_job("work"))
            async with observing(database, client, settings) as observer:

                async def known() -> str | None:
                    """UID of the FluxJob, once the row has its UID and version."""
                    rows = await dicts(
                        database,
                        "SELECT flux_uid, published ->> 'flux_version' AS flux_version"
                        " FROM fluxjobs",
                    )
                    for one in (await client.list(FLUXJOBS)).items:
                        uid, version = (one["metadata"][k] for k in ("uid", "resourceVersion"))
                        if rows == [{"flux_uid": uid, "flux_version": version}]:
                            return str(uid)
                    return None

                first = await eventually(known, "the row knows it")
                await client.delete(FLUXJOBS, "default", "work-job")
                (workload,) = observer.workloads.flux_uids
                observer.router.on_fluxjob_deleted(workload)
                assert await eventually(known, "the row knows the next") != first


class SlowClient(KubeClient):
    """FluxJobs take until they may be made."""

    may_make: asyncio.Event
    has_begun: asyncio.Event
    has_made: asyncio.Event

    async def create(self, resource: ApiResource, *given: Any, **named: Any) -> Obj:
        if resource != FLUXJOBS:
            return await super().create(resource, *given, **named)
        self.has_begun.set()
        await self.may_make.wait()
        made = await super().create(resource, *given, **named)
        self.has_made.set()
        return made


async def test_a_group_that_went_while_its_fluxjob_was_made_leaves_none(
    database_url: str, database: Database
) -> None:
    """It has no row yet, and the FluxJob has no owner."""
    notes = {"fluxqueue/group": "mpi 2-2", "fluxqueue/user": "alice"}
    member = bare_pod("a", meta={"annotations": notes}, schedulingGates=[{"name": "fluxqueue"}])
    async with LocalCluster(QUIET) as cluster:
        transport = InProcessTransport(cluster)
        async with SlowClient(config_of(cluster), transport=transport) as client:
            client.may_make, client.has_begun = asyncio.Event(), asyncio.Event()
            client.has_made = asyncio.Event()
            await install_definitions(client, "fluxqueue-system")
            made = await make_observer(database, client, settings_for(database_url))
            running = asyncio.create_task(made.run())
            await client.create(PODS, "default", member)
            await client.has_begun.wait()
            await client.delete(PODS, "default", "a", grace_s=0)

            await eventually(lambda: not made.workloads.pods, "the pod is seen gone")
            client.may_make.set()
            await client.has_made.wait()

            await until(
                lambda: client.list(FLUXJOBS), lambda found: not found.items, "no FluxJob is left"
            )
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_a_group_that_went_while_nobody_looked_leaves_no_fluxjob(
    database_url: str, database: Database
) -> None:
    """With its row, and with a database that knows nothing of it."""
    notes = {"fluxqueue/group": "mpi 2-2", "fluxqueue/user": "alice"}
    gates = [{"name": "fluxqueue"}]
    settings = settings_for(database_url)
    async with LocalCluster(QUIET) as cluster:
        transport = InProcessTransport(cluster)
        async with KubeClient(config_of(cluster), transport=transport) as client:
            await install_definitions(client, "fluxqueue-system")

            async def count(expected: int) -> None:
                await until(
                    lambda: client.list(FLUXJOBS),
                    lambda found: len(found.items) == expected,
                    f"{expected} FluxJobs",
                )

            for is_emptied in (False, True):
                member = bare_pod("a", meta={"annotations": notes}, schedulingGates=gates)
                await client.create(PODS, "default", member)
                for expected in (1, 0):
                    made = await make_observer(database, client, settings)
                    running = asyncio.create_task(made.run())
                    await count(expected)
                    if expected:
                        await eventually(
                            lambda: dicts(database, "SELECT FROM fluxjobs"), "it is in the rows"
                        )
                    running.cancel()
                    await asyncio.gather(running, return_exceptions=True)
                    if expected:
                        await client.delete(PODS, "default", "a", grace_s=0)
                        if is_emptied:
                            await database.execute("DELETE FROM fluxjobs")
