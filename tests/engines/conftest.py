"""Fixtures of the engines suite: the world of the end-to-end tests, queues, and the results."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import AsyncIterator
from contextlib import suppress
from pathlib import Path

import pytest
import pytest_asyncio
from pytest_asyncio import is_async_test

from fluxqueue.errors import Conflict
from fluxqueue.kube.resources import FLUXQUEUES
from tests.e2e.conftest import late, space, world
from tests.engines import table
from tests.engines.catalogue import QUEUE
from tests.support.e2e.space import Space
from tests.support.e2e.world import GATED_QUEUE

__all__ = ["late", "space", "world"]

HERE = Path(__file__).parent
RESULTS: dict[str, dict[str, str]] = defaultdict(dict)
TIMEOUT_S = 600


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Share one event loop, as the end-to-end tests do."""
    for item in items:
        if HERE in item.path.parents and is_async_test(item):
            item.add_marker(pytest.mark.timeout(TIMEOUT_S))
            item.add_marker(pytest.mark.asyncio(loop_scope="session"), append=False)


def pytest_sessionfinish() -> None:
    """Write the table, if it is asked for."""
    if table.is_asked() and RESULTS:
        table.write(table.remembered(RESULTS))


@pytest.fixture(scope="session")
def cluster_kind() -> str:
    """Simulated nodes serve logs on the embedded cluster only."""
    return "embedded"


@pytest.fixture
def results() -> dict[str, dict[str, str]]:
    """What was found so far, by engine and step."""
    return RESULTS


@pytest_asyncio.fixture(loop_scope="session")
async def queue(space: Space) -> AsyncIterator[None]:
    """The queues of the suite."""
    kind = {"apiVersion": FLUXQUEUES.api_version, "kind": FLUXQUEUES.kind}
    # The first test may come before the controller has made the queue ``default``.
    for name in (QUEUE, GATED_QUEUE, "default"):
        with suppress(Conflict):
            await space.client.create(FLUXQUEUES, None, {**kind, "metadata": {"name": name}})
    yield
    for name in (QUEUE, GATED_QUEUE):
        await space.client.delete(FLUXQUEUES, None, name)
