"""Fixtures of the end-to-end tests: one world per kind of cluster, one namespace per test.

After every test the invariants are asserted and nothing may be left behind (``health``).
"""

from __future__ import annotations

import shutil
import tempfile
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack
from pathlib import Path

import pytest
import pytest_asyncio
from pytest_asyncio import is_async_test

from fluxqueue.errors import NotFound
from fluxqueue.kube.resources import NODES as NODE_OBJECTS
from tests.support.control_plane import missing_reason
from tests.support.e2e.health import assert_nothing_left, assert_own_nodes
from tests.support.e2e.objects import job
from tests.support.e2e.pools import Pools
from tests.support.e2e.queues import Queues
from tests.support.e2e.rights import is_under_rights, sufficient_rights
from tests.support.e2e.space import Space, make_space, remove_space
from tests.support.e2e.world import NODES, World, embedded_world, real_world

HERE = Path(__file__).parent
TIMEOUT_S = 900


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """All our tests share one event loop, because they share one world in each process."""
    for item in items:
        if HERE in item.path.parents:
            if item.get_closest_marker("real_cluster") and (reason := missing_reason()):
                # Not in the fixture: a change of its parameter ends the world of the other kind.
                item.add_marker(pytest.mark.skip(reason))
            if item.get_closest_marker("timeout") is None:
                item.add_marker(pytest.mark.timeout(TIMEOUT_S))
            if is_async_test(item):
                item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


@pytest.fixture(
    scope="session",
    params=["embedded", pytest.param("real", marks=pytest.mark.real_cluster)],
)
def cluster_kind(request: pytest.FixtureRequest) -> str:
    """The cluster the suite runs against. Both must answer alike."""
    kind: str = request.param
    return kind


@pytest_asyncio.fixture(scope="package", loop_scope="session")
async def world(
    cluster_kind: str, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory
) -> AsyncIterator[World]:
    """Everything running. At the end the whole cluster must be free for one last Job.

    It ends when a process leaves this folder: four worlds that look for work five times a second
    would cost the tests that follow a sixth of the machine.
    """
    async with AsyncExitStack() as exits:
        folder = Path(exits.enter_context(tempfile.TemporaryDirectory(prefix="fluxqueue-e2e-")))
        folder.chmod(0o755)  # where the server runs as another user it must reach its data
        logs = tmp_path_factory.mktemp(f"logs-{cluster_kind}")
        exits.callback(shutil.copytree, folder / "logs", logs, dirs_exist_ok=True)
        if is_under_rights(cluster_kind):
            running = await exits.enter_async_context(sufficient_rights(folder))
        elif cluster_kind == "real":
            control_plane = request.getfixturevalue("control_plane")
            running = await exits.enter_async_context(real_world(folder, control_plane))
        else:
            running = await exits.enter_async_context(embedded_world(folder))
        yield running
        await _assert_whole_cluster_is_free(running)


async def _assert_whole_cluster_is_free(world: World) -> None:
    """What leaked anywhere, also in the matcher's memory, would keep this Job waiting."""
    space = await make_space(world)
    whole = job("whole", pods=len(NODES), cpu="8", wishes={"exclusive": "true"})
    await space.create(whole)
    await space.until_job("whole")
    await remove_space(space)


@pytest_asyncio.fixture(loop_scope="session")
async def space(world: World) -> AsyncIterator[Space]:
    """A namespace of the test's own."""
    made = await make_space(world)
    yield made
    await remove_space(made)
    await assert_nothing_left(world)
    await assert_own_nodes(world)


@pytest_asyncio.fixture(loop_scope="session")
async def unmanaged(world: World, space: Space) -> AsyncIterator[Space]:
    """A namespace that has opted out, beside the test's own."""
    made = await make_space(world, {"fluxqueue/managed": "false"})
    yield made
    await remove_space(made)


@pytest_asyncio.fixture(loop_scope="session")
async def queues(space: Space) -> AsyncIterator[Queues]:
    """Queues of the test's own."""
    made = Queues(space)
    yield made
    for short in list(made.made):
        await made.delete(short)


@pytest_asyncio.fixture(loop_scope="session")
async def pools(space: Space) -> AsyncIterator[Pools]:
    """Pools of the test's own."""
    made = Pools(space)
    yield made
    await made.remove()


@pytest_asyncio.fixture(loop_scope="session")
async def late(world: World, space: Space) -> AsyncIterator[World]:
    """Nodes that join during the test leave after it, before its namespace does."""
    yield world
    for name in [node for node in ("late-1", "late-2") if await _exists(world, node)]:
        await world.late_nodes.fleet.remove(name)


async def _exists(world: World, name: str) -> bool:
    try:
        await world.client.get(NODE_OBJECTS, None, name)
    except NotFound:
        return False
    return True
