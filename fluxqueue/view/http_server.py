"""The HTTPS server of the view: authentication, rights, lists, and a stream of changes.

``cli.processes`` starts it (``fluxqueue view``). Everything below ``/api`` needs a token. The
OpenAPI document and the files of the page (``window``) are public, because they tell nothing of the
cluster. Lists are answered from the database. Only rights are cached, for a moment.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Awaitable, Callable, Mapping
from contextlib import nullcontext
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Self

from aiohttp import web
from aiohttp_sse import EventSourceResponse, sse_response

from fluxqueue.clock import Clock
from fluxqueue.db.reader import DatabaseReader
from fluxqueue.db.reading import fluxjobs, occupancy
from fluxqueue.errors import (
    ApiError,
    ApiUnavailable,
    DatabaseUnavailable,
    InvalidInput,
)
from fluxqueue.fluxjob.levels import DEFAULT_LEVELS, Levels
from fluxqueue.kube.client import KubeClient
from fluxqueue.nodepools.pool import read_node_pool
from fluxqueue.process import metrics
from fluxqueue.process.certs.serving import Listener
from fluxqueue.process.settings import Settings
from fluxqueue.view import answer_fields, endpoints
from fluxqueue.view.as_user import UserCluster
from fluxqueue.view.change_stream import Feed, Lines, TooManyFollowers
from fluxqueue.view.endpoints import ENDPOINTS, ROOT, Needs, ViewEndpoint
from fluxqueue.view.openapi import document
from fluxqueue.view.parameters import ViewQuery, parse, write_token
from fluxqueue.view.replays import (
    ReplayTooLong,
    TimeMachine,
    TooManyReplays,
    read_asked,
)
from fluxqueue.view.replies import (
    PRIVATE,
    cached,
    later,
    problem,
    to_json,
    unauthorized,
)
from fluxqueue.view.request_places import RequestPlaces, TooManyRequests
from fluxqueue.view.rights import Caller, Doorkeeper, NotAllowed
from fluxqueue.view.sessions import token_of, why_not_ours
from fluxqueue.view.window import BodyLate, WindowRoutes, read_body

logger = logging.getLogger(__name__)

AT_ONCE_MAX, OF_USER_MAX = 64, 24
"""Requests that are answered at once: those of all users, and those of one."""
UNKNOWN_MAX, OF_ADDRESS_MAX = 16, 4
"""Tokens that are checked at once for callers that have shown no valid one before: all, and from
one address."""
NODES_MAX = 20_000
"""Nodes of a map."""
NAMESPACES_MAX = 500
"""With more namespaces than this, the user must name some: checking all costs too much."""
STALE_S = 10.0
"""Seconds after which a follower's rights are checked again, at the latest."""

_CALLER: web.RequestKey[Caller] = web.RequestKey("caller", Caller)
_LEAVE: web.RequestKey[Callable[[], None]] = web.RequestKey("leave")
"""Gives the place of a request back before its end."""
Handler = Callable[[web.Request], Awaitable[web.StreamResponse]]


@dataclass(frozen=True, slots=True)
class ViewConfig:
    """Where to listen. ``cert_dir`` holds ``tls.crt`` and ``tls.key``. Port 0 picks a free one."""

    cert_dir: Path
    host: str | None = None
    port: int = 8443
    reload_interval_s: float = 5.0
    shutdown_timeout_s: float = 5.0


class ViewServer:
    """The server, as an async context manager.

    ``client`` asks the API server as the view server itself.
    """

    def __init__(
        self,
        config: ViewConfig,
        reader: DatabaseReader,
        client: KubeClient,
        clock: Clock,
        levels: Levels = DEFAULT_LEVELS,
        settings: Settings | None = None,
    ) -> None:
        self._config, self._reader, self._clock = config, reader, clock
        self._time_machine = TimeMachine(reader, levels, settings)
        self._levels = levels
        self._cluster = UserCluster(client.config)
        self._window = WindowRoutes(self._cluster, self._row_of)
        self._listener = Listener(config.cert_dir, reload_interval_s=config.reload_interval_s)
        self._keeper = Doorkeeper(client, clock)
        self._feed = Feed(reader, clock)
        self._document = to_json(document())
        self._places = RequestPlaces(AT_ONCE_MAX, OF_USER_MAX)
        self._unknown = RequestPlaces(UNKNOWN_MAX, OF_ADDRESS_MAX)
        self.port = config.port

    async def __aenter__(self) -> Self:
        """Load the certificate and listen.

        Raises
        ------
        InvalidSettings
            There is no usable certificate, or the address cannot be used.
        """
        config = self._config
        runner = web.AppRunner(
            self._build_app(),
            access_log=None,
            shutdown_timeout=config.shutdown_timeout_s,
            # If the client has gone, end its stream and its statement at once.
            handler_cancellation=True,
        )
        self.port = await self._listener.open(runner, config.host, config.port)
        logger.info("view server listens", extra={"action": "start", "port": self.port})
        return self

    async def __aexit__(self, *_: object) -> None:
        self._feed.end()
        await self._listener.close()
        await self._cluster.close()

    def _build_app(self) -> web.Application:
        app = web.Application(middlewares=[self._guard], client_max_size=64 * 1024)
        app.router.add_get("/openapi.json", self._openapi)
        for one in ENDPOINTS:
            app.router.add_get(ROOT + one.path, self._lister(one))
        app.router.add_get(f"{ROOT}/jobs/{{jobid:[0-9]{{1,18}}}}", self._job)
        app.router.add_get(f"{ROOT}/map", self._map)
        app.router.add_get(f"{ROOT}/whoami", self._whoami)
        app.router.add_get(f"{ROOT}/changes", self._changes)
        app.router.add_post(f"{ROOT}/replays", self._replay)
        app.router.add_get(f"{ROOT}/swf", self._swf)
        self._window.add_to(app, ROOT)
        return app

    # --- every request ----------------------------------------------------------------------------

    @web.middleware
    async def _guard(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        """Count and limit requests, and answer every error in one form."""
        began_s = time.perf_counter()
        resource = request.match_info.route.resource
        path = resource.canonical if resource is not None else "other"
        response = await self._answer(request, handler)
        metrics.VIEW_REQUESTS.labels(path, str(response.status)).inc()
        if not isinstance(response, EventSourceResponse):
            metrics.VIEW_S.observe(time.perf_counter() - began_s)
        return response

    async def _answer(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        try:
            return await self._admitted(request, handler)
        except InvalidInput as error:
            return problem(400, str(error))
        except NotAllowed as error:
            return problem(403, str(error))
        except DatabaseUnavailable as error:
            logger.warning("database away", extra={"action": "view", "error": str(error)})
            return later(f"the database does not answer now: {_first_line(error)}", None)
        except ApiUnavailable as error:
            return later("the API server cannot check your token now", error.retry_after_s)
        except ApiError as error:
            logger.error("token reviews are refused", extra={"action": "view", "error": str(error)})
            return later("the API server does not let the view server check your token", None)
        except TooManyRequests as error:
            return later(str(error), 1)
        except (TooManyFollowers, TooManyReplays) as error:
            return later(str(error), None)
        except BodyLate as error:
            return problem(408, str(error))
        except ReplayTooLong as error:
            return problem(504, str(error))
        except web.HTTPException as error:
            hint = f"see /openapi.json for all paths below {ROOT}"
            return problem(error.status, f"{request.method} {request.path}: {hint}")
        except (ConnectionResetError, asyncio.CancelledError):
            raise
        except Exception:
            logger.exception("a request failed", extra={"action": "view", "path": request.path})
            return problem(500, "this server has a defect: see its log")

    async def _admitted(self, request: web.Request, handler: Handler) -> web.StreamResponse:
        is_known = request.match_info.http_exception is None
        if is_known and not request.path.startswith("/api/"):
            return await handler(request)
        token = token_of(request)
        if token is None:
            return unauthorized("no token")
        if why := why_not_ours(request):
            return problem(403, f"this request does not come from the page: {why}")
        # Before the identity is known, the address counts: a message can claim anything.
        is_known = self._keeper.knows(token)
        with nullcontext() if is_known else self._unknown.hold(request.remote or ""):
            caller = await self._keeper.admit(token)
        if caller is None:
            return unauthorized("the token is unknown or has expired")
        request[_CALLER] = caller
        with self._places.hold(caller.asker.username) as request[_LEAVE]:
            return await handler(request)

    # --- answers ----------------------------------------------------------------------------------

    async def _openapi(self, request: web.Request) -> web.Response:
        return cached(request, self._document, "public, max-age=300")

    def _lister(self, one: ViewEndpoint) -> Handler:
        async def answer(request: web.Request) -> web.StreamResponse:
            asked = await self._narrowed(request[_CALLER], one.needs, self._parse(request, one))
            rows = await _again(lambda: one.read(self._reader, asked, asked.limit + 1))
            shown = rows[: asked.limit]
            body: dict[str, Any] = {"items": [one.item.render(row) for row in shown]}
            if len(rows) > len(shown):
                offset = endpoints.offset_of(asked) + len(shown) if one.key is None else 0
                body["continue"] = write_token(one.key(shown[-1]) if one.key else (offset,))
            return cached(request, to_json(body))

        return answer

    def _parse(self, request: web.Request, one: ViewEndpoint) -> ViewQuery:
        return parse(request.query, one.parameters, self._now())

    def _now(self) -> datetime:
        return datetime.fromtimestamp(self._clock.now_s(), tz=UTC)

    async def _narrowed(self, caller: Caller, needs: Needs, asked: ViewQuery) -> ViewQuery:
        """Return the request with the namespaces that its caller may see."""
        if needs in {Needs.NODES, Needs.PLACES}:
            await caller.require_nodes()
        if needs is Needs.NODES:
            return asked
        named = asked.get("namespace")
        if named:
            namespaces = (named,) if isinstance(named, str) else named
            await caller.require(namespaces)
            return replace(asked, namespaces=namespaces)
        if await caller.sees_all():
            return asked
        known = await _again(lambda: fluxjobs.namespaces(self._reader, most=NAMESPACES_MAX + 1))
        if len(known) > NAMESPACES_MAX:
            raise NotAllowed(
                f"there are more than {NAMESPACES_MAX} namespaces: name some with ?namespace=a,b"
            )
        return replace(asked, namespaces=await caller.among(known))

    async def _job(self, request: web.Request) -> web.StreamResponse:
        parse(request.query, (), self._now())
        row = await self._row_of(request)
        if row is None:
            jobid = request.match_info["jobid"]
            return problem(404, f"jobid = {jobid}: no FluxJob with this number that you may see")
        return cached(request, to_json(answer_fields.JOB.render(row)))

    async def _row_of(self, request: web.Request) -> fluxjobs.JobRow | None:
        """Return the job that the path names, or None if the caller may not see it."""
        jobid = int(request.match_info["jobid"])
        row = await _again(lambda: fluxjobs.by_jobid(self._reader, jobid))
        is_seen = row is not None and await request[_CALLER].sees(row.namespace)
        return row if is_seen else None

    async def _map(self, request: web.Request) -> web.StreamResponse:
        """All nodes at once, with their places in the levels."""
        parse(request.query, (), self._now())
        await request[_CALLER].require_nodes()
        rows = await _again(lambda: occupancy.all_nodes(self._reader, limit=NODES_MAX))
        coming = await _again(lambda: occupancy.coming_nodes(self._reader, limit=NODES_MAX))
        body = {
            "levels": [level.name for level in self._levels],
            "nodes": [
                answer_fields.MAP_NODE.render(row._replace(path=self._path(row.labels or {})))
                for row in rows
            ],
            "coming": [answer_fields.COMING_NODE.render(self._coming(row)) for row in coming],
        }
        return cached(request, to_json(body))

    def _path(self, labels: Mapping[str, str]) -> list[str]:
        return [level.place(labels) or "" for level in self._levels]

    def _coming(self, row: occupancy.ComingNodeRow) -> occupancy.ComingNodeRow:
        """Return a node under way as the map shows it. Its pool says what it will be like."""
        try:
            pool = read_node_pool(row.pool, row.spec)
        except InvalidInput:  # the spec was written for another version
            return row
        resources = {name: (amount, 0) for name, amount in pool.capacity.items()}
        return row._replace(path=self._path(pool.labels), resources=resources)

    async def _whoami(self, request: web.Request) -> web.StreamResponse:
        caller = request[_CALLER]
        found = SimpleNamespace(
            user=caller.asker.username,
            groups=list(caller.asker.groups),
            sees_all=await caller.sees_all(),
            sees_nodes=await caller.sees_nodes(),
        )
        return cached(request, to_json(answer_fields.CALLER.render(found)))

    async def _replay(self, request: web.Request) -> web.StreamResponse:
        """Replay a recorded time. It shows all jobs and nodes, so it needs both rights."""
        user = await _require_all(request[_CALLER])
        asked = read_asked(await read_body(request), self._now())
        return cached(request, await self._time_machine.replay(user, asked))

    async def _swf(self, request: web.Request) -> web.StreamResponse:
        """Return a recorded time as a workload log, for other simulators."""
        user = await _require_all(request[_CALLER])
        asked = parse(request.query, endpoints.RECORDED, self._now())
        period = {one.name: asked.get(one.name) for one in endpoints.RECORDED}
        recorded = replace(read_asked(period, self._now()), is_log=True)
        headers = {**PRIVATE, "Content-Disposition": 'attachment; filename="fluxqueue.swf"'}
        return web.Response(text=await self._time_machine.swf(user, recorded), headers=headers)

    # --- changes ----------------------------------------------------------------------------------

    async def _changes(self, request: web.Request) -> web.StreamResponse:
        asked = parse(request.query, endpoints.CHANGES, self._now())
        caller: Caller = request[_CALLER]
        if not (await self._narrowed(caller, endpoints.Needs.FLUXJOBS, asked)).sees_any:
            raise NotAllowed(
                f"{caller.asker.username} may not list fluxjobs in any namespace that has some: "
                "ask for the role fluxqueue-viewer in one, or name it: ?namespace=a"
            )
        last = _last_event(request)
        async with self._feed.follow(caller.asker.username) as queue:
            behind, is_whole = await self._feed.since(last) if last is not None else ([], True)
            async with sse_response(request, headers=PRIVATE) as response:
                request[_LEAVE]()  # from now on it counts as a follower
                metrics.VIEW_FOLLOWERS.inc()
                try:
                    if not is_whole:
                        await response.send("{}", event="reset")
                    await self._stream(request, response, asked, queue, behind)
                finally:
                    metrics.VIEW_FOLLOWERS.dec()
        return response

    async def _stream(
        self,
        request: web.Request,
        response: EventSourceResponse,
        asked: ViewQuery,
        queue: asyncio.Queue[Lines | None],
        behind: Lines,
    ) -> None:
        # Follow before reading the past, so a line may come both ways: send it once.
        told = {row.id for row in behind}
        await self._send(request, response, asked, behind)
        while response.is_connected():
            lines: Lines | None = ()
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(STALE_S):
                    lines = await queue.get()
            # The token may have expired or lost its rights since the last batch.
            caller = await self._keeper.admit(token_of(request) or "")
            if lines is None or caller is None:
                return
            request[_CALLER] = caller
            await self._send(request, response, asked, [row for row in lines if row.id not in told])

    async def _send(
        self, request: web.Request, response: EventSourceResponse, asked: ViewQuery, lines: Lines
    ) -> None:
        caller = request[_CALLER]
        namespaces = asked.get("namespace") or {row.namespace for row in lines}
        seen = set(await caller.among(list(namespaces))) if lines else set()
        for row in lines:
            is_of = all(asked.get(key) in (None, getattr(row, key)) for key in ("queue", "user"))
            if is_of and row.namespace in seen:
                data = to_json(answer_fields.CHANGE.render(row)).decode()
                await response.send(data, id=str(row.id), event="change")


async def _require_all(caller: Caller) -> str:
    """Return the name of a user that may see all jobs and nodes, as a recorded time shows them.

    Raises
    ------
    NotAllowed
        It may not.
    """
    await caller.require_nodes()
    if not await caller.sees_all():
        raise NotAllowed(
            f"{caller.asker.username} may not list fluxjobs in all namespaces, and a replay "
            "shows the jobs of all: ask for the role fluxqueue-viewer in all namespaces"
        )
    return caller.asker.username


async def _again(read: Callable[[], Awaitable[Any]]) -> Any:
    """Call ``read``, and once more if the connection was lost.

    After a restart of the database, the first statement finds out that the connection is gone.
    """
    with contextlib.suppress(DatabaseUnavailable):
        return await read()
    return await read()


def _last_event(request: web.Request) -> int | None:
    text = request.headers.get("Last-Event-ID", "")
    if not text:
        return None
    if not (text.isascii() and text.isdigit() and len(text) <= 18):
        raise InvalidInput("is not a number", where="Last-Event-ID", value=text)
    return int(text)


def _first_line(error: Exception) -> str:
    return str(error).partition("\n")[0]
