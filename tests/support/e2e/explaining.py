"""The question of ``explain``, and the rights that it needs."""

from __future__ import annotations

import asyncio
from typing import Any

from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import PLACEMENT_REVIEWS
from tests.support.e2e.objects import Obj
from tests.support.e2e.space import Space
from tests.support.waiting import eventually

RBAC = "rbac.authorization.k8s.io"


async def ask(space: Space, client: KubeClient | None = None, **spec: Any) -> Obj:
    """Make a review and wait for its status. An asker that must ask again later does."""
    client = client or space.client
    body = {
        "apiVersion": PLACEMENT_REVIEWS.api_version,
        "kind": PLACEMENT_REVIEWS.kind,
        "metadata": {"generateName": "ask-"},
        "spec": spec,
    }
    made = await client.create(PLACEMENT_REVIEWS, space.name, body)
    at = (PLACEMENT_REVIEWS, space.name, made["metadata"]["name"])

    async def look() -> Obj | None:
        found = await client.get(*at)
        return found if (found.get("status") or {}).get("answeredAt") else None

    found = await eventually(look, f"an answer to {spec}")
    assert found is not None
    await client.delete(*at)
    if "retryAfterSeconds" in found["status"]:
        await asyncio.sleep(found["status"]["retryAfterSeconds"])
        return await ask(space, client, **spec)
    return found
