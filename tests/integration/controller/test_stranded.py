"""What waits for us although its row has ended, or is missing, is queued anew by a resync."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.checking import check
from fluxqueue.clock import SystemClock
from fluxqueue.db.database import Database
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.installation import install_definitions
from fluxqueue.kube.resources import FLUXJOBS, JOBS, PODS
from fluxqueue.workload.labels import GATE, MANAGED, OWN_NAMESPACE
from localcluster import LocalCluster
from tests.support.clusters import InProcessTransport, config_of
from tests.support.gated_jobs import job
from tests.support.observers import observing
from tests.support.rows import settings_for
from tests.support.sql import dicts
from tests.support.waiting import eventually, until
from tests.support.workers import QUIET, worker

FINDING = "waiting workload whose row has ended"

WAITING = {"Pending", "Unsatisfiable"}
"""There are no nodes."""

_END = (
    "UPDATE fluxjobs SET state = '{state}', ended_at = now(), reason = 'deleted while it waited',"
    " is_gone = {is_gone}, is_deleting = true WHERE workload_name = '{name}'"
)


async def _rows(database: Database) -> dict[str, Any]:
    rows = await dicts(database, "SELECT workload_name, state, jobid, is_gone FROM fluxjobs")
    return {row["workload_name"]: row for row in rows}


def _pod(name: str) -> dict[str, Any]:
    spec = {
        "schedulingGates": [{"name": GATE}],
        "containers": [{"name": "main", "image": "none"}],
    }
    return {"metadata": {"name": name, "labels": {MANAGED: "true"}}, "spec": spec}


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize("state", ["Cancelled", "Completed", "Failed"])
@pytest.mark.parametrize("is_gone", [True, False])
async def test_a_row_that_has_ended_is_made_again(
    database_url: str, state: str, is_gone: bool
) -> None:
    """With its number. After a mix-up of databases. Those that did end stay ended."""
    settings = settings_for(database_url)
    async with (
        LocalCluster(QUIET) as cluster,
        KubeClient(config_of(cluster), transport=InProcessTransport(cluster)) as client,
        Database(settings, role="test") as database,
        worker(database_url, cluster),
    ):
        await install_definitions(client, OWN_NAMESPACE)
        async with observing(database, client, settings):
            for name in ("stranded", "behind", "cancelled"):
                await client.create(JOBS, "default", job(name))
            await client.create(PODS, "default", _pod("solo"))

            await until(lambda: _rows(database), lambda found: len(found) == 4, "all rows")
            before = await _rows(database)

            async def are_shown() -> bool:
                listed = (await client.list(FLUXJOBS)).items
                return all((one.get("status") or {}).get("jobid") for one in listed)

            await eventually(are_shown, "all statuses")
        for name in ("stranded", "solo"):
            await database.execute(_END.format(state=state, is_gone=is_gone, name=name))
        ended = _END.format(state="Cancelled", is_gone=False, name="cancelled")
        await database.execute(ended)
        await database.execute(
            "UPDATE fluxjobs SET cancel_by = 'alice' WHERE workload_name = 'cancelled'"
        )
        found = await check(database, client, SystemClock(), patience_s=0)
        assert {one.subject for one in found if one.invariant == FINDING} == {
            "Job default/stranded",
            "Pod default/solo",
        }
        async with observing(database, client, settings):

            async def are_queued() -> bool:
                rows = await _rows(database)
                return all(rows[name]["state"] in WAITING for name in ("stranded", "solo"))

            await eventually(are_queued, "they wait again")
            after = await _rows(database)
            assert {name: row["jobid"] for name, row in after.items()} == {
                name: row["jobid"] for name, row in before.items()
            }
            assert after["cancelled"]["state"] == "Cancelled"
            assert after["behind"]["state"] in WAITING

            async def is_shown() -> bool:
                shown = (await client.get(FLUXJOBS, "default", "stranded-job"))["status"]
                return shown["state"] in WAITING

            await eventually(is_shown, "its FluxJob tells it")
        noted = await dicts(
            database, "SELECT count(*) AS n FROM history WHERE event = 'QueuedAnew'"
        )
        assert noted == [{"n": 2}]


async def test_a_job_that_has_ended_stays_ended(database_url: str) -> None:
    """Suspended with our gate, it may have failed by its deadline: it is not started again."""
    settings = settings_for(database_url)
    async with (
        LocalCluster(QUIET) as cluster,
        KubeClient(config_of(cluster), transport=InProcessTransport(cluster)) as client,
        Database(settings, role="test") as database,
    ):
        await install_definitions(client, OWN_NAMESPACE)
        await client.create(JOBS, "default", job("over"))
        async with observing(database, client, settings) as observer:
            await until(lambda: _rows(database), lambda found: len(found) == 1, "its row")
            conditions = [{"type": one, "status": "True"} for one in ("FailureTarget", "Failed")]
            status = {"conditions": conditions, "startTime": "2030-01-01T00:00:00Z"}
            patch: Any = [{"op": "add", "path": "/status", "value": status}]
            await client.patch(
                JOBS, "default", "over", patch, kind=PatchKind.JSON, subresource="status"
            )
            await database.execute(_END.format(state="Failed", is_gone=False, name="over"))
            await observer.resync.resync()
            assert (await _rows(database))["over"]["state"] == "Failed"
        assert not [
            one
            for one in await check(database, client, SystemClock(), patience_s=0)
            if one.invariant == FINDING
        ]
