"""No other process gets a held port, and it still takes the server it is held for."""

from __future__ import annotations

import socket
import subprocess
import sys

import pytest

from fluxqueue_devtools.localpg.held_port import LOOPBACK, HeldPort

linux_only = pytest.mark.skipif(sys.platform != "linux", reason="elsewhere the port is let go")

SERVE_ONCE = """
import asyncio, sys
async def main():
    server = await asyncio.start_server(lambda reader, writer: None, "127.0.0.1", int(sys.argv[1]))
    print("listens", flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""


@linux_only
def test_a_server_starts_dies_and_starts_again_on_it() -> None:
    """As it does under a supervisor. Between two lives a client is refused at once."""
    held = HeldPort()
    for _ in range(2):
        command = [sys.executable, "-c", SERVE_ONCE, str(held.port)]
        with subprocess.Popen(command, stdout=subprocess.PIPE) as server:
            assert server.stdout is not None
            assert server.stdout.readline() == b"listens\n"
            with socket.create_connection((LOOPBACK, held.port)):
                server.kill()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection((LOOPBACK, held.port))
    held.release()


@linux_only
def test_nobody_else_gets_it() -> None:
    """Neither a second holder that wishes for it while a server listens, nor a plain bind."""
    held = HeldPort()
    with socket.socket() as rival, pytest.raises(OSError, match="in use"):
        rival.bind((LOOPBACK, held.port))
    with socket.socket() as server:
        server.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        server.bind((LOOPBACK, held.port))
        server.listen()
        other = HeldPort(held.port)
        assert other.port != held.port
        other.release()
    held.release()


def test_a_wish_is_granted_when_it_is_free() -> None:
    """So that a second start keeps its address. The first free wish wins, 0 is none."""
    first = HeldPort()
    first.release()
    first.release()
    again = HeldPort(0, first.port)
    assert again.port == first.port
    again.release()
