"""``KubeClient``: get, list, watch, create, replace, patch and delete over plain dicts.

fluxqueue reads and writes the cluster only through this module. It decides nothing, caches nothing
(``informer.py`` does) and never changes the dicts it is given. ``connection.py`` sends requests.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator, Callable, Mapping
from contextlib import aclosing
from dataclasses import dataclass
from enum import StrEnum
from typing import Any, NamedTuple, TypedDict, TypeVar, Unpack
from urllib.parse import urlencode

from fluxqueue.errors import Gone
from fluxqueue.kube.answers import (
    REFUSED_FROM,
    as_error,
    decode,
    status_error,
)
from fluxqueue.kube.connection import METADATA_ONLY, WHOLE, Connection
from fluxqueue.kube.resources import ApiResource
from fluxqueue.process import metrics

LIST_RESTARTS_MAX = 3
WATCH_IDLE_S = 90.0
METADATA_LIST = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1"


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


class WriteOptions(TypedDict, total=False):
    """What a request that writes may say beside the object.

    ``force`` is only for APPLY, which needs a ``field_manager``. ``metadata_only``: the answer is
    only the metadata of the object, which saves both sides the rest.
    """

    subresource: str | None
    field_manager: str | None
    force: bool
    dry_run: bool
    metadata_only: bool


class KubeClient(Connection):
    """Async client of one API server."""

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
        return await self.request("GET", resource.path(namespace, name), accept=METADATA_ONLY)

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
        **options: Unpack[WriteOptions],
    ) -> dict[str, Any]:
        """POST an object and return it. Raises Conflict (AlreadyExists), Invalid.

        After ApiUnavailable the object may or may not exist. Creation by a fixed name can be
        repeated, creation by generateName cannot. ``name`` and ``subresource`` are for POSTs to an
        object (``binding``, ``eviction``).
        """
        return await self._write("POST", resource, namespace, name, body, options)

    async def replace(
        self,
        resource: ApiResource,
        namespace: str | None,
        name: str,
        body: Mapping[str, Any],
        **options: Unpack[WriteOptions],
    ) -> dict[str, Any]:
        """PUT an object and return it. A stale resourceVersion in the body raises Conflict."""
        return await self._write("PUT", resource, namespace, name, body, options)

    async def patch(
        self,
        resource: ApiResource,
        namespace: str | None,
        name: str,
        body: Any,
        *,
        kind: PatchKind = PatchKind.MERGE,
        is_repeatable: bool | None = None,
        **options: Unpack[WriteOptions],
    ) -> dict[str, Any]:
        """PATCH an object and return it. Raises NotFound, Invalid, Conflict.

        A JSON Patch with a failed ``test`` raises Invalid.

        Parameters
        ----------
        is_repeatable : Whether it may be sent again after a broken connection. The default is False
            for a JSON patch, because applying it twice can have another result, and True for all
            others.
        """
        repeats = kind is not PatchKind.JSON if is_repeatable is None else is_repeatable
        return await self._write(
            "PATCH", resource, namespace, name, body, options, content_type=kind,
            is_repeatable=repeats,
        )  # fmt: skip

    async def _write(
        self,
        method: str,
        resource: ApiResource,
        namespace: str | None,
        name: str | None,
        body: Any,
        options: WriteOptions,
        **how: Any,
    ) -> dict[str, Any]:
        query = {
            "fieldManager": options.get("field_manager"),
            "dryRun": "All" if options.get("dry_run") else None,
            "force": "true" if options.get("force") else None,
        }
        return await self.request(
            method,
            resource.path(namespace, name, options.get("subresource")),
            query={key: one for key, one in query.items() if one is not None},
            body=body,
            accept=METADATA_ONLY if options.get("metadata_only") else WHOLE,
            **how,
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


def _selectors(label_selector: str, field_selector: str) -> dict[str, str]:
    query: dict[str, str] = {}
    if label_selector:
        query["labelSelector"] = label_selector
    if field_selector:
        query["fieldSelector"] = field_selector
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
