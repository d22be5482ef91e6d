"""Fixtures of the worker's tests: an API server that stores and does nothing else."""

from __future__ import annotations

from collections.abc import AsyncIterator

import pytest_asyncio

from fluxqueue.kube.client import KubeClient
from localcluster import LocalCluster
from tests.support.clusters import InProcessTransport, config_of
from tests.support.workers import QUIET


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    async with LocalCluster(QUIET) as running:
        yield running


@pytest_asyncio.fixture
async def admin(cluster: LocalCluster) -> AsyncIterator[KubeClient]:
    """A client without faults."""
    transport = InProcessTransport(cluster)
    async with KubeClient(config_of(cluster), transport=transport) as client:
        yield client
