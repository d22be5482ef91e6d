"""A process tree of parts: start, restart after a crash, stop in order.

``fluxqueue up`` and ``demo`` use it. A part is an ordinary subprocess with its own log file. It
ends with this process, however this process ends. A Deployment restarts pods in the same way, so
killing a part shows how the system continues.
"""

from __future__ import annotations

import asyncio
import ctypes
import os
import signal
import sys
from collections.abc import Awaitable, Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path

from fluxqueue.errors import FluxQueueError

STOP_TIMEOUT_S = 20.0
RESTART_MIN_S, RESTART_MAX_S = 0.1, 3.0
READY_TIMEOUT_S = 180.0
"""For a part that neither ends nor becomes ready. A machine under load takes time."""
PR_SET_PDEATHSIG = 1
LOG_TAIL_LINES = 15


class PartFailed(FluxQueueError):
    """A part ended before it was ready. The message has the end of its log."""


@dataclass(slots=True)
class StackPart:
    """One child process that is kept running until ``stop``.

    Parameters
    ----------
    command : The argument vector.
    log : Receives its output.
    environ : Added to our own environment.

    ``restarts`` counts how often it was restarted.
    """

    name: str
    command: Sequence[str]
    log: Path
    environ: Mapping[str, str] = field(default_factory=dict)
    restarts: int = 0
    process: asyncio.subprocess.Process | None = None
    _keeper: asyncio.Task[None] | None = None
    _is_stopping: bool = False

    @property
    def pid(self) -> int | None:
        """The process id while it runs."""
        running = self.process is not None and self.process.returncode is None
        return self.process.pid if running and self.process is not None else None

    async def start(self) -> None:
        """Start the process and keep it running."""
        await self._launch()
        self._keeper = asyncio.create_task(self._keep())

    async def _launch(self) -> None:
        with self.log.open("ab") as log:
            self.process = await asyncio.create_subprocess_exec(
                *self.command,
                stdin=asyncio.subprocess.DEVNULL,
                stdout=log,
                stderr=log,
                env={**os.environ, **self.environ},
                # Ctrl-C in the terminal reaches only this process, which stops the parts in order.
                start_new_session=True,
                preexec_fn=_die_with_parent,
            )

    async def _keep(self) -> None:
        pause = RESTART_MIN_S
        while True:
            assert self.process is not None, "started before it is kept"
            started = asyncio.get_running_loop().time()
            await self.process.wait()
            if self._is_stopping:
                return
            lasted = asyncio.get_running_loop().time() - started
            pause = RESTART_MIN_S if lasted > RESTART_MAX_S else min(2 * pause, RESTART_MAX_S)
            await asyncio.sleep(pause)
            self.restarts += 1
            await self._launch_in_the_end()

    async def _launch_in_the_end(self) -> None:
        """Start the process, and try again until that works: nothing else restarts it."""
        while True:
            try:
                await self._launch()
            except OSError as error:  # out of processes, memory or files
                print(f"{self.name} does not start, trying again: {error}", file=sys.stderr)
                await asyncio.sleep(RESTART_MAX_S)
            else:
                return

    async def wait_ready(
        self, is_ready: Callable[[], Awaitable[bool]], *, timeout_s: float = READY_TIMEOUT_S
    ) -> None:
        """Wait until ``is_ready`` returns True.

        Raises
        ------
        PartFailed
            The process ended several times, or was not ready in time.
        """
        try:
            async with asyncio.timeout(timeout_s):
                while not await is_ready():
                    if self.restarts >= 3:
                        raise PartFailed(f"{self.name} does not start:\n{self.log_tail()}")
                    await asyncio.sleep(0.05)
        except TimeoutError as error:
            raise PartFailed(
                f"{self.name} is not ready after {timeout_s:g} s:\n{self.log_tail()}"
            ) from error

    def log_tail(self) -> str:
        """Return the last lines of its log."""
        if not self.log.is_file():
            return ""
        lines = self.log.read_text(encoding="utf-8", errors="replace").splitlines()
        return "\n".join(lines[-LOG_TAIL_LINES:])

    async def stop(self, timeout_s: float = STOP_TIMEOUT_S) -> None:
        """Ask the process to end, and kill it after ``timeout_s``."""
        self._is_stopping = True
        if self._keeper is not None and self.process is None:
            self._keeper.cancel()
        if self.process is not None and self.process.returncode is None:
            with suppress(ProcessLookupError):
                self.process.send_signal(signal.SIGTERM)
            try:
                async with asyncio.timeout(timeout_s):
                    await self.process.wait()
            except TimeoutError:
                with suppress(ProcessLookupError):
                    self.process.kill()
                await self.process.wait()
        if self._keeper is not None:
            self._keeper.cancel()
            with suppress(asyncio.CancelledError):
                await self._keeper


def python(*arguments: str) -> list[str]:
    """Return the command line of one of our own modules under this interpreter.

    ``-P`` keeps the working directory off the module path. Otherwise a user's ``random.py`` there
    would replace that of the standard library.
    """
    return [sys.executable, "-P", "-m", *arguments]


def _die_with_parent() -> None:
    """Between fork and exec: end this process when its parent ends, however that happens."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, signal.SIGTERM)
