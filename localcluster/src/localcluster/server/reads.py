"""GET of one object, lists with selectors and pages, watches.

``routes`` calls it. It never writes. The rules about resourceVersion and continue tokens follow
``k8s.io/apiserver/pkg/storage`` as recorded from a real server.
"""

from __future__ import annotations

import asyncio
import base64
import time
from collections.abc import AsyncGenerator, Mapping
from dataclasses import dataclass

import orjson

from localcluster.kinds.podspec_rules import unsupported
from localcluster.kinds.registry import ResourceInfo
from localcluster.server import tables
from localcluster.server.http_refusals import (
    expired_list,
    expired_watch,
    invalid_options,
    version_too_large,
)
from localcluster.server.machinery import Machinery
from localcluster.server.negotiation import Media, encode, negotiate
from localcluster.server.request import (
    Answer,
    ApiRequest,
    Target,
    bool_parameter,
    int_parameter,
)
from localcluster.server.selectors import (
    FieldSelector,
    LabelSelector,
    SelectorError,
    check_fields,
    parse_fields,
    parse_labels,
)
from localcluster.server.store import Bucket, Entry
from localcluster.server.watch import (
    ObjectForm,
    Selection,
    Watcher,
    bookmark_line,
    error_line,
)
from localcluster.types.refusals import (
    FORBIDDEN,
    NOT_SUPPORTED,
    FieldError,
    StatusError,
    bad_request,
    not_found,
)

FUTURE_WAIT_S = 3.0
"""How long a list waits for a version that does not exist yet, before a 504."""
NO_OWN_FIELDS = '"{}" is not a known field selector: only "metadata.name", "metadata.namespace"'
GATHER_S = 0.005
"""Lines that follow each other faster than this go out together.

They take one TLS record and one wake-up.
"""
BOOKMARK_EVERY_S = 60.0
BOOKMARK_BEFORE_END_S = 2.0
WATCH_AT_LEAST_S = 1800.0
"""A watch without timeoutSeconds ends after this time, or up to twice as long."""


def bucket_of(machinery: Machinery, info: ResourceInfo) -> Bucket:
    """Return the objects of a resource."""
    return machinery.store.bucket(info.storage, is_young=info.is_custom)


# -- get ------------------------------------------------------------------------------------


async def get(machinery: Machinery, request: ApiRequest, target: Target) -> Answer:
    """Return one object. A future resourceVersion is waited for, and then gives a 504."""
    text = request.query.get("resourceVersion", "")
    if text and not text.isdecimal():
        raise StatusError(500, "", _unparsable(text))  # a list answers 400
    if text:
        await _wait_for_version(machinery, int(text))
    entry = machinery.store.entry(target.info.storage, target.namespace, target.name)
    if entry is None:
        raise not_found(target.info.group, target.info.plural, target.name)
    return machinery.answer_entry(request, target.info, entry)


def _version(query: Mapping[str, str]) -> int | None:
    text = query.get("resourceVersion", "")
    if text == "":
        return None
    if not text.isdecimal():
        raise bad_request(f"invalid resource version: {_unparsable(text)}")
    return int(text)


def _unparsable(text: str) -> str:
    why = f'strconv.ParseUint: parsing "{text}": invalid syntax'
    return f'resourceVersion: Invalid value: "{text}": {why}'


async def _wait_for_version(machinery: Machinery, wanted: int) -> None:
    deadline_s = time.monotonic() + FUTURE_WAIT_S
    while machinery.store.rv < wanted:
        if time.monotonic() >= deadline_s:
            raise version_too_large(wanted, machinery.store.rv)
        await asyncio.sleep(0.05)


# -- selection ------------------------------------------------------------------------------


def selection_of(query: Mapping[str, str], target: Target) -> Selection:
    """Return the selectors of a request. Raise 400 if they are invalid or unknown."""
    info = target.info
    try:
        labels = _labels(query.get("labelSelector", ""))
        fields = _fields(query.get("fieldSelector", ""), info)
    except SelectorError as error:
        raise bad_request(str(error)) from error
    if target.name:
        fields = FieldSelector((*fields.terms, ("metadata.name", target.name, True)))
    return Selection(target.namespace, labels, fields, info.selectable)


def _labels(text: str) -> LabelSelector:
    return parse_labels(text) if text else LabelSelector()


def _fields(text: str, info: ResourceInfo) -> FieldSelector:
    if not text:
        return FieldSelector()
    selector = parse_fields(text)
    known = set(info.selectable({"metadata": {"name": "", "namespace": ""}}))
    check_fields(selector, known.__contains__, _refusal_text(info, known))
    return selector


def _refusal_text(info: ResourceInfo, known: set[str]) -> str:
    """Return the wording of an error. One of three is for kinds without own fields."""
    if known <= {"metadata.name", "metadata.namespace"} and not info.is_custom:
        return NO_OWN_FIELDS
    if info.group in ("", "events.k8s.io") or info.is_custom:
        return "field label not supported: {}"
    return f'field label "{{}}" not supported for {info.kind}'


# -- list -----------------------------------------------------------------------------------


@dataclass(slots=True)
class Page:
    """One answer of a list: entries, their version, and how to continue."""

    entries: list[Entry]
    rv: int
    token: str = ""
    remaining: int | None = None


async def list_objects(machinery: Machinery, request: ApiRequest, target: Target) -> Answer:
    """Return a list, as objects, Table or metadata."""
    page = await select_page(machinery, request, target)
    return answer_page(machinery, request, target.info, page)


async def select_page(machinery: Machinery, request: ApiRequest, target: Target) -> Page:
    """Return the entries of a list (or deletecollection), paged by ``limit``/``continue``."""
    query = request.query
    _check_list_options(query, is_watch=False)
    limit = max(int_parameter(query, "limit") or 0, 0)
    int_parameter(query, "timeoutSeconds")
    selection = selection_of(query, target)
    bucket = bucket_of(machinery, target.info)
    if token := query.get("continue", ""):
        if query.get("resourceVersion", "") not in ("", "0"):
            raise bad_request("specifying resource version is not allowed when using continue")
        rv, start = _read_token(token)
        entries = _entries_at(bucket, rv, selection.namespace) if rv > 0 else []
        entries = [e for e in entries if e.key >= start]
    else:
        wanted = _version(query)
        match = query.get("resourceVersionMatch", "")
        if wanted is not None:
            await _wait_for_version(machinery, wanted)
        if match == "Exact" or (limit and wanted and not match):
            rv = wanted or machinery.store.rv
            entries = _entries_at(bucket, rv, selection.namespace)
        else:
            rv, entries = machinery.store.rv, bucket.sorted(selection.namespace)
            limit = 0 if wanted == 0 else limit
    is_exact = "resourceVersion" in query and not query.get("continue")
    return _cut(entries, selection, limit, rv, is_exact=is_exact)


def _entries_at(bucket: Bucket, rv: int, namespace: str) -> list[Entry]:
    if rv < bucket.floor:
        raise expired_list()
    return bucket.at_version(rv, namespace)


def _cut(
    entries: list[Entry], selection: Selection, limit: int, rv: int, *, is_exact: bool
) -> Page:
    chosen = entries if selection.is_all else [e for e in entries if selection.matches(e)]
    # The store cuts an exact list, and counts before it selects: more keys, more pages.
    following = entries if is_exact else chosen
    if not limit or len(chosen) < limit:
        return Page(chosen, rv)
    rest = [entry for entry in following if entry.key > chosen[limit - 1].key]
    if not rest:
        return Page(chosen, rv)
    remaining = len(rest) if selection.is_all else None
    return Page(chosen[:limit], rv, _make_token(rv, rest[0].key), remaining)


def _make_token(rv: int, start: str) -> str:
    raw = orjson.dumps({"v": "meta.k8s.io/v1", "rv": rv, "start": start})
    return base64.urlsafe_b64encode(raw).rstrip(b"=").decode()


def _read_token(token: str) -> tuple[int, str]:
    try:
        raw = base64.urlsafe_b64decode(token + "=" * (-len(token) % 4))
        value = orjson.loads(raw)
        return int(value["rv"]), str(value["start"])
    except (ValueError, KeyError, TypeError) as error:
        why = (
            "illegal base64 data"
            if not isinstance(error, orjson.JSONDecodeError)
            else (_go_token_error(raw))
        )
        raise bad_request(f"invalid continue token: continue key is not valid: {why}") from error


def _go_token_error(raw: bytes) -> str:
    if raw[:1] == b"n" and raw[:4] != b"null":
        wrong = next(i for i, c in enumerate(b"null") if raw[i : i + 1] != bytes([c]))
        found = chr(raw[wrong]) if wrong < len(raw) else ""
        return f"invalid character '{found}' in literal null (expecting '{'null'[wrong]}')"
    return f"invalid character '{chr(raw[0])}' looking for beginning of value" if raw else "EOF"


def answer_page(
    machinery: Machinery, request: ApiRequest, info: ResourceInfo, page: Page
) -> Answer:
    """Render a page. The stored bytes are joined, not serialised again."""
    meta: dict[str, object] = {"resourceVersion": str(page.rv)}
    if page.token:
        meta["continue"] = page.token
    if page.remaining is not None:
        meta["remainingItemCount"] = page.remaining
    media = negotiate(request.headers.get("accept", ""))
    shown = [machinery.shown(info, entry) for entry in page.entries]
    if info.is_custom and not media.form:  # Lists of custom resources always have the key.
        meta["continue"] = page.token
    if not media.form and not media.is_yaml:
        return Answer(200, _list_bytes(info, shown, meta))
    objects = [entry.obj for entry in shown]
    if media.form == "Table":
        include = tables.include_object(request.query.get("includeObject", ""))
        value = tables.table(info, objects, meta, media, include)
    elif media.form:
        tables.check_partial(info, media, is_list=True)
        items = [tables.partial(obj, media.form_version) for obj in objects]
        version = f"meta.k8s.io/{media.form_version}"
        # Go writes a slice without elements as null.
        value = _list_value("PartialObjectMetadataList", version, meta, items or None)
    else:
        items = [_without_type(info, obj) for obj in objects]
        value = _list_value(info.list_kind, info.api_version, meta, items)
    return Answer(200, encode(value, media), media.content_type)


def _list_value(
    kind: str, api_version: str, meta: dict[str, object], items: list[dict[str, object]] | None
) -> dict[str, object]:
    return {"kind": kind, "apiVersion": api_version, "metadata": meta, "items": items}


def _without_type(info: ResourceInfo, obj: dict[str, object]) -> dict[str, object]:
    if info.is_custom:
        return obj
    return {key: value for key, value in obj.items() if key not in ("kind", "apiVersion")}


def _list_bytes(info: ResourceInfo, entries: list[Entry], meta: dict[str, object]) -> bytes:
    head = b'{"kind":"%b","apiVersion":"%b","metadata":%b,"items":[' % (
        info.list_kind.encode(),
        info.api_version.encode(),
        orjson.dumps(meta),
    )
    if info.is_custom:
        return head + b",".join([entry.raw for entry in entries]) + b"]}"
    # Items of built-in lists have no kind. Every stored object begins with these bytes.
    prefix = f'{{"kind":"{info.kind}","apiVersion":"{info.api_version}",'.encode()
    cut = len(prefix)
    items = [
        b"{" + entry.raw[cut:]
        if entry.raw.startswith(prefix)
        else orjson.dumps(_without_type(info, entry.obj))
        for entry in entries
    ]
    return head + b",".join(items) + b"]}"


def _check_list_options(query: Mapping[str, str], *, is_watch: bool) -> None:
    match, rv = query.get("resourceVersionMatch", ""), query.get("resourceVersion", "")
    sends_initial = query.get("sendInitialEvents")
    errors: list[FieldError] = []
    if not is_watch:
        if match:
            errors += _match_errors(match, rv, has_token=bool(query.get("continue")))
        if sends_initial is not None:
            detail = "sendInitialEvents is forbidden for list"
            errors.append(FieldError(FORBIDDEN, "sendInitialEvents", sends_initial, detail))
    elif sends_initial is not None:
        errors += _initial_errors(match)
    elif match:
        detail = "resourceVersionMatch is forbidden for watch unless sendInitialEvents is provided"
        errors.append(FieldError(FORBIDDEN, "resourceVersionMatch", match, detail))
        if match != "NotOlderThan":
            allowed = ("NotOlderThan",)
            errors.append(unsupported("resourceVersionMatch", match, allowed))
    if errors:
        raise invalid_options("ListOptions", errors)


def _sends_initial(query: Mapping[str, str]) -> bool:
    """Return whether the present state comes first, and a bookmark after it if requested.

    Source: ``SetListOptionsDefaults`` of ``apimachinery/pkg/apis/meta/internalversion``.
    """
    if "sendInitialEvents" in query or query.get("resourceVersionMatch"):
        return bool_parameter(query, "sendInitialEvents")
    return query.get("resourceVersion", "") in ("", "0")


def _initial_errors(match: str) -> list[FieldError]:
    name = "resourceVersionMatch"
    if match == "NotOlderThan":
        return []
    detail = "sendInitialEvents requires setting resourceVersionMatch to NotOlderThan"
    errors = [FieldError(FORBIDDEN, name, match, detail)]
    if match:
        detail = 'supported values: "NotOlderThan"'
        errors.append(FieldError(NOT_SUPPORTED, name, match, detail))
    return errors


def _match_errors(match: str, rv: str, *, has_token: bool) -> list[FieldError]:
    name = "resourceVersionMatch"
    errors: list[FieldError] = []
    if not rv:
        detail = "resourceVersionMatch is forbidden unless resourceVersion is provided"
        errors.append(FieldError(FORBIDDEN, name, match, detail))
    if has_token:
        detail = "resourceVersionMatch is forbidden when continue is provided"
        errors.append(FieldError(FORBIDDEN, name, match, detail))
    if match not in ("Exact", "NotOlderThan"):
        detail = 'supported values: "Exact", "NotOlderThan", ""'
        errors.append(FieldError(NOT_SUPPORTED, name, match, detail))
    elif match == "Exact" and rv == "0":
        detail = 'resourceVersionMatch "exact" is forbidden for resourceVersion "0"'
        errors.append(FieldError(FORBIDDEN, name, match, detail))
    return errors


# -- watch ----------------------------------------------------------------------------------


class WatchStream:
    """An accepted watch: an iterator of byte chunks that ends when the watch does."""

    content_type = "application/json"

    def __init__(self, machinery: Machinery, request: ApiRequest, target: Target) -> None:
        """Check everything that can still be refused with a Status."""
        query = request.query
        _check_list_options(query, is_watch=True)
        self._machinery, self._info = machinery, target.info
        self._timeout_s = self._lifetime_s(query)
        self._has_bookmarks = bool_parameter(query, "allowWatchBookmarks")
        self._sends_initial = _sends_initial(query)
        self._bucket = bucket_of(machinery, target.info)
        self._selection = selection_of(query, target)
        self._form = self._form_of(request)
        self._rv = self._start_version(query)
        self._watcher = Watcher(self._bucket, self._selection, self._form, after_rv=self._rv or 0)

    def _lifetime_s(self, query: Mapping[str, str]) -> float:
        given_s = int_parameter(query, "timeoutSeconds")
        if given_s:
            return float(given_s)
        return WATCH_AT_LEAST_S * (1 + self._machinery.random.random())

    def _form_of(self, request: ApiRequest) -> ObjectForm | tables.TableForm | tables.PartialForm:
        media: Media = negotiate(request.headers.get("accept", ""))
        if media.form == "Table":
            include = tables.include_object(request.query.get("includeObject", ""))
            return tables.TableForm(self._info, media, include)
        if media.form:
            return tables.PartialForm(media)
        return ObjectForm(self._info.api_version, self._info.from_storage)

    @staticmethod
    def _start_version(query: Mapping[str, str]) -> int | None:
        """Return the version to begin after. None begins with the present state."""
        text = query.get("resourceVersion", "")
        if text in ("", "0"):
            return None
        if not text.isdecimal():
            raise StatusError(500, "", _unparsable(text))
        return int(text)

    def _begin(self) -> bytes:
        """Send initial state or history, and from then on events. None is missed in between."""
        store, rv = self._machinery.store, self._rv
        if rv is None or self._sends_initial:
            self._push_state()
        elif rv < self._bucket.floor:
            return error_line(expired_watch(rv, self._bucket.floor).body())
        else:
            for event in self._bucket.since(rv):
                self._watcher.offer(event)
        if self._sends_initial and self._has_bookmarks:
            self._watcher.push(self._bookmark(store.rv, ends_initial=True))
        self._watcher.start()
        return b""

    def _push_state(self) -> None:
        for entry in self._bucket.sorted(self._selection.namespace):
            if self._selection.matches(entry):
                self._watcher.preload(self._form.line("ADDED", entry, {}))

    def _bookmark(self, rv: int, *, ends_initial: bool = False) -> bytes:
        form = self._form
        if isinstance(form, ObjectForm):
            return bookmark_line(
                self._info.kind, self._info.api_version, rv, ends_initial=ends_initial
            )
        meta: dict[str, object] = {"resourceVersion": str(rv)}
        if ends_initial:
            meta["annotations"] = {"k8s.io/initial-events-end": "true"}
        return form.render("BOOKMARK", {"metadata": meta}, str(rv))

    async def chunks(self) -> AsyncGenerator[bytes, None]:
        """Yield lines until the timeout, a cut-off, or the end of the consumer."""
        if refusal := self._begin():
            yield refusal
            return
        end_s = time.monotonic() + self._timeout_s
        try:
            async for chunk in self._run(end_s):
                yield chunk
        finally:
            self._watcher.stop()

    async def _run(self, end_s: float) -> AsyncGenerator[bytes, None]:
        watcher = self._watcher
        bookmark_s = self._next_bookmark(end_s)
        sent_s = 0.0
        while not watcher.is_cut:
            now_s = time.monotonic()
            if watcher.has_lines:
                if now_s - sent_s < GATHER_S:
                    await asyncio.sleep(sent_s + GATHER_S - now_s)
                sent_s = time.monotonic()
                yield watcher.take()
                continue
            if now_s >= end_s:
                return
            if bookmark_s is not None and now_s >= bookmark_s:
                watcher.push(self._bookmark(self._machinery.store.rv))
                bookmark_s = self._next_bookmark(end_s)
                continue
            wake_s = end_s if bookmark_s is None else min(end_s, bookmark_s)
            await watcher.wait(wake_s - now_s)

    def _next_bookmark(self, end_s: float) -> float | None:
        """Return when the next bookmark is due: once a minute, and shortly before the end."""
        if not self._has_bookmarks:
            return None
        now_s = time.monotonic()
        last_s = end_s - BOOKMARK_BEFORE_END_S
        if now_s >= last_s:
            return None
        return min(now_s + BOOKMARK_EVERY_S, last_s)
