"""The observer between events and rows: what happens while it writes is not lost."""

from __future__ import annotations

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
from tests.support.rows import settings_for
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
