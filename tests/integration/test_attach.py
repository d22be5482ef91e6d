"""``fluxqueue submit --attach``: the logs of a Job's pods as they are written, and its fate.

Simulated pods write no logs, and the embedded API server says so: 501. Here a proxy stands before
it that serves the logs, line by line, as a kubelet does; everything else is the cluster's.
"""

from __future__ import annotations

import asyncio
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest_asyncio
from aiohttp import web

from fluxqueue.fluxjob.states import FluxJobState
from fluxqueue.kube.resources import FLUXJOBS, JOBS
from tests.support.api_proxy import ApiProxy
from tests.support.typing_verbs import Typist, fluxjob, typist
from tests.support.waiting import eventually

PATIENCE_S = 60.0


@pytest_asyncio.fixture
async def shell(tmp_path: Path) -> AsyncIterator[Typist]:
    """A cluster in which Jobs run."""
    async with typist(tmp_path, run_controllers=True, run_scheduler=True) as made:
        yield made


class LogProxy(ApiProxy):
    """Each pod writes a line when it begins, and one when it may end."""

    def __init__(self) -> None:
        super().__init__(seed=1)
        self.may_end = asyncio.Event()

    async def _handle(self, request: web.Request) -> web.StreamResponse:
        if not request.path.endswith("/log"):
            return await super()._handle(request)
        assert request.query["follow"] == "true"
        response = web.StreamResponse(headers={"Content-Type": "text/plain"})
        await response.prepare(request)
        await response.write(b"begins\nhalf a ")
        await self.may_end.wait()
        await response.write("line, größer\nno end of line".encode())
        return response


@asynccontextmanager
async def _submitting(kubeconfig: Path, *words: str) -> AsyncIterator[Process]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "fluxqueue", "submit", "--image", "a", "--name", "hello", "--attach",
        *words, "--kubeconfig", str(kubeconfig), "--", "true", stdout=PIPE, stderr=PIPE,
    )  # fmt: skip
    try:
        yield process
    finally:
        if process.returncode is None:
            process.kill()
        await process.communicate()


async def _be_the_controller(shell: Typist, state: FluxJobState) -> None:
    """Make the FluxJob of what was submitted; tell its end when its Job has ended."""

    async def job() -> dict[str, object] | None:
        found = (await shell.client.list(JOBS, "default")).items
        return found[0] if found else None

    made = await eventually(job, "the Job is there")
    body = fluxjob("hello")
    body["spec"]["workload"]["uid"] = made["metadata"]["uid"]  # type: ignore[index]
    stored = await shell.client.create(FLUXJOBS, "default", body)

    async def has_ended() -> bool:
        found = await shell.client.get(JOBS, "default", "hello")
        return bool((found.get("status") or {}).get("completionTime"))

    await eventually(has_ended, "the Job has ended")
    await shell.tell(stored, state, jobid=1)


async def test_logs_are_followed(shell: Typist, tmp_path: Path) -> None:
    """Line by line as they are written, told apart by index; the exit code is the Job's fate."""
    front = tmp_path / "front"
    async with LogProxy() as proxy:
        await proxy.connect(shell.kubeconfig, front)
        async with _submitting(front, "--tasks", "2") as process:
            told = asyncio.create_task(_be_the_controller(shell, FluxJobState.COMPLETED))
            assert process.stdout is not None
            assert process.stderr is not None
            async with asyncio.timeout(PATIENCE_S):
                assert await process.stdout.readline() == b"hello: submitted\n"
                begun = {await process.stdout.readline() for _ in "01"}
                assert begun == {b"0: begins\n", b"1: begins\n"}, "while the pods write on"
                proxy.may_end.set()
                rest = (await process.stdout.read()).decode().splitlines()
                told_besides = (await process.stderr.read()).decode()
                await told
                assert await process.wait() == 0
    assert sorted(rest) == [
        "0: half a line, größer", "0: no end of line",
        "1: half a line, größer", "1: no end of line",
    ]  # fmt: skip
    assert "hello-job Completed" in told_besides


async def test_logs_that_cannot_be_had_are_said_so(shell: Typist) -> None:
    """The Job's fate is told all the same."""
    async with _submitting(shell.kubeconfig) as process:
        await _be_the_controller(shell, FluxJobState.FAILED)
        async with asyncio.timeout(PATIENCE_S):
            out, err = await process.communicate()
    assert process.returncode == 4
    assert out == b"hello: submitted\n"
    assert b"no logs: 501" in err
    assert b"hello-job Failed" in err
