"""A server that misbehaves on purpose: each request is answered by the next scripted responder."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass, field
from typing import Any

import orjson
import pytest_asyncio
from aiohttp import web

from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import ClusterConfig

Responder = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass
class Seen:
    """One request as it arrived."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes


@dataclass
class FaultyApi:
    """Scripted answers in order. A request beyond the script waits until one is added."""

    url: str = ""
    seen: list[Seen] = field(default_factory=list)
    script: deque[Responder] = field(default_factory=deque)
    _more: asyncio.Event = field(default_factory=asyncio.Event)

    def then(self, *responders: Responder) -> None:
        """Add answers."""
        self.script.extend(responders)
        self._more.set()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Record and answer."""
        body = await request.read()
        self.seen.append(
            Seen(
                request.method,
                request.path,
                dict(request.query),
                {k.lower(): v for k, v in request.headers.items()},
                body,
            )
        )
        while not self.script:
            self._more.clear()
            await self._more.wait()
        return await self.script.popleft()(request)


def json_answer(body: Any, code: int = 200, **headers: str) -> Responder:
    """A plain JSON answer."""

    async def respond(request: web.Request) -> web.Response:
        return web.Response(
            body=orjson.dumps(body),
            status=code,
            content_type="application/json",
            headers={k.replace("_", "-"): v for k, v in headers.items()},
        )

    return respond


def status(code: int, reason: str = "Why", **headers: str) -> Responder:
    """A Status answer."""
    return json_answer(
        {"kind": "Status", "code": code, "reason": reason, "message": "m"}, code, **headers
    )


def reset() -> Responder:
    """Read the request, then break the connection without an answer."""

    async def respond(request: web.Request) -> web.Response:
        assert request.transport is not None
        request.transport.abort()
        raise asyncio.CancelledError

    return respond


def stream(*events: Any, is_cut: bool = False, stays_open: bool = False) -> Responder:
    """A watch: events (bytes are sent raw), then a clean end, a cut, or silence."""

    async def respond(request: web.Request) -> web.StreamResponse:
        response = web.StreamResponse(headers={"Content-Type": "application/json"})
        await response.prepare(request)
        for event in events:
            await response.write(event if isinstance(event, bytes) else orjson.dumps(event) + b"\n")
        if is_cut:
            assert request.transport is not None
            await asyncio.sleep(0.02)  # let the bytes leave before the connection breaks
            request.transport.abort()
        elif stays_open:
            await asyncio.Event().wait()
        return response

    return respond


@pytest_asyncio.fixture
async def faulty() -> AsyncIterator[FaultyApi]:
    """The server, listening on loopback."""
    api = FaultyApi()
    app = web.Application()
    app.router.add_route("*", "/{tail:.*}", api.handle)
    runner = web.AppRunner(app, shutdown_timeout=0.01, handler_cancellation=True)
    await runner.setup()
    site = web.TCPSite(runner, "127.0.0.1", 0)
    await site.start()
    api.url = f"http://127.0.0.1:{runner.addresses[0][1]}"
    yield api
    await runner.cleanup()


@pytest_asyncio.fixture
async def client(faulty: FaultyApi) -> AsyncIterator[KubeClient]:
    """A client of the misbehaving server."""
    async with KubeClient(ClusterConfig(faulty.url, token="t"), timeout_s=30) as made:
        yield made
