"""How bytes reach the API server: the ``Transport`` seam and its aiohttp implementation.

``KubeClient`` is the only caller. A transport knows nothing of Kubernetes: it neither retries nor
interprets answers; it reports a connection that failed as ``TransportError`` and says whether the
request may have been acted upon. The embedded cluster has a second, in-process implementation.
"""

from __future__ import annotations

import asyncio
import socket
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import AbstractAsyncContextManager, asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass
from typing import Protocol

import aiohttp
from aiohttp.connector import Connection
from yarl import URL

from fluxqueue.errors import ApiUnavailable
from fluxqueue.kube.config import ClusterConfig

CONNECT_TIMEOUT_S = 5.0
READ_BUFFER_BYTES = 1 << 18
# Below the idle timeouts of usual servers and balancers, so that we close first: a request sent
# on a connection that the other side is just closing could not be told from one acted upon.
KEEPALIVE_S = 30.0

READS_EVERY_S, READS_CREDIT_S = 0.05, 0.3
"""A stream that much comes over is read so often and no more, after a few times at once. Servers
send each event by itself, and taking a record out of TLS costs more than understanding it; those
that have come together cost less than half."""
READ_BYTES, READS_RARER = 1 << 16, 4
"""Where a read has brought more than so many bytes, some ten pods, the next waits as many times
longer, up to four: who is behind by fifty pods gains nothing by the first of them."""


class TransportError(ApiUnavailable):
    """The connection failed. ``is_unsent`` means the server cannot have seen the request."""

    def __init__(self, message: str, *, is_unsent: bool) -> None:
        self.is_unsent = is_unsent
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer; header names are lower case or case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class StreamReply(Protocol):
    """An answer whose body arrives over time."""

    status: int
    headers: Mapping[str, str]

    def chunks(self) -> AsyncIterator[bytes]:
        """Pieces of the body as they arrive; raises TransportError if the connection breaks."""
        ...


class Transport(Protocol):
    """One API server as a sender of requests; ``target`` is path and query, already encoded."""

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout_s: float,
    ) -> Reply:
        """Send and read the whole answer. Raises TransportError."""
        ...

    def stream(
        self, target: str, headers: Mapping[str, str], idle_s: float
    ) -> AbstractAsyncContextManager[StreamReply]:
        """GET with a streamed answer. Silence for ``idle_s`` ends ``chunks`` without an error."""
        ...

    async def close(self) -> None:
        """Close all connections; a call that follows raises ApiUnavailable."""
        ...


class HttpTransport:
    """aiohttp over TCP and TLS; connections are opened on first use and kept alive."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    def _opened(self) -> aiohttp.ClientSession:
        # Made lazily because aiohttp wants a running loop.
        if self._is_closed:
            # Of several calls one failed, and who made them left: the others may be trying still.
            raise ApiUnavailable(f"{self._config.server}: this client is closed")
        if self._session is None:
            context = self._config.ssl_context()
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0,  # the client bounds concurrency itself; watches must not count
                    ssl=context if context is not None else True,
                    keepalive_timeout=KEEPALIVE_S,
                ),
                auto_decompress=True,
                cookie_jar=aiohttp.DummyCookieJar(),
                read_bufsize=READ_BUFFER_BYTES,
                raise_for_status=False,
            )
        return self._session

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout_s: float,
    ) -> Reply:
        timeout = aiohttp.ClientTimeout(
            total=timeout_s, sock_connect=min(timeout_s, CONNECT_TIMEOUT_S)
        )
        try:
            async with self._opened().request(
                method,
                URL(self._config.server + target, encoded=True),
                headers=headers,
                data=body,
                timeout=timeout,
                proxy=self._config.proxy_url,
                server_hostname=self._config.tls_server_name,
                allow_redirects=False,
            ) as response:
                return Reply(response.status, response.headers, await response.read())
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _as_transport_error(error, self._config.server) from error

    @asynccontextmanager
    async def stream(
        self, target: str, headers: Mapping[str, str], idle_s: float
    ) -> AsyncIterator[StreamReply]:
        timeout = aiohttp.ClientTimeout(
            total=None, sock_connect=CONNECT_TIMEOUT_S, sock_read=idle_s
        )
        try:
            async with self._opened().get(
                URL(self._config.server + target, encoded=True),
                headers=headers,
                timeout=timeout,
                proxy=self._config.proxy_url,
                server_hostname=self._config.tls_server_name,
                allow_redirects=False,
            ) as response:
                yield _HttpStream(response, self._config.server)
        except (TimeoutError, aiohttp.ClientError, OSError) as error:
            raise _as_transport_error(error, self._config.server) from error

    async def close(self) -> None:
        self._is_closed = True
        if self._session is not None:
            await self._session.close()
            self._session = None


class _HttpStream:
    """The body of one aiohttp answer."""

    def __init__(self, response: aiohttp.ClientResponse, server: str) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self._response = response
        self._server = server
        self._pace = ReadPace()

    async def chunks(self) -> AsyncIterator[bytes]:
        while True:
            try:
                chunk = await self._response.content.readany()
            except aiohttp.SocketTimeoutError:
                return  # silence: a half-dead connection looks exactly like this
            except (aiohttp.ClientError, OSError) as error:
                raise _as_transport_error(error, self._server) from error
            if not chunk:
                return
            yield chunk
            await self._gather(len(chunk))

    async def _gather(self, size: int) -> None:
        """Leave what comes where it is for a moment, if much does."""
        pause_s = self._pace.pause_s(asyncio.get_running_loop().time(), size)
        if pause_s > 0:
            with _undisturbed(self._response.connection):
                await asyncio.sleep(pause_s)


class ReadPace:
    """How long a stream is left alone after a read (generic cell rate algorithm, ITU-T I.371)."""

    def __init__(self) -> None:
        self._due_s = float("-inf")
        """When the reads until now would have come to their end, at their usual distance."""

    def pause_s(self, now_s: float, size: int) -> float:
        """Seconds to wait at ``now_s`` (monotonic), after ``size`` bytes; 0 where little comes."""
        distance_s = READS_EVERY_S * min(max(size / READ_BYTES, 1), READS_RARER)
        self._due_s = max(self._due_s, now_s) + distance_s
        return distance_s if self._due_s - now_s > READS_CREDIT_S else 0.0


@contextmanager
def _undisturbed(connection: Connection | None) -> Iterator[None]:
    """Have the kernel wake nobody for this connection until it is full, or has ended."""
    transport = None if connection is None else connection.transport
    if transport is None or transport.is_closing():
        yield
        return
    waiting = transport.get_extra_info("socket")
    waiting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, READ_BUFFER_BYTES // 2)
    try:
        yield
    finally:
        with suppress(OSError):  # closed meanwhile
            waiting.setsockopt(socket.SOL_SOCKET, socket.SO_RCVLOWAT, 1)


def _as_transport_error(error: BaseException, server: str) -> TransportError:
    # Failures of connecting (refused, DNS, TLS, connect timeout) happen before anything is sent.
    is_unsent = isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))
    what = str(error) or type(error).__name__
    return TransportError(f"{server}: {what}", is_unsent=is_unsent)
