"""kopf in our own loop: it may end for any reason, and takes nothing of ours with it."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager
from pathlib import Path
from typing import Any

import pytest

from fluxqueue.controller.operator import build_registry, run_operator
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import ClusterConfig, load_kubeconfig
from fluxqueue.kube.installation import install_definitions
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
    async def let_go(fluxjob: Mapping[str, Any]) -> None:
        meta = fluxjob["metadata"]
        told.append(f"let go {meta['namespace']}/{meta['name']}")

    return build_registry(
        config,
        on_fluxjob_seen=lambda fluxjob: told.append(f"seen {fluxjob['metadata']['name']}"),
        on_fluxjob_deleted=lambda fluxjob: told.append(fluxjob["spec"]["workload"]["uid"]),
        on_fluxjob_let_go=let_go,
        on_review_seen=lambda review: told.append(f"asked {review['metadata']['name']}"),
        on_review_deleted=lambda review: told.append(f"gone {review['metadata']['name']}"),
    )


@asynccontextmanager
async def _proxied(folder: Path) -> AsyncIterator[tuple[ApiProxy, ClusterConfig]]:
    async with LocalCluster(QUIET) as cluster, ApiProxy(seed=1) as proxy:
        async with KubeClient(config_of(cluster)) as client:
            await install_definitions(client, OWN_NAMESPACE)
        cluster.write_kubeconfig(folder / "real")
        await proxy.connect(folder / "real", folder / "through")
        yield proxy, load_kubeconfig(str(folder / "through"))


@contextmanager
def _signals() -> Iterator[Any]:
    """Takes SIGTERM, counts it, and gives it back at the end."""
    loop, taken = asyncio.get_running_loop(), asyncio.Event()

    def take() -> None:
        loop.add_signal_handler(signal.SIGTERM, taken.set)

    take.taken = taken  # type: ignore[attr-defined]
    yield take
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.remove_signal_handler(number)


async def test_a_kopf_that_fails_leaves_our_tasks_alone(tmp_path: Path) -> None:
    """It takes what was begun after it for its own. A watch answered with 410 at once ends it.

    Neither does it leave anything behind.
    """
    async with _proxied(tmp_path) as (proxy, config):
        before = asyncio.all_tasks()
        proxy.faults = {"410": 1.0}
        with _signals() as take_signals:
            operating = run_operator(_registry(config, []), take_signals=take_signals)
            running = asyncio.create_task(operating)
            await asyncio.sleep(0)
            ours = [asyncio.create_task(asyncio.Event().wait()) for _ in range(3)]
            async with asyncio.timeout(WAIT_S):
                with pytest.raises(Exception, match="the proxy of this test says so"):
                    await running
            assert not any(task.done() or task.cancelling() for task in ours)

            async def is_clean() -> bool:
                left = asyncio.all_tasks() - before - {*ours}
                return not [task for task in left if "kopf" in repr(task.get_coro())]

            await eventually(is_clean, "no task of kopf left")
            for task in ours:
                task.cancel()


async def test_signals_stay_ours() -> None:
    """kopf takes them when it starts: then the process would never end when told."""
    told: list[str] = []
    async with (
        LocalCluster(QUIET) as cluster,
        KubeClient(config_of(cluster)) as client,
    ):
        await install_definitions(client, OWN_NAMESPACE)
        with _signals() as take_signals:
            operating = run_operator(_registry(client.config, told), take_signals=take_signals)
            running = asyncio.create_task(operating)
            await client.create(FLUXJOBS, "default", FLUXJOB)

            await eventually(lambda: bool(told), "kopf at work")
            signal.raise_signal(signal.SIGTERM)
            async with asyncio.timeout(WAIT_S):
                await take_signals.taken.wait()
            assert not running.done()
            running.cancel()
            await asyncio.gather(running, return_exceptions=True)


async def test_what_it_sees_is_told_and_it_stops_when_cancelled() -> None:
    """A FluxJob without an owner, and one that is gone. Nothing is written to either."""
    told: list[str] = []
    async with (
        LocalCluster(QUIET) as cluster,
        KubeClient(config_of(cluster)) as client,
    ):
        await install_definitions(client, OWN_NAMESPACE)
        with _signals() as take_signals:
            registry = _registry(config_of(cluster), told)
            running = asyncio.create_task(run_operator(registry, take_signals=take_signals))

            async def made() -> bool:
                return "let go default/a-job" in told

            async def gone() -> bool:
                return "uid-a" in told

            created = await client.create(FLUXJOBS, "default", FLUXJOB)
            await eventually(made, "the FluxJob seen")
            assert await client.get(FLUXJOBS, "default", "a-job") == created
            await client.delete(FLUXJOBS, "default", "a-job")
            await eventually(gone, "its end seen")
            running.cancel()
            async with asyncio.timeout(WAIT_S):
                await asyncio.gather(running, return_exceptions=True)
