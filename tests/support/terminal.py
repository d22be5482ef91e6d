"""A terminal for one command: 80 columns, what it prints, and no colours.

Called by ``console`` and by the walks through the pages. A program sees a terminal on its standard
output and standard error, and nothing on its standard input.
"""

from __future__ import annotations

import asyncio
import fcntl
import os
import re
import struct
import termios
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Self

COLUMNS, ROWS = 80, 200
"""No page of output is longer than ``ROWS``, so no program starts a pager."""
ENVIRON = {"COLUMNS": str(COLUMNS), "LINES": str(ROWS), "TERM": "xterm", "NO_COLOR": "1"}
CHUNK = 65536
_CONTROL = re.compile(rb"\x1b\[[0-9;?]*[A-Za-z]|\x1b[()][A-Z0-9]")

_SPINNER = re.compile("[\u2800-\u28ff] [^\r\n]*[\r\n]*")
"""A frame of a progress line, which the next one overwrites and the end removes."""


class Terminal:
    """One command and what it has printed, for as long as ``async with``."""

    def __init__(self, command: str, *, folder: Path, environ: Mapping[str, str]) -> None:
        self._command, self._folder, self._environ = command, folder, environ
        self._output = bytearray()
        self._changed = asyncio.Event()
        self._has_ended = False
        self._master = -1
        self.process: asyncio.subprocess.Process

    async def __aenter__(self) -> Self:
        self._master, slave = os.openpty()
        fcntl.ioctl(slave, termios.TIOCSWINSZ, struct.pack("HHHH", ROWS, COLUMNS, 0, 0))
        modes = termios.tcgetattr(slave)
        modes[1] &= ~termios.OPOST  # a line ends as in a file
        termios.tcsetattr(slave, termios.TCSANOW, modes)
        os.set_blocking(self._master, False)
        asyncio.get_running_loop().add_reader(self._master, self._read)
        try:
            self.process = await asyncio.create_subprocess_exec(
                *("bash", "-c", self._command),
                cwd=self._folder,
                env={**self._environ, **ENVIRON},
                stdin=asyncio.subprocess.DEVNULL,
                stdout=slave,
                stderr=slave,
                start_new_session=True,
            )
        finally:
            os.close(slave)
        return self

    async def __aexit__(self, *_: object) -> None:
        if self.process.returncode is None:
            self.process.kill()
            await self.process.wait()
        self._stop_reading()
        os.close(self._master)

    def _stop_reading(self) -> None:
        asyncio.get_running_loop().remove_reader(self._master)
        self._has_ended = True
        self._changed.set()

    def _read(self) -> None:
        try:
            some = os.read(self._master, CHUNK)
        except BlockingIOError:
            return
        except OSError:  # the other end is closed
            some = b""
        self._output += some
        if some:
            self._changed.set()
        else:
            self._stop_reading()

    @property
    def printed(self) -> str:
        """What was printed so far, without control sequences and progress lines."""
        return _SPINNER.sub("", _CONTROL.sub(b"", bytes(self._output)).decode(errors="replace"))

    async def more(self, timeout_s: float) -> bool:
        """Wait until more is printed. Return False at the end, or after ``timeout_s``."""
        if self._has_ended:
            return False
        self._changed.clear()
        with suppress(TimeoutError):
            async with asyncio.timeout(timeout_s):
                await self._changed.wait()
                return not self._has_ended
        return False

    async def end(self) -> str:
        """Wait until the command has ended. Return all that it printed."""
        await self.process.wait()
        while not self._has_ended:
            if not await self.more(1.0):
                break
        return self.printed
