"""What servers log: of a client's nonsense one line, of our own failures all."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Iterator

import pytest
from aiohttp import web

from fluxqueue.process import logs


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    """What the tests' own run logs with."""
    root, server = logging.getLogger(), logging.getLogger("aiohttp.server")
    handlers, level, filters = root.handlers[:], root.level, server.filters[:]
    yield
    root.handlers[:], server.filters[:] = handlers, filters
    root.setLevel(level)


async def _fail(_: web.Request) -> web.Response:
    raise RuntimeError("ours")


async def _ask(target: str) -> str:
    """The first line of an answer. The process logs as each of ours does."""
    logs.set_up()
    app = web.Application()
    app.router.add_get("/fail", _fail)
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    try:
        await web.TCPSite(runner, "127.0.0.1", 0).start()
        reader, writer = await asyncio.open_connection(*runner.addresses[0])
        writer.write(f"GET {target} HTTP/1.1\r\nHost: x\r\n\r\n".encode())
        answer = (await reader.readline()).decode().rstrip()
        writer.close()
        await writer.wait_closed()
        return answer
    finally:
        await runner.cleanup()


async def test_a_request_that_is_none_is_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    assert "400" in await _ask("/?" + 9000 * "a")
    (line,) = capsys.readouterr().err.splitlines()
    assert "WARNING aiohttp.server: Error handling request" in line
    assert "error=400" in line
    assert len(line) < 2 * logs.ERROR_MAX


async def test_a_failure_of_ours_is_told_whole(capsys: pytest.CaptureFixture[str]) -> None:
    assert "500" in await _ask("/fail")
    told = capsys.readouterr().err
    assert "ERROR" in told
    assert "RuntimeError: ours" in told
