"""Fixtures for tests that need a cluster. pytest finds them if this package is installed.

    def test_operator(localcluster, localcluster_namespace):
        subprocess.run(["kubectl", "--kubeconfig", localcluster.kubeconfig, ...])

One cluster serves the session. It runs in a thread of its own, so tests may be synchronous or not.
Each test that asks for a namespace gets its own one. Override ``localcluster_config`` in a
conftest.py to choose the nodes.
"""

from __future__ import annotations

import asyncio
import itertools
import threading
from collections.abc import Awaitable, Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

if TYPE_CHECKING:  # Tests without these fixtures do not pay for the import.
    from localcluster.client.calls import Client
    from localcluster.cluster import LocalClusterConfig

NODES = 3


@dataclass(frozen=True, slots=True)
class RunningCluster:
    """How to reach the session's cluster."""

    url: str
    kubeconfig: Path
    """A file for the administrator, as ``KUBECONFIG`` names one."""
    ca_pem: bytes
    token: str


@pytest.fixture(scope="session")
def localcluster_config() -> LocalClusterConfig:
    """Return three nodes and shortened waiting times of Kubernetes. Override it for others."""
    from localcluster.cluster import LocalClusterConfig
    from localcluster.loops.options import ControllerOptions
    from localcluster.nodes.shape import NodeShape

    nodes = [NodeShape(f"node-{number}") for number in range(1, NODES + 1)]
    return LocalClusterConfig(nodes=nodes, options=ControllerOptions.quick())


@pytest.fixture(scope="session")
def localcluster(
    localcluster_config: LocalClusterConfig, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[RunningCluster]:
    """Yield the session's cluster."""
    kubeconfig = tmp_path_factory.mktemp("localcluster") / "kubeconfig"
    started: Future[RunningCluster] = Future()
    ending = threading.Event()
    thread = threading.Thread(
        target=lambda: asyncio.run(_run(localcluster_config, kubeconfig, started, ending)),
        name="localcluster",
        daemon=True,
    )
    thread.start()
    yield started.result()
    ending.set()
    thread.join()


async def _run(
    config: LocalClusterConfig,
    kubeconfig: Path,
    started: Future[RunningCluster],
    ending: threading.Event,
) -> None:
    from localcluster.cluster import LocalCluster

    try:
        async with LocalCluster(config) as cluster:
            cluster.write_kubeconfig(kubeconfig)
            found = RunningCluster(cluster.url, kubeconfig, cluster.ca_pem, cluster.token)
            started.set_result(found)
            await asyncio.to_thread(ending.wait)
    except BaseException as error:
        if started.done():
            raise
        started.set_exception(error)


_numbers = itertools.count(1)


@pytest.fixture
def localcluster_namespace(localcluster: RunningCluster) -> Iterator[str]:
    """Yield a namespace for one test. It is deleted with its contents after the test."""
    from localcluster.client.resources import NAMESPACES

    name = f"test-{next(_numbers)}"
    body = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}

    async def make(client: Client) -> None:
        await client.create(NAMESPACES, None, body)

    async def remove(client: Client) -> None:
        await client.delete(NAMESPACES, None, name)

    _call(localcluster, make)
    yield name
    _call(localcluster, remove)


def _call(cluster: RunningCluster, work: Callable[[Client], Awaitable[None]]) -> None:
    """Do one thing as the administrator, in a thread.

    The caller may be inside an event loop.
    """

    from localcluster.client.access import read_kubeconfig
    from localcluster.client.calls import Client
    from localcluster.client.http import HttpTransport

    async def run() -> None:
        access = read_kubeconfig(cluster.kubeconfig)
        client = Client(HttpTransport(access), headers={"User-Agent": "localcluster-pytest"})
        try:
            await work(client)
        finally:
            await client.close()

    with ThreadPoolExecutor(1) as pool:
        pool.submit(asyncio.run, run()).result()
