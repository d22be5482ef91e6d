"""The clock of a worker jumps by an hour, forwards and backwards: work goes on.

The time of day of the worker's clock is moved. Its monotonic clock goes on, as an operating
system has it. What processes agree on goes by the database's clock, which stays.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress

import pytest
import pytest_asyncio

from fluxqueue.clock import SystemClock
from fluxqueue.db.database import Database
from fluxqueue.kube.client import KubeClient
from fluxqueue.worker.context import WorkerContext
from fluxqueue.worker.worker_process import Worker
from localcluster import LocalCluster
from tests.support.clusters import InProcessTransport, config_of
from tests.support.rows import cpu_node, settings_for
from tests.support.waiting import eventually
from tests.support.workers import QUIET, is_released, rows_of, submit

HOUR_S = 3600


class JumpingClock(SystemClock):
    """The machine's clock, put forwards or back."""

    def __init__(self) -> None:
        self.ahead_s = 0

    def now_s(self) -> int:
        """Whole seconds since the epoch, as this machine believes."""
        return super().now_s() + self.ahead_s


@pytest_asyncio.fixture
async def admin() -> AsyncIterator[KubeClient]:
    """An API server that stores and does nothing else."""
    async with LocalCluster(QUIET) as cluster:
        transport = InProcessTransport(cluster)
        async with KubeClient(config_of(cluster), transport=transport) as client:
            yield client


@pytest.mark.cases_long("other jumps")
@pytest.mark.parametrize("jumps", [(HOUR_S, 0), (-HOUR_S, 0), (HOUR_S, -HOUR_S, HOUR_S)])
async def test_work_goes_on(database_url: str, admin: KubeClient, jumps: tuple[int, ...]) -> None:
    """Before, after and between the jumps what comes is released. The role is kept."""
    clock, settings = JumpingClock(), settings_for(database_url)
    async with rows_of(database_url) as rows, Database(settings, role="worker") as database:
        await rows.add_nodes(cpu_node("n0", cpu=64))
        context = WorkerContext(database, admin, settings, clock, "jumps")
        running = asyncio.create_task(Worker(context).run())
        try:
            await submit(rows, admin, "first")
            await eventually(lambda: is_released(admin, "first"), "the first is released")
            term = await rows.value("SELECT term FROM leadership WHERE role = 'matcher'")
            for number, ahead_s in enumerate(jumps):
                clock.ahead_s = ahead_s
                name = f"after-{number}"
                await submit(rows, admin, name)
                await eventually(
                    lambda name=name: is_released(admin, name),  # type: ignore[misc]
                    f"released {ahead_s} s ahead",
                )
            assert term == await rows.value("SELECT term FROM leadership WHERE role = 'matcher'")
            assert not await rows.fetch("SELECT * FROM quarantine")
        finally:
            running.cancel()
            with suppress(asyncio.CancelledError):
                await running
