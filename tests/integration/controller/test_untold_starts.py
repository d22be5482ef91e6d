"""Starts that FluxJobs show later: what stands in pod templates fills an empty database."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.db.database import Database
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.installation import install_definitions
from fluxqueue.kube.resources import EVENTS, FLUXJOBS, JOBS
from fluxqueue.process.pacing import RUSH
from fluxqueue.workload.labels import OWN_NAMESPACE
from localcluster import LocalCluster, LocalClusterConfig, NodeShape
from tests.support.clusters import config_of
from tests.support.gated_jobs import job
from tests.support.observers import observing
from tests.support.postgres import PostgresServer
from tests.support.rows import settings_for
from tests.support.sql import dicts
from tests.support.waiting import eventually
from tests.support.workers import is_released, worker

# No controller makes pods: between a start and its first pod the template is all that there is.
STILL = LocalClusterConfig(
    nodes=[NodeShape(f"n{n}", cpu="16") for n in range(3)],
    run_controllers=False,
    run_scheduler=False,
)
DURATION_S = 600


def _job(name: str, mode: str) -> dict[str, Any]:
    """A Job with pods that all fit one node. Those of an Indexed one are on two nodes."""
    body = job(name)
    body["metadata"]["annotations"] = {"fluxqueue/duration": f"{DURATION_S}s"}
    if mode == "Indexed":
        body["metadata"]["annotations"]["fluxqueue/spread"] = "node"
    body["spec"] |= {"parallelism": 2, "completions": 2, "completionMode": mode}
    return body


async def _rows(database: Database) -> list[dict[str, Any]]:
    async with database.begin() as tx:
        rows = await dicts(
            tx,
            "SELECT f.workload_name, f.jobid, f.state, f.queue, f.accepted_by, a.until, s.number,"
            " s.node, s.resources FROM fluxjobs f JOIN allocations a USING (uid)"
            " JOIN allocation_slots s ON s.allocation_id = a.id WHERE a.is_live"
            " ORDER BY f.workload_name, s.number",
        )
    return [dict(row) for row in rows]


async def _owing(database: Database) -> list[str]:
    """Its status is pending, and will be written at some time though nothing more happens."""
    async with database.begin() as tx:
        rows = await dicts(
            tx,
            "SELECT workload_name FROM fluxjobs WHERE status_due_at IS NOT NULL"
            " ORDER BY workload_name",
        )
    return [row["workload_name"] for row in rows]


async def _told(client: KubeClient) -> dict[str, Any]:
    """What FluxJobs say that they were given, by the name of the workload."""
    items = (await client.list(FLUXJOBS)).items
    return {one["spec"]["workload"]["name"]: (one.get("status") or {}).get("R") for one in items}


async def _with_event(client: KubeClient) -> list[str]:
    """The Jobs with an Event that reports their start."""
    items = (await client.list(EVENTS)).items
    return sorted(one["involvedObject"]["name"] for one in items if one["reason"] == "Started")


async def _run(
    url: str,
    cluster: LocalCluster,
    client: KubeClient,
    names: list[str],
    mode: str = "NonIndexed",
) -> None:
    """Have Jobs submitted at once, and started. Then all of it stops."""
    settings = settings_for(url, status_interval_s=60)
    async with (
        Database(settings, role="test") as database,
        observing(database, client, settings),
    ):
        async with database.begin() as tx:  # numbers that no job would be given by chance
            await tx.execute("SELECT setval(pg_get_serial_sequence('fluxjobs', 'jobid'), 700)")
        for name in names:
            await client.create(JOBS, "default", _job(name, mode))

        async def are_seen() -> bool:
            async with database.begin() as tx:
                rows = await dicts(tx, "SELECT FROM fluxjobs WHERE flux_uid IS NOT NULL")
            return len(rows) == len(names)

        await eventually(are_seen, "all FluxJobs")
        async with worker(url, cluster, status_interval_s=60, key=b"k" * 32):

            async def are_released() -> bool:
                async with database.begin() as tx:
                    owing = await dicts(tx, "SELECT FROM fluxjobs WHERE release_at IS NOT NULL")
                return not owing and all([await is_released(client, name) for name in names])

            await eventually(are_released, "all are let go, and that is written down")


@pytest.mark.cases_long("the other completion mode")
@pytest.mark.parametrize("mode", ["NonIndexed", "Indexed"])
async def test_of_many_starts_the_template_tells(
    postgres: PostgresServer, database_url: str, mode: str
) -> None:
    """Number, node, amounts and planned end are as they were, whatever showed them."""
    names = [f"j{n}" for n in range(RUSH + 2)]
    other_url = postgres.create()
    async with LocalCluster(STILL) as cluster, KubeClient(config_of(cluster)) as client:
        await install_definitions(client, OWN_NAMESPACE)
        await _run(database_url, cluster, client, names, mode)
        told = dict(sorted((await _told(client)).items()))
        assert None in told.values(), "not all were told"
        assert await _with_event(client) == [name for name, r in told.items() if r is not None]
        settings = settings_for(other_url)
        async with (
            Database(settings_for(database_url), role="test") as database,
            Database(settings, role="test") as other,
        ):
            before = await _rows(database)
            assert await _owing(database) == [name for name, r in told.items() if r is None]
            assert len(before) == 2 * len(names)
            by_name = {(one["workload_name"], one["node"]) for one in before}
            assert len(by_name) == len(names) * (2 if mode == "Indexed" else 1)
            async with observing(other, client, settings):
                after = await _rows(other)
        for old, new in zip(before, after, strict=True):
            assert abs(old.pop("until") - new.pop("until")) < DURATION_S / 10
        assert after == before
    postgres.drop(other_url)


async def test_few_starts_are_told_before_they_are_let_go(database_url: str) -> None:
    async with LocalCluster(STILL) as cluster, KubeClient(config_of(cluster)) as client:
        await install_definitions(client, OWN_NAMESPACE)
        names = [f"j{n}" for n in range(RUSH)]
        await _run(database_url, cluster, client, names)
        assert None not in (await _told(client)).values()
        assert await _with_event(client) == sorted(names)
