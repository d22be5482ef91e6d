"""``fluxqueue top`` in a pseudo-terminal, looked at through a terminal's eyes (pyte)."""

from __future__ import annotations

import asyncio
import fcntl
import os
import pty
import select
import signal
import struct
import subprocess
import sys
import termios
import time
from collections.abc import AsyncIterator, Callable
from pathlib import Path

import pyte
import pytest_asyncio

from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.kube.resources import FLUXJOBS
from tests.support.typing_verbs import Typist, typist

PATIENCE_S = 60.0
ALTERNATE, ORDINARY, CLEAR = b"\x1b[?1049h", b"\x1b[?1049l", b"\x1b[2J"
RUNNING, HELD = FluxJobState.RUNNING, FluxJobState.HELD


@pytest_asyncio.fixture
async def shell(tmp_path: Path) -> AsyncIterator[Typist]:
    """One runs, forty wait."""
    async with typist(tmp_path) as made:
        await made.job("train", RUNNING, jobid=1, started_at_s=1_700_000_000, queue="default")
        for number in range(40):
            await made.job(f"wait-{number}", jobid=number + 2, priority=100 - number)
        yield made


class Watched:
    """``fluxqueue top`` in a terminal of a given size."""

    def __init__(self, kubeconfig: Path, width: int, height: int, *words: str) -> None:
        self.screen = pyte.Screen(width, height)
        self._stream = pyte.ByteStream(self.screen)
        self.raw = b""
        self._fd, theirs = pty.openpty()
        self._set_size(width, height)
        self.before = termios.tcgetattr(theirs)
        environ = {**os.environ, "KUBECONFIG": str(kubeconfig), "TERM": "xterm-256color"}
        for name in ("COLUMNS", "LINES", "NO_COLOR"):
            environ.pop(name, None)
        self._theirs = theirs
        self.process = subprocess.Popen(
            [sys.executable, "-m", "fluxqueue", "top", *words],
            stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True,
        )  # fmt: skip

    def _set_size(self, width: int, height: int) -> None:
        fcntl.ioctl(self._fd, termios.TIOCSWINSZ, struct.pack("HHHH", height, width, 0, 0))

    def resize(self, width: int, height: int) -> None:
        """Make the window another size, as a window manager does."""
        self.screen.resize(height, width)
        self._set_size(width, height)
        self.process.send_signal(signal.SIGWINCH)

    def press(self, keys: str) -> None:
        """Press keys."""
        os.write(self._fd, keys.encode())

    def until(self, is_so: Callable[[list[str]], bool], what: str) -> list[str]:
        """Look at the screen until it is as wanted."""
        end = time.monotonic() + PATIENCE_S
        while not is_so(lines := [line.rstrip() for line in self.screen.display]):
            assert time.monotonic() < end, f"{what}: {lines}"
            self._read(0.2)
        return lines

    def _read(self, wait_s: float) -> None:
        if select.select([self._fd], [], [], wait_s)[0]:
            data = os.read(self._fd, 65536)
            self.raw += data
            self._stream.feed(data)

    def end(self) -> int:
        """Its exit code. All that it has written is read."""
        end = time.monotonic() + PATIENCE_S
        while self.process.poll() is None:
            assert time.monotonic() < end, "it does not end"
            self._read(0.1)
        self._read(0.1)
        return self.process.returncode

    def after(self) -> list[object]:
        """How the terminal was left."""
        return termios.tcgetattr(self._theirs)

    def close(self) -> None:
        """End it, whatever it does."""
        self.process.kill()
        self.process.wait()
        os.close(self._fd)
        os.close(self._theirs)


def _names(lines: list[str]) -> list[str]:
    return [words[1] for line in lines[4:-1] if len(words := line.split()) > 1]


def _watch(shell: Typist, loop: asyncio.AbstractEventLoop) -> None:
    watched = Watched(shell.kubeconfig, 110, 20)
    try:
        lines = watched.until(lambda seen: "train" in "".join(seen), "the first lines")
        lines = watched.until(lambda seen: "1-15 of 41" in seen[-1], "all are read")
        assert lines[0].startswith("fluxqueue top  default")
        assert lines[1].startswith("41 jobs, 2 pods started  Pending 40  Running 1")
        assert lines[3].split()[:3] == ["JOBID", "NAME", "USER"]
        assert _names(lines) == ["train", *(f"wait-{n}" for n in range(14))]
        assert "q quit" in lines[-1]

        def change(coroutine: object) -> None:
            asyncio.run_coroutine_threadsafe(coroutine, loop).result(PATIENCE_S)  # type: ignore[arg-type]

        change(_hold(shell, "wait-3"))
        watched.until(lambda seen: "Held 1" in seen[1], "a change is shown")
        change(shell.client.delete(FLUXJOBS, "default", "wait-0-job"))
        watched.until(lambda seen: "40 jobs" in seen[1], "what is gone is gone")
        watched.press("\x1b[B")
        watched.until(lambda seen: "2-16 of 40" in seen[-1], "an arrow scrolls")
        watched.press("G")
        lines = watched.until(lambda seen: "26-40 of 40" in seen[-1], "the end")
        assert _names(lines)[-1] == "wait-3", "what is held comes last"
        watched.press("gor")
        # What a terminal is sent arrives in pieces: the head may say so before the rows do.
        watched.until(lambda seen: "by -name" in seen[0], "another order, backwards")
        watched.until(lambda seen: _names(seen)[:2] == ["wait-9", "wait-8"], "in that order")
        watched.resize(60, 9)
        lines = watched.until(lambda seen: "1-4 of 40" in seen[-1], "a smaller window is filled")
        assert len(_names(lines)) == 4
        assert max(map(len, lines)) <= 60
        watched.resize(150, 50)
        lines = watched.until(lambda seen: "1-40 of 40" in seen[-1], "a larger one, too")
        assert len(_names(lines)) == 40
        watched.press("q")
        assert watched.end() == 0
        assert watched.raw.count(ALTERNATE) == watched.raw.count(ORDINARY) == 1
        assert CLEAR not in watched.raw, "a screen that is wiped before each picture flickers"
        assert watched.after() == watched.before, "keys are shown again"
    finally:
        watched.close()


async def _hold(shell: Typist, name: str) -> None:
    made = await shell.read(f"{name}-job")
    await shell.tell(made, HELD, jobid=5)


async def test_it_shows_the_queue_as_it_changes(shell: Typist) -> None:
    """As a person would: looks, scrolls, reorders, resizes, quits."""
    await asyncio.to_thread(_watch, shell, asyncio.get_running_loop())


def _interrupt(kubeconfig: Path) -> None:
    watched = Watched(kubeconfig, 80, 24, "-u", "nobody")
    try:
        watched.until(lambda seen: "no jobs" in seen[-1], "an empty queue")
        watched.process.send_signal(signal.SIGINT)
        assert watched.end() == 130
        assert watched.raw.count(ORDINARY) == 1
        assert watched.after() == watched.before
    finally:
        watched.close()


async def test_it_is_interrupted(shell: Typist) -> None:
    """The terminal is as it was."""
    await asyncio.to_thread(_interrupt, shell.kubeconfig)


async def test_without_a_terminal_it_says_what_to_do(shell: Typist) -> None:
    """In a pipe, in CI."""
    told = await shell.type("top")
    assert told.code == 2
    assert "fluxqueue jobs" in told.err
