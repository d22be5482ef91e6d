"""Fixtures of the adversary suite: one world for each kind of cluster, under the chart's rights.

The parts run under the chart's service accounts and the chart's policies are in force. Tenants are
users of that cluster (``tenants``). A test of this folder never uses the administrator's rights for
an attack. After each test the invariants hold and nothing is left.
"""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path

import pytest
import pytest_asyncio
from pytest_asyncio import is_async_test

from tests.adversary.tenants import Tenant, tenancy
from tests.support.control_plane import missing_reason
from tests.support.e2e.health import assert_nothing_left
from tests.support.e2e.rights import kept_rights_world
from tests.support.e2e.world import World

HERE = Path(__file__).parent
TIMEOUT_S = 600
GROUP = "adversary"
"""Tests that share the world share a process, too."""


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All our tests of the world share one event loop, as they share that world."""
    for item in items:
        if HERE not in item.path.parents or "world" not in getattr(item, "fixturenames", ()):
            continue
        if item.get_closest_marker("real_cluster") and (reason := missing_reason()):
            item.add_marker(pytest.mark.skip(reason))
        if item.get_closest_marker("timeout") is None:
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
        # A second group would become part of the first one's name, and the test a stray.
        if item.get_closest_marker("xdist_group") is None:
            item.add_marker(pytest.mark.xdist_group(GROUP))
        if is_async_test(item):
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(
    scope="session",
    params=["embedded", pytest.param("real", marks=pytest.mark.real_cluster)],
)
def cluster_kind(request: pytest.FixtureRequest) -> str:
    """The cluster that is attacked."""
    kind: str = request.param
    return kind


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def world(
    cluster_kind: str, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """Everything running under the chart's rights."""
    async with kept_rights_world(cluster_kind, "adversary", tmp_path_factory) as rights:
        yield rights.world


@pytest_asyncio.fixture(loop_scope="session")
async def victim(world: World) -> AsyncIterator[Tenant]:
    """The tenant with the Jobs that must go on. Made first, gone last."""
    async with tenancy(world, "vera") as made:
        yield made
    await assert_nothing_left(world)


@pytest_asyncio.fixture(loop_scope="session")
async def mallory(victim: Tenant) -> AsyncIterator[Tenant]:
    """The attacking tenant."""
    async with tenancy(victim.space.world, "mallory") as made:
        yield made
