"""``Informer``: a local copy of a set of objects that follows the cluster by list and watch.

The controller and the embedded cluster's controllers use it for everything on the hot path. kopf
costs twenty times as much per event, and does not report objects that vanished during a relist.

A relist REPLACES the store: objects that are gone are reported as removed. Handlers are plain
functions that must not block. They see every change in order, but may see several changes of one
object as one.

The event of a deletion carries the last state of the object, which handlers see first. After a
relist only the state before the gap is known. Such a removal is marked ``UNSEEN``.
"""

from __future__ import annotations

import asyncio
import logging
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextlib import aclosing

from fluxqueue.errors import ApiError, ApiUnavailable, Gone
from fluxqueue.kube.backoff import Backoff
from fluxqueue.kube.client import KubeClient, WatchEvent
from fluxqueue.kube.resources import ApiResource
from fluxqueue.workload.objects import Object

logger = logging.getLogger(__name__)

Key = tuple[str, str]
ChangeHandler = Callable[[Object | None, Object | None], None]
Transform = Callable[[Object], Object]
Carry = Callable[[Object, Object], Object]
TroubleHandler = Callable[[ApiResource, Object, Exception | None], None]
"""Told of an object that could not be reduced or handled, and why. None: it could be again."""

RETRY_BASE_S = 0.2
RETRY_CAP_S = 30.0
TOMBSTONES_MAX = 4096
UNSEEN = "fluxqueueUnseen"
"""Set in an object that is reported as removed, if its end was not watched.

The object may have changed between the state that is shown and its end.
"""
YIELD_EVERY = 200
"""Objects compared before other tasks run: pods may have to be ungated meanwhile."""


def key_of(obj: Object) -> Key:
    """Return (namespace, name). The namespace of a cluster-scoped object is empty."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _version(resource_version: str | None) -> int:
    """Return a resourceVersion as a number, 0 if it is not one (never newer than another)."""
    return int(resource_version) if resource_version and resource_version.isdigit() else 0


def _is_same(one: Object, other: Object) -> bool:
    """Return whether both are the same version of the same object."""
    a, b = one["metadata"], other["metadata"]
    return bool(
        a.get("uid") == b.get("uid") and a.get("resourceVersion") == b.get("resourceVersion")
    )


def _content(obj: Object) -> Object:
    """Return an object without its version and type.

    A removal has a version of its own, and items of a list have no type.
    """
    meta = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
    rest = {key: value for key, value in obj.items() if key not in {"apiVersion", "kind"}}
    return {**rest, "metadata": meta}


class Informer:
    """List, then watch, for ever.

    Parameters
    ----------
    transform : Reduces an object before it is stored and shown to handlers. It must keep
        ``metadata`` name, namespace, uid and resourceVersion.
    carry : Called with the old and the new state of an object that is watched. Returns the new
        state with what only the old one shows. It is not called after a gap in the watch.
    on_change : Called with (old, new). ``old`` is None for an addition, ``new`` for a removal.
    on_trouble : Called for each object that ``transform`` or a handler cannot take. All others go
        on, and that object stays as it was stored last.

    An object that was deleted and created again under the same name is a removal and an addition,
    even if only the result was seen.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: ApiResource,
        *,
        label_selector: str = "",
        transform: Transform | None = None,
        carry: Carry | None = None,
        on_change: ChangeHandler | None = None,
        on_trouble: TroubleHandler | None = None,
        retry_cap_s: float = RETRY_CAP_S,
    ) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        self.relists = 0
        self._listed = asyncio.Event()
        self._client = client
        self._label_selector = label_selector
        self._transform, self._carry = transform, carry
        self._handlers: list[ChangeHandler] = [on_change] if on_change else []
        self._on_trouble = on_trouble
        self._unread: set[Key] = set()
        self._unhandled: set[Key] = set()
        self._store: dict[Key, Object] = {}
        self._tombstones: OrderedDict[str, int] = OrderedDict()
        self._ahead: dict[Key, int] = {}  # versions written by us that the watch has not reached
        self._resource_version = ""
        self._must_list = True
        self._touched: set[Key] | None = None  # keys that the watch reported since a list began
        self._retry_cap_s = retry_cap_s
        self._backoff = Backoff(base_s=RETRY_BASE_S, cap_s=retry_cap_s)
        self._task: asyncio.Task[None] | None = None

    # -- reading the store -----------------------------------------------------------------------

    def get(self, namespace: str, name: str) -> Object | None:
        """Return the stored object, or None. It is shared: callers must not change it."""
        return self._store.get((namespace, name))

    def items(self) -> Iterator[Object]:
        """Return all stored objects, in no order. Do not await while iterating."""
        return iter(self._store.values())

    def __len__(self) -> int:
        return len(self._store)

    @property
    def resource_version(self) -> str:
        """Version up to which the store is complete, empty before the first list."""
        return self._resource_version

    def add_handler(self, handler: ChangeHandler) -> None:
        """Add a handler. It sees the stored objects as additions."""
        self._handlers.append(handler)
        for obj in list(self._store.values()):
            self._call(handler, None, obj)

    def observe(self, obj: Object) -> None:
        """Store the answer to one of our writes at once, so that the next decision sees it.

        It is ignored if the watch has already passed that version, because the object may be gone
        since. If in doubt, the watch corrects it a moment later. Versions are compared as numbers,
        which API servers guarantee within one resource.
        """
        metadata = obj["metadata"]
        version = _version(metadata.get("resourceVersion"))
        if version <= _version(self._resource_version):
            return
        key = key_of(obj)
        stored = self._store.get(key)
        if stored is None or version > _version(stored["metadata"].get("resourceVersion")):
            self._ahead[key] = version
            reduced = self._reduce(obj)
            if reduced is not None:
                self._upsert(key, reduced)

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run in a task of its own until ``stop``."""
        if self._task is None:
            self._task = asyncio.create_task(self.run(), name=f"informer {self.resource.key}")

    async def stop(self) -> None:
        """End the task. The store stays readable. Harmless if it was never started."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def relist(self) -> None:
        """Read everything again, in case a watch has lost something, and return when done.

        The watch continues meanwhile, because a large list takes long. While the API server cannot
        be read, this waits.
        """
        backoff = Backoff(base_s=RETRY_BASE_S, cap_s=self._retry_cap_s)
        while True:
            self.start()
            await self._listed.wait()
            # Record from now on what the watch reports: the list is older than that.
            self._touched, relists = set(), self.relists
            watched_to = _version(self._resource_version)
            try:
                items, version = await self._collect()
                if _version(version) < watched_to:
                    await self._begin_anew()
                elif self.relists == relists:
                    fresh = {key_of(item): item for item in items}
                    await self._reconcile(fresh, _version(version))
                return
            except (Gone, ApiUnavailable, ApiError) as error:
                after_s = error.retry_after_s if isinstance(error, ApiUnavailable) else None
                await asyncio.sleep(backoff.next_delay_s(after_s))
            finally:
                self._touched = None

    async def _begin_anew(self) -> None:
        """List again and watch from that version.

        A server that was restored from a backup counts from lower versions, and does not know the
        version that the watch has reached.
        """
        await self.stop()
        self._must_list, self._listed = True, asyncio.Event()
        listed = self._listed
        self.start()
        await listed.wait()

    async def _reconcile(self, fresh: Mapping[Key, Object], listed_at: int) -> None:
        """Make the store equal to the list, except for objects reported since the list began.

        Removals come first, so that capacity is freed before it is used. The watch may be behind
        the list. It may then report older states, or objects that are gone.
        """
        for number, key in enumerate([key for key in self._store if key not in fresh]):
            if self._is_untouched(key) and key in self._store:
                self._bury(self._store[key]["metadata"].get("uid"), listed_at)
                self._remove(key, is_seen=False)
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)
        for number, (key, item) in enumerate(fresh.items()):
            if self._is_untouched(key):
                self._upsert(key, item)
            if number % YIELD_EVERY == 0:
                await asyncio.sleep(0)

    def _is_untouched(self, key: Key) -> bool:
        """Return whether no event of the object has come since the present list began."""
        return key not in self._ahead and key not in (self._touched or ())

    def _bury(self, uid: str | None, at: int) -> None:
        """Remember the version of a removal: a late event must not bring the object back."""
        if uid is not None:
            self._tombstones[uid] = at
        while len(self._tombstones) > TOMBSTONES_MAX:
            self._tombstones.popitem(last=False)

    def clear(self) -> None:
        """Drop all objects after ``stop`` (the definition is gone). Handlers see removals."""
        for key in list(self._store):
            self._remove(key)
        self._ahead.clear()
        self._must_list = True

    async def run(self) -> None:
        """Follow the cluster until cancelled. Failures are retried with back-off."""
        while True:
            try:
                if self._must_list:
                    await self._relist()
                await self._follow()
            except Gone:
                self._must_list = True
            except (ApiUnavailable, ApiError) as error:
                # Also for 403 or 404: rights and definitions may come later. The version is kept: a
                # watch that only lost its connection continues where it was.
                after_s = error.retry_after_s if isinstance(error, ApiUnavailable) else None
                delay_s = self._backoff.next_delay_s(after_s)
                logger.warning(
                    "informer retries action=watch resource=%s delay_s=%.1f error=%s",
                    self.resource.key,
                    delay_s,
                    error,
                )
                await asyncio.sleep(delay_s)
            except Exception:
                # A watch that ended here would be silent for ever.
                logger.exception(
                    "informer broke and lists anew action=watch resource=%s", self.resource.key
                )
                self._must_list = True
                await asyncio.sleep(self._backoff.next_delay_s())

    async def _relist(self) -> None:
        items, resource_version = await self._collect()
        self.relists += 1
        self._replace(items, _version(resource_version))
        self._resource_version = resource_version
        self._must_list = False
        self.synced.set()
        self._listed.set()

    async def _collect(self) -> tuple[list[Object], str]:
        items, version = await self._client.collect(
            self.resource, keep=self._keep, label_selector=self._label_selector
        )
        return [item for item in items if item is not None], version

    def _keep(self, raw: Object) -> Object | None:
        """Return what to store of a listed object. An unchanged object is not stored twice."""
        stored = self._store.get(key_of(raw))
        return stored if stored is not None and _is_same(stored, raw) else self._reduce(raw)

    def _reduce(self, raw: Object) -> Object | None:
        """What is stored of an object. None of one that cannot be read and never could.

        One that could be read before stays as it was, but for its version and its deletion: taken
        for gone, its pods would be unmanaged.
        """
        if self._transform is None:
            return raw
        key = key_of(raw)
        try:
            reduced = self._transform(raw)
        except Exception as error:  # noqa: BLE001  one object must not stop the whole watch
            self._tell_trouble(self._unread, raw, error)
            stored = self._store.get(key)
            if stored is None or stored["metadata"].get("uid") != raw["metadata"].get("uid"):
                return None
            moved = ("resourceVersion", "deletionTimestamp")
            meta = {name: raw["metadata"][name] for name in moved if name in raw["metadata"]}
            return {**stored, "metadata": {**stored["metadata"], **meta}}
        self._tell_trouble(self._unread, raw, None)
        return reduced

    def _tell_trouble(self, troubled: set[Key], obj: Object, error: Exception | None) -> None:
        """Remember in ``troubled`` whether there is an error, and tell of what is new."""
        if error is None and not troubled:
            return  # the usual case: every object comes here
        key = key_of(obj)
        if error is None and key not in troubled:
            return
        (troubled.discard if error is None else troubled.add)(key)
        if self._on_trouble is not None:
            self._on_trouble(self.resource, obj, error)
        elif error is not None:
            logger.error(
                "object cannot be read action=watch resource=%s key=%s error=%s",
                self.resource.key,
                key,
                error,
            )

    async def _follow(self) -> None:
        events = self._client.watch(
            self.resource,
            resource_version=self._resource_version,
            label_selector=self._label_selector,
        )
        async with aclosing(events) as stream:
            async for event in stream:
                self._apply(event)
                self._backoff.reset()

    # -- the store -------------------------------------------------------------------------------

    def _replace(self, items: list[Object], listed_at: int) -> None:
        """Make the store equal to ``items``, as ``_keep`` made them.

        Removals come first, so that capacity is freed before it is used. Only our own writes during
        the list survive it. A high version alone does not keep an object, because a server restored
        from a backup counts from lower versions.
        """
        fresh = {key_of(item): item for item in items}
        self._tombstones.clear()
        # The server counts from lower versions now, so versions written before say nothing.
        if listed_at < _version(self._resource_version):
            self._ahead.clear()
        self._ahead = {key: at for key, at in self._ahead.items() if at > listed_at}
        for key in [key for key in self._store if key not in fresh and key not in self._ahead]:
            self._remove(key, is_seen=False)
        for key, item in fresh.items():
            if key not in self._ahead:
                self._upsert(key, item)

    def _apply(self, event: WatchEvent) -> None:
        obj = event.object
        metadata = obj["metadata"]
        self._resource_version = metadata["resourceVersion"]
        if event.type == "BOOKMARK":
            return
        key = key_of(obj)
        if self._touched is not None:
            self._touched.add(key)
        if key in self._ahead:
            if self._ahead[key] > _version(self._resource_version):
                return  # older than our write: the event of that write is still to come
            del self._ahead[key]
        if self._is_overtaken(key, event):
            return
        if event.type == "DELETED":
            self._bury(metadata["uid"], _version(self._resource_version))
            last, stored = self._reduce_watched(obj), self._store.get(key)
            if stored is not None and last is not None and _content(stored) != _content(last):
                # Only the last state may tell how the object ended.
                self._upsert(key, last)
            self._remove(key)
            self._tell_trouble(self._unread, obj, None)
        elif (reduced := self._reduce_watched(obj)) is not None:
            self._upsert(key, reduced)

    def _reduce_watched(self, raw: Object) -> Object | None:
        """Return what to store of an object of which no change was missed since it was stored."""
        reduced, stored = self._reduce(raw), self._store.get(key_of(raw))
        if self._carry is None or reduced is None or stored is None:
            return reduced
        is_other = stored["metadata"].get("uid") != reduced["metadata"].get("uid")
        return reduced if is_other else self._carry(stored, reduced)

    def _is_overtaken(self, key: Key, event: WatchEvent) -> bool:
        """Return whether a later state is known. Servers keep the order, proxies may not."""
        metadata = event.object["metadata"]
        at = _version(metadata["resourceVersion"])
        if at <= self._tombstones.get(metadata.get("uid"), -1):
            return True  # a later event could only come from a watch with a selector
        stored = self._store.get(key)
        return stored is not None and 0 < at < _version(stored["metadata"].get("resourceVersion"))

    def _upsert(self, key: Key, new: Object) -> None:
        old = self._store.get(key)
        if old is not None:
            if _is_same(old, new):
                return
            # Another UID is another object: handlers must see the end of the first one.
            if old["metadata"].get("uid") != new["metadata"].get("uid"):
                self._remove(key, is_seen=False)
                old = None
        self._store[key] = new
        self._notify(old, new)

    def _remove(self, key: Key, *, is_seen: bool = True) -> None:
        old = self._store.pop(key, None)
        if old is not None:
            self._notify(old if is_seen else {**old, UNSEEN: True}, None)

    def _notify(self, old: Object | None, new: Object | None) -> None:
        for handler in self._handlers:
            self._call(handler, old, new)

    def _call(self, handler: ChangeHandler, old: Object | None, new: Object | None) -> None:
        try:
            handler(old, new)
        except Exception as error:
            # An error in one handler must not hide the cluster from the others.
            told = new or old or {"metadata": {"name": "?"}}
            logger.exception(
                "informer handler failed action=notify resource=%s key=%s",
                self.resource.key,
                key_of(told),
            )
            self._tell_trouble(self._unhandled, told, error)
        else:
            if self._unhandled:
                self._tell_trouble(self._unhandled, new or old or {}, None)
