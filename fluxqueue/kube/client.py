"""``KubeClient``: get, list, watch, create, replace, patch and delete over plain dicts.

fluxqueue reads and writes the cluster only through this module. It limits concurrency, retries what
is safe to retry, and turns refusals into the exceptions of ``fluxqueue.errors``. It decides
nothing, caches nothing (``informer.py`` does) and never changes the dicts it is given.

429 is retried for every method, because the server did not act. 5xx with Retry-After and broken
connections are retried only for requests that may be repeated. After ``ATTEMPTS_MAX`` sends it
raises ApiUnavailable.
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

from fluxqueue import __version__
from fluxqueue.errors import ApiUnavailable, Gone
from fluxqueue.kube.answer_times import AnswerTimes
from fluxqueue.kube.answers import (
    REFUSED_FROM,
    RETRY_AFTER_MAX_S,
    as_error,
    decode,
    retry_after_s,
    status_error,
)
from fluxqueue.kube.backoff import Backoff
from fluxqueue.kube.config import ClusterConfig
from fluxqueue.kube.resources import ApiResource
from fluxqueue.kube.slots import Slots, lane_of
from fluxqueue.kube.transport import HttpTransport, Reply, Transport, TransportError
from fluxqueue.process import metrics

ATTEMPTS_MAX = 4
LIST_RESTARTS_MAX = 3
WATCH_IDLE_S = 90.0
FOLLOW_IDLE_S = 24 * 3600.0
TOKEN_MAX_AGE_S = 60.0
RESERVED_CONCURRENCY = 2
WHOLE = "application/json"
METADATA_ONLY = "application/json;as=PartialObjectMetadata;g=meta.k8s.io;v=v1"
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"
RETRY_BASE_S = 0.1
RETRY_CAP_S = 5.0


Kept = TypeVar("Kept")
Many = list
"""The type ``list``: inside the client that name is a method."""


class PatchKind(StrEnum):
    """Content types of PATCH."""

    MERGE = "application/merge-patch+json"
    JSON = "application/json-patch+json"
    STRATEGIC = "application/strategic-merge-patch+json"
    APPLY = "application/apply-patch+yaml"


@dataclass(frozen=True, slots=True)
class ListResult:
    """All objects of a list at one ``resource_version``."""

    items: list[dict[str, Any]]
    resource_version: str


class WatchEvent(NamedTuple):
    """One event of a watch. ``type`` is ADDED, MODIFIED, DELETED or BOOKMARK."""

    type: str
    object: dict[str, Any]


class KubeClient:
    """Async client of one API server. ``async with`` closes its connections.

    Parameters
    ----------
    concurrency : Maximum number of requests in flight. Watches do not count.
    timeout_s : Seconds that one send may take.
    attempts_max : Maximum number of sends of one request.
    transport : Replaces HTTP. The embedded cluster talks to itself in-process.

    ``answer_times`` measures how long the API server takes to answer at present.
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
        self._slots = Slots(concurrency)
        self._is_background = False
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
        """Return a client with its own connections and slots and no retries, for Lease renewal.

        A burst of pod patches that fills the ordinary slots must not cost the leadership. The
        elector retries by itself, so a failed send is reported at once.
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
        """Return a view of this client that makes every request as ``user``.

        It needs the right to impersonate, and shares connections and slots. The view must not be
        closed, and must not outlive this client.
        """
        return self.sending({"Impersonate-User": user})

    def in_background(self) -> KubeClient:
        """Return a view of this client for requests that no job waits for, such as statuses.

        It shares connections and slots. The view must not be closed, and must not outlive this
        client.
        """
        view = self.sending({})
        view._is_background = True
        return view

    def sending(self, headers: Mapping[str, str]) -> KubeClient:
        """Return a view of this client that sends ``headers`` with every request.

        It shares connections and slots. The view must not be closed, and must not outlive this
        client.
        """
        view = copy.copy(self)
        view._headers_added = {**self._headers_added, **headers}
        view._reserved = None
        return view

    # -- reading ---------------------------------------------------------------------------------

    async def get(
        self,
        resource: ApiResource,
        namespace: str | None,
        name: str,
        *,
        subresource: str | None = None,
    ) -> dict[str, Any]:
        """Return one object. Raises NotFound."""
        return await self.request("GET", resource.path(namespace, name, subresource))

    async def get_metadata(
        self, resource: ApiResource, namespace: str | None, name: str
    ) -> dict[str, Any]:
        """Return the metadata of one object: the API server sends nothing else. Raises NotFound."""
        return await self.request("GET", resource.path(namespace, name), metadata_only=True)

    async def list(
        self,
        resource: ApiResource,
        namespace: str | None = None,
        *,
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 500,
    ) -> ListResult:
        """Return all matching objects, whole, as ``collect`` fetches them."""
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
        resource: ApiResource,
        namespace: str | None = None,
        *,
        keep: Callable[[dict[str, Any]], Kept],
        label_selector: str = "",
        field_selector: str = "",
        limit: int = 500,
        metadata_only: bool = False,
    ) -> tuple[Many[Kept], str]:
        """Return ``keep(object)`` for each matching object, and their common resource version.

        Objects come in pages of ``limit``, so at most one page of whole objects is in memory. An
        expired page token (410) restarts the list, because pages of two versions are not one state.
        After ``LIST_RESTARTS_MAX`` restarts the list is requested without pages.

        Objects carry apiVersion and kind, which servers omit inside lists. With ``metadata_only``,
        the API server sends only their metadata.
        """
        query = _selectors(label_selector, field_selector)
        path = resource.path(namespace)
        for attempt in range(LIST_RESTARTS_MAX + 1):
            paging = limit if attempt < LIST_RESTARTS_MAX else 0
            try:
                return await self._pages(
                    *(resource, path, query, paging, keep), metadata_only=metadata_only
                )
            except Gone:
                if attempt == LIST_RESTARTS_MAX:
                    raise
        raise AssertionError("unreachable: the last attempt returns or raises")

    async def _pages(
        self,
        resource: ApiResource,
        path: str,
        query: dict[str, str],
        limit: int,
        keep: Callable[[dict[str, Any]], Kept],
        *,
        metadata_only: bool = False,
    ) -> tuple[Many[Kept], str]:
        kept: list[Kept] = []
        version = ""
        accept = METADATA_LIST if metadata_only else WHOLE
        async with aclosing(self._read_pages(resource, path, query, limit, accept)) as pages:
            async for page in pages:
                kept.extend(map(keep, page.items))
                version = page.resource_version
        return kept, version

    async def pages(
        self,
        resource: ApiResource,
        namespace: str | None = None,
        *,
        field_selector: str = "",
        limit: int = 500,
    ) -> AsyncGenerator[ListResult, None]:
        """Yield all matching objects page by page, in the server's order (namespace, name).

        Raises Gone if the list takes so long that the server has forgotten its version.
        """
        async with aclosing(
            self._read_pages(
                resource, resource.path(namespace), _selectors("", field_selector), limit
            )
        ) as found:
            async for page in found:
                yield page

    async def _read_pages(
        self,
        resource: ApiResource,
        path: str,
        query: dict[str, str],
        limit: int,
        accept: str = WHOLE,
    ) -> AsyncGenerator[ListResult, None]:
        page_query = dict(query)
        if limit:
            page_query["limit"] = str(limit)
        while True:
            page = await self.request("GET", path, query=page_query, accept=accept)
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
        resource: ApiResource,
        namespace: str | None = None,
        *,
        resource_version: str,
        label_selector: str = "",
        field_selector: str = "",
        timeout_s: int = 300,
        idle_s: float = WATCH_IDLE_S,
    ) -> AsyncGenerator[WatchEvent, None]:
        """Yield events after ``resource_version``, bookmarks included.

        It ends when the server closes the stream (after ``timeout_s``). It also ends if nothing,
        not even a bookmark, came for ``idle_s``. Close the generator (``contextlib.aclosing``) when
        leaving it early.

        Raises
        ------
        Gone
            The version is too old: list again.
        ApiUnavailable
            The connection broke.
        ApiError
            The server sent another ERROR event.
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
            if reply.status >= REFUSED_FROM:
                body = b"".join([chunk async for chunk in reply.chunks()])
                # The token may have been rotated: read it again with the next request.
                if reply.status == 401:
                    self._authorization_until = float("-inf")
                raise as_error(reply.status, reply.headers, body, what=f"watch {path}")
            async with aclosing(_lines(reply.chunks())) as lines:  # type: ignore[type-var]
                async for line in lines:
                    yield _as_event(line, path)

    # -- writing ---------------------------------------------------------------------------------

    async def create(
        self,
        resource: ApiResource,
        namespace: str | None,
        body: Mapping[str, Any],
        *,
        name: str | None = None,
        subresource: str | None = None,
        field_manager: str | None = None,
        dry_run: bool = False,
        metadata_only: bool = False,
    ) -> dict[str, Any]:
        """POST an object and return it. Raises Conflict (AlreadyExists), Invalid.

        After ApiUnavailable the object may or may not exist. Creation by a fixed name can be
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
        resource: ApiResource,
        namespace: str | None,
        name: str,
        body: Mapping[str, Any],
        *,
        subresource: str | None = None,
        field_manager: str | None = None,
        dry_run: bool = False,
        metadata_only: bool = False,
    ) -> dict[str, Any]:
        """PUT an object and return it. A stale resourceVersion in the body raises Conflict."""
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
        resource: ApiResource,
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
        """PATCH an object and return it. Raises NotFound, Invalid, Conflict.

        A JSON Patch with a failed ``test`` raises Invalid.

        Parameters
        ----------
        is_repeatable : Whether it may be sent again after a broken connection. The default is False
            for a JSON patch, because applying it twice can have another result, and True for all
            others.
        force : Only for APPLY, which needs a ``field_manager``.
        metadata_only : See ``request``.
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
        resource: ApiResource,
        namespace: str | None,
        name: str,
        *,
        uid: str | None = None,
        version: str | None = None,
        propagation: str | None = None,
        grace_s: int | None = None,
        dry_run: bool = False,
    ) -> dict[str, Any]:
        """DELETE an object, under conditions if ``uid`` or ``version`` is given.

        Another object of that name raises Conflict with ``uid``. A resourceVersion that has changed
        raises Conflict with ``version``. NotFound is also raised if a repeated send finds the work
        of the first one done.

        Parameters
        ----------
        propagation : Background, Foreground or Orphan. A Job deleted without it orphans its pods.
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
        accept: str = WHOLE,
    ) -> dict[str, Any]:
        """Send any request and return the decoded answer, {} if it is empty.

        Parameters
        ----------
        is_repeatable : Whether sending it twice is harmless. By default everything except POST.
        metadata_only : The answer is only the metadata of an object, which saves both sides the
            rest.
        accept : The form of any other answer.

        Raises
        ------
        ApiError
            The server refused. Its subclasses tell why.
        ApiUnavailable
            Any other failure.
        """
        target = f"{path}?{urlencode(query)}" if query else path
        data = orjson.dumps(body) if body is not None else None
        if is_repeatable is None:
            is_repeatable = method != "POST"
        async with self._slots.hold(lane_of(path), is_background=self._is_background):
            reply = await self._send_with_retries(
                method,
                target,
                data,
                content_type=content_type,
                timeout_s=timeout_s or self._timeout_s,
                is_repeatable=is_repeatable,
                accept=METADATA_ONLY if metadata_only else accept,
            )
        if reply.status >= REFUSED_FROM:
            raise as_error(reply.status, reply.headers, reply.body, what=f"{method} {path}")
        decoded: dict[str, Any] = decode(reply.body) if reply.body else {}
        return decoded

    async def get_text(self, path: str, *, timeout_s: float | None = None) -> str:
        """GET text that is not JSON (``/readyz``, pod logs)."""
        async with self._slots.hold(lane_of(path), is_background=self._is_background):
            reply = await self._send_with_retries(
                "GET",
                path,
                None,
                content_type="",
                timeout_s=timeout_s or self._timeout_s,
                is_repeatable=True,
            )
        if reply.status >= REFUSED_FROM:
            raise as_error(reply.status, reply.headers, reply.body, what=f"GET {path}")
        return reply.body.decode("utf-8", "replace")

    async def lines(self, path: str, query: Mapping[str, str]) -> AsyncGenerator[bytes, None]:
        """Yield the lines of a text as they are written, without line ends (a pod's log).

        It ends when the server closes the stream. Raises ApiError, ApiUnavailable.
        """
        target = f"{path}?{urlencode(query)}"
        rest = b""
        async with self._transport.stream(target, self._headers(), FOLLOW_IDLE_S) as reply:
            metrics.API_REQUESTS.labels("GET", str(reply.status)).inc()
            if reply.status >= REFUSED_FROM:
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
        """Return the seconds to wait before sending again, or None if this answer is final."""
        if reply.status == 401 and self._authorization is not None:
            # The token was rotated: read it again, once. The second time the value is the same.
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
    """Yield the whole lines of a stream. A last line without its end is cut off, and dropped."""
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
