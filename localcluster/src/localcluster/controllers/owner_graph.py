"""The graph of owners and dependents, and the action for one object. Pure.

It follows ``pkg/controller/garbagecollector`` of Kubernetes. ``garbage_collector`` feeds it and
executes its actions.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass
from enum import StrEnum

from localcluster.client.resources import Resource
from localcluster.loops.objects import is_deleting, uid_of
from localcluster.obj import Obj

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"


@dataclass(frozen=True, slots=True)
class Item:
    """An object as the collector knows it."""

    uid: str
    resource: Resource
    namespace: str
    name: str
    owners: tuple[Obj, ...]
    finalizers: frozenset[str]
    is_deleting: bool

    @property
    def waits_for_dependents(self) -> bool:
        """Return whether it is being deleted in the foreground."""
        return self.is_deleting and FOREGROUND in self.finalizers

    @property
    def orphans_dependents(self) -> bool:
        """Return whether it is being deleted and its dependents must be orphaned."""
        return self.is_deleting and ORPHAN in self.finalizers


def item_of(resource: Resource, obj: Obj) -> Item:
    """Return what the graph needs of an object."""
    metadata = obj["metadata"]
    return Item(
        uid_of(obj),
        resource,
        metadata.get("namespace", ""),
        metadata["name"],
        tuple(metadata.get("ownerReferences") or ()),
        frozenset(metadata.get("finalizers") or ()),
        is_deleting(obj),
    )


class OwnerState(StrEnum):
    """The state of an owner that a reference names."""

    SOLID = "solid"
    ABSENT = "absent"
    WAITING = "waiting"


class Action(StrEnum):
    """What to do with an object."""

    NOTHING = "nothing"
    ORPHAN_DEPENDENTS = "orphan dependents"
    FINISH_FOREGROUND = "finish foreground deletion"
    DROP_OWNERS = "drop owners"
    DELETE_BACKGROUND = "delete in the background"
    DELETE_FOREGROUND = "delete in the foreground"
    DELETE_ORPHAN = "delete and orphan"


class OwnerGraph:
    """All known objects by uid, and their dependents."""

    def __init__(self) -> None:
        self.items: dict[str, Item] = {}
        self._dependents: defaultdict[str, set[str]] = defaultdict(set)

    def put(self, item: Item) -> set[str]:
        """Add or change an object. Return the uids that must be checked."""
        old = self.items.get(item.uid)
        self.items[item.uid] = item
        before = {owner["uid"] for owner in old.owners} if old is not None else set()
        after = {owner["uid"] for owner in item.owners}
        for uid in before - after:
            self._forget(uid, item.uid)
        for uid in after - before:
            self._dependents[uid].add(item.uid)
        wanted: set[str] = set()
        if item.orphans_dependents:
            wanted.add(item.uid)
        if item.waits_for_dependents:
            wanted |= {item.uid} | self.dependents(item.uid)
        if any(self._needs_a_look(owner["uid"]) for owner in item.owners):
            wanted.add(item.uid)
        # An owner may have waited for a dependent that has just dropped it.
        return wanted | {uid for uid in before - after if uid in self.items}

    def _needs_a_look(self, owner_uid: str) -> bool:
        owner = self.items.get(owner_uid)
        return owner is None or owner.waits_for_dependents

    def remove(self, uid: str) -> set[str]:
        """Remove a deleted object. Return the uids that must be checked."""
        item = self.items.pop(uid, None)
        if item is None:
            return set()
        for owner in item.owners:
            self._forget(owner["uid"], uid)
        waiting = {o["uid"] for o in item.owners if o["uid"] in self.items}
        return self.dependents(uid) | waiting

    def _forget(self, owner_uid: str, uid: str) -> None:
        members = self._dependents[owner_uid]
        members.discard(uid)
        if not members:
            del self._dependents[owner_uid]

    def dependents(self, uid: str) -> set[str]:
        """Return the uids of the objects that name it as an owner."""
        return set(self._dependents.get(uid, ()))

    def blocking(self, uid: str) -> list[Item]:
        """Return the dependents that block a foreground deletion."""
        return [
            self.items[dependent]
            for dependent in self._dependents.get(uid, ())
            if any(o["uid"] == uid and o.get("blockOwnerDeletion") for o in self._owners(dependent))
        ]

    def _owners(self, uid: str) -> tuple[Obj, ...]:
        item = self.items.get(uid)
        return item.owners if item is not None else ()

    def state_of(self, item: Item, owner: Obj) -> OwnerState | None:
        """Return the state of an owner in the graph, or None if it must be looked up."""
        found = self.items.get(owner["uid"])
        if found is None or found.name != owner["name"]:
            return None
        if found.namespace and found.namespace != item.namespace:
            return OwnerState.ABSENT  # owners in other namespaces do not count
        return OwnerState.WAITING if found.waits_for_dependents else OwnerState.SOLID


def decide(
    item: Item, states: dict[str, OwnerState], *, has_blocking: bool, has_dependents: bool
) -> Action:
    """Return what to do with ``item``. ``states`` is by owner uid."""
    if item.orphans_dependents:
        return Action.ORPHAN_DEPENDENTS
    if item.waits_for_dependents:
        return Action.NOTHING if has_blocking else Action.FINISH_FOREGROUND
    if item.is_deleting or not item.owners:
        return Action.NOTHING
    found = set(states.values())
    if OwnerState.SOLID in found:
        return Action.DROP_OWNERS if len(found) > 1 else Action.NOTHING
    if OwnerState.WAITING in found and has_dependents:
        return Action.DELETE_FOREGROUND
    if ORPHAN in item.finalizers:
        return Action.DELETE_ORPHAN
    if FOREGROUND in item.finalizers:
        return Action.DELETE_FOREGROUND
    return Action.DELETE_BACKGROUND
