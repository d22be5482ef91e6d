"""``fluxqueue mcp``: a server of the Model Context Protocol on standard input and output."""

from __future__ import annotations

import asyncio
import contextlib
import os
import sys
import threading
from typing import Annotated

import typer

from fluxqueue.cli.user.access import Access, with_access
from fluxqueue.cli.user.view import Token, ViewUrl


@with_access()
def mcp(
    access: Access,
    allow_changes: Annotated[
        bool,
        typer.Option("--allow-changes", help="also submit, hold, release, requeue, move, cancel"),
    ] = False,
    view: ViewUrl = "",
    token: Token = "",
) -> None:
    """Serve the queue to an assistant, by the Model Context Protocol (stdio).

    It reads only, with your rights, unless changes are allowed.

    Examples:

      claude mcp add fluxqueue -- fluxqueue mcp
    """
    try:
        asyncio.run(_serve(access, allow_changes, view, token))
    except KeyboardInterrupt:
        return


async def _serve(access: Access, allows_changes: bool, view: str, token: str) -> None:
    from fluxqueue import __version__
    from fluxqueue.client.async_client import AsyncClient
    from fluxqueue.client.mcp.protocol import LINE_MAX_BYTES, ToolServer
    from fluxqueue.client.mcp.tools import INSTRUCTIONS, changing_tools, reading_tools

    reader = asyncio.StreamReader(limit=LINE_MAX_BYTES)
    # A loop cannot wait for every kind of file. A thread can.
    pump = threading.Thread(target=_pump, args=(asyncio.get_running_loop(), reader), daemon=True)
    pump.start()

    def write(line: bytes) -> None:
        sys.stdout.buffer.write(line)
        sys.stdout.buffer.flush()

    async with AsyncClient(
        kubeconfig=access.kubeconfig,
        context=access.context or None,
        namespace=access.namespace or None,
        impersonate=access.impersonate,
        view_url=view,
        view_token=token,
    ) as client:
        tools = reading_tools(client) + (changing_tools(client) if allows_changes else [])
        server = ToolServer(tools, write, version=__version__, instructions=INSTRUCTIONS)
        await server.serve(reader)


def _pump(loop: asyncio.AbstractEventLoop, reader: asyncio.StreamReader) -> None:
    """Pass standard input on to the loop, until it ends."""
    # A buffered reader has a lock, which would stop the end of the process.
    with contextlib.suppress(RuntimeError):  # the loop has ended
        while data := os.read(sys.stdin.fileno(), 1 << 16):
            loop.call_soon_threadsafe(reader.feed_data, data)
        loop.call_soon_threadsafe(reader.feed_eof)
