"""The part of the Model Context Protocol that a server with tools needs, over lines of JSON.

It follows the specification of 2025-11-25, transport stdio: initialize, ping, tools/list,
tools/call and notifications/cancelled. It knows neither the queue nor Kubernetes. The library
``mcp`` brings a web server and twelve packages for the same five messages.
"""

from __future__ import annotations

import asyncio
import json
import logging
from collections.abc import Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, Protocol

from fluxqueue.errors import FluxQueueError, InvalidInput

logger = logging.getLogger(__name__)

VERSIONS = ("2025-11-25", "2025-06-18")
"""Versions of the protocol, the newest first. They are equal in these messages."""
LINE_MAX_BYTES = 4 * 1024 * 1024
AT_ONCE = 8
"""Calls at the same time. Others wait."""

PARSE_ERROR, INVALID_REQUEST, METHOD_NOT_FOUND = -32700, -32600, -32601
INVALID_PARAMS, INTERNAL_ERROR = -32602, -32603

Json = dict[str, Any]
ToolWork = Callable[[Json], Awaitable[Any]]
_TYPES: Mapping[str, type | tuple[type, ...]] = {
    "string": str, "integer": int, "boolean": bool, "array": list, "object": dict,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Tool:
    """What a model can ask for.

    ``parameters`` maps names to JSON schemas with ``type`` and ``description``. ``work`` gets
    arguments that fit them, and returns plain data.
    """

    name: str
    description: str
    work: ToolWork
    parameters: Mapping[str, Json]
    required: Sequence[str] = ()
    effect: Literal["none", "change", "destruction"] = "none"

    def to_json(self) -> Json:
        """Return its entry in tools/list."""
        return {
            "name": self.name,
            "description": self.description,
            "inputSchema": {
                "type": "object",
                "properties": dict(self.parameters),
                "required": list(self.required),
                "additionalProperties": False,
            },
            "annotations": {
                "readOnlyHint": self.effect == "none",
                "destructiveHint": self.effect == "destruction",
                "openWorldHint": False,
            },
        }

    def check(self, arguments: Mapping[str, Any]) -> None:
        """Refuse arguments that do not fit. Raises InvalidInput."""
        for name in self.required:
            if name not in arguments:
                raise InvalidInput("is missing", where=name)
        for name, value in arguments.items():
            if name not in self.parameters:
                known = ", ".join(self.parameters) or "none"
                raise InvalidInput("is not a parameter", where=name, hint=f"known: {known}")
            kind = self.parameters[name]["type"]
            is_number = isinstance(value, int) and not isinstance(value, bool)
            if not (is_number if kind == "integer" else isinstance(value, _TYPES[kind])):
                raise InvalidInput(f"must be of type {kind}", where=name, value=value)


class LineReader(Protocol):
    """Where messages come from: an ``asyncio.StreamReader``."""

    async def readline(self) -> bytes:
        """Return the next line with its end, or nothing at the end."""


class _Refusal(Exception):
    def __init__(self, code: int, message: str) -> None:
        self.code, self.message = code, message
        super().__init__(message)


class ToolServer:
    """Answers the messages of one client until its input ends.

    Parameters
    ----------
    write : Called with each message to send, a line with its end.
    """

    def __init__(
        self,
        tools: Sequence[Tool],
        write: Callable[[bytes], None],
        *,
        version: str,
        instructions: str = "",
    ) -> None:
        self._tools = {one.name: one for one in tools}
        self._write, self._version, self._instructions = write, version, instructions
        self._slots = asyncio.Semaphore(AT_ONCE)
        self._calls: dict[Any, asyncio.Task[None]] = {}

    async def serve(self, lines: LineReader) -> None:
        """Answer until the input ends. Calls that run then are cancelled."""
        try:
            while True:
                try:
                    line = await lines.readline()
                except ValueError:
                    self._refuse(None, INVALID_REQUEST, f"more than {LINE_MAX_BYTES} bytes")
                    return
                if not line:
                    return
                if line.strip():
                    self._take(line)
        finally:
            for task in list(self._calls.values()):
                task.cancel()
            await asyncio.gather(*self._calls.values(), return_exceptions=True)

    def _take(self, line: bytes) -> None:
        """Read one message, and answer it or begin to."""
        try:
            message = json.loads(line)
        except ValueError:
            self._refuse(None, PARSE_ERROR, "is not JSON")
            return
        if not isinstance(message, dict) or message.get("jsonrpc") != "2.0":
            self._refuse(None, INVALID_REQUEST, "is not a JSON-RPC 2.0 message")
            return
        method, params = message.get("method"), message.get("params")
        if not isinstance(method, str):
            return  # An answer. This server asks for nothing.
        params = params if isinstance(params, dict) else {}
        if "id" not in message:
            if method == "notifications/cancelled":
                self._cancel(params.get("requestId"))
            return
        number = message["id"]
        if not isinstance(number, str | int) or isinstance(number, bool):
            self._refuse(None, INVALID_REQUEST, "id must be a text or a whole number")
            return
        if method == "tools/call":
            task = asyncio.create_task(self._call(number, params))
            self._calls[number] = task
            task.add_done_callback(lambda _: self._calls.pop(number, None))
            return
        try:
            self._send({"id": number, "result": self._answer(method, params)})
        except _Refusal as refused:
            self._refuse(number, refused.code, refused.message)

    def _answer(self, method: str, params: Json) -> Json:
        if method == "initialize":
            return self._initialize(params)
        if method == "ping":
            return {}
        if method == "tools/list":
            return {"tools": [one.to_json() for one in self._tools.values()]}
        raise _Refusal(METHOD_NOT_FOUND, f"{method} is not a method of this server")

    def _initialize(self, params: Json) -> Json:
        asked = params.get("protocolVersion")
        if not isinstance(asked, str):
            raise _Refusal(INVALID_PARAMS, "protocolVersion is missing")
        return {
            "protocolVersion": asked if asked in VERSIONS else VERSIONS[0],
            "capabilities": {"tools": {"listChanged": False}},
            "serverInfo": {"name": "fluxqueue", "version": self._version},
            "instructions": self._instructions,
        }

    async def _call(self, number: str | int, params: Json) -> None:
        tool = self._tools.get(str(params.get("name")))
        arguments = params.get("arguments") or {}
        if tool is None or not isinstance(arguments, dict):
            why = "arguments must be an object" if tool else f"no tool {params.get('name')!r}"
            self._refuse(number, INVALID_PARAMS, why)
            return
        try:
            async with self._slots:
                result = await _result(tool, arguments)
        except Exception:
            logger.exception("a tool broke action=call tool=%s", tool.name)
            self._refuse(number, INTERNAL_ERROR, f"{tool.name} broke: see the log of the server")
        else:
            self._send({"id": number, "result": result})

    def _cancel(self, number: Any) -> None:
        if (task := self._calls.get(number)) is not None:
            task.cancel()

    def _refuse(self, number: str | int | None, code: int, message: str) -> None:
        self._send({"id": number, "error": {"code": code, "message": message}})

    def _send(self, message: Json) -> None:
        text = json.dumps({"jsonrpc": "2.0", **message}, ensure_ascii=False, default=str)
        self._write(text.encode() + b"\n")


async def _result(tool: Tool, arguments: Json) -> Json:
    """Return the result of a call. A refusal is one, too, so that the model can read it."""
    try:
        tool.check(arguments)
        found = await tool.work(arguments)
    except FluxQueueError as error:
        return {"content": [{"type": "text", "text": str(error)}], "isError": True}
    data = found if isinstance(found, dict) else {"items": found}
    plain = json.loads(json.dumps(data, default=str))
    text = json.dumps(plain, ensure_ascii=False)
    return {"content": [{"type": "text", "text": text}], "structuredContent": plain,
            "isError": False}  # fmt: skip
