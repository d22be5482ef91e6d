"""The garbage collector: deletes objects without owners. A thin loop over ``owner_graph``.

It watches every resource that can be listed, watched and deleted, custom ones as soon as they are
served. An owner that it does not know is looked up live before anything is deleted for its absence.
"""

from __future__ import annotations

import asyncio
import logging
from collections.abc import Callable

from localcluster.client.informer import ChangeHandler
from localcluster.client.resources import CRDS, EVENTS, NEW_EVENTS, Resource
from localcluster.controllers.owner_graph import (
    FOREGROUND,
    ORPHAN,
    Action,
    Item,
    OwnerGraph,
    OwnerState,
    decide,
    item_of,
)
from localcluster.controllers.served import KindMap, Served, discover
from localcluster.errors import ClientError, Conflict, NotFound
from localcluster.loops.context import Context
from localcluster.loops.objects import is_deleting, uid_of
from localcluster.loops.workqueue import WorkQueue
from localcluster.obj import Obj

logger = logging.getLogger(__name__)

COMPONENT = "garbage-collector-controller"
USER = "generic-garbage-collector"
NEEDED_VERBS = frozenset({"list", "watch", "delete"})
IGNORED = frozenset({EVENTS, NEW_EVENTS})
# Owner and dependent come through different watches, and the owner may come later.
OWNER_PATIENCE_S = 0.05
REDISCOVER_S = 0.2


class GarbageCollector:
    """Follows owner references in the whole cluster."""

    def __init__(self, context: Context, *, workers: int = 8) -> None:
        self._client = context.client_of(USER)
        self._informers, self._events = context.informers, context.events
        self._graph = OwnerGraph()
        self._kinds = KindMap([])
        self._watched: set[Resource] = set()
        self._refused: set[tuple[str, str]] = set()
        self._of_unknown_kind: set[str] = set()
        self._asked_for: set[str] = set()
        self._queue: WorkQueue[str] = WorkQueue(COMPONENT, self._sync, workers=workers)
        self._rediscover = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        context.informers.get(CRDS).add_handler(lambda _old, _new: self._rediscover.set())

    def start(self) -> None:
        """Start discovering, watching and collecting."""
        self._task = asyncio.create_task(self._discover(), name=COMPONENT)

    async def stop(self) -> None:
        """Stop working."""
        if self._task is not None:
            self._task.cancel()
            await asyncio.gather(self._task, return_exceptions=True)
        await self._queue.stop()

    # -- watches -----------------------------------------------------------------------------------

    async def _discover(self) -> None:
        """Watch what is served, and repeat whenever a definition changes."""
        is_first = True
        while True:
            try:
                await self._watch_served(await discover(self._client))
            except ClientError as error:
                logger.debug("discovery failed action=discover error=%s", error)
                self._rediscover.set()
            else:
                if is_first:
                    self._queue.start()
                    is_first = False
            await asyncio.sleep(REDISCOVER_S)
            await self._rediscover.wait()
            self._rediscover.clear()

    async def _watch_served(self, served: list[Served]) -> None:
        wanted = {s.resource for s in served if s.verbs >= NEEDED_VERBS} - IGNORED
        for resource in self._watched - wanted:
            self._watched.discard(resource)
            await self._informers.drop(resource)
        added = wanted - self._watched
        for resource in added:
            self._watched.add(resource)
            self._informers.get(resource).add_handler(self._handler(resource))
        # Until an owner's resource is listed, its objects would seem to be missing.
        await asyncio.gather(*(self._informers.get(r).synced.wait() for r in added))
        self._kinds = KindMap(served)
        unknown, self._of_unknown_kind = self._of_unknown_kind, set()
        for uid in unknown:
            self._queue.add(uid)

    def _handler(self, resource: Resource) -> ChangeHandler:
        def changed(old: Obj | None, new: Obj | None) -> None:
            if new is not None:
                for uid in self._graph.put(item_of(resource, new)):
                    self._queue.add_after(uid, OWNER_PATIENCE_S if uid == uid_of(new) else 0)
            elif old is not None:
                for uid in self._graph.remove(uid_of(old)):
                    self._queue.add(uid)

        return changed

    # -- one object ------------------------------------------------------------------------------

    async def _sync(self, uid: str) -> None:
        graph = self._graph
        item = graph.items.get(uid)
        if item is None:
            return
        states: dict[str, OwnerState] = {}
        if not item.is_deleting:
            for owner in item.owners:
                known = graph.state_of(item, owner)
                states[owner["uid"]] = known or await self._look_up(item, owner)
        blocking = graph.blocking(uid) if item.waits_for_dependents else []
        for dependent in blocking:
            if not dependent.is_deleting:
                self._queue.add(dependent.uid)
        action = decide(
            item,
            states,
            has_blocking=bool(blocking),
            has_dependents=bool(graph.dependents(uid)),
        )
        await self._act(item, action, states)

    async def _look_up(self, item: Item, owner: Obj) -> OwnerState:
        """Ask the API server about an owner that the graph does not have."""
        resource = self._kinds.find(owner["apiVersion"], owner["kind"])
        if resource is None:
            # The kind is not served, or not yet: decide after the next discovery. It is requested
            # once per object. Later discoveries come with changed definitions.
            self._of_unknown_kind.add(item.uid)
            if item.uid not in self._asked_for:
                self._asked_for.add(item.uid)
                self._rediscover.set()
            return OwnerState.SOLID
        if resource.namespaced and not item.namespace:
            self._report_invalid(item, owner)
            return OwnerState.SOLID
        try:
            found = await self._client.get(resource, item.namespace, owner["name"])
        except NotFound:
            self._report_invalid(item, owner)
            return OwnerState.ABSENT
        if uid_of(found) != owner["uid"]:
            return OwnerState.ABSENT
        is_waiting = is_deleting(found) and FOREGROUND in (
            found["metadata"].get("finalizers") or ()
        )
        return OwnerState.WAITING if is_waiting else OwnerState.SOLID

    def _report_invalid(self, item: Item, owner: Obj) -> None:
        """Record an event for an owner in another namespace, which is a mistake."""
        elsewhere = self._graph.items.get(owner["uid"])
        is_cross = elsewhere is not None and elsewhere.namespace != item.namespace
        if not is_cross or (item.uid, owner["uid"]) in self._refused:
            return
        self._refused.add((item.uid, owner["uid"]))
        reference = (
            f"[{owner['apiVersion']}/{owner['kind']}, namespace: {item.namespace}, "
            f"name: {owner['name']}, uid: {owner['uid']}]"
        )
        obj = {
            "apiVersion": item.resource.api_version,
            "kind": item.resource.kind,
            "metadata": {"namespace": item.namespace, "name": item.name, "uid": item.uid},
        }
        message = f'ownerRef {reference} does not exist in namespace "{item.namespace}"'
        self._events.record(COMPONENT, obj, "Warning", "OwnerRefInvalidNamespace", message)

    async def _act(self, item: Item, action: Action, states: dict[str, OwnerState]) -> None:
        if action is Action.DROP_OWNERS:
            lost = {uid for uid, state in states.items() if state is not OwnerState.SOLID}
            await self._drop_owners(item, lost)
        elif action is Action.FINISH_FOREGROUND:
            await self._drop_finalizer(item, FOREGROUND)
        elif action is Action.ORPHAN_DEPENDENTS:
            dependents = [self._graph.items.get(uid) for uid in self._graph.dependents(item.uid)]
            known = [dependent for dependent in dependents if dependent is not None]
            await asyncio.gather(*(self._drop_owners(d, {item.uid}) for d in known))
            await self._drop_finalizer(item, ORPHAN)
        elif action is Action.DELETE_BACKGROUND:
            await self._delete(item, "Background")
        elif action is Action.DELETE_FOREGROUND:
            await self._delete(item, "Foreground")
        elif action is Action.DELETE_ORPHAN:
            await self._delete(item, "Orphan")

    # -- writing ---------------------------------------------------------------------------------

    async def _delete(self, item: Item, propagation: str) -> None:
        try:
            await self._client.delete(
                item.resource, item.namespace, item.name, uid=item.uid, propagation=propagation
            )
        except NotFound:
            return
        except Conflict:
            logger.debug("another object by that name action=delete name=%s", item.name)

    async def _drop_owners(self, item: Item, uids: set[str]) -> None:
        def without(metadata: Obj) -> Obj:
            owners = metadata.get("ownerReferences") or []
            return {"ownerReferences": [o for o in owners if o["uid"] not in uids]}

        await self._change_metadata(item, without)

    async def _drop_finalizer(self, item: Item, finalizer: str) -> None:
        def without(metadata: Obj) -> Obj:
            finalizers = metadata.get("finalizers") or []
            return {"finalizers": [f for f in finalizers if f != finalizer]}

        await self._change_metadata(item, without)

    async def _change_metadata(self, item: Item, change: Callable[[Obj], Obj]) -> None:
        """Patch metadata computed from the live object. A conflict repeats the sync."""
        try:
            live = await self._client.get(item.resource, item.namespace, item.name)
            if uid_of(live) != item.uid:
                return
            version = live["metadata"]["resourceVersion"]
            metadata = change(live["metadata"]) | {"resourceVersion": version, "uid": item.uid}
            await self._client.patch(
                item.resource, item.namespace, item.name, {"metadata": metadata}
            )
        except NotFound:
            logger.debug("already gone action=patch name=%s", item.name)
