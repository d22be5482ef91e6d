"""``Informer``: a local copy of one resource that follows the cluster by list and watch.

The controllers of one process share informers (``loops.informers``). A list REPLACES the copy:
missing objects are reported as removed. Handlers are plain functions that must not block. They see
every change in order, but may see several changes of an object as one.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable, Iterator
from contextlib import aclosing

from localcluster.client.calls import Client, WatchEvent
from localcluster.client.resources import Resource
from localcluster.errors import ClientError, Gone
from localcluster.obj import Obj

log = logging.getLogger(__name__)

Key = tuple[str, str]
ChangeHandler = Callable[[Obj | None, Obj | None], None]

RETRY_S = 0.5


def key_of(obj: Obj) -> Key:
    """Return (namespace, name). The namespace of a cluster-scoped object is empty."""
    metadata = obj["metadata"]
    return metadata.get("namespace", ""), metadata["name"]


class Informer:
    """Lists once, then watches without end.

    Handlers are called with (old, new). ``old`` is None for an addition, ``new`` for a removal. An
    object that was deleted and created again under its name causes both. ``managedFields`` are left
    out.
    """

    def __init__(self, client: Client, resource: Resource) -> None:
        self.resource = resource
        self.synced = asyncio.Event()
        self._client = client
        self._handlers: list[ChangeHandler] = []
        self._store: dict[Key, Obj] = {}
        self._ahead: dict[Key, int] = {}  # versions stored before the watch reached them
        self._version = 0
        self._must_list = True
        self._task: asyncio.Task[None] | None = None

    def get(self, namespace: str, name: str) -> Obj | None:
        """Return the stored object, or None. It is shared: callers must not change it."""
        return self._store.get((namespace, name))

    def items(self) -> Iterator[Obj]:
        """Return all stored objects, in any order. Do not await while iterating."""
        return iter(self._store.values())

    def __len__(self) -> int:
        return len(self._store)

    def add_handler(self, handler: ChangeHandler) -> None:
        """Add a handler. It gets the stored objects as additions first."""
        self._handlers.append(handler)
        for obj in list(self._store.values()):
            handler(None, obj)

    def observe(self, obj: Obj) -> None:
        """Store the answer to a write at once, so that the next decision knows it.

        It is ignored if the watch has passed that version, because the object may be deleted since.
        """
        version = _version_of(obj)
        if version <= self._version:
            return
        key = key_of(obj)
        stored = self._store.get(key)
        if stored is None or version > _version_of(stored):
            self._ahead[key] = version
            self._put(key, obj)

    def start(self) -> None:
        """Follow the cluster in a task of its own until ``stop``."""
        if self._task is None:
            self._task = asyncio.create_task(self._run(), name=f"informer {self.resource.key}")

    async def stop(self) -> None:
        """End the task. Stored objects stay readable. Harmless if never started."""
        task, self._task = self._task, None
        if task is not None:
            task.cancel()
            await asyncio.gather(task, return_exceptions=True)

    def clear(self) -> None:
        """Forget everything after ``stop``. Handlers see removals (the definition is gone)."""
        for key in list(self._store):
            self._drop(key)

    async def _run(self) -> None:
        while True:
            try:
                if self._must_list:
                    await self._list()
                await self._follow()
            except Gone:
                self._must_list = True
            except ClientError as error:
                # 403 and 404 too: rights and definitions may come later.
                log.warning("informer retries resource=%s error=%s", self.resource.key, error)
                await asyncio.sleep(RETRY_S)

    async def _list(self) -> None:
        listed = await self._client.list(self.resource)
        at = int(listed.version)
        fresh = {key_of(item): item for item in listed.items}
        self._ahead = {key: version for key, version in self._ahead.items() if version > at}
        # Removals first, so that capacity is free before it is used.
        for key in [key for key in self._store if key not in fresh and key not in self._ahead]:
            self._drop(key)
        for key, item in fresh.items():
            if key not in self._ahead:
                self._put(key, item)
        self._version = at
        self._must_list = False
        self.synced.set()

    async def _follow(self) -> None:
        events = self._client.watch(self.resource, version=str(self._version))
        async with aclosing(events) as stream:  # type: ignore[type-var]
            async for event in stream:
                self._apply(event)

    def _apply(self, event: WatchEvent) -> None:
        obj = event.object
        self._version = _version_of(obj)
        if event.type == "BOOKMARK":
            return
        key = key_of(obj)
        if self._ahead.get(key, 0) > self._version:
            return  # The event is older than the stored write. The event of that write will follow.
        self._ahead.pop(key, None)
        if event.type == "DELETED":
            self._drop(key)
        else:
            self._put(key, obj)

    def _put(self, key: Key, new: Obj) -> None:
        new["metadata"].pop("managedFields", None)
        old = self._store.get(key)
        if old is not None and old["metadata"]["uid"] != new["metadata"]["uid"]:
            self._drop(key)
            old = None
        if old is not None and _version_of(old) == _version_of(new):
            return
        self._store[key] = new
        self._notify(old, new)

    def _drop(self, key: Key) -> None:
        old = self._store.pop(key, None)
        self._ahead.pop(key, None)
        if old is not None:
            self._notify(old, None)

    def _notify(self, old: Obj | None, new: Obj | None) -> None:
        for handler in self._handlers:
            try:
                handler(old, new)
            except Exception:
                # An error in one handler must not hide the cluster from the others.
                log.exception("informer handler failed resource=%s", self.resource.key)


def _version_of(obj: Obj) -> int:
    return int(obj["metadata"]["resourceVersion"])
