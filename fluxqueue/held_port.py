"""A TCP port that stays ours while the server on it starts, dies and starts again.

Held by whoever starts a server as a process of its own: ``fluxqueue up`` and the embedded Postgres.
A port that was merely found free can be anybody's a moment later: another server's, or the near
end of somebody's outgoing connection, even of one that tries to reach this very port and then
meets itself. Must not be used by the server itself, which simply listens.
"""

from __future__ import annotations

import socket
import sys

LOOPBACK = "127.0.0.1"


class HeldPort:
    """A port of the loopback interface, kept from others until ``release``.

    Parameters: ``wishes`` are ports to be preferred, in this order (0: none); else any free one.
    Raises: ``OSError`` when there is no free port at all.

    How: a socket that is bound but does not listen. Linux lets a server that sets SO_REUSEADDR, as
    all usual ones do, listen beside it, and gives the port to nobody who asks for any port; whoever
    connects while no server listens is refused. Other systems would refuse the server too, so
    there the port is let go at once, and is only likely to stay free.
    """

    def __init__(self, *wishes: int) -> None:
        self._socket: socket.socket | None = None
        for wish in (*(port for port in wishes if port), 0):
            holder = socket.socket()
            # As servers do: a connection in TIME_WAIT does not make the port taken.
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
        """Let others have it. Harmless to repeat."""
        if self._socket is not None:
            self._socket.close()
            self._socket = None
