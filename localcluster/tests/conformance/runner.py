"""Runs one recorded scenario against a server and lists the differences.

A step's request is sent with the tokens filled in. The answer is compared at once, watches at the
end.  After a note "wait until ..." the next GET is repeated until it answers as recorded, or a
condition of ``waiting`` is polled.
"""

from __future__ import annotations

import asyncio
import itertools
import json
import re
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import aiohttp

from tests.conformance.hooks import HookServer
from tests.conformance.matching import TOKEN, Bindings, Comparison, is_reduced
from tests.conformance.waiting import Waiter, condition_for
from tests.conformance.watching import ReplayedWatch

WAIT_TIMEOUT_S = 60.0
"""Above what Kubernetes waits itself: 40 s until a silent node counts as lost."""
SETTLE_TIMEOUT_S = 5.0
READ_TIMEOUT_S = 6.0
"""How long a read is repeated where controllers work: the recording waited in between, too."""
_PASS = re.compile(r"^(\d+(?:\.\d+)?) s pass")
_HEADERS = ("retry-after", "location", "allow", "www-authenticate", "content-type")
_WARNING = re.compile(r'299 - "(?:[^"\\]|\\.)*"')


@dataclass
class Server:
    """Where to send requests."""

    url: str
    token: str
    session: aiohttp.ClientSession


@dataclass
class Replay:
    """One run of one scenario."""

    scenario: Any
    server: Server
    hooks: HookServer
    by_object: bool = False
    skip_steps: frozenset[int] = frozenset()
    is_controlled: bool = True
    bindings: Bindings = field(default_factory=Bindings)
    differences: list[str] = field(default_factory=list)
    watches: list[ReplayedWatch] = field(default_factory=list)
    _wait_note: str = ""
    _hook_at: int = 0
    _last_definition: Any = None
    _definition_at: float = 0.0
    _versions: dict[str, list[str]] = field(default_factory=dict)

    @property
    def name(self) -> str:
        """The scenario's name, which is also its namespace."""
        return str(self.scenario["name"])

    async def run(self) -> list[str]:
        """All steps. The differences, each with the number of its step."""
        self._prepare_hooks()
        for setup in self.scenario.get("setup") or ():
            code, body, _ = await self.send(setup["request"])
            if code >= 300 and code != 409:
                return [f"setup: {code} {body}"]
            await self._settle(body)
        try:
            for index, step in enumerate(self.scenario["steps"]):
                await self._pace(index)
                await self._step(index, step)
                await self._close_watches(index)
            await self._close_watches(None)
        finally:
            for watch in self.watches:
                if watch.task is not None:
                    watch.task.cancel()
        self._check_versions()
        return self.differences

    async def _settle(self, made: Any) -> None:
        """Let the controllers furnish a new namespace before versions are compared."""
        if not self.is_controlled or made.get("kind") != "Namespace":
            return
        path = f"/api/v1/namespaces/{made['metadata']['name']}"
        deadline = time.monotonic() + SETTLE_TIMEOUT_S
        while time.monotonic() < deadline:
            account = await self.get(f"{path}/serviceaccounts/default")
            bundle = await self.get(f"{path}/configmaps/kube-root-ca.crt")
            if account[0] == bundle[0] == 200:
                return
            await asyncio.sleep(0.02)

    async def _pace(self, index: int) -> None:
        """Send a step only when the watches have seen what they had seen on record."""
        step = self.scenario["steps"][index]
        is_read = "request" in step and step["request"]["method"] == "GET"
        for watch in self.watches:
            await watch.catch_up(index, is_read=is_read)

    def _prepare_hooks(self) -> None:
        for step in self.scenario["steps"]:
            if "webhook" in step:
                path = step["webhook"]["path"].lstrip("/")
                self.hooks.answers.setdefault((self.name, path), []).append(step["webhook"])

    async def _step(self, index: int, step: Any) -> None:
        if "note" in step:
            await self._note(step["note"])
        elif "watch" in step:
            await self._open_watch(index, step)
        elif "webhook" in step:
            await self._compare_hook(index, step["webhook"])
        elif "request" in step:
            await self._request(index, step)

    async def _note(self, text: str) -> None:
        if match := _PASS.match(text):
            await asyncio.sleep(float(match[1]))
        elif text.startswith("wait until"):
            self._wait_note = text
            condition = condition_for(text)
            if condition is not None:
                waiter = Waiter(self.get, self.name, self._last_definition)
                if not await waiter.until(condition, WAIT_TIMEOUT_S):
                    self.differences.append(f"timeout: {text}")
                self._wait_note = ""

    # -- requests --------------------------------------------------------------------------------

    async def _request(self, index: int, step: Any) -> None:
        request = step["request"]
        await self._resolve(request, is_stale=step["response"]["code"] == 409)
        if self.by_object and request["path"].endswith("/status"):
            await self._await_binding(request["path"].removesuffix("/status"))
        await self._await_status(index, request)
        patience = WAIT_TIMEOUT_S if self._wait_note else READ_TIMEOUT_S * self.by_object
        deadline = time.monotonic() + patience
        if index in self.skip_steps:
            deadline = 0
        self._wait_note = ""
        called_before = len(self.hooks.calls[self.name])
        while True:
            trial = Bindings(dict(self.bindings.values))
            code, body, headers = await self.send(request)
            found = self._compare_answer(step, code, body, headers, trial)
            if code == 404 and step["response"]["code"] in (200, 201) and self._is_new(request):
                await asyncio.sleep(0.1)
                continue
            if not found or time.monotonic() > deadline or request["method"] != "GET":
                break
            await asyncio.sleep(0.1)
        self._keep(trial, is_equal=not found)
        self._remember(request, body)
        is_definition = request["path"].endswith("/customresourcedefinitions")
        if is_definition and request["method"] == "POST" and code == 201:
            self._last_definition, self._definition_at = body, time.monotonic()
        if index not in self.skip_steps:
            case = f" [{step['case']}]" if "case" in step else ""
            where = f"#{index} {request['method']} {request['path']}{case}"
            self.differences += [f"{where}: {difference}" for difference in found]
            if "webhooks_called" in step:
                called = [c.path for c in self.hooks.calls[self.name][called_before:]]
                if called != step["webhooks_called"]:
                    wanted = step["webhooks_called"]
                    self.differences.append(f"{where}: webhooks {wanted}, called {called}")

    async def _await_binding(self, path: str) -> None:
        """A kubelet speaks only of pods that are bound."""
        deadline = time.monotonic() + READ_TIMEOUT_S
        while "/pods/" in path and time.monotonic() < deadline:
            _, pod = await self.get(self.bindings.fill(path, {}))
            if (pod.get("spec") or {}).get("nodeName"):
                return
            await asyncio.sleep(0.02)

    async def _await_status(self, index: int, request: Any) -> None:
        """An object on record was changed when controllers had dealt with it as far as
        its webhook heard of it then.
        """
        following = self.scenario["steps"][index + 1 : index + 2]
        review = following[0].get("webhook", {}).get("review") if following else None
        old = ((review or {}).get("request") or {}).get("oldObject") or {}
        deadline = time.monotonic() + READ_TIMEOUT_S
        while old.get("status") and time.monotonic() < deadline:
            _, found = await self.get(self.bindings.fill(request["path"], {}))
            comparison = Comparison(Bindings(dict(self.bindings.values)))
            comparison.compare(old["status"], (found or {}).get("status"), "status")
            if not comparison.differences:
                return
            await asyncio.sleep(0.02)

    def _keep(self, trial: Bindings, *, is_equal: bool) -> None:
        """Of an answer that differs only what names objects is kept, no versions."""
        for token, value in trial.values.items():
            if is_equal or not token.startswith("<rv-"):
                self.bindings.values[token] = value

    def _remember(self, request: Any, body: Any) -> None:
        """Versions that objects had, for requests that use old ones."""
        if isinstance(body, dict) and "metadata" in body and "name" in body["metadata"]:
            path = self.bindings.fill(request["path"], {}).removesuffix("/status")
            name = body["metadata"]["name"]
            key = path if path.endswith(f"/{name}") else f"{path}/{name}"
            self._versions.setdefault(key, []).append(body["metadata"].get("resourceVersion", ""))

    def _is_new(self, request: Any) -> bool:
        """Whether the path belongs to a definition that was made a moment ago."""
        if self._last_definition is None or time.monotonic() > self._definition_at + READ_TIMEOUT_S:
            return False
        return str(request["path"]).startswith(f"/apis/{self._last_definition['spec']['group']}/")

    def _compare_answer(
        self, step: Any, code: int, body: Any, headers: Any, bindings: Bindings
    ) -> list[str]:
        response = step["response"]
        comparison = Comparison(bindings)
        if response["code"] != code:
            comparison.note("code", response["code"], f"{code} {json.dumps(body)[:300]}")
            return comparison.differences
        if "body" in response:
            recorded = response["body"]
            comparison.is_table = isinstance(recorded, dict) and recorded.get("kind") == "Table"
            comparison.compare(recorded, body, "body", loose=is_reduced(recorded))
        recorded_headers = response.get("headers") or {}
        wanted = recorded_headers.get("warning") or []
        found = _WARNING.findall(", ".join(headers.getall("Warning", [])))
        comparison.compare(wanted if isinstance(wanted, list) else [wanted], found, "warning")
        for name in _HEADERS:
            if name in recorded_headers:
                value = headers.get(name, "")
                comparison.compare(recorded_headers[name], value, f"header {name}")
        return comparison.differences

    async def send(self, request: Any) -> tuple[int, Any, Any]:
        """One request. Code, decoded body, headers."""
        extra = self._extra(request)
        headers = {"authorization": f"Bearer {self.server.token}", "user-agent": "client"}
        for key, value in (request.get("headers") or {}).items():
            if value is None:
                headers.pop(key, None)
            else:
                headers[key] = self.bindings.fill(value, extra)
        data: str | None = None
        if "body_text" in request:
            data = self.bindings.fill(request["body_text"], extra)
        elif "body" in request:
            filled = self.bindings.fill(request["body"], extra)
            data = filled if isinstance(filled, str) else json.dumps(filled)
            headers.setdefault("content-type", "application/json")
        path = self.bindings.fill(request["path"], extra)
        query = self.bindings.fill(request.get("query") or {}, extra)
        async with self.server.session.request(
            request["method"],
            self.server.url + path,
            params=query,
            data=data,
            headers=headers,
            skip_auto_headers=["content-type"],
        ) as response:
            text = await response.text()
            body: Any = text
            if text.startswith(("{", "[")):
                with suppress(json.JSONDecodeError):  # a stream of watch lines stays text
                    body = json.loads(text)
            return response.status, body if text else None, response.headers

    def _extra(self, request: Any) -> dict[str, str]:
        """Values for tokens without a number."""
        port = self.hooks.port
        if '/x"' in json.dumps(request.get("body", "")) and self.name == "webhook-failure":
            port = self.hooks.closed_port
        now = time.time()
        whole = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(now))
        return {
            "time": f"{whole}Z",
            "microtime": f"{whole}.{int(now % 1 * 1e6):06d}Z",
            "port": str(port),
            "ca-bundle": self.hooks.ca_bundle,
        }

    async def get(self, path: str) -> tuple[int, Any]:
        """A GET for waiting and resolving."""
        code, body, _ = await self.send({"method": "GET", "path": path})
        return code, body

    async def _resolve(self, request: Any, *, is_stale: bool = False) -> None:
        """Find values for tokens that no recorded answer has shown yet."""
        unbound = self._unbound(request["path"])
        if unbound:
            await self._resolve_names(request["path"], unbound)
        has_target = request["method"] in ("PUT", "PATCH", "DELETE")
        if has_target and self._unbound(json.dumps(request.get("body"))):
            await self._resolve_body(request, is_stale=is_stale)

    def _unbound(self, text: str) -> list[str]:
        return [m[0] for m in TOKEN.finditer(text) if m[2] and m[0] not in self.bindings.values]

    async def _resolve_names(self, path: str, tokens: list[str]) -> None:
        """Random parts of names in a path: take an object of the collection not used so far."""
        parts = path.split("/")
        at = next(i for i, part in enumerate(parts) if tokens[0] in part)
        collection = self.bindings.fill("/".join(parts[:at]), {})
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        while time.monotonic() < deadline:
            code, body = await self.get(collection)
            used = set(self.bindings.values.values())
            for item in body.get("items", []) if code == 200 else ():
                name = item["metadata"]["name"]
                trial = Bindings(dict(self.bindings.values))
                if trial.bind_text(parts[at], name) and trial.values[tokens[0]] not in used:
                    self.bindings = trial
                    return
            await asyncio.sleep(0.1)

    async def _resolve_body(self, request: Any, *, is_stale: bool) -> None:
        path = self.bindings.fill(request["path"], {})
        stale = self._versions.get(path)
        recorded = request["body"]
        if is_stale and stale and isinstance(recorded, dict):
            self.bindings.bind_text(
                str((recorded.get("metadata") or {}).get("resourceVersion", "")), stale[0]
            )
        code, live = await self.get(path)
        if code != 200:
            code, live = await self.get(path.rpartition("/")[0])
        if code == 200 and isinstance(request["body"], dict) and isinstance(live, dict):
            trial = Comparison(self.bindings)
            trial.compare(request["body"].get("metadata", {}), live["metadata"], "", loose=True)
            for key in ("preconditions",):
                recorded = (request["body"].get(key) or {}).get("uid")
                if recorded:
                    self.bindings.bind_text(recorded, live["metadata"]["uid"])

    # -- watches and webhooks ----------------------------------------------------------------------

    async def _open_watch(self, index: int, step: Any) -> None:
        acts = [at for at, one in enumerate(self.scenario["steps"]) if "request" in one]
        watch = ReplayedWatch(index, step, acts)
        recorded = step["watch"]
        await self._resolve({"method": "GET", "path": recorded["path"]})
        headers = {"authorization": f"Bearer {self.server.token}"}
        if recorded.get("accept"):
            headers["accept"] = recorded["accept"]
        query = self.bindings.fill(recorded.get("query") or {}, {})
        if str(query.get("resourceVersion", "")).startswith("<rv-"):
            _, now = await self.get(self.bindings.fill(recorded["path"], {}))
            query["resourceVersion"] = now["metadata"]["resourceVersion"]
        url = self.server.url + self.bindings.fill(recorded["path"], {})
        watch.start(self.server.session, url, query, headers)
        async with asyncio.timeout(5):
            await watch.opened.wait()
        self.watches.append(watch)

    async def _close_watches(self, index: int | None) -> None:
        for watch in list(self.watches):
            ends = watch.step.get("closed_after_step")
            if index is None or (ends == index and watch.step.get("closed_by") == "client"):
                self.watches.remove(watch)
                if watch.index in self.skip_steps:
                    assert watch.task is not None
                    watch.task.cancel()
                    continue
                self.differences += await watch.finish(self.bindings, by_object=self.by_object)

    async def _compare_hook(self, index: int, recorded: Any) -> None:
        path = recorded["path"].lstrip("/")
        deadline = time.monotonic() + WAIT_TIMEOUT_S
        calls = self.hooks.noted(self.name)
        while len(calls) <= self._hook_at and time.monotonic() < deadline:
            await asyncio.sleep(0.05)
            calls = self.hooks.noted(self.name)
        if len(calls) <= self._hook_at:
            self.differences.append(f"#{index} webhook {path}: was not called")
            return
        call = calls[self._hook_at]
        self._hook_at += 1
        if index in self.skip_steps:
            return
        comparison = Comparison(self.bindings)
        comparison.compare(path, call.path, f"#{index} webhook path")
        comparison.compare(recorded.get("query", ""), call.query, f"#{index} webhook query")
        review = recorded.get("review")
        if review is not None:
            loose = "apiVersion" not in review
            comparison.compare(review, call.review, f"#{index} webhook {path}", loose=loose)
        self.differences += comparison.differences

    def _check_versions(self) -> None:
        """The bound resourceVersions must rise as the recorded ones did."""
        order = self.scenario.get("resourceVersions_ascending") or []
        bound = [
            (token, int(self.bindings.values[token]))
            for token in order
            if self.bindings.values.get(token, "").isdigit()
        ]
        if self.by_object:
            return
        for (left, low), (right, high) in itertools.pairwise(bound):
            if low >= high:
                self.differences.append(f"versions: {left}={low} must be below {right}={high}")


def load(path: Path) -> Any:
    """A recorded scenario."""
    return json.loads(path.read_text(encoding="utf-8"))
