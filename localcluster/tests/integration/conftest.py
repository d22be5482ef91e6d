"""A running API server (no controllers) and a plain HTTP client for it."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

import aiohttp
import orjson
import pytest_asyncio

from localcluster.obj import Obj
from localcluster.server.server import ApiServer
from tests.support.waiting import WAIT_S

TABLE = "application/json;as=Table;v=v1;g=meta.k8s.io,application/json"
PATCHES = {
    "json": "application/json-patch+json",
    "merge": "application/merge-patch+json",
    "strategic": "application/strategic-merge-patch+json",
    "apply": "application/apply-patch+yaml",
}


@dataclass
class Reply:
    """One answer."""

    code: int
    body: Any
    headers: Mapping[str, str]
    warnings: list[str]


@dataclass
class Api:
    """HTTP as a client speaks it, TLS verified against the cluster's authority."""

    server: ApiServer
    session: aiohttp.ClientSession
    token: str = ""
    watches: list[asyncio.Task[None]] = field(default_factory=list)

    async def call(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        patch: str = "",
        **more: str,
    ) -> Reply:
        """Send a request. ``more`` are query parameters, ``accept`` and ``content_type``."""
        headers = {"authorization": f"Bearer {self.token or self.server.token}"}
        if accept := more.pop("accept", ""):
            headers["accept"] = accept
        raw = body if isinstance(body, bytes | None) else orjson.dumps(body)
        if raw is not None:
            given = more.pop("content_type", "application/json")
            headers["content-type"] = PATCHES.get(patch, given)
        url = self.server.url + path
        async with self.session.request(
            method, url, data=raw, headers=headers, params=more
        ) as answer:
            text = await answer.read()
            is_json = answer.content_type == "application/json" and text
            value = orjson.loads(text) if is_json else text.decode()
            warnings = list(answer.headers.getall("warning", []))
            return Reply(answer.status, value, answer.headers, warnings)

    async def ok(self, method: str, path: str, body: Any = None, **more: Any) -> Any:
        """The body of an answer that must be a success."""
        reply = await self.call(method, path, body, **more)
        assert reply.code < 300, reply.body
        return reply.body

    async def watch(self, path: str, **query: str) -> list[Obj]:
        """Start a watch. The list fills with events while the test goes on."""
        events: list[Obj] = []
        opened = asyncio.Event()

        async def follow() -> None:
            headers = {"authorization": f"Bearer {self.server.token}"}
            if accept := query.pop("accept", ""):
                headers["accept"] = accept
            timeout = aiohttp.ClientTimeout(total=None)
            async with self.session.get(
                self.server.url + path,
                params={"watch": "1", **query},
                headers=headers,
                timeout=timeout,
            ) as answer:
                assert answer.status == 200
                opened.set()
                async for line in answer.content:
                    events.append(orjson.loads(line))  # noqa: PERF401 - the test reads it meanwhile
                events.append({"type": "END"})

        self.watches.append(asyncio.create_task(follow()))
        async with asyncio.timeout(WAIT_S):
            await opened.wait()
        return events


async def until(condition: Any, what: str, timeout_s: float = WAIT_S) -> None:
    """Wait for a condition. Fails with ``what``."""
    try:
        async with asyncio.timeout(timeout_s):
            while not condition():
                await asyncio.sleep(0.01)
    except TimeoutError:
        raise AssertionError(f"waited {timeout_s} s in vain for: {what}") from None


def kinds(events: list[Obj]) -> list[str]:
    """``ADDED a``, ``DELETED b`` ... of watch events."""
    return [
        f"{e['type']} {e['object']['metadata'].get('name', '')}".strip()
        for e in events
        if "object" in e
    ]


@pytest_asyncio.fixture
async def server() -> AsyncIterator[ApiServer]:
    """An API server in memory."""
    async with ApiServer() as running:
        yield running


@pytest_asyncio.fixture
async def api(server: ApiServer) -> AsyncIterator[Api]:
    """A client of it."""
    context = ssl.create_default_context(cadata=server.ca_pem.decode())
    connector = aiohttp.TCPConnector(ssl=context, limit=0)
    async with aiohttp.ClientSession(connector=connector) as session:
        made = Api(server, session)
        yield made
        for task in made.watches:
            task.cancel()
        await asyncio.gather(*made.watches, return_exceptions=True)
