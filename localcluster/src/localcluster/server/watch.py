"""Watches: which events they get, in which form, and how lines reach a connection.

``reads`` adds a :class:`Watcher` to a bucket. The store offers it every event. The HTTP handler
takes rendered lines from it. A watcher that does not keep up is cut off, as in the real watch
cache, so that one slow client cannot fill the memory.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Protocol

import orjson

from localcluster.obj import Obj
from localcluster.server.selectors import FieldSelector, LabelSelector
from localcluster.server.store import Bucket, Entry, Event

QUEUE_LINES = 20_000
"""Number of lines that may wait for one client before it is cut off."""


class Form(Protocol):
    """The form of an entry for one watch (object, Table, PartialObjectMetadata)."""

    def line(self, type_: str, entry: Entry, cache: dict[tuple[str, str], bytes]) -> bytes:
        """Return one watch line. ``cache`` belongs to the event and is shared by all watchers."""


class ObjectForm:
    """The object itself in one API version. Watchers share the lines."""

    def __init__(self, version: str, convert: Callable[[Obj], Obj] | None) -> None:
        self._version, self._convert = version, convert

    def line(self, type_: str, entry: Entry, cache: dict[tuple[str, str], bytes]) -> bytes:
        """Return the watch line, rendered once per event and API version."""
        key = (type_, self._version)
        made = cache.get(key)
        if made is None:
            if self._convert is not None:
                entry = entry.form(self._version, self._convert)
            made = b'{"type":"%b","object":%b}\n' % (type_.encode(), entry.raw)
            cache[key] = made
        return made


class Selection:
    """The selected objects of a resource."""

    __slots__ = ("_fields", "_is_all", "_labels", "_selectable", "namespace")

    def __init__(
        self,
        namespace: str,
        labels: LabelSelector,
        fields: FieldSelector,
        selectable: Callable[[Obj], dict[str, str]],
    ) -> None:
        self.namespace = namespace
        self._labels, self._fields, self._selectable = labels, fields, selectable
        self._is_all = not labels.requirements and not fields.terms

    @property
    def is_all(self) -> bool:
        """Return whether no selector was given (a namespace may be)."""
        return self._is_all

    def matches(self, entry: Entry) -> bool:
        """Return whether the selectors match. The namespace is not checked."""
        if self._is_all:
            return True
        if self._fields.terms and not self._fields.matches(entry.fields(self._selectable)):
            return False
        return not self._labels.requirements or self._labels.matches(entry.labels)


class Watcher:
    """One open watch.

    The store calls ``offer``. The connection's task calls ``take``, and sleeps in ``wait``
    meanwhile. ``is_cut`` means that the client was too slow and must be closed.
    """

    def __init__(self, bucket: Bucket, selection: Selection, form: Form, after_rv: int = 0) -> None:
        self._bucket, self._selection, self._form = bucket, selection, form
        self._after_rv = after_rv
        self._lines: list[bytes] = []
        self._initial = 0
        self._wake: asyncio.Future[None] | None = None
        self.is_cut = False

    def start(self) -> None:
        """Begin to receive events."""
        self._bucket.watchers.append(self)

    def stop(self) -> None:
        """Stop receiving events."""
        if self in self._bucket.watchers:
            self._bucket.watchers.remove(self)

    def offer(self, event: Event) -> None:
        """Queue the line of an event that concerns this watch."""
        selection = self._selection
        entry = event.entry
        if selection.namespace and entry.namespace != selection.namespace:
            return
        if entry.rv <= self._after_rv:
            return  # A watch that starts in the future gets nothing before that version.
        type_, shown = event.type, entry
        if not selection.is_all:
            has_now = type_ != "DELETED" and selection.matches(entry)
            has_before = event.old is not None and selection.matches(event.old)
            if has_now:
                type_ = "MODIFIED" if has_before else "ADDED"
            elif not has_before:
                return
            elif type_ != "DELETED":
                type_, shown = "DELETED", event.left_entry()
        self.push(self._form.line(type_, shown, event.lines))

    def preload(self, line: bytes) -> None:
        """Queue a line of the initial state, which may have any length."""
        self._lines.append(line)
        self._initial += 1

    def push(self, line: bytes) -> None:
        """Queue one line and wake the connection."""
        if len(self._lines) >= QUEUE_LINES + self._initial:
            self.cut()
            return
        self._lines.append(line)
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    def cut(self) -> None:
        """End the watch: it is too slow, or the server stops."""
        self.is_cut = True
        if self._wake is not None and not self._wake.done():
            self._wake.set_result(None)

    @property
    def has_lines(self) -> bool:
        """Return whether lines wait."""
        return bool(self._lines)

    def take(self) -> bytes:
        """Return all waiting lines, joined."""
        lines, self._lines, self._initial = self._lines, [], 0
        return b"".join(lines)

    async def wait(self, timeout_s: float) -> None:
        """Sleep until a line waits or ``timeout_s`` is over."""
        if self._lines or self.is_cut:
            return
        loop = asyncio.get_running_loop()
        self._wake = loop.create_future()
        handle = loop.call_later(timeout_s, _wake_up, self._wake)
        try:
            await self._wake
        finally:
            handle.cancel()
            self._wake = None


def _wake_up(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


def bookmark_line(kind: str, api_version: str, rv: int, *, ends_initial: bool = False) -> bytes:
    """Return a BOOKMARK event. ``ends_initial`` marks the end of the initial events."""
    meta: Obj = {"resourceVersion": str(rv)}
    if ends_initial:
        meta["annotations"] = {"k8s.io/initial-events-end": "true"}
    obj = {"kind": kind, "apiVersion": api_version, "metadata": meta}
    return orjson.dumps({"type": "BOOKMARK", "object": obj}) + b"\n"


def error_line(status: Obj) -> bytes:
    """Return an ERROR event with a Status."""
    return orjson.dumps({"type": "ERROR", "object": status}) + b"\n"
