"""``Informer``: a local copy of a set of objects that follows the cluster by list and watch.

Used by the controller and the embedded cluster's controllers for everything on the hot path (kopf
costs twenty times as much per event and says nothing of objects that vanished during a relist).
A relist REPLACES the store: what is gone is reported as removed. Handlers are plain functions that
must not block; they see every change in order, but may see several changes of an object as one.
The last state of an object that is deleted comes with the news of its end, and handlers see it
first. After a relist only what was seen before the gap is known: such a removal bears ``UNSEEN``.
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
from fluxqueue.kube.resources import Resource
from fluxqueue.objects import Object

logger = logging.getLogger(__name__)

Key = tuple[str, str]
ChangeHandler = Callable[[Object | None, Object | None], None]
Transform = Callable[[Object], Object]

RETRY_BASE_S = 0.2
RETRY_CAP_S = 30.0
TOMBSTONES_MAX = 4096
UNSEEN = "fluxqueueUnseen"
"""Set in an object that is told of as removed, where its end was not watched: it may have changed
between what is shown and its end."""
YIELD_EVERY = 200
"""Objects compared at a time: others have pods to let go meanwhile."""


def key_of(obj: Object) -> Key:
    """(namespace, name); the namespace of a cluster-scoped object is empty."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


def _version(resource_version: str | None) -> int:
    """A resourceVersion as a number; 0 for one that is no number (never newer than another)."""
    return int(resource_version) if resource_version and resource_version.isdigit() else 0


def _is_same(one: Object, other: Object) -> bool:
    """Whether both are the same version of the same object."""
    a, b = one["metadata"], other["metadata"]
    return bool(
        a.get("uid") == b.get("uid") and a.get("resourceVersion") == b.get("resourceVersion")
    )


def _content(obj: Object) -> Object:
    """An object without its version, and without its type, which items of a list do not bear.

    The removal of an object has a version of its own.
    """
    meta = {key: value for key, value in obj["metadata"].items() if key != "resourceVersion"}
    rest = {key: value for key, value in obj.items() if key not in {"apiVersion", "kind"}}
    return {**rest, "metadata": meta}


class Informer:
    """List, then watch, for ever.

    Parameters: ``transform`` reduces an object before it is stored and shown to handlers (it must
    keep ``metadata`` name, namespace, uid and resourceVersion). ``on_change(old, new)``: ``old`` is
    None for an addition, ``new`` is None for a removal. An object that was deleted and made again
    under the same name is a removal and an addition, also if only the result was seen.
    """

    def __init__(
        self,
        client: KubeClient,
        resource: Resource,
        *,
        namespace: str | None = None,
        label_selector: str = "",
        field_selector: str = "",
        transform: Transform | None = None,
        on_change: ChangeHandler | None = None,
        retry_cap_s: float = RETRY_CAP_S,
    ) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        self.relists = 0
        self._listed = asyncio.Event()
        self._client = client
        self._namespace = namespace
        self._label_selector, self._field_selector = label_selector, field_selector
        self._transform = transform
        self._handlers: list[ChangeHandler] = [on_change] if on_change else []
        self._store: dict[Key, Object] = {}
        self._tombstones: OrderedDict[str, int] = OrderedDict()
        self._ahead: dict[Key, int] = {}  # observed versions that the watch has not reached
        self._resource_version = ""
        self._must_list = True
        self._touched: set[Key] | None = None  # what the watch told of since a list began
        self._retry_cap_s = retry_cap_s
        self._backoff = Backoff(base_s=RETRY_BASE_S, cap_s=retry_cap_s)
        self._task: asyncio.Task[None] | None = None

    # -- reading the store -----------------------------------------------------------------------

    def get(self, namespace: str, name: str) -> Object | None:
        """The stored object, or None. It is shared: callers must not change it."""
        return self._store.get((namespace, name))

    def items(self) -> Iterator[Object]:
        """All stored objects, in no order. Do not await while iterating."""
        return iter(self._store.values())

    def __len__(self) -> int:
        return len(self._store)

    @property
    def resource_version(self) -> str:
        """Version up to which the store is complete; empty before the first list."""
        return self._resource_version

    def add_handler(self, handler: ChangeHandler) -> None:
        """Another observer; it is shown what is stored already as additions."""
        self._handlers.append(handler)
        for obj in list(self._store.values()):
            self._call(handler, None, obj)

    def observe(self, obj: Object) -> None:
        """Take in the answer to a write of ours at once, so that the next decision sees it.

        Ignored if the watch has already passed that version (the object may be gone since); in
        doubt the watch corrects it a moment later. Versions are compared as numbers, which API
        servers guarantee within one resource.
        """
        metadata = obj["metadata"]
        version = _version(metadata.get("resourceVersion"))
        if version <= _version(self._resource_version):
            return
        key = key_of(obj)
        stored = self._store.get(key)
        if stored is None or version > _version(stored["metadata"].get("resourceVersion")):
            self._ahead[key] = version
            self._upsert(key, self._reduce(obj))

    # -- life ------------------------------------------------------------------------------------

    def start(self) -> None:
        """Run in a task of its own until ``stop``."""
        if self._task is None:
            self._task = asyncio.create_task(self.run(), name=f"informer {self.resource.key}")

    async def stop(self) -> None:
        """End the task; the store stays readable. Harmless if never started."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    async def relist(self) -> None:
        """Read everything anew, against whatever a watch may have lost; return when that is done.

        The watch goes on meanwhile: very many take long to list. Waits for as long as the API
        server cannot be read.
        """
        backoff = Backoff(base_s=RETRY_BASE_S, cap_s=self._retry_cap_s)
        while True:
            self.start()
            await self._listed.wait()
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
        """List and watch from there: a server restored from a backup counts from lower versions,
        and knows of none to which the watch has come."""
        await self.stop()
        self._must_list, self._listed = True, asyncio.Event()
        listed = self._listed
        self.start()
        await listed.wait()

    async def _reconcile(self, fresh: Mapping[Key, Object], listed_at: int) -> None:
        """Make the store what was listed, but for what was heard of since that began.

        Removals come first, so that capacity frees before use. The watch may be behind the list:
        what it tells then is older than what is stored, or of objects that are gone.
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
        """Whether nothing was heard of it since what is being compared began to be listed."""
        return key not in self._ahead and key not in (self._touched or ())

    def _bury(self, uid: str | None, at: int) -> None:
        if uid is not None:
            self._tombstones[uid] = at
        while len(self._tombstones) > TOMBSTONES_MAX:
            self._tombstones.popitem(last=False)

    def clear(self) -> None:
        """Forget everything after ``stop``; handlers see removals (the definition is gone)."""
        for key in list(self._store):
            self._remove(key)
        self._ahead.clear()
        self._must_list = True

    async def run(self) -> None:
        """Follow the cluster until cancelled; failures are retried with back-off."""
        while True:
            try:
                if self._must_list:
                    await self._relist()
                await self._follow()
            except Gone:
                self._must_list = True
            except (ApiUnavailable, ApiError) as error:
                # Also 403 or 404: rights and definitions may come later. The version is kept:
                # a watch that only lost its connection goes on where it was.
                after_s = error.retry_after_s if isinstance(error, ApiUnavailable) else None
                delay_s = self._backoff.next_delay_s(after_s)
                logger.warning(
                    "informer retries action=watch resource=%s delay_s=%.1f error=%s",
                    self.resource.key,
                    delay_s,
                    error,
                )
                await asyncio.sleep(delay_s)

    async def _relist(self) -> None:
        items, resource_version = await self._collect()
        self.relists += 1
        self._replace(items, _version(resource_version))
        self._resource_version = resource_version
        self._must_list = False
        self.synced.set()
        self._listed.set()

    async def _collect(self) -> tuple[list[Object], str]:
        return await self._client.collect(
            self.resource,
            self._namespace,
            keep=self._keep,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
        )

    def _keep(self, raw: Object) -> Object:
        """Of an object as listed what is stored; what is stored already is not kept twice."""
        stored = self._store.get(key_of(raw))
        return stored if stored is not None and _is_same(stored, raw) else self._reduce(raw)

    def _reduce(self, raw: Object) -> Object:
        return self._transform(raw) if self._transform else raw

    async def _follow(self) -> None:
        events = self._client.watch(
            self.resource,
            self._namespace,
            resource_version=self._resource_version,
            label_selector=self._label_selector,
            field_selector=self._field_selector,
        )
        async with aclosing(events) as stream:
            async for event in stream:
                self._apply(event)
                self._backoff.reset()

    # -- the store -------------------------------------------------------------------------------

    def _replace(self, items: list[Object], listed_at: int) -> None:
        """Make the store equal to ``items``, as ``_keep`` made them.

        Removals come first, so that capacity frees before use.
        Only what was observed while the list was on its way survives it; nothing else is kept
        for a high version alone, because a server restored from a backup counts from lower ones.
        """
        fresh = {key_of(item): item for item in items}
        self._tombstones.clear()
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
                return  # of before our write, whose own event is still to come
            del self._ahead[key]
        if self._is_overtaken(key, event):
            return
        if event.type == "DELETED":
            self._bury(metadata["uid"], _version(self._resource_version))
            last, stored = self._reduce(obj), self._store.get(key)
            if stored is not None and _content(stored) != _content(last):
                # How it ended may be told by this alone.
                self._upsert(key, last)
            self._remove(key)
        else:
            self._upsert(key, self._reduce(obj))

    def _is_overtaken(self, key: Key, event: WatchEvent) -> bool:
        """Whether something later of the object is known: servers keep order, proxies may not."""
        metadata = event.object["metadata"]
        at = _version(metadata["resourceVersion"])
        if at <= self._tombstones.get(metadata.get("uid"), -1):
            return True  # later than that it comes again only to a watch that selects
        stored = self._store.get(key)
        return stored is not None and 0 < at < _version(stored["metadata"].get("resourceVersion"))

    def _upsert(self, key: Key, new: Object) -> None:
        old = self._store.get(key)
        if old is not None:
            if _is_same(old, new):
                return
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
        except Exception:
            # One observer's mistake must not stop the others from seeing the cluster.
            logger.exception(
                "informer handler failed action=notify resource=%s key=%s",
                self.resource.key,
                key_of(new or old or {"metadata": {"name": "?"}}),
            )
