"""Fixtures of several folders: API servers, a migrated database, a view server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest_asyncio

from fluxqueue.db.database import Database
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.installation import install_definitions
from localcluster import LocalCluster
from tests.support.clusters import InProcessTransport, config_of
from tests.support.control_plane import ControlPlane
from tests.support.rows import Rows, settings_for
from tests.support.viewing import Viewing, viewing
from tests.support.workers import QUIET


@pytest_asyncio.fixture
async def cluster() -> AsyncIterator[LocalCluster]:
    """An API server that stores, validates and does nothing else."""
    async with LocalCluster(QUIET) as running:
        yield running


@pytest_asyncio.fixture
async def admin(cluster: LocalCluster) -> AsyncIterator[KubeClient]:
    """A client of it, without faults."""
    transport = InProcessTransport(cluster)
    async with KubeClient(config_of(cluster), transport=transport) as opened:
        yield opened


@pytest_asyncio.fixture
async def definitions(admin: KubeClient) -> None:
    """Our definitions, in that server."""
    await install_definitions(admin, "fluxqueue-system")


@pytest_asyncio.fixture
async def client(control_plane: ControlPlane) -> AsyncIterator[KubeClient]:
    """Admin access to a real control plane."""
    async with KubeClient(control_plane.config) as opened:
        yield opened


@pytest_asyncio.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    """One process's access to a database of the test's own."""
    async with Database(settings_for(database_url), role="test") as opened:
        yield opened


@pytest_asyncio.fixture
async def view(rows: Rows, database_url: str, tmp_path: Path) -> AsyncIterator[Viewing]:
    """A view server over the rows of the test."""
    async with viewing(database_url, tmp_path) as made:
        yield made
