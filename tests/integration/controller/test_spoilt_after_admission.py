"""A bad value after admission keeps the last good value of that key, wherever it is remembered."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.db.database import Database
from fluxqueue.kube.client import KubeClient, PatchKind
from fluxqueue.kube.installation import install_definitions
from fluxqueue.kube.resources import FLUXJOBS, JOBS
from fluxqueue.workload.labels import OWN_NAMESPACE
from localcluster import LocalCluster
from tests.support.clusters import InProcessTransport, config_of
from tests.support.gated_jobs import job
from tests.support.observers import observing
from tests.support.postgres import PostgresServer
from tests.support.rows import settings_for
from tests.support.sql import dicts
from tests.support.waiting import eventually, until
from tests.support.workers import worker

Row = dict[str, Any]
PREFIX = "fluxqueue/"


@pytest_asyncio.fixture
async def client(cluster: LocalCluster) -> AsyncIterator[KubeClient]:
    """With our definitions installed."""
    transport = InProcessTransport(cluster)
    async with KubeClient(config_of(cluster), transport=transport) as opened:
        await install_definitions(opened, OWN_NAMESPACE)
        yield opened


async def submit(client: KubeClient, name: str, **said: str) -> None:
    """A Job as admission lets it pass, with annotations."""
    made = job(name)
    made["metadata"]["annotations"] = _full(said)
    await client.create(JOBS, "default", made)


async def edit(client: KubeClient, name: str, **said: str | None) -> None:
    """What ``kubectl annotate --overwrite`` does."""
    await client.patch(JOBS, "default", name, {"metadata": {"annotations": _full(said)}})


def _full(said: Mapping[str, str | None]) -> dict[str, str | None]:
    return {f"{PREFIX}{key.replace('_', '-')}": value for key, value in said.items()}


async def row_is(database: Database, what: str, **wanted: Any) -> Row:
    """The one row, once it is so."""

    async def look() -> Row | None:
        rows = await dicts(
            database,
            "SELECT state, held_by, queue, duration_s, observed -> 'said' AS said,"
            " coalesce((observed ->> 'priority')::int, 0) AS asked_priority,"
            " coalesce(observed -> 'depends_on', '[]') AS depends_on,"
            " to_char(begin_at AT TIME ZONE 'UTC', 'YYYY') AS year, request, size,"
            " ARRAY(SELECT f ->> 'where' FROM jsonb_array_elements(observed -> 'faults') f)"
            " AS faults"
            " FROM fluxjobs",
        )
        is_so = len(rows) == 1 and all(rows[0][key] == value for key, value in wanted.items())
        return rows[0] if is_so else None

    found = await eventually(look, f"{what}: {wanted}", timeout_s=60.0)
    assert found is not None
    return found


async def test_a_slip_and_then_a_hold(
    database: Database, database_url: str, client: KubeClient
) -> None:
    """The hold is applied, the priority stays, and the slip is reported until it is mended."""
    await submit(client, "work", priority="5", duration="10m")
    async with observing(database, client, settings_for(database_url)):
        await row_is(database, "submitted", asked_priority=5, faults=[])
        await edit(client, "work", priority="a lot")
        await row_is(database, "a slip", asked_priority=5, faults=["fluxqueue/priority"])
        await edit(client, "work", hold="true", duration="20m")
        await row_is(database, "held", state="Held", held_by="author", duration_s=1200)
        await edit(client, "work", hold=None, priority="7")
        await row_is(database, "mended", state="Pending", asked_priority=7, faults=[])


async def test_the_condition_and_the_event(
    database: Database, database_url: str, client: KubeClient, cluster: LocalCluster
) -> None:
    """On the FluxJob and on the Job, with key, value and way out, once. Gone when it is mended."""
    await submit(client, "work", within="zone", begin_time="2040-01-01T00:00:00Z")

    async def condition() -> dict[str, Any] | None:
        found = (await client.get(FLUXJOBS, "default", "work-job")).get("status") or {}
        conditions = found.get("conditions") or ()
        return next((one for one in conditions if one["type"] == "InputValid"), None)

    async def events() -> list[str]:
        path = "/api/v1/namespaces/default/events"
        listed = await client.request("GET", path)
        told = [one for one in listed["items"] if one["reason"] == "InvalidAnnotation"]
        assert all(one["involvedObject"]["name"] == "work" for one in told)
        return [one["message"] for one in told]

    async with (
        observing(database, client, settings_for(database_url)),
        worker(database_url, cluster),
    ):
        await row_is(database, "submitted", year="2040")
        await edit(client, "work", begin_time="soon")
        told = await eventually(condition, "the condition")
        assert told is not None
        assert (told["status"], told["reason"]) == ("False", "InvalidAnnotation")
        for part in ("fluxqueue/begin-time", "soon", "2030-01-31T08:00:00Z", "2040"):
            assert part in told["message"]
        assert len(await eventually(events, "the event")) == 1
        shown = (await client.get(FLUXJOBS, "default", "work-job"))["status"]["lastGood"]
        assert shown["fluxqueue/begin-time"] == "2040-01-01T00:00:00Z"
        await edit(client, "work", hold="true")  # something else changes: no news
        await row_is(database, "held", state="Held", faults=["fluxqueue/begin-time"])
        await edit(client, "work", begin_time="2041-01-01T00:00:00Z")

        await until(condition, lambda found: found is None, "the condition goes")
        assert len(await events()) == 1


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize("where", ["a restart", "an empty database", "both while nothing watched"])
async def test_the_last_good_value_outlives_the_process(
    database: Database,
    database_url: str,
    postgres: PostgresServer,
    client: KubeClient,
    cluster: LocalCluster,
    where: str,
) -> None:
    """The row knows it. Of a lost database the FluxJob does."""
    await submit(client, "work", priority="9", depends_on="afterok:first", duration="11m")
    settings = settings_for(database_url)
    async with observing(database, client, settings), worker(database_url, cluster):
        await row_is(database, "submitted", asked_priority=9)

        async def status() -> dict[str, Any]:
            found = await client.get(FLUXJOBS, "default", "work-job")
            return found.get("status") or {}

        async def is_numbered() -> bool:
            return "jobid" in await status()

        await eventually(is_numbered, "the worker has told of it")
        if where != "both while nothing watched":
            await edit(client, "work", priority="urgently", depends_on="after lunch")
            await row_is(database, "spoilt", faults=["fluxqueue/priority", "fluxqueue/depends-on"])

            await until(status, lambda found: "lastGood" in found, "the FluxJob tells it")
    if where == "both while nothing watched":
        await edit(client, "work", priority="urgently", depends_on="after lunch")
    other_url = database_url if where == "a restart" else postgres.create()
    async with (
        Database(settings_for(other_url), role="test") as other,
        observing(other, client, settings_for(other_url)),
    ):
        edge = [{"type": "afterok", "job": "first"}]
        faults = ["fluxqueue/priority", "fluxqueue/depends-on"]
        await row_is(other, "known again", asked_priority=9, depends_on=edge, faults=faults)
        await edit(client, "work", duration="22m")
        await row_is(other, "others are applied", duration_s=1320, asked_priority=9)


async def test_a_template_that_cannot_be_read_keeps_its_last_request(
    database: Database, database_url: str, postgres: PostgresServer, client: KubeClient
) -> None:
    """Here and after a restart, with the row and without. A hold is applied all the while."""
    await submit(client, "work", duration="5m")
    settings = settings_for(database_url)
    async with observing(database, client, settings):
        good = await row_is(database, "submitted", duration_s=300)
        path = "/spec/template/spec/affinity"
        # The API server takes as many as fit, a request no more than may be decided.
        expression = {"key": "zone", "operator": "In", "values": ["a", "b"]}
        term = {"matchExpressions": [expression] * 12_000}
        required = {"nodeSelectorTerms": [term]}
        bad = {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}
        patch: Any = [{"op": "add", "path": path, "value": bad}]
        await client.patch(JOBS, "default", "work", patch, kind=PatchKind.JSON)
        await edit(client, "work", hold="true")
        spoilt = await row_is(database, "held", state="Held")
        assert (spoilt["request"], len(spoilt["faults"])) == (good["request"], 1)
    other_url = postgres.create()
    for url in (database_url, other_url):
        async with (
            Database(settings_for(url), role="test") as other,
            observing(other, client, settings_for(url)),
        ):
            await edit(client, "work", hold=None)
            again = await row_is(other, "released", state="Pending")
            assert (again["request"], len(again["faults"])) == (good["request"], 1)
            await edit(client, "work", hold="true")
            await row_is(other, "held again", state="Held")


async def test_spoilt_before_its_fluxjob_is_made(
    database: Database, database_url: str, client: KubeClient
) -> None:
    """No value was ever good: it is queued with the default, and told."""
    await submit(client, "work", priority="5", duration="1h")
    await edit(client, "work", priority="max", duration="2h")
    async with observing(database, client, settings_for(database_url)):
        await row_is(
            database, "queued", asked_priority=0, duration_s=7200, faults=["fluxqueue/priority"]
        )


@pytest.mark.parametrize(
    "spec",
    [{"activeDeadlineSeconds": 2**40}, {"activeDeadlineSeconds": 2**63 - 1}],
)
async def test_numbers_that_no_row_holds(
    database: Database, database_url: str, client: KubeClient, spec: Mapping[str, int]
) -> None:
    """They count as the largest that one does."""
    made = job("long")
    made["spec"] |= spec
    await client.create(JOBS, "default", made)
    async with observing(database, client, settings_for(database_url)):
        await row_is(database, "queued", duration_s=2**31 - 1, faults=[])


@pytest.mark.cases_long("other times")
@pytest.mark.parametrize("text", ["0001-01-01T00:00:00Z", "1969-12-31T23:59:59Z", "+9999999d"])
async def test_begin_times_that_no_row_holds(
    database: Database, database_url: str, client: KubeClient, text: str
) -> None:
    """Set after admission: it starts at any time, and that is reported."""
    await submit(client, "early")
    async with observing(database, client, settings_for(database_url)):
        await row_is(database, "queued", faults=[])
        await edit(client, "early", begin_time=text)
        await row_is(database, "told", faults=["fluxqueue/begin-time"], year=None)
