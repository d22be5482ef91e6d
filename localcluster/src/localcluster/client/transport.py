"""``Transport``: an API server as a sender of requests (``http`` and ``inprocess`` are)."""

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
    """An answer whose body arrives over time."""

    status: int
    headers: Mapping[str, str]

    def chunks(self) -> AsyncIterator[bytes]:
        """Pieces of the body as they arrive."""
        ...


class Transport(Protocol):
    """``target`` is path and query, already encoded. Both raise ``ApiUnavailable``."""

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout_s: float,
    ) -> Reply:
        """Send and read the whole answer."""
        ...

    def stream(
        self, target: str, headers: Mapping[str, str], idle_s: float
    ) -> AbstractAsyncContextManager[StreamReply]:
        """GET with a streamed answer; silence for ``idle_s`` seconds ends it without an error."""
        ...

    async def close(self) -> None:
        """Close all connections; no call may follow."""
        ...
