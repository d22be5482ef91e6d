"""``Transport``: sends requests to an API server. ``http`` and ``inprocess`` implement it."""

from __future__ import annotations

from collections.abc import AsyncIterator, Mapping
from contextlib import AbstractAsyncContextManager
from dataclasses import dataclass
from typing import Protocol


@dataclass(frozen=True, slots=True)
class Reply:
    """A complete answer."""

    status: int
    headers: Mapping[str, str]
    body: bytes


class StreamReply(Protocol):
    """An answer with a body that arrives over time."""

    status: int
    headers: Mapping[str, str]

    def chunks(self) -> AsyncIterator[bytes]:
        """Return pieces of the body as they arrive."""
        ...


class Transport(Protocol):
    """Sends requests. ``target`` is path and query, already encoded.

    ``send`` and ``stream`` raise ``ApiUnavailable``.
    """

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout_s: float,
    ) -> Reply:
        """Send a request and read the whole answer."""
        ...

    def stream(
        self, target: str, headers: Mapping[str, str], idle_s: float
    ) -> AbstractAsyncContextManager[StreamReply]:
        """GET with a streamed answer. Silence for ``idle_s`` seconds ends it without an error."""
        ...

    async def close(self) -> None:
        """Close all connections. No call may follow."""
        ...
