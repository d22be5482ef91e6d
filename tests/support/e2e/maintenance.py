"""FluxReservations of a test, which go with it."""

from __future__ import annotations

import time
from contextlib import suppress
from datetime import UTC, datetime
from typing import Any

from fluxqueue.errors import NotFound
from fluxqueue.kube.resources import FLUX_RESERVATIONS
from tests.support.e2e.objects import Obj
from tests.support.e2e.space import Space
from tests.support.waiting import eventually, until

NODE = "single"
"""A node of the world with a pool of its own."""


class Reservations:
    """Reservations of one test for one node, removed after it."""

    def __init__(self, space: Space) -> None:
        self.space, self.names = space, list[str]()

    async def make(self, in_s: int, **schedule: Any) -> str:
        """Create one that begins in a while, by the clock of this machine."""
        name = f"{self.space.name}-{len(self.names)}"
        start = datetime.fromtimestamp(int(time.time()) + in_s, UTC).replace(tzinfo=None)
        spec = {"nodes": [NODE], "schedule": {"start": start.isoformat(), **schedule}}
        body = {
            "apiVersion": FLUX_RESERVATIONS.api_version,
            "kind": FLUX_RESERVATIONS.kind,
            "metadata": {"name": name},
            "spec": spec,
        }
        await self.space.client.create(FLUX_RESERVATIONS, None, body)
        self.names.append(name)
        return name

    async def status(self, name: str) -> Obj:
        found = (await self.space.client.get(FLUX_RESERVATIONS, None, name)).get("status") or {}
        conditions = {one["type"]: one["status"] for one in found.get("conditions") or ()}
        return {**found, **conditions}

    async def until(self, name: str, **wanted: Any) -> Obj:
        """Wait until its status has these values."""
        what = f"reservation {name} with {wanted}"
        return await until(
            lambda: self.status(name), lambda told: wanted.items() <= told.items(), what
        )

    async def remove(self) -> None:
        for name in self.names:
            with suppress(NotFound):
                await self.space.client.delete(FLUX_RESERVATIONS, None, name)

        async def are_gone() -> bool:
            sql = "SELECT name FROM rules WHERE name = ANY(CAST(:names AS text[]))"
            return not await self.space.world.rows(sql, names=self.names)

        await eventually(are_gone, "no reservation is left")
