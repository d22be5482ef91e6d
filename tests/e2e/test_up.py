"""``fluxqueue up`` itself, as a user starts and ends it: one process tree, one data directory."""

from __future__ import annotations

import asyncio
import os
import signal
import socket
import sqlite3
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from fluxqueue.errors import ApiUnavailable
from fluxqueue.kube.client import KubeClient
from fluxqueue.kube.config import load_kubeconfig
from fluxqueue.kube.resources import FLUXJOBS, JOBS
from tests.support.e2e.objects import FOR_EVER, job
from tests.support.waiting import eventually

READY = "ready"
START_S = 200.0
END_S = 19.0
"""An order of magnitude above what it takes. Just below any time-out inside. On a busy machine it
may take as long as the start did there."""


@dataclass(slots=True)
class Up:
    """A running ``fluxqueue up`` and what it has printed."""

    process: asyncio.subprocess.Process
    lines: list[str] = field(default_factory=list)
    started_in_s: float = 0.0
    _began: float = field(default_factory=time.monotonic)
    _reader: asyncio.Task[None] | None = None

    def read(self) -> None:
        """Collect what it prints."""
        self._reader = asyncio.create_task(self._collect())

    async def _collect(self) -> None:
        assert self.process.stdout is not None
        async for line in self.process.stdout:
            self.lines.append(line.decode().rstrip())

    async def until_printed(self, text: str, *, timeout_s: float = START_S) -> None:
        """Wait for a line that contains ``text``."""

        async def is_there() -> bool:
            if any(text in line for line in self.lines):
                return True
            assert self.process.returncode is None, "\n".join(self.lines)
            return False

        await eventually(is_there, f"{text!r} in the output", timeout_s=timeout_s)
        self.started_in_s = time.monotonic() - self._began

    async def end(self, number: signal.Signals | None = None) -> int:
        """Send a signal (none: it ends by itself) and give the exit code."""
        if number is not None:
            self.process.send_signal(number)
        async with asyncio.timeout(max(END_S, self.started_in_s)):
            code = await self.process.wait()
        assert self._reader is not None
        await self._reader
        return code


@asynccontextmanager
async def running_up(*arguments: str | Path, **environ: str) -> AsyncIterator[Up]:
    """Start ``fluxqueue up``. Whatever the test does, it does not outlive it."""
    clean = {k: v for k, v in os.environ.items() if k not in {"DATABASE_URL", "KUBECONFIG"}}
    process = await asyncio.create_subprocess_exec(
        sys.executable,
        *("-m", "fluxqueue", "up", *map(str, arguments)),
        stdin=asyncio.subprocess.DEVNULL,
        stdout=asyncio.subprocess.PIPE,
        stderr=asyncio.subprocess.STDOUT,
        env={**clean, "PYTHONUNBUFFERED": "1", **environ},
        start_new_session=True,
    )
    up = Up(process)
    up.read()
    try:
        yield up
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


@pytest.fixture
def data_dir() -> Iterator[Path]:
    """A folder that the database server can reach when it runs as another user."""
    with tempfile.TemporaryDirectory(prefix="fluxqueue-up-", ignore_cleanup_errors=True) as folder:
        Path(folder).chmod(0o755)
        yield Path(folder)


def _family(folder: Path) -> set[int]:
    """Processes that name ``folder`` on their command line or in their environment."""
    found = set()
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit() or int(entry.name) == os.getpid():
            continue
        try:
            told = (entry / "cmdline").read_bytes() + (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rpartition(")")[2].split()[0]
        except OSError:
            continue
        if str(folder).encode() in told and state != "Z":
            found.add(int(entry.name))
    return found


async def _until_no_family(folder: Path) -> None:
    await eventually(lambda: not _family(folder), f"no process of {folder} left")


async def _until_on_disk(folder: Path, fluxjob: dict[str, Any]) -> None:
    """The embedded API server answers a moment before it writes (its ``journal``)."""
    (file,) = folder.rglob("objects.sqlite3")
    version = int(fluxjob["metadata"]["resourceVersion"])

    async def is_there() -> bool:
        with closing(sqlite3.connect(f"{file.as_uri()}?mode=ro", uri=True)) as database:
            found = database.execute(
                "SELECT 1 FROM objects WHERE plural = 'fluxjobs' AND rv >= ?", (version,)
            )
            return found.fetchone() is not None

    await eventually(is_there, "the FluxJob is in the cluster's file")


async def _kill_cluster(folder: Path) -> None:
    """Kill -9, and wait for its end: what is asked next is answered by its successor."""
    for pid in _family(folder):
        if b"localcluster" in Path(f"/proc/{pid}/cmdline").read_bytes():
            os.kill(pid, signal.SIGKILL)

            async def has_ended(pid: int = pid) -> bool:
                return pid not in _family(folder)

            await eventually(has_ended, "the end of the cluster's process")
            return
    raise AssertionError("the cluster has no process")


async def _until_state(client: KubeClient, name: str, *states: str) -> dict[str, Any]:
    async def look() -> dict[str, Any] | None:
        try:
            listed = (await client.list(FLUXJOBS, "default")).items
        except ApiUnavailable:  # it was killed a moment ago
            return None
        for found in listed:
            is_it = found["metadata"]["name"] == f"{name}-job"
            status = found.get("status") or {}
            if is_it and "version" in status and status["state"] in states:
                return found
        return None

    found = await eventually(look, f"{name} {states}")
    assert found is not None
    return found


@pytest.mark.long("everything is started three times and the cluster once more")
async def test_a_second_up_goes_on_where_the_first_stopped(data_dir: Path) -> None:
    """Ctrl-C ends it clean within seconds. A queued Job is still queued at the next start.

    A rival is refused meanwhile. Then the cluster is killed: it is started again where all its
    clients look for it. In the end all is killed: no process stays behind.
    """
    arguments = ("--data-dir", data_dir, "--nodes", "1")
    async with running_up(*arguments) as first:
        await first.until_printed(READY)
        async with KubeClient(load_kubeconfig(str(data_dir / "kubeconfig"))) as client:
            await client.create(JOBS, "default", job("blocker", cpu="16", run=FOR_EVER))
            await _until_state(client, "blocker", "Running")
            await client.create(JOBS, "default", job("queued", cpu="16"))
            before = await _until_state(client, "queued", "Pending", "Reserved")
            await _until_on_disk(data_dir, before)
            await _assert_refused(data_dir, arguments)
            await _kill_cluster(data_dir)
            await _until_state(client, "queued", "Pending", "Reserved")
        assert len(_family(data_dir)) > 4, "cluster, webhook, controller, worker, Postgres"
        assert await first.end(signal.SIGINT) == 0
        assert not _family(data_dir)
    async with running_up(*arguments) as second:
        await second.until_printed(READY)
        async with KubeClient(load_kubeconfig(str(data_dir / "kubeconfig"))) as client:
            after = await _until_state(client, "queued", "Pending", "Reserved")
            assert after["status"]["jobid"] == before["status"]["jobid"]
            await client.delete(JOBS, "default", "blocker", propagation="Background")
            await _until_state(client, "queued", "Completed")
        second.process.kill()
        await second.process.wait()
    await _until_no_family(data_dir)


async def _assert_refused(data_dir: Path, arguments: tuple[str | Path, ...]) -> None:
    """A second ``up`` in the same folder says so and does not disturb the first."""
    # Twice: a session of Postgres shows its parent's command line until it has its own title.
    family = _family(data_dir) & _family(data_dir)
    async with running_up(*arguments) as rival:
        assert await asyncio.wait_for(rival.process.wait(), 150) == 2
        await rival.end()
        said = "\n".join(rival.lines)
        assert str(data_dir) in said
        assert "in use" in said
        assert "Traceback" not in said
    assert family <= _family(data_dir), "the rival must not disturb the first"


async def test_an_unreachable_database_is_waited_for_and_named(data_dir: Path) -> None:
    """It says what it waits for, does not crash, and SIGTERM still ends it clean."""
    with socket.socket() as closed:
        closed.bind(("127.0.0.1", 0))
        port = closed.getsockname()[1]
        url = f"postgresql://nobody:secret@127.0.0.1:{port}/none"
        async with running_up("--data-dir", data_dir, "--nodes", "1", "--database-url", url) as up:
            await up.until_printed("waiting for the database")
            said = "\n".join(up.lines)
            assert str(port) in said
            assert "secret" not in said
            assert "Traceback" not in said
            assert await up.end(signal.SIGTERM) == 0
    await _until_no_family(data_dir)


@pytest.mark.cases_long("the other file")
@pytest.mark.parametrize("content", [None, "no: [yaml"], ids=["absent", "broken"])
async def test_an_unreadable_kubeconfig_is_one_line_and_exit_2(
    data_dir: Path, content: str | None
) -> None:
    """The line names the file."""
    kubeconfig = data_dir / "kubeconfig.yaml"
    if content is not None:
        kubeconfig.write_text(content)
    async with running_up("--data-dir", data_dir / "data", "--kubeconfig", kubeconfig) as up:
        assert await asyncio.wait_for(up.process.wait(), 150) == 2
        await up.end()
    said = [line for line in up.lines if line and not line.startswith("starting")]
    assert len(said) == 1, said
    assert str(kubeconfig) in said[0]
    await _until_no_family(data_dir)


PROGRAM = """
from fluxqueue.client import Client
with Client() as client:
    print(client.submit(divmod, args=[17, 5], image="python:3.13").result())
"""


@pytest.mark.long("seconds on a whole cluster")
async def test_programs_run_if_that_is_asked_for_and_it_says_so(data_dir: Path) -> None:
    """A function has its result, and srun starts the tasks of a script, in the shell beside it."""
    async with running_up("--run-programs", "--nodes", "1", "--data-dir", data_dir) as up:
        await up.until_printed(READY)
        assert any("with your rights: no image, no isolation" in line for line in up.lines)
        script = data_dir / "four.sh"
        script.write_text("#!/bin/sh\n#SBATCH -n 4\nsrun -l echo of $SLURM_NTASKS\nexit 3\n")
        beside = {"KUBECONFIG": str(data_dir / "kubeconfig")}
        beside["PATH"] = f"{data_dir / 'bin'}:{os.environ['PATH']}"

        async def run(*words: str) -> tuple[int | None, list[str]]:
            done = await asyncio.create_subprocess_exec(
                *words, env=os.environ | beside, stdout=asyncio.subprocess.PIPE
            )
            output, _ = await done.communicate()
            return done.returncode, sorted(output.decode().splitlines())

        assert await run("python", "-c", PROGRAM) == (0, ["(3, 2)"])
        _, lines = await run("fluxqueue", "submit", str(script), "--image", "x", "--attach")
        assert [line for line in lines if "submitted" not in line] == [
            f"{rank}: of 4" for rank in range(4)
        ]
        assert await up.end(signal.SIGINT) == 0
