"""Node pools with the real cluster-autoscaler on a real API server (docs/developer/testing.md)."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fluxqueue.kube.resources import NODES
from fluxqueue.nodepools.cluster.pool_sources import read_pool_sources
from tests.support.e2e.cluster_autoscaler import GROUP_LABEL, running_autoscaler
from tests.support.e2e.objects import job
from tests.support.e2e.pools import Pools
from tests.support.e2e.space import Space
from tests.support.waiting import eventually

LONG_S = 120
SHAPE = {"cpu": "7500m", "memory": "30Gi", "pods": "100"}
"""What is left beside the pod of kube-proxy that the autoscaler counts on each new node."""

PROVIDERS: dict[str, Any] = {
    "placeholder": {},
    "provisioningRequest": {
        "provisioningClassName": "best-effort-atomic-scale-up.autoscaling.x-k8s.io",
        "parameters": {"ValidUntilSeconds": "600"},
    },
    "capacityBuffer": {"version": "v1beta1"},
}


@pytest.mark.long("a program of another project, which looks every two seconds")
@pytest.mark.parametrize("provider", PROVIDERS)
async def test_it_brings_the_nodes_of_a_gang_and_takes_them_back(
    space: Space, pools: Pools, provider: str, tmp_path: Path
) -> None:
    """Nodes come for the job, are left alone while it runs, and go. No object is left."""
    name = f"ca-{space.name}"
    node = {"labels": {"pool": name, GROUP_LABEL: name}, "allocatable": SHAPE}
    async with running_autoscaler(space, name, tmp_path):
        pool = await pools.make(
            "ca", is_known=False, node=node, provider={provider: PROVIDERS[provider]}
        )
        await space.create(job("gang", pods=3, cpu="6", pool=pool, run={"duration": "15s"}))
        await space.until_job("gang")
        assert len({one["spec"]["nodeName"] for one in await space.pods("gang")}) == 3
        (row,) = await pools.requests(pool)
        assert (row["count"], row["ended"]) == (3, "used")

        async def is_over() -> bool:
            nodes = await space.client.list(NODES, label_selector=f"{GROUP_LABEL}={name}")
            left = [await pools.placeholders(pool), await pools.templates(pool)]
            return not nodes.items and not any(left)

        await eventually(is_over, "all nodes went", timeout_s=LONG_S)
        sources = await read_pool_sources(
            space.client, ("kube-system", "cluster-autoscaler-status")
        )
        assert [one.key for one in sources.proposals() if name in one.key]
