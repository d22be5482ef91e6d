"""Parts that are killed while they work."""

from __future__ import annotations

import asyncio
import os
import signal
from collections.abc import Awaitable, Callable

from tests.support.e2e.world import World
from tests.support.waiting import eventually

ALL_DONE_S = 300.0


async def kill_part(world: World, name: str) -> None:
    """kill -9 one part, and wait until the stack has started it again."""
    part = world.stack.parts[name]
    before = part.restarts
    os.kill(world.pid(name), signal.SIGKILL)

    await eventually(
        lambda: part.restarts > before and part.pid is not None, f"{name} started again"
    )


async def kill_postgres(world: World) -> None:
    """kill -9 the database server, and wait until it answers again."""
    postgres = world.stack.postgres
    assert postgres is not None
    await asyncio.to_thread(postgres.kill)

    await eventually(lambda: postgres.is_running, "Postgres started again")


VICTIMS: dict[str, Callable[[World], Awaitable[None]]] = {
    "controller": lambda world: kill_part(world, "controller"),
    "worker-0": lambda world: kill_part(world, "worker-0"),
    "worker-1": lambda world: kill_part(world, "worker-1"),
    "webhook": lambda world: kill_part(world, "webhook"),
    "postgres": kill_postgres,
}
