"""A resync in pages: an empty database is filled whole, in order, and while writing goes on."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.controller.observing import flusher, resync_diff
from fluxqueue.db.database import Database
from fluxqueue.db.leadership import is_observed
from fluxqueue.db.store import rebuild
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.installation import install_definitions
from fluxqueue.kube.resources import EVENTS, FLUXJOBS, JOBS
from fluxqueue.workload.labels import OWN_NAMESPACE
from localcluster import LocalCluster
from tests.support.clusters import config_of
from tests.support.gated_jobs import job
from tests.support.observers import observing
from tests.support.postgres import PostgresServer
from tests.support.rows import settings_for
from tests.support.sql import dicts
from tests.support.waiting import eventually, until
from tests.support.workers import QUIET

NAMES = ["e", "a", "d", "b", "c"]
NOT_WRITTEN = "reason=NotWritten"


async def _rows(database: Database) -> list[str]:
    async with database.begin() as tx:
        rows = await dicts(tx, "SELECT workload_name FROM fluxjobs ORDER BY jobid")
    return [row["workload_name"] for row in rows]


async def _publish(database: Database, client: KubeClient) -> None:
    """What a worker would have done."""
    async with database.begin() as tx:
        rows = await dicts(tx, "SELECT namespace, name, state, jobid, version FROM fluxjobs")
    for row in rows:
        status = {key: row[key] for key in ("state", "jobid", "version")}
        where = (FLUXJOBS, row["namespace"], row["name"])
        await client.patch(*where, {"status": status}, subresource="status")


async def test_an_empty_database_is_filled_page_by_page(
    postgres: PostgresServer, database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In the order of submission. No process may act on it before the last page is written."""
    monkeypatch.setattr(resync_diff, "PAGE", 2)
    monkeypatch.setattr(resync_diff, "WRITE_PAGE", 2)
    other_url = postgres.create()
    seen_early: list[bool] = []
    write = resync_diff.write

    async def write_and_look(tx: Any, *args: Any, **more: Any) -> Any:
        seen_early.append(await is_observed(tx))
        return await write(tx, *args, **more)

    async with (
        LocalCluster(QUIET) as cluster,
        KubeClient(config_of(cluster)) as client,
        Database(settings_for(database_url), role="test") as database,
        Database(settings_for(other_url), role="test") as other,
    ):
        await install_definitions(client, OWN_NAMESPACE)
        async with observing(database, client, settings_for(database_url)):
            for name in NAMES:
                await client.create(JOBS, "default", job(name))

            await until(lambda: _rows(database), lambda found: len(found) == len(NAMES), "all rows")
            assert await _rows(database) == NAMES
            assert len((await client.list(FLUXJOBS)).items) == len(NAMES)
        monkeypatch.setattr(resync_diff, "write", write_and_look)
        async with observing(other, client, settings_for(other_url)) as watching:
            assert await _rows(other) == NAMES
            assert seen_early == [False, False, False]
            async with other.begin() as tx:
                assert await is_observed(tx)
            seen_early.clear()
            await _publish(other, client)
            await watching.resync.compare()
            assert seen_early == [], "in health nothing is written"
    postgres.drop(other_url)


async def test_one_that_cannot_be_written_holds_nobody_up(
    database_url: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """In a batch with others, and in a resync. It is reported, and written when it can be."""
    monkeypatch.setattr(flusher, "APART_S", 0.2)
    is_broken = True

    def failing(save: Any) -> Any:
        async def save_all(tx: Any, seen: Any, *args: Any, **more: Any) -> Any:
            if is_broken and any(one.workload_name == "d" for one in seen):
                await tx.execute("SELECT CAST('{\"d\": \"\\u0000\"}' AS jsonb) ->> 'd'")
            return await save(tx, seen, *args, **more)

        return save_all

    for module in (flusher, resync_diff, rebuild):
        monkeypatch.setattr(module, "save_workloads", failing(module.save_workloads))
    async with (
        LocalCluster(QUIET) as cluster,
        KubeClient(config_of(cluster)) as client,
        Database(settings_for(database_url), role="test") as database,
    ):
        await install_definitions(client, OWN_NAMESPACE)
        for name in NAMES:
            await client.create(JOBS, "default", job(name))
        async with observing(database, client, settings_for(database_url)) as watching:
            others = [name for name in NAMES if name != "d"]

            await until(
                lambda: _rows(database),
                lambda found: sorted(found) == sorted(others),
                "all other rows",
            )
            await watching.resync.compare()
            (told,) = (await client.list(EVENTS, "default", field_selector=NOT_WRITTEN)).items
            assert told["involvedObject"]["name"] == "d"
            assert "DataError" in told["message"]
            is_broken = False

            async def is_whole() -> bool:
                return sorted(await _rows(database)) == sorted(NAMES)

            await eventually(is_whole, "the row that could not be written")
