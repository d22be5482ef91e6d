"""One object that a step of the observation cannot take: all others go on, and it is reported."""

from __future__ import annotations

from collections.abc import AsyncIterator, Iterator, Sequence
from typing import Any

import pytest
import pytest_asyncio

from fluxqueue.controller.observing import (
    batch_jobs,
    event_router,
    flusher,
    fluxjob_creator,
    queue_watch,
    read_workload,
    resync_diff,
    rule_watch,
    sight,
    unmanaged_pods,
    watches,
)
from fluxqueue.db.database import Database
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.installation import install_definitions
from fluxqueue.kube.resources import FLUXQUEUES, JOBS, NODES, PODS
from fluxqueue.process import metrics
from fluxqueue.workload.kinds.batch_job import BatchJobKind
from fluxqueue.workload.labels import OWN_NAMESPACE
from localcluster import LocalCluster
from tests.support.clusters import InProcessTransport, config_of
from tests.support.gated_jobs import job
from tests.support.observers import observing
from tests.support.poison import NAMES, Poison
from tests.support.rows import settings_for
from tests.support.sql import dicts
from tests.support.waiting import eventually, until
from tests.support.workers import QUIET
from tests.support.workloads import bare_pod

Obj = dict[str, Any]
GOOD = ("good-a", "good-b")

STEPS: dict[str, tuple[Any, ...]] = {
    "a Job is reduced": (batch_jobs, "trim_job"),
    "a pod is reduced": (watches, "trim_pod"),
    "a queue is reduced": (rule_watch, "trim_spec"),
    "a queue is read": (queue_watch, "read_rules"),
    "a node is compared": (event_router, "node_fact"),
    "a node is read": (watches, "node_fact"),
    "a unmanaged_pods pod is read": (unmanaged_pods, "foreign_pod"),
    "a Job is compared": (event_router, "is_news"),
    "a Job is followed": (read_workload, "see_progress"),
    "what a Job asks for is read": (BatchJobKind, "to_request"),
    "what a Job wishes is read": (BatchJobKind, "wishes"),
    "the priority of a Job is read": (BatchJobKind, "priority"),
    "whether a Job is taken in": (BatchJobKind, "why_not"),
    "how a Job ended": (BatchJobKind, "progress"),
    "a Job is mended": (read_workload, "mend", BatchJobKind, "to_request"),
    "a FluxJob is built": (fluxjob_creator, "build"),
    "a FluxJob is listed": (sight, "publication"),
    "a Job is judged": (resync_diff, "judge"),
    "its pods are placed": (sight.InSight, "placed_pods"),
    "what it asked before": (read_workload, "said_by"),
}
"""Each step that looks at one object by itself, and where it stands."""


@pytest_asyncio.fixture
async def client() -> AsyncIterator[KubeClient]:
    """Over an API server that only stores."""
    async with LocalCluster(QUIET) as cluster:
        transport = InProcessTransport(cluster)
        async with KubeClient(config_of(cluster), transport=transport) as opened:
            await install_definitions(opened, OWN_NAMESPACE)
            yield opened


def batched(flat: Sequence[Any]) -> Iterator[tuple[Any, str]]:
    """Pairs of a place and the name of a step in it."""
    return zip(flat[::2], flat[1::2], strict=True)


async def make(client: KubeClient, name: str) -> None:
    """A Job, a node, a queue, and an unmanaged pod, all of one name."""
    status = {"allocatable": {"cpu": "4", "pods": "10"}}
    await client.create(NODES, None, {"metadata": {"name": name}, "status": status})
    await client.patch(NODES, None, name, {"status": status}, subresource="status")
    named = {"apiVersion": FLUXQUEUES.api_version, "kind": FLUXQUEUES.kind}
    queue = {**named, "metadata": {"name": name}, "spec": {"priority": 1}}
    await client.create(FLUXQUEUES, None, queue)
    pod = bare_pod(name, nodeName=GOOD[0])
    del pod["metadata"]["uid"]
    await client.create(PODS, "default", pod)
    await client.create(JOBS, "default", job(name))


async def written(database: Database) -> dict[str, set[str]]:
    """What of each sort stands in the rows, by name."""
    found = {
        "job": "SELECT workload_name AS name FROM fluxjobs",
        "node": "SELECT name FROM nodes",
        "queue": "SELECT name FROM fluxqueues WHERE uid IS NOT NULL",
        "unmanaged_pods": "SELECT name FROM foreign_usage",
    }
    return {
        sort: {row["name"] for row in await dicts(database, sql)} for sort, sql in found.items()
    }


async def told(database: Database, client: KubeClient) -> set[str]:
    """Names that show that something is wrong with them."""
    rows = await dicts(
        database,
        "SELECT name FROM quarantine UNION SELECT name FROM fluxqueues WHERE fault IS NOT NULL",
    )
    events = await client.request("GET", "/api/v1/events")
    warned = {one["involvedObject"]["name"] for one in events["items"] if one["type"] == "Warning"}
    return {str(row["name"]).rpartition("/")[2] for row in rows} | warned


@pytest.mark.cases_long("the other cases are variations of the first")
@pytest.mark.parametrize("step", STEPS)
async def test_all_others_go_on(
    database: Database, client: KubeClient, monkeypatch: pytest.MonkeyPatch, step: str
) -> None:
    """Those that were there before the controller, and those that come later. Each poisoned one is
    reported, and is used as soon as it can be."""
    monkeypatch.setattr(flusher, "APART_S", 0.2)
    poison = Poison()
    for where, attribute in batched(STEPS[step]):
        poison.put_into(monkeypatch, where, attribute)
    for name in (GOOD[0], *NAMES):
        await make(client, name)
    before = _counted()
    async with observing(database, client, settings_for(database_url_of(database))) as observer:
        await make(client, GOOD[1])

        await until(
            lambda: written(database),
            lambda found: all(set(GOOD) <= names for names in found.values()),
            "all that is good",
        )
        for name in NAMES:
            await client.patch(JOBS, "default", name, {"metadata": {"annotations": {"x": "1"}}})
            await client.patch(NODES, None, name, {"metadata": {"annotations": {"x": "1"}}})
        await observer.resync.resync()
        await client.create(JOBS, "default", job("later"))

        async def is_later_written() -> bool:
            return "later" in (await written(database))["job"]

        await eventually(is_later_written, "what came after the resync_diff")
        assert poison.met, "the step was never asked"
        if step not in HARMLESS:
            await until(
                lambda: told(database, client),
                lambda found: poison.met <= found,
                "the poisoned ones are told",
            )
            assert _counted() > before
        poison.mend()
        for name in NAMES:
            await client.patch(JOBS, "default", name, {"metadata": {"annotations": {"x": "2"}}})
            await client.patch(NODES, None, name, {"metadata": {"annotations": {"x": "2"}}})
            await client.patch(PODS, "default", name, {"metadata": {"annotations": {"x": "2"}}})
            await client.patch(FLUXQUEUES, None, name, {"spec": {"priority": 2}})
        await observer.resync.resync()

        async def is_whole() -> bool:
            everything = {*GOOD, *NAMES}
            is_there = all(everything <= names for names in (await written(database)).values())
            return is_there and not await dicts(database, "SELECT FROM quarantine")

        await eventually(is_whole, "what was mended is used")


HARMLESS = {
    "a Job is compared",
    "a node is compared",
    "a FluxJob is listed",
    "its pods are placed",
    "what it asked before",
}
"""Steps that may fail at no cost: what they would have spared is done."""


def _counted() -> float:
    counters = (metrics.OBJECTS_SET_ASIDE, metrics.UNWRITTEN, metrics.RESYNC_TROUBLES)
    return sum(
        sample.value
        for counter in counters
        for family in counter.collect()
        for sample in family.samples
        if sample.name.endswith("_total")
    )


def database_url_of(database: Database) -> str:
    """The URL of a database, for the settings of what works on it."""
    return database.engine.url.render_as_string(hide_password=False)


async def test_an_unreadable_job_that_runs_is_followed_to_its_end(
    database: Database, client: KubeClient, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What it asks for cannot be read any more. That it ended is seen."""
    await client.create(JOBS, "default", job("poison-key"))
    async with observing(database, client, settings_for(database_url_of(database))):

        async def row() -> Obj:
            found = await dicts(
                database, "SELECT result, observed -> 'faults' AS faults FROM fluxjobs"
            )
            return found[0] if found else {}

        await eventually(row, "its row")
        poison = Poison()
        for attribute in ("to_request", "wishes"):
            poison.put_into(monkeypatch, BatchJobKind, attribute)
        await client.patch(JOBS, "default", "poison-key", {"metadata": {"labels": {"x": "1"}}})

        async def is_told() -> bool:
            return bool((await row())["faults"])

        await eventually(is_told, "it cannot be read")
        at = "2030-01-01T00:00:00Z"
        status = {
            "conditions": [
                {"type": one, "status": "True"} for one in ("SuccessCriteriaMet", "Complete")
            ],
            "startTime": at,
            "completionTime": at,
        }
        await client.patch(JOBS, "default", "poison-key", {"status": status}, subresource="status")

        async def has_ended() -> bool:
            return (await row())["result"] == "Completed"

        await eventually(has_ended, "its end is read_workload")
