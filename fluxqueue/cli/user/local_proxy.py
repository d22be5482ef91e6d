"""The local proxy to the view server: a server on this machine that adds the user's token.

``fluxqueue web`` opens it for a browser, which never has the token. The address holds a code that
is good for one visit. After that, a cookie that scripts cannot read identifies the browser. Other
programs and other sites cannot use the proxy: they have no cookie.
"""

from __future__ import annotations

import asyncio
import secrets
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from fluxqueue.view.same_site import SAFE, why_foreign

if TYPE_CHECKING:
    from aiohttp import ClientSession, web

COOKIE = "fluxqueue-web"
LOOPBACK = "127.0.0.1"
CONNECT_S = 10.0
BODY_MAX = 8 * 2**20
"""Bytes of a request. The view server has smaller bounds of its own."""
_FORWARDED = ("Accept", "Accept-Encoding", "Content-Type", "If-None-Match", "Last-Event-ID")
_RETURNED = ("Content-Type", "Content-Encoding", "ETag", "Cache-Control", "Retry-After", *SAFE)


@dataclass(frozen=True, slots=True)
class Upstream:
    """Where the view server is, and what identifies the user there.

    ``headers`` is called for each request, because tokens are renewed.
    """

    root: str
    headers: Callable[[], dict[str, str]]
    tls: ssl.SSLContext | None


class LocalProxy:
    """The server on this machine. ``async with`` opens it, on any free port for port 0."""

    def __init__(self, upstream: Upstream, port: int = 0) -> None:
        self._upstream, self._wanted = upstream, port
        self._codes: set[str] = set()
        self._visitors: set[str] = set()
        self._session: ClientSession | None = None
        self.port = 0

    def address(self) -> str:
        """Return an address with a code that is good for one visit."""
        code = secrets.token_urlsafe(16)
        self._codes.add(code)
        return f"http://{LOOPBACK}:{self.port}/?code={code}"

    async def __aenter__(self) -> LocalProxy:
        from aiohttp import ClientSession, ClientTimeout, web

        app = web.Application(client_max_size=BODY_MAX)
        app.router.add_route("*", "/{path:.*}", self._answer)
        self._runner = web.AppRunner(
            app, access_log=None, handler_cancellation=True, shutdown_timeout=0.5
        )
        await self._runner.setup()
        site = web.TCPSite(self._runner, LOOPBACK, self._wanted)
        await site.start()
        self.port = self._runner.addresses[0][1]
        # Streams of changes last: only the connection has a time limit.
        timeout = ClientTimeout(total=None, sock_connect=CONNECT_S)
        self._session = ClientSession(timeout=timeout, auto_decompress=False)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._session is not None:
            await self._session.close()
        await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import ClientError, web

        own = {f"{LOOPBACK}:{self.port}", f"localhost:{self.port}"}
        if request.host not in own:
            # A name of another site that points to this machine.
            return web.Response(status=421, text="this proxy answers to its own address only")
        if code := request.query.get("code"):
            return self._let_in(code)
        if request.cookies.get(COOKIE) not in self._visitors:
            return web.Response(
                status=401, headers=SAFE, text="open the address that `fluxqueue web` has printed"
            )
        if why := why_foreign(request.method, request.host, request.headers):
            return web.Response(status=403, headers=SAFE, text=f"not from the page: {why}")
        try:
            return await self._pass_on(request)
        except (ClientError, TimeoutError) as error:
            text = f'{{"detail": "the view server does not answer: {type(error).__name__}"}}'
            return web.Response(
                status=502, headers=SAFE, text=text, content_type="application/problem+json"
            )

    def _let_in(self, code: str) -> web.Response:
        from aiohttp import web

        if code not in self._codes:
            text = "this address was used already: start `fluxqueue web` again"
            return web.Response(status=401, headers=SAFE, text=text)
        self._codes.remove(code)
        visitor = secrets.token_urlsafe(24)
        self._visitors.add(visitor)
        response = web.Response(status=303, headers={**SAFE, "Location": "/"})
        response.set_cookie(COOKIE, visitor, path="/", httponly=True, samesite="Strict")
        return response

    async def _pass_on(self, request: web.Request) -> web.StreamResponse:
        from aiohttp import web
        from yarl import URL

        assert self._session is not None
        headers = {key: request.headers[key] for key in _FORWARDED if key in request.headers}
        headers |= await asyncio.to_thread(self._upstream.headers)
        url = URL(self._upstream.root + request.raw_path, encoded=True)
        async with self._session.request(
            request.method,
            url,
            data=await request.read() or None,
            headers=headers,
            ssl=self._upstream.tls if self._upstream.tls is not None else True,
            allow_redirects=False,
        ) as found:
            kept = {key: found.headers[key] for key in _RETURNED if key in found.headers}
            response = web.StreamResponse(status=found.status, headers=kept)
            await response.prepare(request)
            async for chunk in found.content.iter_any():
                await response.write(chunk)
        return response
