"""The observer between events and rows: what happens while it writes is not lost."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.clock import SystemClock
from fluxqueue.controller import observer as module
from fluxqueue.controller.observer import ROLE, Observer
from fluxqueue.db.database import Database
from fluxqueue.db.leadership import seize
from fluxqueue.db.life.observations import save_workloads
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import ClusterConfig
from fluxqueue.kube.install import install_definitions
from localcluster import LocalCluster
from tests.support.clusters import InProcessTransport, config_of
from tests.support.rows import settings_for
from tests.support.waiting import WAIT_S, eventually
from tests.support.workers import QUIET
from tests.support.workloads import bare_pod, batch_job, owner

Obj = dict[str, Any]
UID = "uid-work"


@pytest_asyncio.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """One process's access to a database of the test's own."""
    async with Database(settings_for(database_url), role="test") as opened:
        yield opened


@pytest_asyncio.fixture
async def observer(database: Database, database_url: str) -> AsyncIterator[Observer]:
    """An observer that leads, and whose events come from the test; it has seen a BatchJob run."""
    async with KubeClient(ClusterConfig(server="http://127.0.0.1:9")) as client:
        term = await seize(database, ROLE, "test")
        made = Observer(database, client, settings_for(database_url), SystemClock(), term)
        made._flux_uids[UID] = "flux-uid"  # as after a restart: no FluxJob has to be made
        made._on_job(None, JOB)
        made._on_pod(None, POD)
        await made._flush()
        yield made


def _pod_of(owners: list[Obj]) -> Obj:
    meta = {"ownerReferences": owners, "resourceVersion": "5"}
    pod = bare_pod("work-0", meta=meta, nodeName="node-1")
    return {**pod, "status": {"phase": "Running"}}


JOB = batch_job("work")
POD = _pod_of([owner("Job", "work")])


async def _pods(database: Database) -> list[str]:
    async with database.begin() as tx:
        return [row["uid"] for row in await tx.fetch("SELECT uid FROM pods ORDER BY uid")]


async def _foreign(database: Database) -> list[str]:
    async with database.begin() as tx:
        return [row["pod_uid"] for row in await tx.fetch("SELECT pod_uid FROM foreign_usage")]


async def test_a_pod_that_goes_while_its_batchjob_is_written_off(
    database: Database, observer: Observer, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its slot would be held for ever if the observer forgot the workload with that write."""
    assert await _pods(database) == [POD["metadata"]["uid"]]
    observer._on_job(JOB, None)

    async def save_while_the_pod_goes(*given: Any, **named: Any) -> None:
        await save_workloads(*given, **named)
        observer._on_pod(POD, None)

    monkeypatch.setattr(module, "save_workloads", save_while_the_pod_goes)
    await observer._flush()
    assert await _pods(database) == [POD["metadata"]["uid"]], "written as it was before"
    monkeypatch.setattr(module, "save_workloads", save_workloads)
    await observer._flush()
    assert await _pods(database) == []


async def test_a_pod_that_its_batchjob_left_behind_is_foreign(
    database: Database, observer: Observer
) -> None:
    """Deleted with propagation Orphan: the slot is free again, the node's resources are not."""
    observer._on_job(JOB, None)
    await observer._flush()
    assert await _foreign(database) == []
    orphan = _pod_of([])
    observer._on_pod(POD, orphan)
    await observer._flush()
    assert (await _pods(database), await _foreign(database)) == ([], [POD["metadata"]["uid"]])
    observer._on_pod(orphan, None)
    await observer._flush()
    assert await _foreign(database) == []


async def test_a_restart_between_the_end_of_a_batchjob_and_of_its_pods(
    database: Database, database_url: str, observer: Observer
) -> None:
    """The next observer still knows the workload, and writes that its pod has gone."""
    observer._on_job(JOB, None)
    await observer._flush()
    known = await observer._read_known()
    assert known.flux_uids == {UID: "flux-uid"}
    async with database.begin() as tx:
        await tx.execute("UPDATE fluxjobs SET state = 'Cancelled', ended_at = now()")
    assert (await observer._read_known()).flux_uids == {}


async def test_a_loop_beside_that_fails_ends_all(
    database_url: str, database: Database, monkeypatch: pytest.MonkeyPatch
) -> None:
    """If it were only missing, nobody would say that the rows are true, and all would wait."""

    async def confirm_wrongly(*_: Any, **__: Any) -> bool:
        raise ZeroDivisionError

    async with LocalCluster(QUIET) as cluster:
        transport = InProcessTransport(cluster)
        async with KubeClient(config_of(cluster), transport=transport) as client:
            await install_definitions(client, "fluxqueue-system")
            settings = settings_for(database_url, lease_duration_s=1.0, lease_renew_s=0.2)
            term = await seize(database, ROLE, "test")
            made = Observer(database, client, settings, SystemClock(), term)
            running = asyncio.create_task(made.run())

            async def is_begun() -> bool:
                return made.is_synced

            await eventually(is_begun, "the first comparison")
            monkeypatch.setattr(module, "confirm", confirm_wrongly)
            with pytest.raises(ZeroDivisionError):
                await asyncio.wait_for(running, WAIT_S)
