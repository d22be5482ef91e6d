"""Observers as the controller makes them: under a term of their own, and running."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from fluxqueue.clock import SystemClock
from fluxqueue.controller.observing.observer import Observer
from fluxqueue.controller.term import Term
from fluxqueue.db.database import Database
from fluxqueue.kube.client import KubeClient
from fluxqueue.process.settings import Settings
from tests.support.waiting import eventually


async def make_observer(database: Database, client: KubeClient, settings: Settings) -> Observer:
    """An observer in its term. It follows nothing yet."""
    clock = SystemClock()
    return Observer(await Term.begin(database, settings, clock, "test"), client, settings, clock)


@asynccontextmanager
async def observing(
    database: Database, client: KubeClient, settings: Settings
) -> AsyncIterator[Observer]:
    """One that has read the cluster once, and goes on."""
    observer = await make_observer(database, client, settings)
    running = asyncio.create_task(observer.run())

    async def is_synced() -> bool:
        assert not running.done(), running
        return observer.is_synced

    await eventually(is_synced, "everything seen")
    yield observer
    running.cancel()
    await asyncio.gather(running, return_exceptions=True)
