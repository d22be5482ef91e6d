"""The identity and the rights of callers: asked of the API server, cached for a moment.

``server`` calls it with each request. A token is never stored: its digest is the key of the cache.
An answer of the API server holds for ``KEEP_S``, whether it is a right or a refusal.
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
from fluxqueue.kube.resources import FLUXJOBS, NODES, ApiResource
from fluxqueue.workload.placement_review import Asker

KEEP_S = 15.0
"""Seconds for which a granted or withdrawn right may have no effect yet."""
TOKENS_MAX = 5_000
KNOWN_S = 3600.0
"""Seconds for which it is remembered that a token was valid. It is still checked again."""
RIGHTS_MAX = 50_000

V = TypeVar("V")


class NotAllowed(FluxQueueError):
    """The caller lacks a right. The message names the right and the role to ask for."""


class Remembered(Generic[V]):
    """A cache of recent answers. Callers with the same question share one request."""

    def __init__(self, most: int, clock: Clock) -> None:
        self._asked: TTLCache[Hashable, asyncio.Future[V]] = TTLCache(
            most, KEEP_S, timer=clock.monotonic_s
        )

    async def get(self, key: Hashable, ask: Callable[[], Awaitable[V]]) -> V:
        """Return the cached answer, or what ``ask`` finds. Errors are not cached."""
        found = self._asked.get(key)
        if found is None or (found.done() and (found.cancelled() or found.exception())):
            found = asyncio.ensure_future(ask())
            self._asked[key] = found
        # Shield it: a caller that disconnects must not cancel the answer of the others.
        return await asyncio.shield(found)


class Doorkeeper:
    """Identifies callers. ``client`` acts as the view server itself."""

    def __init__(self, client: KubeClient, clock: Clock) -> None:
        self._client = client
        self._people: Remembered[Asker | None] = Remembered(TOKENS_MAX, clock)
        self._rights: Remembered[bool] = Remembered(RIGHTS_MAX, clock)
        # Apart from the answers, so that made-up tokens cannot push a valid one out.
        self._known: TTLCache[bytes, None] = TTLCache(TOKENS_MAX, KNOWN_S, timer=clock.monotonic_s)

    async def admit(self, token: str) -> Caller | None:
        """Return the caller with this token, or None if the API server does not know it.

        Raises
        ------
        ApiUnavailable, ApiError
            The API server cannot be asked.
        """
        digest = _digest(token)
        asker = await self._people.get(digest, lambda: access_reviews.who_is(self._client, token))
        if asker is None:
            self._known.pop(digest, None)
            return None
        self._known[digest] = None
        return Caller(self, asker)

    def knows(self, token: str) -> bool:
        """Return whether the API server has known this token before."""
        return _digest(token) in self._known

    async def may(self, asker: Asker, resource: ApiResource, namespace: str) -> bool:
        """Return whether ``asker`` may list objects. An empty ``namespace`` means all."""
        who = orjson.dumps(asker.to_json(), option=orjson.OPT_SORT_KEYS)
        return await self._rights.get(
            (who, resource, namespace),
            lambda: access_reviews.may(self._client, asker, "list", resource, namespace),
        )


def _digest(token: str) -> bytes:
    return hashlib.sha256(token.encode()).digest()


class Caller:
    """An authenticated user."""

    def __init__(self, keeper: Doorkeeper, asker: Asker) -> None:
        self._keeper, self.asker = keeper, asker

    async def sees_all(self) -> bool:
        """Return whether the user may list FluxJobs in all namespaces at once."""
        return await self._keeper.may(self.asker, FLUXJOBS, "")

    async def sees(self, namespace: str) -> bool:
        """Return whether the user may list the FluxJobs of a namespace."""
        return await self.sees_all() or await self._keeper.may(self.asker, FLUXJOBS, namespace)

    async def sees_nodes(self) -> bool:
        """Return whether the user may list nodes."""
        return await self._keeper.may(self.asker, NODES, "")

    async def among(self, namespaces: Collection[str]) -> list[str]:
        """Return those of the namespaces that the user may see."""
        seen = await asyncio.gather(*map(self.sees, namespaces))
        return [one for one, is_seen in zip(namespaces, seen, strict=True) if is_seen]

    async def require(self, namespaces: Sequence[str]) -> None:
        """Refuse a user that may not see all these namespaces.

        Raises
        ------
        NotAllowed
            The right is missing. The error does not tell whether the namespaces exist.
        """
        seen = set(await self.among(namespaces))
        if hidden := [one for one in namespaces if one not in seen]:
            raise NotAllowed(
                f"{self.asker.username} may not list fluxjobs in namespace {hidden[0]}: "
                "ask for the role fluxqueue-viewer there"
            )

    async def require_nodes(self) -> None:
        """Refuse a user that may not list nodes.

        Raises
        ------
        NotAllowed
            The right is missing.
        """
        if not await self.sees_nodes():
            raise NotAllowed(f"{self.asker.username} may not list nodes: ask for that right")
