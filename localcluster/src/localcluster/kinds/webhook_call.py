"""Calls one admission webhook over TLS and reads its answer.

It knows AdmissionReview v1 and the texts of all possible errors. ``webhooks`` calls it.
"""

from __future__ import annotations

import asyncio
import base64
import binascii
import ssl
import uuid
from collections.abc import Coroutine
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import urlsplit

import aiohttp
import orjson

from localcluster.obj import Obj
from localcluster.types.go_json import go_json_error
from localcluster.types.refusals import StatusError, internal_error

Answer = TypeVar("Answer")
_STEP_S = 0.25
"""How long a time in which the loop stands still counts at most (seconds)."""


class CallFailed(Exception):
    """The webhook could not be called, or its answer not be parsed. failurePolicy decides."""


@dataclass(slots=True)
class Verdict:
    """The answer of a webhook."""

    is_allowed: bool
    patch: list[Obj] = field(default_factory=list)
    warnings: list[str] = field(default_factory=list)
    status: Obj = field(default_factory=dict)


class WebhookClient:
    """One HTTP session for all webhooks, one TLS context per CA bundle.

    ``certificate``: a folder with ``tls.crt`` and ``tls.key``, which are shown to webhooks.
    """

    def __init__(self, certificate: Path | None = None) -> None:
        self._certificate = certificate
        self._session: aiohttp.ClientSession | None = None
        self._contexts: dict[str, ssl.SSLContext] = {}

    async def close(self) -> None:
        """Close the connections."""
        if self._session is not None:
            await self._session.close()
            self._session = None

    def _context(self, bundle: str) -> ssl.SSLContext:
        context = self._contexts.get(bundle)
        if context is None:
            try:
                pem = base64.b64decode(bundle).decode() if bundle else None
                context = ssl.create_default_context(cadata=pem)
                if (own := self._certificate) is not None:
                    context.load_cert_chain(own / "tls.crt", own / "tls.key")
            except (binascii.Error, UnicodeDecodeError, ssl.SSLError) as error:
                raise CallFailed(f"unable to load root certificates: {error}") from error
            self._contexts[bundle] = context
        return context

    async def ask(self, hook: Obj, request: Obj, *, is_mutating: bool) -> Verdict:
        """Send the review. Raises CallFailed."""
        review_uid = str(uuid.uuid4())
        review = {
            "kind": "AdmissionReview",
            "apiVersion": "admission.k8s.io/v1",
            "request": {"uid": review_uid, **request},
        }
        body = await self._post(hook, orjson.dumps(review))
        return _read_answer(body, review_uid, is_mutating=is_mutating)

    async def _post(self, hook: Obj, data: bytes) -> bytes:
        client, timeout_s = hook["clientConfig"], hook.get("timeoutSeconds", 10)
        url = str(client["url"])
        shown = f"{url}?timeout={timeout_s}s"
        if self._session is None:
            self._session = aiohttp.ClientSession(
                headers={
                    "Content-Type": "application/json",
                    "Accept": "application/json, */*",
                    "User-Agent": "kube-apiserver-admission",
                }
            )
        session, context = self._session, self._context(client.get("caBundle", ""))

        async def post() -> tuple[aiohttp.ClientResponse, bytes]:
            async with session.post(shown, data=data, ssl=context) as response:
                return response, await response.read()

        try:
            response, body = await patient(post(), timeout_s)
        except TimeoutError as error:
            text = f'failed to call webhook: Post "{shown}": context deadline exceeded'
            raise CallFailed(text) from error
        except aiohttp.ClientError as error:
            text = f'failed to call webhook: Post "{shown}": {_network_text(error, url)}'
            raise CallFailed(text) from error
        if response.status != 200:
            text = (
                'failed to call webhook: an error on the server ("unknown") has prevented the '
                "request from succeeding"
                if response.status >= 500
                else "failed to call webhook: the server could not find the requested resource"
            )
            raise CallFailed(text)
        if not body:
            kind = response.content_type
            text = f"0-length response with status code: 200 and content type: {kind}"
            raise CallFailed(f"failed to call webhook: {text}")
        return body


async def patient(call: Coroutine[Any, Any, Answer], timeout_s: float) -> Answer:
    """Return the result of ``call``, or raise TimeoutError after ``timeout_s`` of this loop's time.

    A time in which the loop stood still counts as one step at most. A real API server has a thread
    for each call. Here one loop does all of the work, and an answer that has come is not late
    because the loop had no time for it.
    """
    task, left_s = asyncio.create_task(call), timeout_s
    loop = asyncio.get_running_loop()
    try:
        while left_s > 0 and not task.done():
            began_s, step_s = loop.time(), min(left_s, _STEP_S)
            await asyncio.wait({task}, timeout=step_s)
            left_s -= min(loop.time() - began_s, step_s)
        if not task.done():
            raise TimeoutError
        return task.result()
    finally:
        task.cancel()


def _network_text(error: aiohttp.ClientError, url: str) -> str:
    parts = urlsplit(url)
    address = f"{parts.hostname}:{parts.port or 443}"
    if isinstance(error, aiohttp.ClientConnectorCertificateError):
        return "tls: failed to verify certificate: x509: certificate signed by unknown authority"
    if isinstance(error, aiohttp.ClientConnectorError):
        cause = error.os_error
        if isinstance(cause, ConnectionRefusedError):
            return f"dial tcp {address}: connect: connection refused"
        return f"dial tcp {address}: {cause}"
    return str(error) or "EOF"


def _invalid(text: str) -> CallFailed:
    return CallFailed(f"received invalid webhook response: {text}")


def _read_answer(body: bytes, uid: str, *, is_mutating: bool) -> Verdict:
    try:
        review = orjson.loads(body)
    except orjson.JSONDecodeError as error:
        text = f"couldn't get version/kind; json parse error: {error}"
        raise CallFailed(f"failed to call webhook: {text}") from error
    if not isinstance(review, dict):
        text = (
            "couldn't get version/kind; json parse error: json: cannot unmarshal string into Go "
            'value of type struct { APIVersion string "json:\\"apiVersion,omitempty\\""; Kind '
            'string "json:\\"kind,omitempty\\"" }'
        )
        raise CallFailed(f"failed to call webhook: {text}")
    version = str(review.get("apiVersion", "")).rpartition("/")[2]
    if review.get("apiVersion") != "admission.k8s.io/v1" or review.get("kind") != "AdmissionReview":
        kind = f"{version}.{review.get('kind', '')}"
        text = f"converting ({kind}) to (v1.AdmissionReview): unknown conversion"
        raise CallFailed(f"failed to call webhook: {text}")
    response = review.get("response")
    if not isinstance(response, dict):
        raise _invalid("webhook response was absent")
    if response.get("uid", "") != uid:
        raise _invalid(f'expected response.uid="{uid}", got "{response.get("uid", "")}"')
    verdict = Verdict(
        bool(response.get("allowed")),
        warnings=[str(w) for w in response.get("warnings") or ()],
        status=response.get("status") or {},
    )
    if response.get("patch"):
        _read_patch(response, verdict, is_mutating=is_mutating)
    elif response.get("patchType") and not is_mutating:
        raise _invalid("validating webhook may not return response.patchType")
    return verdict


def _json_error(raw: bytes) -> str:
    """Return the words of Go's decoder, including those for wrong literals."""
    for literal in (b"null", b"true", b"false"):
        if raw[:1] == literal[:1]:
            at = next((i for i, c in enumerate(literal) if raw[i : i + 1] != bytes([c])), None)
            if at is not None and at < len(raw):
                found, wanted = chr(raw[at]), chr(literal[at])
                name = literal.decode()
                return f"invalid character '{found}' in literal {name} (expecting '{wanted}')"
    return go_json_error(raw)


def _read_patch(response: Obj, verdict: Verdict, *, is_mutating: bool) -> None:
    if not is_mutating:
        raise _invalid("validating webhook may not return response.patch")
    if not response.get("patchType"):
        raise _invalid("webhook returned response.patch but not response.patchType")
    head = "received undecodable patch in webhook response"
    try:
        raw = base64.b64decode(response["patch"])
    except (binascii.Error, TypeError) as error:
        raise CallFailed(f"{head}: {error}") from error
    try:
        patch = orjson.loads(raw)
    except orjson.JSONDecodeError as error:
        raise CallFailed(f"{head}: {_json_error(raw)}") from error
    if not isinstance(patch, list):
        kind = "object" if isinstance(patch, dict) else "string"
        text = f"json: cannot unmarshal {kind} into Go value of type jsonpatch.Patch"
        raise CallFailed(f"{head}: {text}")
    if response["patchType"] != "JSONPatch":
        raise _invalid(f'webhook returned invalid response.patchType of "{response["patchType"]}"')
    verdict.patch = patch


def denial(name: str, status: Obj) -> StatusError:
    """Return the error for the client, with message, code and reason of the webhook."""
    code = status.get("code") or 400
    if not 400 <= code < 600:
        code = 400
    head = f'admission webhook "{name}" denied the request'
    message, reason = status.get("message", ""), status.get("reason", "")
    if message:
        text = f"{head}: {message}"
    elif reason:
        text = f"{head}: {reason}"
    else:
        text = f"{head} without explanation"
    return StatusError(code, reason, text, details=status.get("details"))


def call_error(name: str, error: CallFailed) -> StatusError:
    """Return the 500 for a webhook that cannot be called and has failurePolicy Fail."""
    return internal_error(f'failed calling webhook "{name}": {error}')
