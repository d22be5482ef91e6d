"""The controller of CustomResourceDefinitions: names, conditions, serving, removal.

The API server starts it. It listens to the store, writes the conditions of definitions and adds
their resources to the registry. It writes through the same store as all writers, so watches see
each step: NamesAccepted, then Established, and Terminating before the end.
"""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from typing import Any, Protocol

from localcluster.kinds.crd_strategy import CLEANUP_FINALIZER
from localcluster.kinds.custom import custom_info
from localcluster.kinds.registry import Registry
from localcluster.obj import Obj

Storage = tuple[str, str]

DEFINITIONS: Storage = ("apiextensions.k8s.io", "customresourcedefinitions")
ESTABLISH_DELAY_S = 0.02
"""Delay between the steps, so that clients see them one by one as with the real server."""


class ObjectStore(Protocol):
    """The part of ``server.store.Store`` that is used here."""

    def entry(self, storage: Storage, namespace: str, name: str) -> Any:
        """Return the stored entry, or None."""

    def list(self, group: str, plural: str, namespace: str = "") -> list[Obj]:
        """Return all stored objects."""

    def replace(self, storage: Storage, old: Any, obj: Obj, managed: object = None) -> Any:
        """Store a new state."""

    def remove(self, storage: Storage, old: Any, last: Obj | None = None) -> Any:
        """Remove an object."""

    def drop_bucket(self, storage: Storage) -> None:
        """Forget a resource."""

    def subscribe(self, listener: Callable[[Storage, Any], None]) -> Callable[[], None]:
        """Listen to all changes."""


def condition(kind: str, status: str, reason: str, message: str, now: str) -> Obj:
    """Return one entry of ``status.conditions``."""
    return {
        "type": kind,
        "status": status,
        "lastTransitionTime": now,
        "reason": reason,
        "message": message,
    }


def set_condition(conditions: list[Obj], fresh: Obj) -> list[Obj]:
    """Return the list with ``fresh`` in place of the entry of its type."""
    kept = list(conditions)
    for index, present in enumerate(kept):
        if present["type"] == fresh["type"]:
            if present["status"] == fresh["status"]:
                fresh = {**fresh, "lastTransitionTime": present["lastTransitionTime"]}
            kept[index] = fresh
            return kept
    return [*kept, fresh]


class DefinitionController:
    """Keeps the registry up to date with the definitions.

    Parameters: ``now`` returns the time in RFC 3339. Call :meth:`start` once an event loop runs.
    """

    def __init__(self, store: ObjectStore, registry: Registry, now: Callable[[], str]) -> None:
        self._store, self._registry, self._now = store, registry, now
        self._served: dict[str, set[tuple[str, str, str]]] = {}
        self._pending: set[str] = set()
        self._stop: Callable[[], None] | None = None

    def start(self) -> None:
        """Serve what is established already (after a restart), and listen from now on."""
        for definition in self._store.list(*DEFINITIONS):
            if _is_true(definition, "Established"):
                self._serve(definition)
            self._schedule(definition["metadata"]["name"])
        self._stop = self._store.subscribe(self._on_event)

    def stop(self) -> None:
        """Stop listening."""
        if self._stop is not None:
            self._stop()
            self._stop = None

    def _on_event(self, storage: Storage, event: Any) -> None:
        if storage == DEFINITIONS:
            name = event.entry.name
            if event.type == "DELETED":
                self._withdraw(name)
                self._judge_others(event.entry.obj)
            else:
                if name in self._served:
                    self._serve(event.entry.obj)
                self._schedule(name)
        elif event.type == "DELETED" and self._is_terminating(storage):
            self._schedule(f"{storage[1]}.{storage[0]}")

    def _is_terminating(self, storage: Storage) -> bool:
        entry = self._store.entry(DEFINITIONS, "", f"{storage[1]}.{storage[0]}")
        return entry is not None and bool(entry.obj["metadata"].get("deletionTimestamp"))

    def _judge_others(self, gone: Obj) -> None:
        for definition in self._store.list(*DEFINITIONS):
            if definition["spec"]["group"] == gone["spec"]["group"]:
                self._schedule(definition["metadata"]["name"])

    def _schedule(self, name: str) -> None:
        if name in self._pending:
            return
        self._pending.add(name)
        asyncio.get_running_loop().call_later(ESTABLISH_DELAY_S, self._step, name)

    def _step(self, name: str) -> None:
        """Do one step of one definition. The event of a write leads to the next step."""
        self._pending.discard(name)
        entry = self._store.entry(DEFINITIONS, "", name)
        if entry is None or self._stop is None:
            return
        obj = entry.obj
        if obj["metadata"].get("deletionTimestamp"):
            self._finish(entry)
            return
        status = self._next_status(obj)
        if status != obj.get("status"):
            self._store.replace(DEFINITIONS, entry, {**obj, "status": status}, entry.managed)
        if _is_true({"status": status}, "Established"):
            self._serve(obj)

    def _next_status(self, obj: Obj) -> Obj:
        status = dict(obj.get("status") or {})
        conditions = list(status.get("conditions") or [])
        accepted, clash = self._accepted_names(obj)
        status["acceptedNames"] = accepted
        now = self._now()
        if clash is not None:
            conditions = set_condition(
                conditions, condition("NamesAccepted", "False", clash[0], clash[1], now)
            )
            if not _is_true(obj, "Established"):
                text = "not all names are accepted"
                conditions = set_condition(
                    conditions, condition("Established", "False", "NotAccepted", text, now)
                )
        else:
            text = "no conflicts found"
            conditions = set_condition(
                conditions, condition("NamesAccepted", "True", "NoConflicts", text, now)
            )
            conditions = set_condition(conditions, self._established(obj, now))
        status["conditions"] = conditions
        return {
            "conditions": conditions,
            "acceptedNames": accepted,
            "storedVersions": status.get("storedVersions"),
        }

    @staticmethod
    def _established(obj: Obj, now: str) -> Obj:
        text = "the initial names have been accepted"
        if _is_true(obj, "NamesAccepted"):
            return condition("Established", "True", "InitialNamesAccepted", text, now)
        return condition("Established", "False", "Installing", text, now)

    def _accepted_names(self, obj: Obj) -> tuple[Obj, tuple[str, str] | None]:
        """Return the names that are free, and the last conflict (reason, message)."""
        requested = obj["spec"]["names"]
        resources, kinds = self._taken(obj)
        clash: tuple[str, str] | None = None
        accepted: Obj = {"plural": "", "kind": ""}
        for key, taken, reason in (
            ("plural", resources, "PluralConflict"),
            ("singular", resources, "SingularConflict"),
            ("shortNames", resources, "ShortNamesConflict"),
            ("kind", kinds, "KindConflict"),
            ("listKind", kinds, "ListKindConflict"),
        ):
            value = requested.get(key)
            values = value if isinstance(value, list) else [value]
            used = [v for v in values if v in taken]
            if used:
                clash = (reason, f'"{used[0]}" is already in use')
            elif value:
                accepted[key] = value
        if requested.get("categories"):
            accepted["categories"] = requested["categories"]
        order = ("plural", "singular", "shortNames", "kind", "listKind", "categories")
        return {key: accepted[key] for key in order if key in accepted}, clash

    def _taken(self, obj: Obj) -> tuple[set[str], set[str]]:
        resources: set[str] = set()
        kinds: set[str] = set()
        for other in self._store.list(*DEFINITIONS):
            if other["metadata"]["name"] == obj["metadata"]["name"]:
                continue
            if other["spec"]["group"] != obj["spec"]["group"]:
                continue
            names = (other.get("status") or {}).get("acceptedNames") or {}
            resources |= {names.get("plural", ""), names.get("singular", "")}
            resources |= set(names.get("shortNames") or ())
            kinds |= {names.get("kind", ""), names.get("listKind", "")}
        return resources - {""}, kinds - {""}

    # -- serving -------------------------------------------------------------------------------

    def _serve(self, obj: Obj) -> None:
        name = obj["metadata"]["name"]
        served: set[tuple[str, str, str]] = set()
        for version in obj["spec"]["versions"]:
            if version.get("served"):
                info = custom_info(obj, version)
                served.add((info.group, info.version, info.plural))
                self._registry.register(info)
        for key in self._served.get(name, set()) - served:
            self._registry.unregister(*key)
        self._served[name] = served

    def _withdraw(self, name: str) -> None:
        for key in self._served.pop(name, set()):
            self._registry.unregister(*key)

    # -- removal ---------------------------------------------------------------------------------

    def _finish(self, entry: Any) -> None:
        """Delete the instances, then remove the finalizer, then the definition."""
        obj = entry.obj
        spec = obj["spec"]
        storage = (spec["group"], spec["names"]["plural"])
        finalizers = obj["metadata"].get("finalizers") or []
        if CLEANUP_FINALIZER in finalizers:
            entry = self._note_progress(entry)
            if not self._delete_instances(storage):
                return
            finalizers = [f for f in finalizers if f != CLEANUP_FINALIZER]
            if finalizers:
                kept = {**entry.obj["metadata"], "finalizers": finalizers}
                self._store.replace(
                    DEFINITIONS, entry, {**entry.obj, "metadata": kept}, entry.managed
                )
                return
        if not finalizers:
            self._withdraw(obj["metadata"]["name"])
            self._store.drop_bucket(storage)
            self._store.remove(DEFINITIONS, entry)

    def _note_progress(self, entry: Any) -> Any:
        text = "CustomResource deletion is in progress"
        fresh = condition("Terminating", "True", "InstanceDeletionInProgress", text, self._now())
        status = dict(entry.obj.get("status") or {})
        conditions = set_condition(status.get("conditions") or [], fresh)
        if conditions == status.get("conditions"):
            return entry
        status["conditions"] = conditions
        return self._store.replace(
            DEFINITIONS, entry, {**entry.obj, "status": status}, entry.managed
        )

    def _delete_instances(self, storage: Storage) -> bool:
        """Return True if none is left. Instances with finalizers are marked and waited for."""
        is_empty = True
        for instance in self._store.list(*storage):
            metadata = instance["metadata"]
            entry = self._store.entry(storage, metadata.get("namespace", ""), metadata["name"])
            if entry is None:
                continue
            if not metadata.get("finalizers"):
                self._store.remove(storage, entry)
                continue
            is_empty = False
            if not metadata.get("deletionTimestamp"):
                marked = {
                    **metadata,
                    "deletionTimestamp": self._now(),
                    "deletionGracePeriodSeconds": 0,
                    "generation": metadata.get("generation", 1) + 1,
                }
                self._store.replace(storage, entry, {**instance, "metadata": marked}, entry.managed)
        return is_empty


def mark_for_deletion(obj: Obj, now: str) -> None:
    """Add the finalizer and the Terminating condition in place, as DELETE does."""
    metadata = obj["metadata"]
    metadata["deletionTimestamp"] = now
    finalizers = metadata.get("finalizers") or []
    if CLEANUP_FINALIZER not in finalizers:
        metadata["finalizers"] = [*finalizers, CLEANUP_FINALIZER]
    text = "CustomResourceDefinition marked for deletion; CustomResource deletion will begin soon"
    status = dict(obj.get("status") or {})
    fresh = condition("Terminating", "True", "InstanceDeletionPending", text, now)
    status["conditions"] = set_condition(status.get("conditions") or [], fresh)
    obj["status"] = status


def _is_true(obj: Obj, kind: str) -> bool:
    return any(
        c["type"] == kind and c["status"] == "True"
        for c in (obj.get("status") or {}).get("conditions") or ()
    )
