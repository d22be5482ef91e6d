"""Many calls to the API server, a few at once, and the removal of all that a test has made.

``Tenant.create_all`` and the tests of hostile objects use it.
"""

from __future__ import annotations

import asyncio
from collections.abc import Coroutine, Iterable
from typing import Any, TypeVar

from fluxqueue.errors import NotFound
from fluxqueue.kube.resources import ApiResource
from tests.support.e2e.world import World
from tests.support.waiting import eventually

T = TypeVar("T")
AT_ONCE = 20


async def all_of(calls: Iterable[Coroutine[Any, Any, T]], at_once: int = AT_ONCE) -> list[T]:
    """Return what all calls return, in their order. At most ``at_once`` of them run."""
    slots = asyncio.Semaphore(at_once)

    async def one(call: Coroutine[Any, Any, T]) -> T:
        async with slots:
            return await call

    return await asyncio.gather(*map(one, calls))


async def remove_all(world: World, resource: ApiResource, names: set[str], table: str) -> None:
    """Delete the cluster-scoped objects, and wait until ``table`` has no row of them."""

    async def remove(name: str) -> None:
        try:
            await world.client.delete(resource, None, name)
        except NotFound:
            return

    await all_of(remove(name) for name in sorted(names))

    async def are_gone() -> bool:
        rows = await world.rows(f"SELECT name FROM {table}")
        return not names & {row["name"] for row in rows}

    await eventually(are_gone, f"none of the hostile objects is left in {table}")
