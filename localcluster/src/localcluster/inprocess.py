"""``InProcessTransport``: connects a ``Client`` to the embedded API server without a socket.

The cluster's own controllers use it. A request passes the same authentication, handlers and answers
as one over TLS. Only HTTP itself is left out, because it costs more than the rest together. All
other clients use HTTP.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from urllib.parse import parse_qsl

import orjson
from multidict import CIMultiDict, CIMultiDictProxy, MultiDict, MultiDictProxy

from localcluster.client.transport import Reply, StreamReply
from localcluster.errors import ApiUnavailable
from localcluster.server.auth import wanted_user
from localcluster.server.request import Answer, ApiRequest, Stream
from localcluster.server.server import ApiServer
from localcluster.types.refusals import StatusError

NO_HEADERS: Mapping[str, str] = {}


class InProcessTransport:
    """A ``Transport`` to one server of this process, as ``authorization`` says."""

    def __init__(self, server: ApiServer) -> None:
        self._server = server

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout_s: float,
    ) -> Reply:
        """Dispatch a request."""
        # Handlers seldom wait. Without this, a burst of our requests would block all other clients.
        await asyncio.sleep(0)
        try:
            async with asyncio.timeout(timeout_s):
                answer = await self._dispatch(method, target, headers, body)
        except TimeoutError as error:
            raise ApiUnavailable(f"{method} {path_of(target)}: timeout") from error
        if not isinstance(answer, Answer):
            raise TypeError(f"{method} {target} comes piece by piece: use stream()")
        return Reply(answer.code, answer.headers, answer.body)

    @asynccontextmanager
    async def stream(
        self,
        target: str,
        headers: Mapping[str, str],
        idle_s: float,  # noqa: ARG002 - part of the protocol
    ) -> AsyncIterator[StreamReply]:
        """Open a watch or a log.

        ``idle_s`` has no effect: a connection within one process cannot die silently.
        """
        answer = await self._dispatch("GET", target, headers, None)
        if isinstance(answer, Answer):
            yield _Stream(answer.code, _single(answer.body))
            return
        chunks = answer.chunks()
        try:
            yield _Stream(200, chunks)
        finally:
            await chunks.aclose()

    async def close(self) -> None:
        """Do nothing: there is nothing to close."""

    async def _dispatch(
        self, method: str, target: str, headers: Mapping[str, str], body: bytes | None
    ) -> Answer | Stream:
        path, _, text = target.partition("?")
        pairs = parse_qsl(text, keep_blank_values=True) if text else []
        given = CIMultiDictProxy(CIMultiDict(headers))
        try:
            request = ApiRequest(
                method,
                path,
                MultiDictProxy(MultiDict(pairs)),
                given,
                body or b"",
                self._server.authenticator.authenticate(given),
                [value for name, value in pairs if name == "dryRun"],
                wanted_user(given),
            )
            return await self._server.routes.dispatch(request)
        except StatusError as error:
            return Answer(error.code, orjson.dumps(error.body()), headers={**error.headers})


class _Stream:
    """A stream as the client reads it."""

    def __init__(self, status: int, chunks: AsyncIterator[bytes]) -> None:
        self.status, self.headers = status, NO_HEADERS
        self._chunks = chunks

    def chunks(self) -> AsyncIterator[bytes]:
        """Return the lines as they arrive."""
        return self._chunks


def path_of(target: str) -> str:
    """Return the target without its query."""
    return target.partition("?")[0]


async def _single(body: bytes) -> AsyncIterator[bytes]:
    yield body
