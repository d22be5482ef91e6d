"""A Service on loopback: one address, several servers behind it. Those that are gone are passed by.

TLS goes through untouched. Used where a test runs several webhooks.
"""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Sequence
from contextlib import suppress
from itertools import count
from typing import Self

HOST = "127.0.0.1"


class Balancer:
    """Forwards each connection to the next port that accepts. An async context manager."""

    def __init__(self, ports: Sequence[int]) -> None:
        self._ports = tuple(ports)
        self._turn = count()
        self._server: asyncio.Server | None = None
        self._open: set[asyncio.Task[None]] = set()
        self.served: Counter[int] = Counter()
        self.port = 0

    async def __aenter__(self) -> Self:
        self._server = await asyncio.start_server(self._accept, HOST, 0)
        self.port = int(self._server.sockets[0].getsockname()[1])
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for task in self._open:
            task.cancel()
        await asyncio.gather(*self._open, return_exceptions=True)

    def _accept(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.create_task(self._forward(reader, writer))
        self._open.add(task)
        task.add_done_callback(self._open.discard)

    async def _forward(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        first = next(self._turn)
        for number in range(len(self._ports)):
            port = self._ports[(first + number) % len(self._ports)]
            try:
                there = await asyncio.open_connection(HOST, port)
            except OSError:
                continue
            self.served[port] += 1
            with suppress(OSError):
                await asyncio.gather(_pump(reader, there[1]), _pump(there[0], writer))
            there[1].close()
            break
        writer.close()


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while piece := await reader.read(1 << 16):
        writer.write(piece)
        await writer.drain()
    with suppress(OSError, RuntimeError):
        writer.write_eof()
