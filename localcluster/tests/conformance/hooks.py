"""The webhook of a replayed scenario: answers as recorded, remembers what it was asked.

One TLS server for all scenarios of a run. The first part of a path names the scenario.
"""

from __future__ import annotations

import asyncio
import base64
import json
from collections import defaultdict
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web
from trustme import CA

from localcluster.server.certs import server_context

SLOW_ANSWER_S = 5.0


@dataclass
class Call:
    """One review that arrived, at ``path`` (without the scenario)."""

    path: str
    query: str
    review: Any


@dataclass
class HookServer:
    """Answers reviews. ``answers`` maps (scenario, path) to the recorded steps, in order."""

    port: int = 0
    closed_port: int = 0
    ca_bundle: str = ""
    calls: dict[str, list[Call]] = field(default_factory=lambda: defaultdict(list))
    answers: dict[tuple[str, str], list[Any]] = field(default_factory=dict)
    _runner: web.AppRunner | None = None

    async def start(self) -> None:
        """Listen on a free loopback port."""
        authority = CA()
        self.ca_bundle = base64.b64encode(authority.cert_pem.bytes()).decode()
        context = server_context(authority)
        app = web.Application()
        app.router.add_post("/{scenario}/{path:.*}", self._answer)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=context)
        await site.start()
        self.port = self._runner.addresses[0][1]
        probe = await asyncio.start_server(lambda r, w: None, "127.0.0.1", 0)
        self.closed_port = probe.sockets[0].getsockname()[1]
        probe.close()
        await probe.wait_closed()

    def noted(self, scenario: str) -> list[Call]:
        """The calls that the recording has, too: it left out those that were cut off."""
        return [call for call in self.calls[scenario] if not call.path.startswith("slow")]

    async def stop(self) -> None:
        """Stop listening."""
        if self._runner is not None:
            await self._runner.cleanup()

    async def _answer(self, request: web.Request) -> web.Response:
        scenario, path = request.match_info["scenario"], request.match_info["path"]
        review = await request.json()
        self.calls[scenario].append(Call(path, request.query_string, review))
        if path.startswith("slow"):
            await asyncio.sleep(SLOW_ANSWER_S)
        queue = self.answers.get((scenario, path)) or []
        step = queue.pop(0) if queue else None
        uid = review["request"]["uid"]
        if step is None:
            return _json({"uid": uid, "allowed": True})
        if "answer_text" in step:
            return _text(step, uid)
        answer = dict(step["answer"])
        if str(answer.get("uid", "")).startswith("<uid-"):
            answer["uid"] = uid
        if "patch_decoded" in answer:
            raw = json.dumps(answer.pop("patch_decoded")).encode()
            answer["patch"] = base64.b64encode(raw).decode()
        elif "patchType" in answer:
            answer["patch"] = base64.b64encode(b"not json").decode()
        return _json(answer)


def _json(response: Any) -> web.Response:
    body = {"apiVersion": "admission.k8s.io/v1", "kind": "AdmissionReview", "response": response}
    return web.json_response(body)


def _text(step: Any, uid: str) -> web.Response:
    text = step["answer_text"]
    for token in range(1, 100):
        text = text.replace(f"<uid-{token}>", uid)
    if text and not text.startswith("{") and step.get("answer_code", 200) == 200:
        text = json.dumps(text)
    return web.Response(
        text=text, status=step.get("answer_code", 200), content_type="application/json"
    )
