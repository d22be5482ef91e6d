"""The messages of the Model Context Protocol: the specification's examples, and broken clients."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path
from typing import Any

import pytest

from fluxqueue.client.mcp.protocol import VERSIONS, Tool, ToolServer
from fluxqueue.client.mcp.tools import changing_tools, reading_tools
from fluxqueue.errors import InvalidInput
from tests.support.waiting import WAIT_S

COUNT = {"count": {"type": "integer", "description": "how many"}}


class Talk:
    """A client of a server that has two tools. Its answers are read in any order."""

    def __init__(self) -> None:
        self.reader = asyncio.StreamReader(limit=1000)
        self.answers: list[dict[str, Any]] = []
        self.begun = asyncio.Event()
        self.is_cancelled = False
        tools = [
            Tool("double", "Double a number.", self.double, COUNT, ["count"]),
            Tool("sleep", "Sleep.", self.sleep, {}, (), "destruction"),
        ]
        self.server = ToolServer(tools, self.note, version="1.2.3", instructions="be kind")
        self.task = asyncio.create_task(self.server.serve(self.reader))

    async def double(self, asked: dict[str, Any]) -> list[int]:
        """A tool. Some numbers are refused, some break it."""
        if asked["count"] < 0:
            raise InvalidInput("is negative", where="count", hint="0 or more")
        return [2 * asked["count"] // (asked["count"] - 13)] if asked["count"] > 12 else [
            2 * asked["count"]
        ]  # fmt: skip

    async def sleep(self, _: dict[str, Any]) -> None:
        """A tool without an end."""
        self.begun.set()
        try:
            await asyncio.Event().wait()
        except asyncio.CancelledError:
            self.is_cancelled = True
            raise

    def note(self, line: bytes) -> None:
        """Take an answer."""
        assert line.endswith(b"\n")
        assert line.count(b"\n") == 1
        self.answers.append(json.loads(line))

    async def say(self, message: Any) -> dict[str, Any]:
        """Send a message, and return its answer."""
        count = len(self.answers)
        raw = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.reader.feed_data(raw + b"\n")
        async with asyncio.timeout(WAIT_S):
            while len(self.answers) == count:
                await asyncio.sleep(0.001)
        return self.answers[-1]

    async def ask(self, method: str, **params: Any) -> dict[str, Any]:
        """Make a request."""
        request = {"jsonrpc": "2.0", "id": len(self.answers), "method": method, "params": params}
        return await self.say(request)

    async def end(self) -> None:
        """Close the input."""
        self.reader.feed_eof()
        await asyncio.wait_for(self.task, WAIT_S)


@pytest.mark.parametrize(
    ("asked", "answered"), [*((one, one) for one in VERSIONS), ("2024-11-05", VERSIONS[0])]
)
async def test_it_agrees_on_a_version(asked: str, answered: str) -> None:
    """That of the client if it is known, else the newest: the client decides then."""
    talk = Talk()
    told = await talk.ask("initialize", protocolVersion=asked, capabilities={}, clientInfo={})
    assert told["jsonrpc"] == "2.0"
    assert told["result"] == {
        "protocolVersion": answered,
        "capabilities": {"tools": {"listChanged": False}},
        "serverInfo": {"name": "fluxqueue", "version": "1.2.3"},
        "instructions": "be kind",
    }
    talk.reader.feed_data(b'{"jsonrpc": "2.0", "method": "notifications/initialized"}\n')
    assert (await talk.ask("ping"))["result"] == {}
    await talk.end()


async def test_tools_are_listed_with_their_schema_and_effect() -> None:
    """A client asks its user before a tool that destroys."""
    talk = Talk()
    double, sleep = (await talk.ask("tools/list"))["result"]["tools"]
    assert double["inputSchema"] == {
        "type": "object", "properties": COUNT, "required": ["count"], "additionalProperties": False
    }  # fmt: skip
    assert double["annotations"]["readOnlyHint"]
    assert not sleep["annotations"]["readOnlyHint"]
    assert sleep["annotations"]["destructiveHint"]
    await talk.end()


async def test_a_call_has_its_result_as_text_and_as_data() -> None:
    talk = Talk()
    told = await talk.ask("tools/call", name="double", arguments={"count": 4})
    assert told["result"] == {
        "content": [{"type": "text", "text": '{"items": [8]}'}],
        "structuredContent": {"items": [8]},
        "isError": False,
    }
    await talk.end()


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        ({"count": -1}, "count: is negative. Fix: 0 or more"),
        ({}, "count: is missing"),
        ({"count": "four"}, "count = 'four': must be of type integer"),
        ({"count": True}, "count = True: must be of type integer"),
        ({"count": 1, "more": 2}, "more: is not a parameter. Fix: known: count"),
    ],
)
async def test_a_refusal_is_a_result_that_the_model_reads(
    arguments: dict[str, Any], text: str
) -> None:
    """So that it can call again with other arguments."""
    talk = Talk()
    result = (await talk.ask("tools/call", name="double", arguments=arguments))["result"]
    assert result["isError"]
    assert result["content"][0]["text"] == text
    await talk.end()


@pytest.mark.parametrize(
    ("message", "code"),
    [
        (b"{", -32700),
        (b"[]", -32600),
        (b'{"id": 1, "method": "ping"}', -32600),
        ({"jsonrpc": "2.0", "id": None, "method": "ping"}, -32600),
        ({"jsonrpc": "2.0", "id": 1, "method": "resources/list"}, -32601),
        ({"jsonrpc": "2.0", "id": 1, "method": "initialize"}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call", "params": {"name": "x"}}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
          "params": {"name": "double", "arguments": [1]}}, -32602),
        ({"jsonrpc": "2.0", "id": 1, "method": "tools/call",
          "params": {"name": "double", "arguments": {"count": 13}}}, -32603),
        (b"x" * 2000, -32600),
    ],
)  # fmt: skip
async def test_a_broken_message_has_an_error_and_the_server_goes_on(
    message: Any, code: int
) -> None:
    """A line that is too long ends it: what follows has no beginning."""
    talk = Talk()
    assert (await talk.say(message))["error"]["code"] == code
    if message != b"x" * 2000:
        assert (await talk.ask("ping"))["result"] == {}
    await talk.end()


async def test_a_call_can_be_cancelled() -> None:
    """It has no answer then. Others are answered meanwhile, and the end of the input ends all."""
    talk = Talk()
    call = {"jsonrpc": "2.0", "id": "a", "method": "tools/call", "params": {"name": "sleep"}}
    talk.reader.feed_data(json.dumps(call).encode() + b"\n")
    await asyncio.wait_for(talk.begun.wait(), WAIT_S)
    assert (await talk.ask("ping"))["result"] == {}
    cancel = {"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": "a"}}
    talk.reader.feed_data(json.dumps(cancel).encode() + b"\n")
    async with asyncio.timeout(WAIT_S):
        while not talk.is_cancelled:
            await asyncio.sleep(0.001)
    talk.is_cancelled = False
    talk.begun.clear()
    talk.reader.feed_data(json.dumps({**call, "id": "b"}).encode() + b"\n")
    await asyncio.wait_for(talk.begun.wait(), WAIT_S)
    await talk.end()
    assert talk.is_cancelled
    assert [one["id"] for one in talk.answers] == [0]


def test_the_page_lists_every_tool() -> None:
    """Those that change something below the others."""
    client: Any = None
    reading = {one.name: one for one in reading_tools(client)}
    changing = {one.name: one for one in changing_tools(client)}
    page = (Path(__file__).parents[3] / "docs" / "user" / "assistants.md").read_text()
    first, _, second = page.partition("--allow-changes")
    assert set(re.findall(r"`([a-z]+_[a-z]+|usage)`", first)) == reading.keys()
    assert set(re.findall(r"`([a-z]+_[a-z]+)`", second)) - reading.keys() == changing.keys()
    assert {one.effect for one in reading.values()} == {"none"}
    assert "none" not in {one.effect for one in changing.values()}
