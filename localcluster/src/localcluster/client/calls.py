"""``Client``: get, list, watch, create, replace, patch and delete with plain dicts.

The cluster's own controllers and nodes read and write with it. It limits the concurrent requests
and turns errors into exceptions. It repeats nothing and stores nothing (``informer`` does).
"""

from __future__ import annotations

import asyncio
import copy
from collections.abc import AsyncIterator, Mapping
from contextlib import aclosing
from enum import StrEnum
from typing import Any, NamedTuple
from urllib.parse import urlencode

import orjson

from localcluster.client.resources import Resource
from localcluster.client.transport import Reply, Transport
from localcluster.errors import ApiUnavailable, refusal
from localcluster.obj import Obj

CONCURRENCY = 100
TIMEOUT_S = 30.0
WATCH_S = 300
WATCH_IDLE_S = 90.0


class PatchKind(StrEnum):
    """Content types of PATCH."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"


class Listed(NamedTuple):
    """The objects of a collection as of one ``version``."""

    items: list[Obj]
    version: str


class WatchEvent(NamedTuple):
    """One event of a watch. ``type`` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: Obj


class Client:
    """One API server. ``headers`` are added to every request."""

    def __init__(self, transport: Transport, *, headers: Mapping[str, str]) -> None:
        self._transport = transport
        self._headers = {"Accept": "application/json", **headers}
        self._slots = asyncio.Semaphore(CONCURRENCY)

    async def close(self) -> None:
        """Close the transport."""
        await self._transport.close()

    def acting_as(self, user: str) -> Client:
        """Return a client with the same connections and limit that impersonates ``user``."""
        view = copy.copy(self)
        view._headers = {**self._headers, "Impersonate-User": user}
        return view

    async def get(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        subresource: str | None = None,
    ) -> Obj:
        """Return one object. Raises ``NotFound``."""
        return await self.request("GET", resource.path(namespace, name, subresource))

    async def list(self, resource: Resource, namespace: str | None = None) -> Listed:
        """Return all objects in one answer.

        They have apiVersion and kind, unlike items of lists.
        """
        answer = await self.request("GET", resource.path(namespace))
        own = {"apiVersion": resource.api_version, "kind": resource.kind}
        items = [{**own, **item} for item in answer.get("items") or ()]
        return Listed(items, str(answer["metadata"]["resourceVersion"]))

    async def watch(self, resource: Resource, *, version: str) -> AsyncIterator[WatchEvent]:
        """Yield events after ``version`` until the server ends.

        Raises ``Gone`` if it is too old.
        """
        query = {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": version,
            "timeoutSeconds": str(WATCH_S),
        }
        path = resource.path()
        target = f"{path}?{urlencode(query)}"
        async with self._transport.stream(target, self._headers, WATCH_IDLE_S) as reply:
            if reply.status >= 400:
                body = b"".join([chunk async for chunk in reply.chunks()])
                raise refusal(f"watch {path}", reply.status, _status(body))
            async with aclosing(_lines(reply.chunks())) as lines:  # type: ignore[type-var]
                async for line in lines:
                    event = orjson.loads(line)
                    content = event["object"]
                    if event["type"] == "ERROR":
                        raise refusal(f"watch {path}", int(content.get("code") or 500), content)
                    yield WatchEvent(event["type"], content)

    async def create(
        self,
        resource: Resource,
        namespace: str | None,
        body: Mapping[str, Any],
        *,
        name: str | None = None,
        subresource: str | None = None,
    ) -> Obj:
        """POST an object. ``name`` and ``subresource`` are for subresources (``binding``)."""
        return await self.request("POST", resource.path(namespace, name, subresource), body)

    async def replace(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        body: Mapping[str, Any],
        *,
        subresource: str | None = None,
    ) -> Obj:
        """PUT an object. A stale resourceVersion in the body raises ``Conflict``."""
        return await self.request("PUT", resource.path(namespace, name, subresource), body)

    async def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        body: Any,
        *,
        kind: PatchKind = PatchKind.MERGE,
        subresource: str | None = None,
    ) -> Obj:
        """PATCH an object. Raises ``NotFound``, ``Conflict``, ``Invalid``."""
        path = resource.path(namespace, name, subresource)
        return await self.request("PATCH", path, body, content_type=kind)

    async def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        version: str | None = None,
        propagation: str | None = None,
        grace_s: int | None = None,
    ) -> Obj:
        """DELETE an object. ``uid`` and ``version`` are preconditions (``Conflict``)."""
        given = {"uid": uid, "resourceVersion": version}
        options = {
            "preconditions": {key: one for key, one in given.items() if one} or None,
            "propagationPolicy": propagation,
            "gracePeriodSeconds": grace_s,
        }
        body = {key: one for key, one in options.items() if one is not None}
        own = {"apiVersion": "v1", "kind": "DeleteOptions"}
        return await self.request("DELETE", resource.path(namespace, name), {**own, **body})

    async def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        content_type: str = "application/json",
    ) -> Obj:
        """Send any request and return the decoded answer. Raises ``ClientError``."""
        headers = self._headers
        data = None
        if body is not None:
            data = orjson.dumps(body)
            headers = {**headers, "Content-Type": content_type}
        async with self._slots:
            reply: Reply = await self._transport.send(method, path, headers, data, TIMEOUT_S)
        if reply.status >= 400:
            raise refusal(f"{method} {path}", reply.status, _status(reply.body))
        try:
            decoded: Obj = orjson.loads(reply.body)
        except orjson.JSONDecodeError as error:
            raise ApiUnavailable(f"{method} {path}: no JSON: {reply.body[:200]!r}") from error
        return decoded


def _status(body: bytes) -> Obj:
    """Return the Status of an error. Other content (a proxy's page) becomes its message."""
    try:
        status = orjson.loads(body)
    except orjson.JSONDecodeError:
        status = None
    return status if isinstance(status, dict) else {"message": body[:200].decode(errors="replace")}


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Yield whole lines. A last line without end is a cut connection and is dropped."""
    rest = b""
    async for chunk in chunks:
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            if line:
                yield line
