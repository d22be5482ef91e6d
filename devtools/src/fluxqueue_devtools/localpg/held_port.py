"""A TCP port that stays reserved while the server on it starts, crashes and restarts.

A process that starts a server as another process holds the port: ``fluxqueue up`` and the embedded
Postgres. A port that was only found free can be taken a moment later. Another server may take it.
It may also become the local end of an outgoing connection. Even a connection to this very port may
get it, and then connects to itself.

The server itself must not use this class: it simply listens.
"""

from __future__ import annotations

import socket
import sys

LOOPBACK = "127.0.0.1"


class HeldPort:
    """A port of the loopback interface, kept from other processes until ``release``.

    Parameters
    ----------
    wishes : Preferred ports in this order, 0 for none. Otherwise any free port is taken.

    Raises
    ------
    OSError
        There is no free port at all.

    The class binds a socket that does not listen. On Linux a server that sets SO_REUSEADDR, as all
    usual servers do, may listen beside it. Linux gives the port to no process that asks for any
    port. Connections are refused while no server listens.

    Other systems would refuse the server too. There the port is released at once, and is only
    likely to stay free.
    """

    def __init__(self, *wishes: int) -> None:
        self._socket: socket.socket | None = None
        for wish in (*(port for port in wishes if port), 0):
            holder = socket.socket()
            # As servers do: a connection in TIME_WAIT must not make the port look taken.
            holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            try:
                holder.bind((LOOPBACK, wish))
            except OSError:
                holder.close()
                if not wish:
                    raise
                continue
            self.port = int(holder.getsockname()[1])
            self._socket = holder
            break
        if sys.platform != "linux":
            self.release()

    def release(self) -> None:
        """Let other processes have the port. Harmless to repeat."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
