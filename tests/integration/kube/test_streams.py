"""Streams that much comes over are read now and then: nothing of them is lost or left behind."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

from aiohttp import web

from fluxqueue.kube.config import ClusterConfig
from fluxqueue.kube.transport import HttpTransport, StreamReply

FAST = 300


class Told:
    """Sends ``FAST`` lines one after the other, then one more for each word it is given."""

    def __init__(self) -> None:
        self.words: asyncio.Queue[str] = asyncio.Queue()

    async def handle(self, request: web.Request) -> web.StreamResponse:
        """Stream until the word is empty."""
        response = web.StreamResponse()
        await response.prepare(request)
        for number in range(FAST):
            await response.write(f"{number}\n".encode())
            await asyncio.sleep(0)  # the reader has a turn
        while word := await self.words.get():
            await response.write(f"{word}\n".encode())
        return response


@asynccontextmanager
async def _stream(told: Told) -> AsyncIterator[StreamReply]:
    app = web.Application()
    app.router.add_get("/", told.handle)
    runner = web.AppRunner(app, access_log=None, shutdown_timeout=0.1)
    await runner.setup()
    await web.TCPSite(runner, "127.0.0.1", 0).start()
    transport = HttpTransport(ClusterConfig(f"http://127.0.0.1:{runner.addresses[0][1]}"))
    try:
        async with transport.stream("/", {}, 60.0) as reply:
            yield reply
    finally:
        await transport.close()
        await runner.cleanup()


async def test_after_a_burst_the_least_word_still_comes() -> None:
    """Each word is sent only when the one before was read: none may wait for more to come."""
    told, seen = Told(), b""
    words = ["a", "b", "c", ""]
    async with _stream(told) as reply:
        async for chunk in reply.chunks():
            seen += chunk
            if seen.endswith((f"{FAST - 1}\n".encode(), b"a\n", b"b\n", b"c\n")):
                told.words.put_nowait(words.pop(0))
    lines = seen.decode().split()
    assert lines == [*map(str, range(FAST)), "a", "b", "c"]
    assert not words


async def test_who_leaves_in_the_midst_of_a_burst_may_stream_again() -> None:
    told = Told()
    async with _stream(told) as reply:
        chunks = reply.chunks()
        await anext(chunks)
        reading = asyncio.ensure_future(anext(chunks))
        await asyncio.sleep(0)
        reading.cancel()
        await asyncio.gather(reading, return_exceptions=True)
    await test_after_a_burst_the_least_word_still_comes()
