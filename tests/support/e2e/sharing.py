"""ResourceSharingPolicies of a test, which go with it."""

from __future__ import annotations

from typing import Any

from fluxqueue.errors import NotFound
from fluxqueue.kube.resources import SHARING_POLICIES
from tests.support.e2e.objects import Obj
from tests.support.e2e.space import Space
from tests.support.waiting import eventually, until

SINGLE = {"matchLabels": {"pool": "single"}}
"""One node of 16 cores."""


class Policies:
    """Policies of one test for the node ``single``, removed after it."""

    def __init__(self, space: Space) -> None:
        self.space, self.made = space, list[str]()

    async def make(self, **spec: Any) -> str:
        """Create a policy."""
        name = f"{self.space.name}-{len(self.made)}"
        body = {
            "apiVersion": SHARING_POLICIES.api_version,
            "kind": SHARING_POLICIES.kind,
            "metadata": {"name": name},
            "spec": {"nodeSelector": SINGLE, **spec},
        }
        await self.space.client.create(SHARING_POLICIES, None, body)
        self.made.append(name)
        return name

    async def status(self, name: str) -> Obj:
        """What it shows."""
        found = await self.space.client.get(SHARING_POLICIES, None, name)
        return dict(found.get("status") or {})

    async def until(self, name: str, **wanted: Any) -> Obj:
        """Wait until its status has these values."""
        what = f"policy {name} with {wanted}"
        return await until(
            lambda: self.status(name), lambda told: wanted.items() <= told.items(), what
        )

    async def remove(self) -> None:
        """Remove all, and wait until no node has one."""
        for name in self.made:
            try:
                await self.space.client.delete(SHARING_POLICIES, None, name)
            except NotFound:
                continue

        async def are_gone() -> bool:
            sql = "SELECT name FROM rules WHERE name = ANY(CAST(:names AS text[]))"
            return not await self.space.world.rows(sql, names=self.made)

        await eventually(are_gone, "no policy is left")
