"""A transport that fails as networks and busy API servers do, by a seeded die."""

from __future__ import annotations

import random
from collections import Counter
from collections.abc import Mapping
from contextlib import AbstractAsyncContextManager

from fluxqueue.kube.transport import Reply, StreamReply, Transport, TransportError

STATUS = b'{"kind":"Status","apiVersion":"v1","status":"Failure","code":%d,"reason":"%s"}'


class FaultyTransport:
    """Wraps a transport. ``rate`` of the requests fail, each in a way of its own.

    refused (never sent), lost (acted upon, the answer is lost), 500, 429 with Retry-After, 409.
    """

    def __init__(self, inner: Transport, seed: int, rate: float) -> None:
        self._inner, self._random = inner, random.Random(seed)
        self.rate = rate
        self.told: Counter[str] = Counter()

    async def send(
        self,
        method: str,
        target: str,
        headers: Mapping[str, str],
        body: bytes | None,
        timeout_s: float,
    ) -> Reply:
        """Fail, or pass on."""
        if self._random.random() >= self.rate:
            return await self._inner.send(method, target, headers, body, timeout_s)
        fault = self._random.choice(("refused", "lost", "500", "429"))
        self.told[fault] += 1
        if fault == "refused":
            raise TransportError("connection refused", is_unsent=True)
        if fault == "lost":
            await self._inner.send(method, target, headers, body, timeout_s)
            raise TransportError("connection reset", is_unsent=False)
        if fault == "500":
            return Reply(500, {}, STATUS % (500, b"InternalError"))
        return Reply(429, {"retry-after": "1"}, STATUS % (429, b"TooManyRequests"))

    def stream(
        self, target: str, headers: Mapping[str, str], idle_s: float
    ) -> AbstractAsyncContextManager[StreamReply]:
        """Watches are not disturbed."""
        return self._inner.stream(target, headers, idle_s)

    async def close(self) -> None:
        """Close."""
        await self._inner.close()
