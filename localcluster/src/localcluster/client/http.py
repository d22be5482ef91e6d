"""``HttpTransport``: the API server of another control plane, over TCP and TLS (aiohttp)."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp
from yarl import URL

from localcluster.client.access import Access
from localcluster.client.transport import Reply, StreamReply
from localcluster.errors import ApiUnavailable

CONNECT_TIMEOUT_S = 5.0


class HttpTransport:
    """A transport over HTTP. Connections are opened on first use and kept alive."""

    def __init__(self, access: Access) -> None:
        self._access = access
        self._session: aiohttp.ClientSession | None = None

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout_s: float,
    ) -> Reply:
        """Send a request and read the whole answer."""
        timeout = aiohttp.ClientTimeout(total=timeout_s, sock_connect=CONNECT_TIMEOUT_S)
        try:
            async with self._request(method, target, headers, timeout, body) as response:
                return Reply(response.status, response.headers, await response.read())
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._unavailable(error) from error

    @asynccontextmanager
    async def stream(
        self, target: str, headers: Mapping[str, str], idle_s: float
    ) -> AsyncIterator[StreamReply]:
        """GET with a streamed answer."""
        timeout = aiohttp.ClientTimeout(sock_connect=CONNECT_TIMEOUT_S, sock_read=idle_s)
        try:
            async with self._request("GET", target, headers, timeout) as response:
                yield _HttpStream(response)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise self._unavailable(error) from error

    async def close(self) -> None:
        """Close all connections."""
        session, self._session = self._session, None
        if session is not None:
            await session.close()

    def _request(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        timeout: aiohttp.ClientTimeout,
        body: bytes | None = None,
    ) -> aiohttp.client._RequestContextManager:
        if self._session is None:  # created here because aiohttp needs a running loop
            connector = aiohttp.TCPConnector(limit=0, ssl=self._access.ssl_context() or True)
            self._session = aiohttp.ClientSession(connector=connector)
        authorization = self._access.authorization_header()
        return self._session.request(
            method,
            URL(self._access.server + target, encoded=True),
            headers={**headers, "Authorization": authorization} if authorization else headers,
            data=body,
            timeout=timeout,
            server_hostname=self._access.tls_server_name,
            allow_redirects=False,
        )

    def _unavailable(self, error: BaseException) -> ApiUnavailable:
        return ApiUnavailable(f"{self._access.server}: {error or type(error).__name__}")


class _HttpStream:
    """The body of one answer."""

    def __init__(self, response: aiohttp.ClientResponse) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._content = response.content

    async def chunks(self) -> AsyncIterator[bytes]:
        """Yield pieces as they arrive, until the server ends or is silent."""
        while True:
            try:
                chunk = await self._content.readany()
            except aiohttp.SocketTimeoutError:
                return
            if not chunk:
                return
            yield chunk
