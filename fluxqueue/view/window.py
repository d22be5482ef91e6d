"""The window: a page on the cluster and its queue, and what it asks beyond the lists.

``server`` adds these routes to its own. The files of the page are public, because they tell nothing
of the cluster. Everything else needs the cookie of a login or a token. The page acts with the
rights of its user (``as_user``).
"""

from __future__ import annotations

import asyncio
import hashlib
import mimetypes
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from importlib import resources
from typing import Any

import orjson
from aiohttp import ETag, web

from fluxqueue.db.reading.fluxjobs import JobRow
from fluxqueue.errors import ApiError, ApiUnavailable, FluxQueueError, InvalidInput
from fluxqueue.view import sessions
from fluxqueue.view.as_user import VERBS, UserCluster, UserRights
from fluxqueue.view.replies import COMPRESSED_MIN, cached, later, problem, to_json
from fluxqueue.view.same_site import SAFE, why_foreign

FILES = "/window/"
PAGE = "index.html"
BODY_MAX, BODY_S = 16 * 1024, 5.0
"""Bytes of a body, and the time within which it comes (seconds)."""
_TYPES = {
    ".js": "text/javascript",
    ".css": "text/css",
    ".html": "text/html",
    ".svg": "image/svg+xml",
}
"""Not from the machine: some know other types for scripts, and browsers refuse these."""


class BodyLate(FluxQueueError):
    """The body of a request did not come in time."""


@dataclass(frozen=True, slots=True)
class _File:
    body: bytes
    kind: str
    tag: str


def read_files() -> dict[str, _File]:
    """Return all files of the page by path. Nothing else on the disk can be asked for."""
    root = resources.files("fluxqueue.view") / "static"
    found: dict[str, _File] = {}

    def walk(folder: Any, prefix: str) -> None:
        for one in folder.iterdir():
            if one.is_dir():
                walk(one, f"{prefix}{one.name}/")
                continue
            body = one.read_bytes()
            suffix = "." + one.name.rpartition(".")[2]
            kind = _TYPES.get(suffix) or mimetypes.guess_type(one.name)[0] or "text/plain"
            tag = hashlib.blake2b(body, digest_size=12).hexdigest()
            found[prefix + one.name] = _File(body, kind, tag)

    walk(root, "")
    return found


class WindowRoutes:
    """The routes of the window.

    Parameters
    ----------
    cluster : the API server, with the token of a user.
    job : returns the row of a job that the caller may see, or None.
    """

    def __init__(
        self,
        cluster: UserCluster,
        job: Callable[[web.Request], Awaitable[JobRow | None]],
    ) -> None:
        self._cluster, self._job = cluster, job
        self._files = read_files()

    def add_to(self, app: web.Application, root: str) -> None:
        """Add all routes. ``root`` is the path below which a token is needed."""
        router, one = app.router, f"{root}/jobs/{{jobid:[0-9]{{1,18}}}}"
        router.add_get("/", self._page)
        router.add_get(FILES + "{path:[a-z0-9./-]{1,80}}", self._file)
        router.add_post("/login", self._login)
        router.add_post("/logout", self._logout)
        router.add_get(f"{one}/object", self._object)
        router.add_get(f"{one}/pods", self._pods)
        router.add_get(f"{one}/events", self._events)
        router.add_get(f"{one}/log", self._log)
        router.add_post(f"{one}/explain", self._explain)
        router.add_post(f"{one}/{{verb:{'|'.join(VERBS)}}}", self._steer)

    # --- files and login --------------------------------------------------------------------------

    async def _page(self, request: web.Request) -> web.Response:
        return self._reply(request, self._files[PAGE])

    async def _file(self, request: web.Request) -> web.Response:
        found = self._files.get(request.match_info["path"])
        if found is None:
            return problem(404, "there is no such file")
        return self._reply(request, found)

    def _reply(self, request: web.Request, file: _File) -> web.Response:
        headers = {**SAFE, "Cache-Control": "no-cache", "Vary": "Accept-Encoding"}
        if any(one.value == file.tag for one in request.if_none_match or ()):
            response = web.Response(status=304, headers=headers)
        else:
            response = web.Response(
                body=file.body, content_type=file.kind, charset="utf-8", headers=headers
            )
            if len(file.body) > COMPRESSED_MIN:
                response.enable_compression()
        response.etag = ETag(file.tag)
        return response

    async def _login(self, request: web.Request) -> web.Response:
        """Store a token in a cookie. Whether it counts is asked with the next request."""
        if why := why_foreign(request.method, request.host, request.headers):
            return problem(403, f"a login comes from the page itself: {why}")
        response = web.Response(status=204, headers={**SAFE, "Cache-Control": "no-store"})
        sessions.keep(response, str((await read_body(request)).get("token") or "").strip())
        return response

    async def _logout(self, request: web.Request) -> web.Response:
        if why := why_foreign(request.method, request.host, request.headers):
            return problem(403, f"a logout comes from the page itself: {why}")
        response = web.Response(status=204, headers={**SAFE, "Cache-Control": "no-store"})
        sessions.forget(response)
        return response

    # --- one job, with the rights of the user -----------------------------------------------------

    async def _ask(
        self,
        request: web.Request,
        read: Callable[[UserRights, JobRow], Awaitable[Any]],
    ) -> web.Response:
        """Answer with what ``read`` returns. The API server's refusals are passed on."""
        row = await self._job(request)
        if row is None:
            number = request.match_info["jobid"]
            return problem(404, f"jobid = {number}: no FluxJob with this number that you may see")
        rights = self._cluster.of(sessions.token_of(request) or "")
        try:
            found = await read(rights, row)
        except ApiError as error:
            return problem(error.code or 502, str(error.body.get("message") or error)[:2000])
        except ApiUnavailable as error:
            return later(str(error)[:2000], error.retry_after_s)
        return cached(request, to_json({"item": found}))

    async def _object(self, request: web.Request) -> web.Response:
        return await self._ask(
            request, lambda rights, row: rights.fluxjob(row.namespace, row.fluxjob)
        )

    async def _pods(self, request: web.Request) -> web.Response:
        return await self._ask(request, lambda rights, row: rights.pods(row.namespace, row.jobid))

    async def _events(self, request: web.Request) -> web.Response:
        return await self._ask(
            request, lambda rights, row: rights.events(row.namespace, row.fluxjob)
        )

    async def _log(self, request: web.Request) -> web.Response:
        pod, container = (_name(request, key) for key in ("pod", "container"))
        return await self._ask(
            request, lambda rights, row: rights.log(row.namespace, pod, container)
        )

    async def _explain(self, request: web.Request) -> web.Response:
        changes = (await read_body(request)).get("changes") or {}
        if not isinstance(changes, dict):
            raise InvalidInput("is not an object", where="changes")
        return await self._ask(
            request,
            lambda rights, row: rights.explain(row.namespace, row.fluxjob, changes),
        )

    async def _steer(self, request: web.Request) -> web.Response:
        verb, value = request.match_info["verb"], (await read_body(request)).get("value")

        async def act(rights: UserRights, row: JobRow) -> None:
            await rights.steer(row.namespace, row.fluxjob, verb, value)

        return await self._ask(request, act)


async def read_body(request: web.Request) -> dict[str, Any]:
    """Return the JSON object in the body of a request, which has at most ``BODY_MAX`` bytes.

    Raises
    ------
    InvalidInput
        It is too large, or no JSON object.
    BodyLate
        It has not come within ``BODY_S`` seconds.
    """
    raw = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.content.iter_any():
                raw += part
                if len(raw) > BODY_MAX:
                    hint = "send less"
                    raise InvalidInput(f"has more than {BODY_MAX} bytes", where="body", hint=hint)
    except TimeoutError:
        raise BodyLate(
            f"the body did not come within {BODY_S:g} s: send less, or send it again"
        ) from None
    try:
        found = orjson.loads(raw) if raw else {}
    except orjson.JSONDecodeError as error:
        raise InvalidInput(f"is not JSON: {error}", where="body") from None
    if not isinstance(found, dict):
        raise InvalidInput("is not a JSON object", where="body")
    return found


def _name(request: web.Request, key: str) -> str:
    """Return the name of a pod or container. Other text could change the path of a request."""
    text = request.query.get(key, "")
    is_name = text.isascii() and all(c.isalnum() or c in "-." for c in text) and len(text) <= 253
    if not is_name or text.startswith(".") or (key == "pod" and not text):
        raise InvalidInput("is not a name", where=key, value=text[:100])
    return text
