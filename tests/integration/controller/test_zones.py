"""NodeResourceTopology objects: off without their definition, followed where there is one."""

from __future__ import annotations

from typing import Any

import pytest

from fluxqueue.db.database import Database
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.discovery import find_served
from fluxqueue.kube.installation import install_definitions
from fluxqueue.kube.resources import CRDS, NODE_TOPOLOGIES, NODES, ApiResource
from localcluster import LocalCluster
from tests.support.clusters import config_of
from tests.support.observers import observing
from tests.support.rows import settings_for
from tests.support.sql import dicts
from tests.support.waiting import eventually, until
from tests.support.workers import QUIET

NEW, OLD = NODE_TOPOLOGIES
ZONES = {(NEW.group, NEW.kind)}


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


def topology(resource: ApiResource, cores: int) -> dict[str, Any]:
    """Two zones, in the form that both versions have."""
    resources = [{"name": "cpu", "allocatable": str(cores), "available": "0", "capacity": "99"}]
    zones = [{"name": f"node-{n}", "type": "Node", "resources": resources} for n in range(2)]
    policies = ["SingleNUMANodeContainerLevel"]
    kind = {"apiVersion": resource.api_version, "kind": resource.kind}
    return {**kind, "metadata": {"name": "n1"}, "topologyPolicies": policies, "zones": zones}


async def until_zones(database: Database, expected: list[dict[str, int]]) -> None:
    """Wait until the row of the node says so."""

    async def is_so() -> bool:
        rows = await dicts(database, "SELECT fact -> 'numa' AS numa FROM nodes WHERE name = 'n1'")
        return [row["numa"] or [] for row in rows] == [expected]

    await eventually(is_so, f"zones {expected}")


@pytest.mark.parametrize("versions", [("v1alpha2", "v1alpha1"), ("v1alpha1",)])
async def test_zones_reach_the_rows(versions: tuple[str, ...], database_url: str) -> None:
    """None without the definition. With it those of each node, as they change, until it goes."""
    served = NEW if NEW.version in versions else OLD
    async with (
        Database(settings_for(database_url), role="test") as database,
        LocalCluster(QUIET) as cluster,
        KubeClient(config_of(cluster)) as client,
    ):
        await install_definitions(client, "fluxqueue-system")
        await client.create(NODES, None, {"metadata": {"name": "n1"}})
        async with observing(database, client, settings_for(database_url)) as observer:
            await until_zones(database, [])
            await client.create(CRDS, None, definition(*versions))

            await until(
                lambda: find_served(client, ZONES),
                lambda found: found != [],
                "the definition served",
            )
            await client.create(served, None, topology(served, 32))
            await observer.resync.resync()
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
                return await find_served(client, ZONES) == []

            await eventually(is_gone, "the definition gone")
            await observer.resync.resync()
            await until_zones(database, [])
