"""Which manager owns which field of an object (``metadata.managedFields``).

``writes`` calls it after each change, and ``apply`` calls it. Every write is tracked, but only as a
cheap difference. The full sets are computed when they are needed: when an object is applied, or
when a write has a ``fieldManager`` (as kubectl's do). From then on the object shows
``managedFields``. Before that it does not, unlike in a real server.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import orjson

from localcluster.kinds.registry import ResourceInfo
from localcluster.kinds.request_context import RequestContext
from localcluster.obj import Obj
from localcluster.server.fieldsets import (
    NO_FIELDS,
    Difference,
    Fields,
    Path,
    created_fields,
    decode,
    encode,
    fields_of,
    without_system,
)
from localcluster.server.store import Entry

LOG_MAX = 64
"""Number of differences per object that may wait before they are merged into sets."""


@dataclass(frozen=True, slots=True, order=True)
class Manager:
    """The identity of one entry of ``managedFields``."""

    operation: str
    name: str
    api_version: str
    subresource: str = ""


@dataclass(frozen=True, slots=True)
class Owned:
    """What one manager owns, and since when ("" for no time)."""

    fields: Fields
    time: str


Managers = dict[Manager, Owned]


@dataclass(frozen=True, slots=True)
class _Created:
    """A creation without computed set yet: the object as it was decoded."""

    manager: Manager
    time: str
    raw: bytes


@dataclass(frozen=True, slots=True)
class _Change:
    manager: Manager
    time: str
    changed: frozenset[Path]
    removed: frozenset[Path]


@dataclass(frozen=True, slots=True)
class Managed:
    """The known owners of an object. Immutable, one per stored entry."""

    base: Managers | _Created
    log: tuple[_Change, ...] = ()
    is_visible: bool = False


def manager_of(ctx: RequestContext, info: ResourceInfo, operation: str) -> Manager:
    """Return the manager of a request."""
    return Manager(operation, ctx.field_manager, info.api_version, ctx.subresource)


def managers(managed: object, obj: Obj, info: ResourceInfo) -> Managers:
    """Return all owners of an object, computed."""
    if not isinstance(managed, Managed):
        return read_managed_fields(obj["metadata"].get("managedFields") or [])
    base = managed.base
    if isinstance(base, _Created):
        fields = created_fields(orjson.loads(base.raw), info.node, is_custom=info.is_custom)
        known: Managers = {base.manager: Owned(fields, base.time)}
    else:
        known = dict(base)
    for change in managed.log:
        known = taken_over(known, change.manager, change.time, change.changed, change.removed)
    return known


def taken_over(
    known: Managers, manager: Manager, time: str, changed: Fields, removed: Fields
) -> Managers:
    """Return the owners after ``manager`` changed and removed fields by an Update."""
    result: Managers = {}
    for other, owned in known.items():
        left = owned.fields - removed if other == manager else owned.fields - removed - changed
        if left:
            result[other] = owned if left == owned.fields else Owned(left, owned.time)
    before = result[manager].fields if manager in result else NO_FIELDS
    if changed - before:
        result[manager] = Owned(before | changed, time)
    elif manager in result and changed:
        result[manager] = Owned(before, time)
    return result


def visible(ctx: RequestContext) -> bool:
    """Return whether this write makes ``managedFields`` visible."""
    return "fieldManager" in ctx.options


def after_create(decoded: bytes, stored: Obj, ctx: RequestContext, info: ResourceInfo) -> Managed:
    """Return the owner of a new object: its creator.

    ``decoded`` is the object before generation.
    """
    manager = manager_of(ctx, info, "Update")
    created = _Created(manager, ctx.now, decoded)
    if not visible(ctx):
        return Managed(created)
    base = managers(Managed(created), stored, info)
    stored["metadata"]["managedFields"] = write_managed_fields(base)
    return Managed(base, is_visible=True)


def after_apply_create(
    applied: Fields, stored: Obj, ctx: RequestContext, info: ResourceInfo
) -> Managed:
    """Return the owner of an object that an apply created."""
    base: Managers = {manager_of(ctx, info, "Apply"): Owned(applied, ctx.now)}
    stored["metadata"]["managedFields"] = write_managed_fields(base)
    return Managed(base, is_visible=True)


def after_change(entry: Entry, stored: Obj, ctx: RequestContext, info: ResourceInfo) -> object:
    """Return the owners after an update or patch. Set or drop ``managedFields`` of ``stored``."""
    meta = stored["metadata"]
    before = entry.managed
    given, shown = meta.pop("managedFields", None), entry.obj["metadata"].get("managedFields")
    if given is not None and given != shown:
        if given in ([], [{}]):
            return Managed({})
        before = Managed(read_managed_fields(given), is_visible=True)
    is_shown = shown is not None or visible(ctx)
    if not isinstance(before, Managed):
        before = Managed(managers(before, entry.obj, info), is_visible=is_shown)
    change = _difference(entry, stored, ctx, info)
    if is_shown:
        return _visible_change(entry, stored, info, before, change)
    if change is None:
        return before
    log = (*before.log, change)
    if len(log) > LOG_MAX:
        return Managed(managers(Managed(before.base, log), entry.obj, info))
    return Managed(before.base, log)


def _visible_change(
    entry: Entry, stored: Obj, info: ResourceInfo, before: Managed, change: _Change | None
) -> Managed:
    log = before.log if change is None else (*before.log, change)
    known = managers(Managed(before.base, log), entry.obj, info)
    if known:
        stored["metadata"]["managedFields"] = write_managed_fields(known)
    return Managed(known, is_visible=True)


def _difference(
    entry: Entry, stored: Obj, ctx: RequestContext, info: ResourceInfo
) -> _Change | None:
    found = Difference()
    for key in {**entry.obj, **stored}:
        if key in ("apiVersion", "kind"):
            continue
        old, new, node = entry.obj.get(key), stored.get(key), info.node.child(key)
        if old == new:
            continue
        path = (f"f:{key}",)
        if old is None:
            found.appeared(new, node, path)
        elif new is None:
            found.removed |= {(*path, *p) for p in fields_of(old, node)} | {path}
        else:
            found.compare(old, new, node, path)
    changed, removed = without_system(found.changed), without_system(found.removed)
    if not changed and not removed:
        return None
    return _Change(manager_of(ctx, info, "Update"), ctx.now, changed, removed)


# -- managedFields --------------------------------------------------------------------------


def read_managed_fields(entries: list[Mapping[str, Any]]) -> Managers:
    """Parse ``metadata.managedFields``. Entries of other formats are ignored."""
    known: Managers = {}
    for entry in entries:
        if not entry or entry.get("fieldsType") != "FieldsV1":
            continue
        manager = Manager(
            entry.get("operation", "Update"),
            entry.get("manager", ""),
            entry.get("apiVersion", ""),
            entry.get("subresource", ""),
        )
        known[manager] = Owned(decode(entry.get("fieldsV1") or {}), entry.get("time", ""))
    return known


def write_managed_fields(known: Managers) -> list[Obj]:
    """Return ``metadata.managedFields``: apply before update, then by time and name."""
    ordered = sorted(
        known.items(),
        key=lambda item: (
            item[0].operation,
            _time_of(*item),
            item[0].name,
            item[0].api_version,
            item[0].subresource,
        ),
    )
    return [_entry_of(manager, owned) for manager, owned in ordered]


def _time_of(manager: Manager, owned: Owned) -> str:
    """Return the time of an entry. A number written by ``/scale`` has none."""
    return "" if manager.subresource == "scale" else owned.time


def _entry_of(manager: Manager, owned: Owned) -> Obj:
    entry: Obj = {
        "manager": manager.name,
        "operation": manager.operation,
        "apiVersion": manager.api_version,
    }
    if time := _time_of(manager, owned):
        entry["time"] = time
    entry |= {"fieldsType": "FieldsV1", "fieldsV1": encode(owned.fields)}
    if manager.subresource:
        entry["subresource"] = manager.subresource
    return entry
