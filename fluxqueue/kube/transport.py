"""How bytes reach the API server: the ``Transport`` interface, and aiohttp behind it.

Only ``KubeClient`` calls it. A transport knows nothing of Kubernetes: it neither retries nor
interprets answers. It reports a failed connection as ``TransportError``, and whether the server may
have acted on the request. The embedded cluster has a second, in-process implementation.
"""

from __future__ import annotations

import asyncio
import os
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
from fluxqueue.process.pacing import READ_BYTES, READS_CREDIT_S, READS_EVERY_S, READS_RARER

CONNECT_TIMEOUT_S = 5.0
READ_BUFFER_BYTES = 1 << 18
# Below the idle timeouts of usual servers and balancers, so that we close first. A request on a
# connection that the other side just closes looks as if it had been acted on.
KEEPALIVE_S = 30.0
_REACH = "check that the cluster runs, and the server of the kubeconfig"
_TRUST = "check the certificate authority of the kubeconfig, or have the server's renewed"


class TransportError(ApiUnavailable):
    """The connection failed. ``is_unsent`` means the server cannot have seen the request."""

    def __init__(self, message: str, *, is_unsent: bool) -> None:
        self.is_unsent = is_unsent
        super().__init__(message)


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer. Header names are lower case or case-insensitive."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class StreamReply(Protocol):
    """An answer with a body that arrives over time."""

    status: int
    headers: Mapping[str, str]

    def chunks(self) -> AsyncIterator[bytes]:
        """Yield pieces of the body as they arrive. Raises TransportError if the stream breaks."""
        ...


class Transport(Protocol):
    """A sender of requests to one API server. ``target`` is path and query, already encoded."""

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout_s: float,
    ) -> Reply:
        """Send a request and read the whole answer. Raises TransportError."""
        ...

    def stream(
        self, target: str, headers: Mapping[str, str], idle_s: float
    ) -> AbstractAsyncContextManager[StreamReply]:
        """GET with a streamed answer. Silence for ``idle_s`` ends ``chunks`` without an error."""
        ...

    async def close(self) -> None:
        """Close all connections. A later call raises ApiUnavailable."""
        ...


class HttpTransport:
    """aiohttp over TCP and TLS. Connections are opened on first use and kept alive."""

    def __init__(self, config: ClusterConfig) -> None:
        self._config = config
        self._session: aiohttp.ClientSession | None = None
        self._is_closed = False

    def _opened(self) -> aiohttp.ClientSession:
        # Opened lazily, because aiohttp needs a running loop.
        if self._is_closed:
            # If one of several concurrent calls failed, its caller may have closed the client: the
            # other calls may still retry.
            raise ApiUnavailable(f"{self._config.server}: this client is closed")
        if self._session is None:
            context = self._config.ssl_context()
            self._session = aiohttp.ClientSession(
                connector=aiohttp.TCPConnector(
                    limit=0,  # the client limits concurrency itself, and watches must not count
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
                return  # silence looks exactly like a half-dead connection
            except (aiohttp.ClientError, OSError) as error:
                raise _as_transport_error(error, self._server) from error
            if not chunk:
                return
            yield chunk
            await self._gather(len(chunk))

    async def _gather(self, size: int) -> None:
        """Pause before the next read if the stream is busy, so that more arrives together."""
        pause_s = self._pace.pause_s(asyncio.get_running_loop().time(), size)
        if pause_s > 0:
            with _undisturbed(self._response.connection):
                await asyncio.sleep(pause_s)


class ReadPace:
    """How long to pause after a read (generic cell rate algorithm, ITU-T I.371)."""

    def __init__(self) -> None:
        self._due_s = float("-inf")
        """When the reads so far would have ended at their usual distance."""

    def pause_s(self, now_s: float, size: int) -> float:
        """Return the seconds to pause after a read of ``size`` bytes, 0 if the stream is slow.

        Parameters
        ----------
        now_s : Monotonic seconds.
        """
        distance_s = READS_EVERY_S * min(max(size / READ_BYTES, 1), READS_RARER)
        self._due_s = max(self._due_s, now_s) + distance_s
        return distance_s if self._due_s - now_s > READS_CREDIT_S else 0.0


@contextmanager
def _undisturbed(connection: Connection | None) -> Iterator[None]:
    """Tell the kernel not to wake us for this connection until its buffer is full or it ends."""
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
    # A failure to connect (refused, DNS, TLS, timeout) happens before anything is sent.
    is_unsent = isinstance(error, (aiohttp.ClientConnectorError, aiohttp.ConnectionTimeoutError))
    return TransportError(f"{server}: {_in_words(error)}", is_unsent=is_unsent)


def _in_words(error: BaseException) -> str:
    """Return why the server cannot be used, without the names of classes."""
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        found = error.certificate_error
        reason = getattr(found, "verify_message", "") or str(found)
        return f"its certificate is not accepted: {reason}. Fix: {_TRUST}"
    if isinstance(error, aiohttp.ClientConnectorError):
        reason = error.os_error.strerror or str(error.os_error)
        # asyncio has a text of its own for a refused connection, and names the address again.
        reason = os.strerror(error.os_error.errno or 0) if "Connect call" in reason else reason
        return f"cannot be reached: {reason}. Fix: {_REACH}"
    if isinstance(error, TimeoutError):
        return f"no answer in time. Fix: {_REACH}"
    return str(error) or type(error).__name__
