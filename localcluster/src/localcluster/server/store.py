"""Objects in memory: one resourceVersion for all, an event history per resource, listeners.

The request handlers (``writes``, ``reads``) call it, and so does ``kinds`` (as its
``ObjectReader``). ``journal`` loads it at start. It checks nothing: no defaults, no validation, no
HTTP. Everything here is synchronous, so a write is atomic under one event loop.

Rule: a stored object is immutable. A write stores a NEW dict and serialises it once. Lists,
watches, answers and the journal share those bytes. Never change what ``get`` or ``list`` returned.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Protocol

import orjson

from localcluster.obj import Obj

StorageKey = tuple[str, str]
"""(group, plural) under which all versions of a resource are kept."""

FIRST_VERSION = 1000
"""Lower versions are never given out, so a client's very old one is always expired."""
HISTORY_EVENTS = 4096
"""Events kept per resource for watches and exact lists. Older versions give a 410."""


class StaleWrite(Exception):
    """The object was changed, created or removed since it was read.

    ``current`` is the present entry.
    """

    def __init__(self, current: Entry | None) -> None:
        super().__init__("the stored object is another one than the write was made for")
        self.current = current


class Entry:
    """One stored version of one object. Immutable, with its bytes made once."""

    __slots__ = ("_fields", "_forms", "key", "managed", "name", "namespace", "obj", "raw", "rv")

    def __init__(self, key: str, rv: int, obj: Obj, raw: bytes, managed: object = None) -> None:
        meta = obj["metadata"]
        self.key, self.rv, self.obj, self.raw = key, rv, obj, raw
        self.namespace: str = meta.get("namespace", "")
        self.name: str = meta["name"]
        self.managed = managed
        """What ``apply`` knows of field ownership while the object does not show it."""
        self._fields: tuple[object, dict[str, str]] | None = None
        self._forms: dict[str, Entry] | None = None

    @property
    def labels(self) -> dict[str, str]:
        """Return ``metadata.labels``."""
        return self.obj["metadata"].get("labels") or {}

    def fields(self, selectable: Callable[[Obj], dict[str, str]]) -> dict[str, str]:
        """Return the selectable fields, computed once per version of the resource."""
        if self._fields is None or self._fields[0] is not selectable:
            self._fields = (selectable, selectable(self.obj))
        return self._fields[1]

    def form(self, name: str, convert: Callable[[Obj], Obj]) -> Entry:
        """Return the same object in another API version (``name``), converted once."""
        if self._forms is None:
            self._forms = {}
        made = self._forms.get(name)
        if made is None:
            obj = convert(orjson.loads(self.raw))
            made = Entry(self.key, self.rv, obj, orjson.dumps(obj))
            self._forms[name] = made
        return made


class Event:
    """One change. ``type`` is ADDED, MODIFIED or DELETED.

    ``entry`` is the new state. For DELETED it is the last state with the version of the deletion.
    ``old`` is the state before it. ``lines`` caches rendered watch lines by form.
    """

    __slots__ = ("entry", "left", "lines", "old", "type")

    def __init__(self, type_: str, entry: Entry, old: Entry | None) -> None:
        self.type, self.entry, self.old = type_, entry, old
        self.lines: dict[tuple[str, str], bytes] = {}
        self.left: Entry | None = None

    def left_entry(self) -> Entry:
        """Return the old content with the new version.

        A watch shows it as deleted if the object no longer matches its selector.
        """
        if self.left is None:
            old = self.old or self.entry
            obj = {**old.obj, "metadata": {**old.obj["metadata"]}}
            obj["metadata"]["resourceVersion"] = str(self.entry.rv)
            self.left = Entry(old.key, self.entry.rv, obj, orjson.dumps(obj))
        return self.left


class Watching(Protocol):
    """A watch of one bucket (``watch.Watcher``)."""

    def offer(self, event: Event) -> None:
        """Take the event if it is wanted. This must be fast and must not raise."""

    def cut(self) -> None:
        """End the watch."""


@dataclass(slots=True)
class Bucket:
    """All objects of one resource, by "namespace/name" (or "name")."""

    storage: StorageKey
    floor: int
    """The oldest version that history can still rebuild."""
    objects: dict[str, Entry] = field(default_factory=dict)
    by_namespace: dict[str, dict[str, Entry]] = field(default_factory=dict)
    history: deque[Event] = field(default_factory=deque)
    watchers: list[Watching] = field(default_factory=list)

    def in_namespace(self, namespace: str) -> dict[str, Entry]:
        """Return the objects of one namespace, or all of them ("")."""
        return self.by_namespace.get(namespace, {}) if namespace else self.objects

    def sorted(self, namespace: str) -> list[Entry]:
        """Return the objects sorted by key, as in the real store."""
        found = self.in_namespace(namespace)
        return [found[key] for key in sorted(found)]

    def since(self, rv: int) -> Iterator[Event]:
        """Return the events after ``rv``, oldest first."""
        if not self.history or self.history[-1].entry.rv <= rv:
            return iter(())
        newer: list[Event] = []
        for event in reversed(self.history):
            if event.entry.rv <= rv:
                break
            newer.append(event)
        return reversed(newer)

    def at_version(self, rv: int, namespace: str) -> list[Entry]:
        """Return the sorted state at ``rv`` (which must not be below ``floor``)."""
        state = dict(self.in_namespace(namespace))
        for event in reversed(self.history):
            entry = event.entry
            if entry.rv <= rv:
                break
            if namespace and entry.namespace != namespace:
                continue
            if event.old is None:
                state.pop(entry.key, None)
            else:
                state[entry.key] = event.old
        return [state[key] for key in sorted(state)]


def object_key(namespace: str, name: str) -> str:
    """Return the key below the resource's prefix. Its order is the order of lists."""
    return f"{namespace}/{name}" if namespace else name


Listener = Callable[[StorageKey, Event], None]


class Store:
    """All buckets, the version counter and the listeners.

    ``history_events`` limits the history per resource. ``subscribe`` passes every event to a
    callback in the same process (definitions, webhook configurations, the journal).
    """

    def __init__(self, *, history_events: int = HISTORY_EVENTS) -> None:
        self.rv = FIRST_VERSION
        self._history_events = history_events
        self._buckets: dict[StorageKey, Bucket] = {}
        self._listeners: list[Listener] = []
        self._first_version = FIRST_VERSION

    # -- reading ---------------------------------------------------------------------------

    def bucket(self, storage: StorageKey, *, is_young: bool = False) -> Bucket:
        """Return the bucket of a resource.

        An ``is_young`` (custom) resource has no history before its first use. Built-in ones have a
        history since the start of the process.
        """
        found = self._buckets.get(storage)
        if found is None:
            found = Bucket(storage, self.rv if is_young else self._first_version)
            self._buckets[storage] = found
        return found

    def entry(self, storage: StorageKey, namespace: str, name: str) -> Entry | None:
        """Return the stored entry, or None."""
        found = self._buckets.get(storage)
        return found.objects.get(object_key(namespace, name)) if found is not None else None

    def get(self, group: str, plural: str, namespace: str, name: str) -> Obj | None:
        """Return the stored object or None. The caller must not change it."""
        entry = self.entry((group, plural), namespace, name)
        return entry.obj if entry is not None else None

    def list(self, group: str, plural: str, namespace: str = "") -> list[Obj]:
        """Return all stored objects of a namespace or of all (""), in any order."""
        found = self._buckets.get((group, plural))
        return [e.obj for e in found.in_namespace(namespace).values()] if found else []

    def buckets(self) -> Sequence[Bucket]:
        """Return all buckets made so far."""
        return list(self._buckets.values())

    # -- writing ---------------------------------------------------------------------------

    def create(self, storage: StorageKey, obj: Obj, managed: object = None) -> Entry:
        """Store a new object. Raise :class:`StaleWrite` if its key is taken."""
        bucket, key = self.bucket(storage), _key_of(obj)
        current = bucket.objects.get(key)
        if current is not None:
            raise StaleWrite(current)
        entry = self._versioned(key, obj, managed)
        self._put(bucket, entry)
        self._emit(bucket, Event("ADDED", entry, None))
        return entry

    def replace(self, storage: StorageKey, old: Entry, obj: Obj, managed: object = None) -> Entry:
        """Replace ``old`` by ``obj``. Raise :class:`StaleWrite` if ``old`` is not current."""
        bucket = self.bucket(storage)
        current = bucket.objects.get(old.key)
        if current is not old:
            raise StaleWrite(current)
        entry = self._versioned(old.key, obj, managed)
        self._put(bucket, entry)
        self._emit(bucket, Event("MODIFIED", entry, old))
        return entry

    def remove(self, storage: StorageKey, old: Entry, last: Obj | None = None) -> Entry:
        """Remove ``old``. The DELETED event shows ``last`` (or ``old``) with a new version."""
        bucket = self.bucket(storage)
        current = bucket.objects.get(old.key)
        if current is not old:
            raise StaleWrite(current)
        entry = self._versioned(old.key, last if last is not None else old.obj, None)
        del bucket.objects[old.key]
        inner = bucket.by_namespace.get(old.namespace)
        if inner is not None:
            inner.pop(old.key, None)
        self._emit(bucket, Event("DELETED", entry, old))
        return entry

    def drop_bucket(self, storage: StorageKey) -> None:
        """Forget a resource with a deleted definition. Its objects get DELETED events first."""
        bucket = self._buckets.get(storage)
        if bucket is None:
            return
        for entry in list(bucket.objects.values()):
            self.remove(storage, entry)
        del self._buckets[storage]

    def compact(self, rv: int | None = None) -> None:
        """Forget the history up to ``rv`` (default: all). Older watches then get a 410."""
        upto = self.rv if rv is None else rv
        for bucket in self._buckets.values():
            while bucket.history and bucket.history[0].entry.rv <= upto:
                bucket.history.popleft()
            bucket.floor = max(bucket.floor, upto)

    def load(self, storage: StorageKey, obj: Obj, raw: bytes, rv: int) -> None:
        """Restore an object from the journal, without event and without new version."""
        bucket = self.bucket(storage)
        self._put(bucket, Entry(_key_of(obj), rv, obj, raw))

    def resume(self, rv: int) -> None:
        """Continue counting at ``rv`` (after :meth:`load`). There is no history before it."""
        self.rv = self._first_version = max(rv, self.rv)
        for bucket in self._buckets.values():
            bucket.floor = self.rv

    # -- listening -------------------------------------------------------------------------

    def subscribe(self, listener: Listener) -> Callable[[], None]:
        """Call ``listener(storage, event)`` at every change. Return a function that stops it."""
        self._listeners.append(listener)
        return lambda: self._listeners.remove(listener)

    # -- internals -------------------------------------------------------------------------

    def _versioned(self, key: str, obj: Obj, managed: object) -> Entry:
        self.rv += 1
        rv = self.rv
        meta = {**obj["metadata"], "resourceVersion": str(rv)}
        stored = {**obj, "metadata": meta}
        return Entry(key, rv, stored, orjson.dumps(stored), managed)

    @staticmethod
    def _put(bucket: Bucket, entry: Entry) -> None:
        bucket.objects[entry.key] = entry
        if entry.namespace:
            bucket.by_namespace.setdefault(entry.namespace, {})[entry.key] = entry

    def _emit(self, bucket: Bucket, event: Event) -> None:
        history = bucket.history
        history.append(event)
        if len(history) > self._history_events:
            bucket.floor = history.popleft().entry.rv
        for watcher in tuple(bucket.watchers):
            watcher.offer(event)
        for listener in self._listeners:
            listener(bucket.storage, event)


def _key_of(obj: Obj) -> str:
    meta = obj["metadata"]
    return object_key(meta.get("namespace", ""), meta["name"])
