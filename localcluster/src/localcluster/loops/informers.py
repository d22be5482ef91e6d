"""One informer per resource for the whole process, and indexes over them.

Controllers share these. So the pods of the cluster are watched and decoded once, not once per
controller.
"""

from __future__ import annotations

import asyncio
from collections import defaultdict
from collections.abc import Callable, Iterable

from localcluster.client.calls import Client
from localcluster.client.informer import Informer, key_of
from localcluster.client.resources import Resource
from localcluster.loops.objects import controller_of, node_name
from localcluster.obj import Obj

Indexer = Callable[[Obj], Iterable[str]]


class Index:
    """Objects of an informer by a computed value. It follows the informer's changes."""

    def __init__(self, informer: Informer, indexer: Indexer) -> None:
        self._indexer = indexer
        self._by_value: defaultdict[str, dict[tuple[str, str], Obj]] = defaultdict(dict)
        informer.add_handler(self._change)

    def get(self, value: str) -> list[Obj]:
        """Return the objects with that value, in any order."""
        return list(self._by_value[value].values()) if value in self._by_value else []

    def count(self, value: str) -> int:
        """Return the number of objects with that value."""
        return len(self._by_value[value]) if value in self._by_value else 0

    def _change(self, old: Obj | None, new: Obj | None) -> None:
        before = set(self._indexer(old)) if old is not None else set()
        after = set(self._indexer(new)) if new is not None else set()
        key = key_of(new or old or {})
        for value in before - after:
            members = self._by_value[value]
            members.pop(key, None)
            if not members:
                del self._by_value[value]
        for value in after:
            assert new is not None
            self._by_value[value][key] = new


def by_controller(obj: Obj) -> Iterable[str]:
    """Yield the uid of the controlling owner (index value)."""
    owner = controller_of(obj)
    return (owner["uid"],) if owner is not None else ()


def by_node(pod: Obj) -> Iterable[str]:
    """Yield the node that a pod is bound to (index value)."""
    name = node_name(pod)
    return (name,) if name else ()


class InformerSet:
    """All shared informers of one process. They are made on first use and started together."""

    def __init__(self, client: Client) -> None:
        self._client = client
        self._informers: dict[Resource, Informer] = {}
        self._indexes: dict[tuple[Resource, Indexer], Index] = {}
        self._is_started = False

    def get(self, resource: Resource) -> Informer:
        """Return the informer of that resource."""
        informer = self._informers.get(resource)
        if informer is None:
            informer = self._informers[resource] = Informer(self._client, resource)
            if self._is_started:
                informer.start()
        return informer

    def index(self, resource: Resource, indexer: Indexer) -> Index:
        """Return the index of that resource by ``indexer``."""
        index = self._indexes.get((resource, indexer))
        if index is None:
            index = self._indexes[resource, indexer] = Index(self.get(resource), indexer)
        return index

    async def drop(self, resource: Resource) -> None:
        """Stop watching a resource that is no longer served. Its objects count as removed."""
        informer = self._informers.pop(resource, None)
        self._indexes = {k: index for k, index in self._indexes.items() if k[0] != resource}
        if informer is not None:
            await informer.stop()
            informer.clear()

    async def start(self) -> None:
        """Start all informers and wait until each has listed once."""
        self._is_started = True
        informers = list(self._informers.values())
        for informer in informers:
            informer.start()
        await asyncio.gather(*(informer.synced.wait() for informer in informers))

    async def stop(self) -> None:
        """Stop all informers."""
        self._is_started = False
        await asyncio.gather(*(informer.stop() for informer in self._informers.values()))
