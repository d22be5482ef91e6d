"""NodeResourceTopology objects: off without their definition, followed where there is one."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from typing import Any

import pytest

from fluxqueue.clock import SystemClock
from fluxqueue.controller.observer import ROLE, Observer
from fluxqueue.db.database import Database
from fluxqueue.db.leadership import seize
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.install import install_definitions
from fluxqueue.kube.resources import CRDS, NODE_TOPOLOGIES, NODES, Resource
from localcluster import LocalCluster
from tests.support.clusters import config_of
from tests.support.rows import settings_for
from tests.support.waiting import eventually
from tests.support.workers import QUIET

NEW, OLD = NODE_TOPOLOGIES


def definition(*versions: str) -> dict[str, Any]:
    """The definition as the agents install it."""
    schema = {"type": "object", "x-kubernetes-preserve-unknown-fields": True}
    names = {"plural": NEW.plural, "kind": NEW.kind, "singular": "noderesourcetopology"}
    return {
        "metadata": {"name": NEW.key},
        "spec": {
            "group": NEW.group,
            "scope": "Cluster",
            "names": names,
            "versions": [
                {
                    "name": version,
                    "served": True,
                    "storage": not number,
                    "schema": {"openAPIV3Schema": schema},
                }
                for number, version in enumerate(versions)
            ],
        },
    }


def topology(resource: Resource, cores: int) -> dict[str, Any]:
    """Two zones, in the form that both versions have."""
    resources = [{"name": "cpu", "allocatable": str(cores), "available": "0", "capacity": "99"}]
    zones = [{"name": f"node-{n}", "type": "Node", "resources": resources} for n in range(2)]
    policies = ["SingleNUMANodeContainerLevel"]
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    return {**kind, "metadata": {"name": "n1"}, "topologyPolicies": policies, "zones": zones}


@asynccontextmanager
async def observing(database: Database, client: KubeClient, url: str) -> AsyncIterator[Observer]:
    """An observer that has read the cluster once."""
    term = await seize(database, ROLE, "test")
    observer = Observer(database, client, settings_for(url), SystemClock(), term)
    running = asyncio.create_task(observer.run())

    async def is_synced() -> bool:
        assert not running.done(), running
        return observer.is_synced

    await eventually(is_synced, "everything seen")
    yield observer
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)


async def until_zones(database: Database, expected: list[dict[str, int]]) -> None:
    """Wait until the row of the node says so."""

    async def is_so() -> bool:
        rows = await database.fetch("SELECT fact -> 'numa' AS numa FROM nodes WHERE name = 'n1'")
        return [row["numa"] or [] for row in rows] == [expected]

    await eventually(is_so, f"zones {expected}")


@pytest.mark.parametrize("versions", [("v1alpha2", "v1alpha1"), ("v1alpha1",)])
async def test_zones_reach_the_rows(versions: tuple[str, ...], database_url: str) -> None:
    """None without the definition; with it those of each node, as they change, until it goes."""
    served = NEW if NEW.version in versions else OLD
    async with (
        Database(settings_for(database_url), role="test") as database,
        LocalCluster(QUIET) as cluster,
        KubeClient(config_of(cluster)) as client,
    ):
        await install_definitions(client, "fluxqueue-system")
        await client.create(NODES, None, {"metadata": {"name": "n1"}})
        async with observing(database, client, database_url) as observer:
            await until_zones(database, [])
            await client.create(CRDS, None, definition(*versions))

            async def is_served() -> bool:
                return await observer._zones._served() == served

            await eventually(is_served, "the definition served")
            await client.create(served, None, topology(served, 32))
            await observer._zones.look()  # as a resync does
            await until_zones(database, [{"cpu": 32000}] * 2)
            made = await client.get(served, None, "n1")
            await client.replace(
                served, None, "n1", {**made, **topology(served, 30), "metadata": made["metadata"]}
            )
            await until_zones(database, [{"cpu": 30000}] * 2)
            await client.delete(served, None, "n1")
            await until_zones(database, [])
            await client.create(served, None, topology(served, 16))
            await until_zones(database, [{"cpu": 16000}] * 2)
            await client.delete(CRDS, None, NEW.key)

            async def is_gone() -> bool:
                return await observer._zones._served() is None

            await eventually(is_gone, "the definition gone")
            await observer._zones.look()
            await until_zones(database, [])
