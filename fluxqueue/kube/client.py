"""``KubeClient``: get, list, watch, create, replace, patch and delete over plain dicts.

The only module through which fluxqueue reads or writes the cluster. It bounds concurrency, retries
what is safe to retry, and turns refusals into the exceptions of ``fluxqueue.errors``. It decides
nothing, caches nothing (``informer.py`` does) and never changes the dicts it is given.

Retries: 429 for every method (the server did not act), 5xx with Retry-After and broken connections
only for requests that may be repeated. At most ``ATTEMPTS_MAX`` sends, then ApiUnavailable.
"""

from __future__ import annotations

import asyncio
import copy
import time
from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from types import TracebackType
from typing import Any, NamedTuple, Self, TypeVar
from urllib.parse import urlencode

import orjson

from fluxqueue import __version__, metrics
from fluxqueue.errors import ApiUnavailable, Gone
from fluxqueue.kube.answer_times import AnswerTimes
from fluxqueue.kube.answers import RETRY_AFTER_MAX_S, as_error, decode, retry_after_s, status_error
from fluxqueue.kube.backoff import Backoff
from fluxqueue.kube.config import ClusterConfig
from fluxqueue.kube.resources import Resource
from fluxqueue.kube.transport import HttpTransport, Reply, Transport, TransportError

ATTEMPTS_MAX = 4
LIST_RESTARTS_MAX = 3
WATCH_IDLE_S = 90.0
FOLLOW_IDLE_S = 24 * 3600.0
TOKEN_MAX_AGE_S = 60.0
RESERVED_CONCURRENCY = 2
WHOLE = "application/json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
RETRY_BASE_S = 0.1
RETRY_CAP_S = 5.0


Kept = TypeVar("Kept")
Many = list
"""The type, under a name that no method of the client takes."""


class PatchKind(StrEnum):
    """Content types of PATCH."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class ListResult:
    """All objects of a list as of one ``resource_version``."""

    items: list[dict[str, Any]]
    resource_version: str


class WatchEvent(NamedTuple):
    """``type`` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: dict[str, Any]


class KubeClient:
    """Async client of one API server; ``async with`` closes its connections.

    Parameters: ``concurrency`` bounds requests in flight (watches do not count), ``timeout_s``
    bounds one send. ``transport`` replaces HTTP (the embedded cluster talks to itself in-process).

    ``answer_times``: how long the API server takes to answer at present.
    """

    def __init__(
        self,
        config: ClusterConfig,
        *,
        concurrency: int = 50,
        timeout_s: float = 10.0,
        attempts_max: int = ATTEMPTS_MAX,
        user_agent: str = f"fluxqueue/{__version__}",
        transport: Transport | None = None,
    ) -> None:
        self.config = config
        self._timeout_s = timeout_s
        self._attempts_max = attempts_max
        self._user_agent = user_agent
        self._given_transport = transport
        self._transport: Transport = transport or HttpTransport(config)
        self._slots = asyncio.Semaphore(concurrency)
        self._authorization: str | None = None
        self._authorization_until = float("-inf")
        self._reserved: KubeClient | None = None
        self._headers_added: dict[str, str] = {}
        self.answer_times = AnswerTimes()

    async def __aenter__(self) -> Self:
        return self

    async def __aexit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        await self.close()

    async def close(self) -> None:
        """Close all connections, those of ``reserved()`` too."""
        if self._reserved is not None:
            await self._reserved.close()
        await self._transport.close()

    def reserved(self) -> KubeClient:
        """A small budget of its own for Lease renewal: own connections, own slots, no retries.

        Leadership must not be lost because a burst of pod patches fills the ordinary budget.
        The elector retries by itself, so a send that fails is reported at once.
        """
        if self._reserved is None:
            self._reserved = KubeClient(
                self.config,
                concurrency=RESERVED_CONCURRENCY,
                timeout_s=min(self._timeout_s, 5.0),
                attempts_max=1,
                user_agent=self._user_agent,
                transport=self._given_transport,
            )
        return self._reserved

    def acting_as(self, user: str) -> KubeClient:
        """The same connections and budget, with every request made in another user's name.

        Needs the right to impersonate. The view must not be closed or outlive this client.
        """
        return self.sending({"Impersonate-User": user})

    def sending(self, headers: Mapping[str, str]) -> KubeClient:
        """The same connections and budget, with these headers in every request.

        The view must not be closed or outlive this client.
        """
        view = copy.copy(self)
        view._headers_added = {**self._headers_added, **headers}
        view._reserved = None
        return view

    # -- reading ---------------------------------------------------------------------------------

    async def get(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        subresource: str | None = None,
    ) -> dict[str, Any]:
        """One object. Raises NotFound."""
        return await self.request("GET", resource.path(namespace, name, subresource))

    async def get_metadata(
        self, resource: Resource, namespace: str | None, name: str
    ) -> dict[str, Any]:
        """One object, of which the API server sends the metadata only. Raises NotFound."""
        return await self.request("GET", resource.path(namespace, name), metadata_only=True)

    async def list(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 500,
    ) -> ListResult:
        """All matching objects, as ``collect`` fetches them, whole."""
        items, version = await self.collect(
            resource,
            namespace,
            keep=lambda item: item,
            label_selector=label_selector,
            field_selector=field_selector,
            limit=limit,
        )
        return ListResult(items, version)

    async def collect(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        keep: Callable[[dict[str, Any]], Kept],
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 500,
    ) -> tuple[Many[Kept], str]:
        """What ``keep`` makes of each matching object, and the one version all of them are of.

        Fetched in pages of ``limit``: no more than one page of whole objects is in memory. A page
        token that has expired (410) restarts the list, because pages of two versions would not be
        one state; after ``LIST_RESTARTS_MAX`` restarts it is asked for unpaged. Objects carry
        apiVersion and kind, which servers leave out inside lists.
        """
        query = _selectors(label_selector, field_selector)
        path = resource.path(namespace)
        for attempt in range(LIST_RESTARTS_MAX + 1):
            paging = limit if attempt < LIST_RESTARTS_MAX else 0
            try:
                return await self._pages(resource, path, query, paging, keep)
            except Gone:
                if attempt == LIST_RESTARTS_MAX:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _pages(
        self,
        resource: Resource,
        path: str,
        query: dict[str, str],
        limit: int,
        keep: Callable[[dict[str, Any]], Kept],
    ) -> tuple[Many[Kept], str]:
        kept: list[Kept] = []
        version = ""
        async with aclosing(self._read_pages(resource, path, query, limit)) as pages:
            async for page in pages:
                kept.extend(map(keep, page.items))
                version = page.resource_version
        return kept, version

    async def pages(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        field_selector: str = "",
        limit: int = 500,
    ) -> AsyncGenerator[ListResult, None]:
        """All matching objects, page by page as they come, in the server's order (namespace and
        name).

        Raises Gone where the list took so long that the server has forgotten its version.
        """
        async with aclosing(
            self._read_pages(
                resource, resource.path(namespace), _selectors("", field_selector), limit
            )
        ) as found:
            async for page in found:
                yield page

    async def _read_pages(
        self, resource: Resource, path: str, query: dict[str, str], limit: int
    ) -> AsyncGenerator[ListResult, None]:
        page_query = dict(query)
        if limit:
            page_query["limit"] = str(limit)
        while True:
            page = await self.request("GET", path, query=page_query)
            metadata = page.get("metadata") or {}
            items = page.get("items") or []
            for item in items:
                item.setdefault("apiVersion", resource.api_version)
                item.setdefault("kind", resource.kind)
            yield ListResult(items, str(metadata.get("resourceVersion") or ""))
            token = metadata.get("continue")
            if not token:
                return
            page_query["continue"] = token

    async def watch(
        self,
        resource: Resource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_s: int = 300,
        idle_s: float = WATCH_IDLE_S,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Events after ``resource_version``, bookmarks included.

        Ends when the server closes the stream (after ``timeout_s``) or when nothing, not even a
        bookmark, came for ``idle_s``. Raises Gone if the version is too old (list again),
        ApiUnavailable if the connection breaks, ApiError for any other ERROR event. Close the
        generator (``contextlib.aclosing``) when leaving it early.
        """
        query = _selectors(label_selector, field_selector) | {
            "watch": "true",
            "allowWatchBookmarks": "true",
            "resourceVersion": resource_version,
            "timeoutSeconds": str(timeout_s),
        }
        path = resource.path(namespace)
        target = f"{path}?{urlencode(query)}"
        async with self._transport.stream(target, self._headers(), idle_s) as reply:
            metrics.API_REQUESTS.labels("WATCH", str(reply.status)).inc()
            if reply.status >= 400:
                body = b"".join([chunk async for chunk in reply.chunks()])
                if reply.status == 401:
                    self._authorization_until = float("-inf")
                raise as_error(reply.status, reply.headers, body, what=f"watch {path}")
            async with aclosing(_lines(reply.chunks())) as lines:  # type: ignore[type-var]
                async for line in lines:
                    yield _as_event(line, path)

    # -- writing ---------------------------------------------------------------------------------

    async def create(
        self,
        resource: Resource,
        namespace: str | None,
        body: Mapping[str, Any],
        *,
        name: str | None = None,
        subresource: str | None = None,
        field_manager: str | None = None,
        dry_run: bool = False,
        metadata_only: bool = False,
    ) -> dict[str, Any]:
        """POST. Raises Conflict (AlreadyExists), Invalid.

        ApiUnavailable leaves open whether the object was made: creation by a fixed name can be
        repeated, creation by generateName cannot. ``name`` and ``subresource`` are for POSTs to an
        object (``binding``, ``eviction``).
        """
        query = _write_query(field_manager, dry_run=dry_run)
        return await self.request(
            "POST",
            resource.path(namespace, name, subresource),
            query=query,
            body=body,
            metadata_only=metadata_only,
        )

    async def replace(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        body: Mapping[str, Any],
        *,
        subresource: str | None = None,
        field_manager: str | None = None,
        dry_run: bool = False,
        metadata_only: bool = False,
    ) -> dict[str, Any]:
        """PUT. With a resourceVersion in the body a stale one raises Conflict."""
        query = _write_query(field_manager, dry_run=dry_run)
        return await self.request(
            "PUT",
            resource.path(namespace, name, subresource),
            query=query,
            body=body,
            metadata_only=metadata_only,
        )

    async def patch(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        body: Any,
        *,
        kind: PatchKind = PatchKind.MERGE,
        subresource: str | None = None,
        field_manager: str | None = None,
        force: bool = False,
        dry_run: bool = False,
        metadata_only: bool = False,
        is_repeatable: bool | None = None,
    ) -> dict[str, Any]:
        """PATCH. Raises NotFound, Invalid (also a JSON Patch ``test`` that fails), Conflict.

        ``is_repeatable``: whether it may be sent again after a broken connection; by default not a
        JSON patch, whose second application can differ from the first. ``force`` belongs to APPLY,
        which needs a ``field_manager``. ``metadata_only``: see ``request``.
        """
        query = _write_query(field_manager, dry_run=dry_run)
        if force:
            query["force"] = "true"
        return await self.request(
            "PATCH",
            resource.path(namespace, name, subresource),
            query=query,
            body=body,
            content_type=kind,
            is_repeatable=kind is not PatchKind.JSON if is_repeatable is None else is_repeatable,
            metadata_only=metadata_only,
        )

    async def delete(
        self,
        resource: Resource,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        version: str | None = None,
        propagation: str | None = None,
        grace_s: int | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """DELETE. ``uid`` makes it conditional (Conflict for another object of that name), and so
        does ``version`` (Conflict where the object's resourceVersion has moved on).

        ``propagation``: Background, Foreground or Orphan. Note that a Job deleted without it
        orphans its pods. Raises NotFound also when a repeated send finds the first one's work done.
        """
        options: dict[str, Any] = {"apiVersion": "v1", "kind": "DeleteOptions"}
        conditions = {"uid": uid, "resourceVersion": version}
        if any(conditions.values()):
            options["preconditions"] = {key: one for key, one in conditions.items() if one}
        if propagation is not None:
            options["propagationPolicy"] = propagation
        if grace_s is not None:
            options["gracePeriodSeconds"] = grace_s
        if dry_run:
            options["dryRun"] = ["All"]
        return await self.request("DELETE", resource.path(namespace, name), body=options)

    async def request(
        self,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: Any = None,
        content_type: str = "application/json",
        timeout_s: float | None = None,
        is_repeatable: bool | None = None,
        metadata_only: bool = False,
    ) -> dict[str, Any]:
        """Any request; returns the decoded answer ({} if it is empty).

        ``is_repeatable`` says whether sending it twice does no harm; by default everything but
        POST. ``metadata_only``: the answer is an object's metadata alone, which spares both sides
        the rest. Raises ApiError and its children for refusals, ApiUnavailable for the rest.
        """
        target = f"{path}?{urlencode(query)}" if query else path
        data = orjson.dumps(body) if body is not None else None
        if is_repeatable is None:
            is_repeatable = method != "POST"
        async with self._slots:
            reply = await self._send_with_retries(
                method,
                target,
                data,
                content_type=content_type,
                timeout_s=timeout_s or self._timeout_s,
                is_repeatable=is_repeatable,
                accept=METADATA_ONLY if metadata_only else WHOLE,
            )
        if reply.status >= 400:
            raise as_error(reply.status, reply.headers, reply.body, what=f"{method} {path}")
        decoded: dict[str, Any] = decode(reply.body) if reply.body else {}
        return decoded

    async def get_text(self, path: str, *, timeout_s: float | None = None) -> str:
        """GET of something that is not JSON (``/readyz``, pod logs)."""
        async with self._slots:
            reply = await self._send_with_retries(
                "GET",
                path,
                None,
                content_type="",
                timeout_s=timeout_s or self._timeout_s,
                is_repeatable=True,
            )
        if reply.status >= 400:
            raise as_error(reply.status, reply.headers, reply.body, what=f"GET {path}")
        return reply.body.decode("utf-8", "replace")

    async def lines(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Lines of a text as they are written (a pod's log, with ``follow``), without their ends.

        Ends when the server closes the stream. Raises ApiError, ApiUnavailable.
        """
        target = f"{path}?{urlencode(query)}"
        rest = b""
        async with self._transport.stream(target, self._headers(), FOLLOW_IDLE_S) as reply:
            metrics.API_REQUESTS.labels("GET", str(reply.status)).inc()
            if reply.status >= 400:
                body = b"".join([chunk async for chunk in reply.chunks()])
                raise as_error(reply.status, reply.headers, body, what=f"GET {path}")
            async with aclosing(reply.chunks()) as chunks:  # type: ignore[type-var]
                async for chunk in chunks:
                    *whole, rest = (rest + chunk).split(b"\n")
                    for line in whole:
                        yield line
        if rest:
            yield rest

    async def _send_with_retries(
        self,
        method: str,
        target: str,
        data: bytes | None,
        *,
        content_type: str,
        timeout_s: float,
        is_repeatable: bool,
        accept: str = WHOLE,
    ) -> Reply:
        backoff = Backoff(base_s=RETRY_BASE_S, cap_s=RETRY_CAP_S)
        for attempt in range(1, self._attempts_max + 1):
            is_last = attempt == self._attempts_max
            headers = self._headers(content_type if data is not None else None, accept)
            sent_s = time.monotonic()
            try:
                reply = await self._transport.send(method, target, headers, data, timeout_s)
            except TransportError as error:
                metrics.API_REQUESTS.labels(method, "0").inc()
                if is_last or not (is_repeatable or error.is_unsent):
                    raise
                metrics.API_RETRIES.labels(method).inc()
                await asyncio.sleep(backoff.next_delay_s())
                continue
            self.answer_times.note(time.monotonic() - sent_s)
            metrics.API_REQUESTS.labels(method, str(reply.status)).inc()
            wait_s = self._wait_before_retry(reply, is_repeatable)
            if wait_s is None or is_last:
                return reply
            metrics.API_RETRIES.labels(method).inc()
            await asyncio.sleep(backoff.next_delay_s(wait_s))
        raise ApiUnavailable("attempts_max must be at least 1")

    def _wait_before_retry(self, reply: Reply, is_repeatable: bool) -> float | None:
        """Least seconds to wait before sending again; None: this answer is final."""
        if reply.status == 401 and self._authorization is not None:
            # A rotated token: read it again, once (the second time the value is the same).
            stale, self._authorization_until = self._authorization, float("-inf")
            self._headers()
            return 0.0 if self._authorization != stale else None
        after_s = retry_after_s(reply.headers)
        if after_s is not None and after_s > RETRY_AFTER_MAX_S:
            return None
        if reply.status == 429:
            return after_s or 0.0
        if reply.status >= 500 and after_s is not None and is_repeatable:
            return after_s
        return None

    def _headers(self, content_type: str | None = None, accept: str = WHOLE) -> dict[str, str]:
        now = time.monotonic()
        if now >= self._authorization_until:
            self._authorization = self.config.authorization_header()
            self._authorization_until = now + TOKEN_MAX_AGE_S
        headers = {"Accept": accept, "User-Agent": self._user_agent}
        if self._authorization is not None:
            headers["Authorization"] = self._authorization
        if content_type:
            headers["Content-Type"] = content_type
        headers.update(self._headers_added)
        return headers


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    query: dict[str, str] = {}
    if label_selector:
        query["labelSelector"] = label_selector
    if field_selector:
        query["fieldSelector"] = field_selector
    return query


def _write_query(field_manager: str | None, *, dry_run: bool) -> dict[str, str]:
    query: dict[str, str] = {}
    if field_manager is not None:
        query["fieldManager"] = field_manager
    if dry_run:
        query["dryRun"] = "All"
    return query


async def _lines(chunks: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    """Whole lines of a stream; a last line without its end is a cut connection and is dropped."""
    rest = b""
    async for chunk in chunks:
        if rest:
            chunk = rest + chunk
        *lines, rest = chunk.split(b"\n")
        for line in lines:
            if line:
                yield line


def _as_event(line: bytes, path: str) -> WatchEvent:
    event = decode(line)
    kind, content = event["type"], event["object"]
    if kind == "ERROR":
        raise status_error(int(content.get("code") or 500), content, what=f"watch {path}")
    return WatchEvent(kind, content)
