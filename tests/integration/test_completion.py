"""TAB in a real shell, in a pseudo-terminal, and what kubectl asks of its plugin."""

from __future__ import annotations

import asyncio
import os
import pty
import select
import shutil
import subprocess
import sys
import time
from collections.abc import AsyncIterator
from pathlib import Path
from types import SimpleNamespace
from typing import cast

import pytest
import pytest_asyncio
import yaml
from typer import Context

from fluxqueue.cli.user import complete
from fluxqueue.fluxjob.states import FluxJobState
from tests.support.typing_verbs import Typist, typist

BIN = Path(sys.executable).parent
PATIENCE_S = 60.0


@pytest_asyncio.fixture
async def shell(tmp_path: Path) -> AsyncIterator[Typist]:
    """A cluster with two FluxJobs and a queue."""
    async with typist(tmp_path) as made:
        await made.job("train-resnet", FluxJobState.RUNNING, jobid=1)
        await made.job("post-process", jobid=2)
        await made.queue("batch", policy="easy")
        yield made


class Terminal:
    """bash in a pseudo-terminal, with the completion sourced."""

    def __init__(self, kubeconfig: Path) -> None:
        self._process, self._fd = self._start(kubeconfig)
        self._seen = ""

    def _start(self, kubeconfig: Path) -> tuple[subprocess.Popen[bytes], int]:
        ours, theirs = pty.openpty()
        environ = {
            **os.environ,
            "KUBECONFIG": str(kubeconfig),
            "PATH": f"{BIN}:{os.environ['PATH']}",
            "PS1": "$ ",
            "TERM": "dumb",
            "INPUTRC": "/dev/null",
        }
        process = subprocess.Popen(
            ["bash", "--norc", "--noprofile", "-i"],
            stdin=theirs, stdout=theirs, stderr=theirs, env=environ, start_new_session=True,
        )  # fmt: skip
        os.close(theirs)
        return process, ours

    def type(self, text: str) -> None:
        """Press keys."""
        os.write(self._fd, text.encode())

    def until(self, text: str) -> str:
        """Read until ``text`` is on the screen. What came before it is taken away."""
        end = time.monotonic() + PATIENCE_S
        while text not in self._seen:
            ready, _, _ = select.select([self._fd], [], [], max(0.0, end - time.monotonic()))
            assert ready, f"{text!r} did not come: {self._seen!r}"
            self._seen += os.read(self._fd, 4096).decode("utf-8", "replace")
        before, _, self._seen = self._seen.partition(text)
        return before

    def close(self) -> None:
        """End the shell."""
        self._process.kill()
        self._process.wait()
        os.close(self._fd)


def _press_tab(kubeconfig: Path) -> None:
    terminal = Terminal(kubeconfig)
    try:
        terminal.type('source <(fluxqueue --show-completion); echo rea""dy\n')
        terminal.until("ready")
        terminal.type("fluxqueue hold tr\t")
        terminal.until("train-resnet")
        terminal.type("\x15fluxqueue jobs -q ba\t")
        terminal.until("batch")
        terminal.type("\x15fluxqueue jobs --state unsat\t")
        terminal.until("unsatisfiable")
        terminal.type("\x15fluxqueue und\t")
        terminal.until("undrain")
    finally:
        terminal.close()


@pytest.mark.long("starts processes of its own, for seconds of processor time")
@pytest.mark.skipif(shutil.which("bash") is None, reason="needs bash")
async def test_tab_knows_jobs_queues_states_and_verbs(shell: Typist) -> None:
    """In bash, as a person types."""
    await asyncio.to_thread(_press_tab, shell.kubeconfig)


async def _offered(shell: Typist, *words: str) -> list[str]:
    process = await asyncio.create_subprocess_exec(
        str(BIN / "kubectl_complete-fluxqueue"), *words,
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "KUBECONFIG": str(shell.kubeconfig)},
    )  # fmt: skip
    out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert process.returncode == 0
    return out.decode().splitlines()


@pytest.mark.long("starts processes of its own, for seconds of processor time")
async def test_kubectl_is_answered_in_its_protocol(shell: Typist) -> None:
    """A word and its meaning a line, then the directive that offers no files."""
    assert await _offered(shell, "hold", "") == [
        "post-process\tPending",
        "train-resnet\tRunning",
        ":4",
    ]
    assert await _offered(shell, "hold", "train-resnet", "") == ["post-process\tPending", ":4"]
    assert await _offered(shell, "jobs", "-n", "empty", "--queue", "b") == ["batch\teasy", ":4"]
    assert await _offered(shell, "drain", "n3") == ["n3\tnode", ":4"]


async def test_of_many_those_are_found_that_come_late(
    shell: Typist, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Page by page. Where not all are offered, a line says so and completes nothing."""
    monkeypatch.setattr(complete, "PAGE", 2)
    monkeypatch.setattr(complete, "OFFERED_MAX", 3)
    monkeypatch.setattr(complete, "READING_S", PATIENCE_S)
    for number in range(5):
        await shell.job(f"sweep-{number}", jobid=10 + number)

    async def offered(incomplete: str) -> list[str]:
        asked = SimpleNamespace(params={"kubeconfig": shell.kubeconfig})
        found = await asyncio.to_thread(complete.complete_jobs, cast("Context", asked), incomplete)
        return [word for word, _ in found]

    assert await offered("train") == ["train-resnet"]
    assert await offered("sw") == ["sweep-0", "sweep-1", "sweep-2", "sw..."]
    assert await offered("sweep-4") == ["sweep-4"]
    monkeypatch.setattr(complete, "READING_S", 0.0)
    assert await offered("p") == ["post-process", "p..."]
    assert await offered("train") == [], "its page is not read any more, and nothing is made up"


async def test_who_cannot_answer_keeps_nobody_waiting(
    shell: Typist, monkeypatch: pytest.MonkeyPatch
) -> None:
    """An API server that takes a connection and says nothing."""
    monkeypatch.setattr(complete, "PATIENCE_S", 0.2)
    server = await asyncio.start_server(lambda *_: asyncio.sleep(PATIENCE_S), "127.0.0.1", 0)
    config = yaml.safe_load(shell.kubeconfig.read_text(encoding="utf-8"))
    port = server.sockets[0].getsockname()[1]
    config["clusters"][0]["cluster"] = {"server": f"http://127.0.0.1:{port}"}
    mute = shell.kubeconfig.with_name("mute")
    mute.write_text(yaml.safe_dump(config), encoding="utf-8")
    asked = SimpleNamespace(params={"kubeconfig": mute})
    async with server:
        told = asyncio.to_thread(complete.complete_jobs, cast("Context", asked), "t")
        assert await asyncio.wait_for(told, PATIENCE_S) == []


@pytest.mark.parametrize("name", ["zsh", "fish"])
async def test_other_shells_are_taught(name: str) -> None:
    """Their scripts are printed. These shells are not everywhere."""
    process = await asyncio.create_subprocess_exec(
        str(BIN / "fluxqueue"),
        stdout=asyncio.subprocess.PIPE,
        env={**os.environ, "_FLUXQUEUE_COMPLETE": f"source_{name}"},
    )
    out, _ = await asyncio.wait_for(process.communicate(), PATIENCE_S)
    assert f"complete_{name}".encode() in out
