"""Passes HTTP requests to handlers, and their answers back to HTTP.

Only this module and ``server`` know aiohttp. ``Documents`` gives discovery, OpenAPI and health
documents. Paths below ``/api/<version>`` and ``/apis/<group>/<version>`` that name a resource go to
reads, writes, deletion or subresources.
"""

from __future__ import annotations

import logging
import re
from typing import Protocol

import orjson
from aiohttp import web

from localcluster.server import apply, deletion, logs, reads, scale, subresources, writes
from localcluster.server.auth import Authenticator, wanted_user
from localcluster.server.gate import Gate
from localcluster.server.http_refusals import (
    method_not_allowed,
    not_acceptable_path,
    unsupported_method,
)
from localcluster.server.machinery import Machinery, answer_status
from localcluster.server.request import (
    Answer,
    ApiRequest,
    Stream,
    Target,
    bool_parameter,
    resolve,
)
from localcluster.server.turns import Turns
from localcluster.types.refusals import StatusError

log = logging.getLogger(__name__)

_OLD_BINDINGS = re.compile(r"/api/v1/namespaces/([^/]+)/bindings")
_TEXTS = re.compile(rb'"(?:[^"\\]|\\.)*+"', re.DOTALL)
_NO_PAGE = Answer(404, b"404 page not found\n", "text/plain; charset=utf-8")
BODY_BYTES_MAX = 3 * 1024 * 1024
"""Larger bodies are refused with 413, as in the real server."""
BODY_VALUES_MAX = 100_000
"""Bodies with more nested values than this are refused with 413.

A real server accepts them and takes seconds of one of its threads. Here one loop serves all, so
they would delay the requests of every other user. No stored object has so many: etcd takes 1.5 MB.
"""


async def _body_of(http: web.BaseRequest) -> bytes:
    """The body; aiohttp's own way to read one has another limit."""
    found = bytearray()
    while http.can_read_body and (chunk := await http.content.read(BODY_BYTES_MAX)):
        found += chunk
        if len(found) > BODY_BYTES_MAX:
            raise _too_large(f"{BODY_BYTES_MAX}")
    if _values(found) > BODY_VALUES_MAX and _values(_TEXTS.sub(b"", found)) > BODY_VALUES_MAX:
        raise _too_large(f"{BODY_VALUES_MAX} nested values")
    return bytes(found)


def _values(body: bytes | bytearray) -> int:
    return body.count(b"{") + body.count(b"[")


def _too_large(limit: str) -> StatusError:
    text = f"Request entity too large: limit is {limit}"
    return StatusError(413, "RequestEntityTooLarge", text)


class Documents(Protocol):
    """Documents that are not objects: discovery, OpenAPI, version."""

    def find(self, path: str, accept: str) -> Answer | None:
        """Return the document at a path, or None."""


class Routes:
    """Dispatches requests. One per server."""

    def __init__(
        self, machinery: Machinery, authenticator: Authenticator, documents: Documents, gate: Gate
    ) -> None:
        self._machinery, self._authenticator = machinery, authenticator
        self._documents = documents
        self._gate = gate
        self._turns = Turns()

    async def handle(self, http: web.BaseRequest) -> web.StreamResponse:
        """Answer one HTTP request. Every error becomes a Status."""
        request: ApiRequest | None = None
        try:
            request = await self._read(http)
            self._gate.check(request)
            if request.method == "GET":
                made = await self._dispatch(request)
            else:
                async with self._turns.of(request.user.username):
                    made = await self._dispatch(request)
        except StatusError as error:
            made = _refusal(request, http, error)
        except (ConnectionResetError, ConnectionError):
            raise
        except Exception as error:  # A bug must answer like a server's panic, and be logged.
            log.exception("request failed", extra={"method": http.method, "path": http.path})
            message = f"{type(error).__name__}: {error}"
            made = _refusal(request, http, StatusError(500, "InternalError", message))
        return _response(made) if isinstance(made, Answer) else await _stream(http, made)

    async def _read(self, http: web.BaseRequest) -> ApiRequest:
        headers = http.headers
        user = self._authenticator.authenticate(headers)
        url = http.rel_url
        query = url.query
        body = await _body_of(http)
        dry_run = query.getall("dryRun", [])
        return ApiRequest(
            http.method, url.path, query, headers, body, user, dry_run, wanted_user(headers)
        )

    async def dispatch(self, request: ApiRequest) -> Answer | Stream:
        """Answer a request of this process' own controllers, without a check of rights.

        Raises :class:`StatusError` for an error.
        """
        self._gate.trust(request)
        return await self._dispatch(request)

    async def _dispatch(self, request: ApiRequest) -> Answer | Stream:
        target = self._target(request)
        if isinstance(target, Answer):
            return target
        method = request.method
        if method == "GET":
            return await self._get(request, target)
        if target.subresource:
            return await self._subresource(request, target)
        self._check_verb(method, target)
        machinery = self._machinery
        if not target.name:
            if method == "POST":
                return await writes.create(machinery, request, target)
            return await deletion.delete_collection(machinery, request, target)
        if method == "DELETE":
            return await deletion.delete(machinery, request, target)
        return await self._update(request, target)

    def _target(self, request: ApiRequest) -> Target | Answer:
        path = request.path
        document = self._documents.find(path, request.headers.get("accept", ""))
        if document is not None:
            if request.method != "GET":
                raise method_not_allowed()
            return document
        if not path.startswith(("/api/", "/apis/")):
            return _NO_PAGE
        if (namespace := _OLD_BINDINGS.fullmatch(path)) and request.method == "POST":
            return self._old_binding(request, namespace.group(1))
        try:
            target = resolve(self._machinery.registry, path)
            if target is None:
                raise not_acceptable_path()
        except StatusError as error:
            if error.code == 404 and not error.details and self._is_custom_path(path):
                return _NO_PAGE
            raise
        return target

    def _is_custom_path(self, path: str) -> bool:
        """Return whether a path is of a group without built-in resources.

        Unknown paths of such groups are not answered with a Status.
        """
        parts = path.split("/")
        groups = {info.group for info in self._machinery.registry if not info.is_custom}
        return parts[1] == "apis" and len(parts) > 2 and parts[2] not in groups

    @staticmethod
    def _check_verb(method: str, target: Target) -> None:
        if target.name:
            verb = {"PUT": "update", "PATCH": "patch", "DELETE": "delete"}.get(method, "")
        else:
            verb = {"POST": "create", "DELETE": "deletecollection"}.get(method, "")
        if verb not in target.info.verbs:
            raise unsupported_method(target.info, method)

    async def _get(self, request: ApiRequest, target: Target) -> Answer | Stream:
        machinery, info = self._machinery, target.info
        if target.subresource:
            sub = info.subresources[target.subresource]
            if "get" not in sub.verbs:
                raise unsupported_method(target.info, request.method)
            if sub.how == "scale":
                return scale.get_scale(machinery, request, target)
            if sub.how == "log":
                return logs.read_log(machinery, request, target)
            return await reads.get(machinery, request, target)
        if target.is_watch_path:
            return reads.WatchStream(machinery, request, target)
        if target.name:
            if "get" not in info.verbs:
                raise unsupported_method(target.info, request.method)
            return await reads.get(machinery, request, target)
        if "list" not in info.verbs:
            raise unsupported_method(target.info, request.method)
        if bool_parameter(request.query, "watch"):
            return reads.WatchStream(machinery, request, target)
        return await reads.list_objects(machinery, request, target)

    def _old_binding(self, request: ApiRequest, namespace: str) -> Target:
        """Return the target of POST /bindings, which means POST /pods/NAME/binding."""
        pods = self._machinery.registry.lookup("", "v1", "pods")
        if pods is None or "binding" not in pods.subresources:
            raise not_acceptable_path()
        try:
            name = str((orjson.loads(request.body).get("metadata") or {}).get("name") or "")
        except (orjson.JSONDecodeError, AttributeError):
            name = ""
        return Target(pods, namespace, name, "binding")

    async def _subresource(self, request: ApiRequest, target: Target) -> Answer:
        machinery, sub = self._machinery, target.info.subresources[target.subresource]
        verb = {"POST": "create", "PUT": "update", "PATCH": "patch"}.get(request.method, "")
        if verb not in sub.verbs:
            raise unsupported_method(target.info, request.method)
        if sub.how == "scale":
            return await scale.write_scale(machinery, request, target)
        if request.method == "POST":
            return await subresources.post(machinery, request, target, sub)
        return await self._update(request, target)

    async def _update(self, request: ApiRequest, target: Target) -> Answer:
        machinery = self._machinery
        if request.method == "PUT":
            return await writes.update(machinery, request, target)
        if request.content_type == writes.APPLY_PATCH:
            return await apply.apply(machinery, request, target)
        return await writes.patch(machinery, request, target)


def _refusal(request: ApiRequest | None, http: web.BaseRequest, error: StatusError) -> Answer:
    if request is None:
        answer = Answer(error.code, orjson.dumps(error.body()))
    else:
        answer = answer_status(request, error.body(), error.code)
    answer.headers = {**error.headers}
    answer.warnings = error.warnings
    if error.code == 401:
        answer.headers.setdefault("WWW-Authenticate", 'Bearer realm="localcluster"')
    if http.method == "HEAD":
        answer.body = b""
    return answer


def _response(answer: Answer) -> web.Response:
    headers = {"Content-Type": answer.content_type, **answer.headers}
    response = web.Response(status=answer.code, body=answer.body, headers=headers)
    for text in answer.warnings:
        escaped = text.replace("\\", "\\\\").replace('"', '\\"')
        response.headers.add("Warning", f'299 - "{escaped}"')
    return response


async def _stream(http: web.BaseRequest, stream: Stream) -> web.StreamResponse:
    response = web.StreamResponse(headers={"Content-Type": stream.content_type})
    response.enable_chunked_encoding()
    await response.prepare(http)
    chunks = stream.chunks()
    try:
        async for chunk in chunks:
            await response.write(chunk)
        await response.write_eof()
    except (ConnectionResetError, ConnectionError):
        pass  # The client went away. Most watches end like this.
    finally:
        await chunks.aclose()
    return response
