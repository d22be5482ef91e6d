"""``fluxqueue mcp`` as a process, spoken to over its pipes, on the whole system."""

from __future__ import annotations

import asyncio
import json
import sys
from asyncio.subprocess import PIPE, Process
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import pytest

from fluxqueue.kube.resources import JOBS
from tests.support.e2e.objects import FOR_EVER, job
from tests.support.e2e.space import Space
from tests.support.waiting import WAIT_S


@dataclass
class Assistant:
    """A client of one server."""

    process: Process
    count: int = 0

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Make a request, and return its result."""
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        self.count += 1
        message = {"jsonrpc": "2.0", "id": self.count, "method": method, "params": params}
        self.process.stdin.write(json.dumps(message).encode() + b"\n")
        async with asyncio.timeout(WAIT_S):
            answer = json.loads(await self.process.stdout.readline())
        assert answer["id"] == self.count
        result: dict[str, Any] = answer["result"]
        return result

    async def call(self, name: str, **arguments: Any) -> dict[str, Any]:
        """Call a tool, and return its data."""
        result = await self.ask("tools/call", name=name, arguments=arguments)
        assert not result["isError"], result
        assert json.loads(result["content"][0]["text"]) == result["structuredContent"]
        data: dict[str, Any] = result["structuredContent"]
        return data

    async def refusal(self, name: str, **arguments: Any) -> str:
        """Call a tool that refuses, and return its words."""
        result = await self.ask("tools/call", name=name, arguments=arguments)
        assert result["isError"], result
        return str(result["content"][0]["text"])


@asynccontextmanager
async def _assistant(space: Space, *options: str) -> AsyncIterator[Assistant]:
    process = await asyncio.create_subprocess_exec(
        *(sys.executable, "-m", "fluxqueue", "mcp", "-n", space.name, *options),
        *("--kubeconfig", str(space.world.kubeconfig)),
        stdin=PIPE,
        stdout=PIPE,
    )
    try:
        one = Assistant(process)
        told = await one.ask(
            "initialize", protocolVersion="2025-06-18", capabilities={},
            clientInfo={"name": "test", "version": "1"},
        )  # fmt: skip
        assert told["protocolVersion"] == "2025-06-18"
        assert process.stdin is not None
        process.stdin.write(b'{"jsonrpc":"2.0","method":"notifications/initialized"}\n')
        yield one
        process.stdin.close()
        async with asyncio.timeout(WAIT_S):
            assert await process.wait() == 0
    finally:
        if process.returncode is None:
            process.kill()
            await process.wait()


async def test_an_assistant_reads_the_queue(space: Space) -> None:
    """Each tool that reads, about a job that runs and one that can never fit."""
    await space.world.has_view()
    await space.create(job("runs", pods=2, cpu="1", run=FOR_EVER))
    await space.create(job("never", cpu="1000"))
    await space.until_state("runs", "Running")
    await space.until_state("never", "Unsatisfiable")
    async with _assistant(space) as one:
        tools = (await one.ask("tools/list"))["tools"]
        assert all(tool["annotations"]["readOnlyHint"] for tool in tools)
        jobs = await one.call("list_jobs")
        assert [item["name"] for item in jobs["items"]] == ["runs", "never"]
        shown = await one.call("show_job", job="runs")
        assert (shown["state"], len(shown["pods"])) == ("Running", 2)
        assert (await one.call("explain_job", job="never"))["verdict"] == "Never"
        smaller = await one.call("check_submission", command=["true"], image="a", cpus="1")
        assert smaller["verdict"] == "Now"
        assert "no image given" in await one.refusal("check_submission", command=["true"])
        assert "default" in [item["name"] for item in (await one.call("list_queues"))["items"]]
        nodes = await one.call("list_nodes", limit=2)
        assert (len(nodes["items"]), nodes["more"]) == (2, nodes["count"] - 2)
        history = await one.call("job_history", job="runs")
        assert "Allocated" in [item["event"] for item in history["items"]]
        assert "items" in await one.call("usage", by="user")
        if space.world.kind == "embedded":
            assert len((await one.call("read_logs", job="runs"))["lines"]) == 2
        assert "no such workload" in await one.refusal("show_job", job="nothing")
        told = await one.ask("tools/list")
        assert "cancel_job" not in [tool["name"] for tool in told["tools"]]
    await space.delete("runs")


@pytest.mark.long("seconds on a whole cluster. The usual case of its module stays")
async def test_an_assistant_that_may_changes_jobs(space: Space) -> None:
    """Submits, holds, releases and cancels, with the rights of the user."""
    async with _assistant(space, "--allow-changes") as one:
        made = await one.call("submit_job", manifest=job("held", cpu="1", wishes={"hold": "true"}))
        assert made["name"] == "held"
        await space.until_state("held", "Held")
        assert (await one.call("release_job", job="held"))["requested"]
        await space.until_state("held", "Completed")
        await one.call("submit_job", manifest=job("runs", cpu="1", run=FOR_EVER))
        await space.until_state("runs", "Running")
        await one.call("set_priority", job="runs", priority=5)
        assert "must be of type integer" in await one.refusal(
            "set_priority", job="runs", priority="high"
        )
        await one.call("cancel_job", job="runs")
        await space.until_gone(JOBS, "runs")
    async with _assistant(space) as one:
        result = await one.ask("tools/list")
        assert "submit_job" not in [tool["name"] for tool in result["tools"]]
