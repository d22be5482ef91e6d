"""Who calls, and what he may see: asked of the API server, and remembered for a moment.

Called by ``server`` with each request. A token is never kept: it is remembered by its digest. What
the API server says holds for ``KEEP_S``, a refusal as well as a right.
"""

from __future__ import annotations

import asyncio
import hashlib
from collections.abc import Awaitable, Callable, Collection, Hashable, Sequence
from typing import Generic, TypeVar

import orjson
from cachetools import TTLCache

from fluxqueue.clock import Clock
from fluxqueue.errors import FluxQueueError
from fluxqueue.kube import access_reviews
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.resources import FLUXJOBS, NODES, Resource
from fluxqueue.workload.placement_review import Asker

KEEP_S = 15.0
"""For so long somebody may still see what he may see no more, or not yet see what he may."""
TOKENS_MAX = 5_000
RIGHTS_MAX = 50_000

V = TypeVar("V")


class NotAllowed(FluxQueueError):
    """The caller may not see what he asks for; the message says whom to ask for what."""


class Remembered(Generic[V]):
    """Answers to questions that were asked lately; who asks the same meanwhile waits for them."""

    def __init__(self, most: int, clock: Clock) -> None:
        self._asked: TTLCache[Hashable, asyncio.Future[V]] = TTLCache(
            most, KEEP_S, timer=clock.monotonic_s
        )

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[V]]) -> V:
        """The answer that is known, or what ``ask`` finds; what it raises is not remembered."""
        found = self._asked.get(key)
        if found is None or (found.done() and (found.cancelled() or found.exception())):
            found = asyncio.ensure_future(ask())
            self._asked[key] = found
        # Who goes away does not take the answer from those who wait for it, too.
        return await asyncio.shield(found)


class Doorkeeper:
    """Tells callers apart. ``client`` acts as the view server itself."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        self._client = client
        self._people: Remembered[Asker | None] = Remembered(TOKENS_MAX, clock)
        self._rights: Remembered[bool] = Remembered(RIGHTS_MAX, clock)

    async def admit(self, token: str) -> Caller | None:
        """Who holds a token; None for nobody.

        Raises
        ------
        ApiUnavailable, ApiError
            The API server cannot be asked.
        """
        digest = hashlib.sha256(token.encode()).digest()
        asker = await self._people.get(digest, lambda: access_reviews.who_is(self._client, token))
        return Caller(self, asker) if asker is not None else None

    async def may(self, asker: Asker, resource: Resource, namespace: str) -> bool:
        """Whether somebody may list objects; ``namespace`` empty is all of them."""
        who = orjson.dumps(asker.to_json(), option=orjson.OPT_SORT_KEYS)
        return await self._rights.get(
            (who, resource, namespace),
            lambda: access_reviews.may(self._client, asker, "list", resource, namespace),
        )


class Caller:
    """Somebody who has shown who he is."""

    def __init__(self, keeper: Doorkeeper, asker: Asker) -> None:
        self._keeper, self.asker = keeper, asker

    async def sees_all(self) -> bool:
        """Whether he may list FluxJobs in all namespaces at once."""
        return await self._keeper.may(self.asker, FLUXJOBS, "")

    async def sees(self, namespace: str) -> bool:
        """Whether he may list the FluxJobs of a namespace."""
        return await self.sees_all() or await self._keeper.may(self.asker, FLUXJOBS, namespace)

    async def sees_nodes(self) -> bool:
        """Whether he may list nodes."""
        return await self._keeper.may(self.asker, NODES, "")

    async def among(self, namespaces: Collection[str]) -> list[str]:
        """Those of the namespaces that he may see."""
        seen = await asyncio.gather(*map(self.sees, namespaces))
        return [one for one, is_seen in zip(namespaces, seen, strict=True) if is_seen]

    async def require(self, namespaces: Sequence[str]) -> None:
        """Refuse who may not see all of these.

        Raises
        ------
        NotAllowed
            He may not; it does not say whether they exist.
        """
        seen = set(await self.among(namespaces))
        if hidden := [one for one in namespaces if one not in seen]:
            raise NotAllowed(
                f"{self.asker.username} may not list fluxjobs in namespace {hidden[0]}; "
                "ask for the role fluxqueue-viewer there"
            )

    async def require_nodes(self) -> None:
        """Refuse who may not list nodes.

        Raises
        ------
        NotAllowed
            He may not.
        """
        if not await self.sees_nodes():
            raise NotAllowed(f"{self.asker.username} may not list nodes; ask for that right")
