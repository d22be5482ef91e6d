"""A real HTTP proxy before an API server that fails as networks and busy servers do, from a seed.

Our parts talk to it by a kubeconfig of its own (``connect``). The cluster behind it is whole. While
``faults`` names some, requests are refused, answered late, cut before or after they were acted
upon. Watches are cut, told to list again, told things twice and out of order.
"""

from __future__ import annotations

import asyncio
import json
import random
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Self

import aiohttp
import yaml
from aiohttp import web
from yarl import URL

from fluxqueue.kube.config import ClusterConfig, load_kubeconfig
from fluxqueue.process.whole_file import write_whole

REFUSALS = {"409": "Conflict", "429": "TooManyRequests", "500": "InternalError"}
REQUEST_FAULTS = (*REFUSALS, "reset-before", "reset-after", "slow")
WATCH_FAULTS = ("cut", "410", "duplicate", "reorder")
SLOW_S = 2.0
_HOP = {"connection", "transfer-encoding", "content-encoding", "content-length", "keep-alive"}


class ApiProxy:
    """Passes everything on to the API server of ``target``, but for the faults.

    ``faults`` maps the name of a fault to the share of requests (of a watch: events) it meets.
    """

    def __init__(self, seed: int) -> None:
        self.target: ClusterConfig | None = None
        self.faults: Mapping[str, float] = {}
        self.told: Counter[str] = Counter()
        self.port = 0
        self._random = random.Random(seed)
        self._runner: web.AppRunner | None = None
        self._session: aiohttp.ClientSession | None = None
        self._tls: ssl.SSLContext | None = None

    async def __aenter__(self) -> Self:
        application = web.Application(client_max_size=1 << 26)
        application.router.add_route("*", "/{path:.*}", self._handle)
        self._runner = web.AppRunner(application, access_log=None, shutdown_timeout=1.0)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0)
        await site.start()
        self.port = site._server.sockets[0].getsockname()[1]  # type: ignore[union-attr]
        self._session = aiohttp.ClientSession(
            auto_decompress=False, connector=aiohttp.TCPConnector(limit=0)
        )
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._runner is not None
        assert self._session is not None
        await self._session.close()
        await self._runner.cleanup()

    async def connect(self, kubeconfig: Path, into: Path) -> None:
        """Wait for a kubeconfig, stand before its server, and write another that leads to us."""
        while not kubeconfig.is_file():
            await asyncio.sleep(0.02)
        self.target = load_kubeconfig(str(kubeconfig))
        self._tls = self.target.ssl_context()
        document = yaml.safe_load(kubeconfig.read_text())
        (cluster,) = document["clusters"]
        cluster["cluster"] = {"server": f"http://127.0.0.1:{self.port}"}
        write_whole(into, yaml.safe_dump(document))

    # -- one request -----------------------------------------------------------------------------

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if "watch" in request.query:
            return await self._watch(request)
        fault = self._draw(REQUEST_FAULTS)
        if fault == "409" and request.method == "GET":
            fault = "500"
        if fault in REFUSALS:
            return _refusal(int(fault))
        if fault == "reset-before":
            return _reset(request)
        if fault == "slow":
            await asyncio.sleep(self._random.uniform(0, SLOW_S))
        try:
            async with self._forward(request) as answer:
                body = await answer.read()
        except aiohttp.ClientError:  # the API server itself is away
            return _reset(request)
        if fault == "reset-after":
            return _reset(request)
        return web.Response(status=answer.status, headers=_headers(answer), body=body)

    def _draw(self, names: tuple[str, ...]) -> str:
        for name in names:
            if self._random.random() < self.faults.get(name, 0.0):
                self.told[name] += 1
                return name
        return ""

    def _forward(self, request: web.Request) -> Any:
        assert self._session is not None
        assert self.target is not None, "connect() comes first"
        return self._session.request(
            request.method,
            URL(self.target.server + request.raw_path, encoded=True),
            ssl=self._tls or True,
            headers={k: v for k, v in request.headers.items() if k.lower() not in _HOP | {"host"}},
            data=request.content if request.body_exists else None,
            allow_redirects=False,
            timeout=aiohttp.ClientTimeout(total=None, sock_connect=5),
        )

    # -- a watch ---------------------------------------------------------------------------------

    async def _watch(self, request: web.Request) -> web.StreamResponse:
        if self._draw(("410",)):
            return _refusal(410, "Expired")
        try:
            async with self._forward(request) as answer:
                return await self._pass_on(request, answer)
        except aiohttp.ClientError:  # the API server itself is away
            return _reset(request)

    async def _pass_on(
        self, request: web.Request, answer: aiohttp.ClientResponse
    ) -> web.StreamResponse:
        out = web.StreamResponse(status=answer.status, headers=_headers(answer))
        await out.prepare(request)
        held: bytes | None = None
        with suppress(ConnectionError, aiohttp.ClientError):
            async for line in _lines(answer):
                fault = self._draw(WATCH_FAULTS)
                if fault == "reorder" and held is None:
                    held = line
                    continue
                await out.write(line)
                if held is not None:
                    await out.write(held)
                    held = None
                if fault == "duplicate":
                    await out.write(line)
                if fault == "410":
                    await out.write(_gone_event())
                    return out
                if fault == "cut":
                    return _reset(request)
        return _reset(request) if held is not None else out


async def _lines(answer: aiohttp.ClientResponse) -> AsyncIterator[bytes]:
    rest = b""
    async for chunk in answer.content.iter_any():
        *lines, rest = (rest + chunk).split(b"\n")
        for line in lines:
            yield line + b"\n"


def _headers(answer: aiohttp.ClientResponse) -> dict[str, str]:
    return {k: v for k, v in answer.headers.items() if k.lower() not in _HOP} | (
        {"Content-Encoding": answer.headers["Content-Encoding"]}
        if "Content-Encoding" in answer.headers
        else {}
    )


def _status(code: int, reason: str) -> dict[str, Any]:
    return {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "code": code,
        "reason": reason,
        "message": "the proxy of this test says so",
    }


def _refusal(code: int, reason: str = "") -> web.Response:
    headers = {"Retry-After": "1"} if code == 429 else {}
    body = _status(code, reason or REFUSALS[str(code)])
    return web.json_response(body, status=code, headers=headers)


def _gone_event() -> bytes:
    return json.dumps({"type": "ERROR", "object": _status(410, "Expired")}).encode() + b"\n"


def _reset(request: web.Request) -> web.Response:
    """End the connection without another byte."""
    if request.transport is not None:
        request.transport.abort()
    return web.Response()
