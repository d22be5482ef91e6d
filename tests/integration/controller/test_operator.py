"""kopf beside our own loops: it may end for any reason, and takes nothing of ours with it."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import pytest

from fluxqueue.controller.operator import build_registry, run_operator
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import ClusterConfig, load_kubeconfig
from fluxqueue.kube.install import install_definitions
from fluxqueue.kube.resources import FLUXJOBS
from fluxqueue.workload.labels import OWN_NAMESPACE
from localcluster import LocalCluster
from tests.support.api_proxy import ApiProxy
from tests.support.clusters import config_of
from tests.support.waiting import WAIT_S, eventually
from tests.support.workers import QUIET

FLUXJOB = {
    "apiVersion": FLUXJOBS.api_version,
    "kind": "FluxJob",
    "metadata": {"name": "a-job", "namespace": "default"},
    "spec": {
        "size": 1,
        "workload": {"apiVersion": "batch/v1", "kind": "Job", "name": "a", "uid": "uid-a"},
    },
}


def _registry(config: ClusterConfig, told: list[str]) -> Any:
    async def let_go(namespace: str, name: str, _uid: str) -> None:
        assert asyncio.current_task() is not None
        told.append(f"let go {namespace}/{name}")

    return build_registry(config, on_fluxjob_deleted=told.append, on_fluxjob_let_go=let_go)


async def test_a_kopf_that_fails_leaves_our_tasks_alone(tmp_path: Path) -> None:
    """It cancels whatever it finds in its loop when it ends: that must not be ours.

    A watch that is answered with 410 before its first event ends it.
    """
    async with LocalCluster(QUIET) as cluster, ApiProxy(seed=1) as proxy:
        async with KubeClient(config_of(cluster)) as client:
            await install_definitions(client, OWN_NAMESPACE)
        cluster.write_kubeconfig(tmp_path / "real")
        await proxy.connect(tmp_path / "real", tmp_path / "through")
        proxy.faults = {"410": 1.0}
        registry = _registry(load_kubeconfig(str(tmp_path / "through")), [])
        running = asyncio.create_task(run_operator(registry, stop=asyncio.Event()))
        ours = asyncio.create_task(asyncio.Event().wait())
        async with asyncio.timeout(WAIT_S):
            with pytest.raises(Exception, match="the proxy of this test says so"):
                await running
        await asyncio.sleep(0.5)
        assert not ours.done()
        ours.cancel()


async def test_what_it_sees_is_told_in_our_loop_and_it_stops_when_told() -> None:
    """A FluxJob without an owner, and one that is gone."""
    told: list[str] = []
    async with (
        LocalCluster(QUIET) as cluster,
        KubeClient(config_of(cluster)) as client,
    ):
        await install_definitions(client, OWN_NAMESPACE)
        stop = asyncio.Event()
        registry = _registry(config_of(cluster), told)
        running = asyncio.create_task(run_operator(registry, stop=stop))

        async def made() -> bool:
            return "let go default/a-job" in told

        async def gone() -> bool:
            return "uid-a" in told

        await client.create(FLUXJOBS, "default", FLUXJOB)
        await eventually(made, "the FluxJob seen")
        await client.delete(FLUXJOBS, "default", "a-job")
        await eventually(gone, "its end seen")
        stop.set()
        async with asyncio.timeout(WAIT_S):
            await running
