"""DELETE of objects and collections: preconditions, finalizers, grace, propagation.

The rules are those of ``registry/generic/registry/store.go`` and ``rest/delete.go`` of the real
server. ``routes`` and the eviction subresource call it. The finalizers ``orphan`` and
``foregroundDeletion`` are left to the garbage collector.
"""

from __future__ import annotations

import calendar
import time
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from localcluster.kinds.crd import DEFINITIONS, mark_for_deletion
from localcluster.kinds.registry import ResourceInfo
from localcluster.kinds.request_context import RequestContext
from localcluster.obj import Obj
from localcluster.server.http_refusals import invalid_options, method_not_allowed, success
from localcluster.server.machinery import (
    Machinery,
    answer_status,
    copy_of,
    format_time,
)
from localcluster.server.reads import answer_page, select_page
from localcluster.server.request import (
    Answer,
    ApiRequest,
    Target,
    bool_parameter,
    check_dry_run,
    decode_object,
    int_parameter,
)
from localcluster.server.store import Entry, StaleWrite
from localcluster.types.refusals import (
    NOT_SUPPORTED,
    FieldError,
    StatusError,
    bad_request,
    conflict,
    not_found,
    wrong,
)

ORPHAN = "orphan"
FOREGROUND = "foregroundDeletion"
ATTEMPTS_MAX = 5

JOBS_WARNING = (
    "child pods are preserved by default when jobs are deleted; set "
    "propagationPolicy=Background to remove them or set propagationPolicy=Orphan to suppress "
    "this warning"
)
_RETURNS_OBJECT = frozenset(
    {"pods", "serviceaccounts", "services", "persistentvolumeclaims", "persistentvolumes",
     "podtemplates", "resourcequotas"}
)  # fmt: skip
"""Core resources that are returned when they are deleted. Others give a Status."""


@dataclass(slots=True)
class DeleteOptions:
    """``metav1.DeleteOptions``. None means not given."""

    grace_s: int | None = None
    policy: str | None = None
    orphan_dependents: bool | None = None
    uid: str | None = None
    resource_version: str | None = None
    is_dry_run: bool = False

    def as_object(self) -> Obj:
        """Return the options as a webhook sees them."""
        shown: Obj = {"kind": "DeleteOptions", "apiVersion": "meta.k8s.io/v1"}
        if self.grace_s is not None:
            shown["gracePeriodSeconds"] = self.grace_s
        if self.uid is not None or self.resource_version is not None:
            pairs = {"uid": self.uid, "resourceVersion": self.resource_version}
            shown["preconditions"] = {k: v for k, v in pairs.items() if v is not None}
        if self.orphan_dependents is not None:
            shown["orphanDependents"] = self.orphan_dependents
        if self.policy is not None:
            shown["propagationPolicy"] = self.policy
        if self.is_dry_run:
            shown["dryRun"] = ["All"]
        return shown


def read_options(request: ApiRequest) -> DeleteOptions:
    """Return options from the body, or from the parameters if there is no body.

    Raises 422 for wrong values.
    """
    query = request.query
    if request.body.strip():
        value = decode_object(request, "DeleteOptions").value
        _check_kind(value)
        return options_from_object(value)
    orphan = query.get("orphanDependents")
    options = DeleteOptions(
        grace_s=int_parameter(query, "gracePeriodSeconds"),
        policy=query.get("propagationPolicy") or None,
        orphan_dependents=None if orphan is None else bool_parameter(query, "orphanDependents"),
        is_dry_run=check_dry_run(request.dry_run, "DeleteOptions"),
    )
    _check(options)
    return options


def _check_kind(value: Mapping[str, Any]) -> None:
    """Check the kind and version that a body may state."""
    kind, version = value.get("kind") or "DeleteOptions", value.get("apiVersion") or "v1"
    if kind != "DeleteOptions":
        where = 'in scheme "pkg/runtime/scheme.go:111"'
        raise bad_request(f'no kind "{kind}" is registered for version "{version}" {where}')


def options_from_object(value: Mapping[str, Any]) -> DeleteOptions:
    """Return options from a DeleteOptions object (a body, or part of an Eviction)."""
    preconditions = value.get("preconditions") or {}
    options = DeleteOptions(
        grace_s=value.get("gracePeriodSeconds"),
        policy=value.get("propagationPolicy"),
        orphan_dependents=value.get("orphanDependents"),
        uid=preconditions.get("uid"),
        resource_version=preconditions.get("resourceVersion"),
        is_dry_run=check_dry_run(list(value.get("dryRun") or ()), "DeleteOptions"),
    )
    _check(options)
    return options


def _check(options: DeleteOptions) -> None:
    name = "propagationPolicy"
    if options.policy is not None and options.orphan_dependents is not None:
        detail = "orphanDependents and deletionPropagation cannot be both set"
        raise invalid_options("DeleteOptions", [wrong(name, options.policy, detail)])
    if options.policy not in (None, "Foreground", "Background", "Orphan"):
        detail = 'supported values: "Foreground", "Background", "Orphan", "nil"'
        error = FieldError(NOT_SUPPORTED, name, options.policy, detail)
        raise invalid_options("DeleteOptions", [error])
    if options.grace_s is not None and options.grace_s < 0:
        options.grace_s = 1  # As in the real server, a negative period becomes one second.


# -- rules ----------------------------------------------------------------------------------


def is_finished_by_update(old: Obj, new: Obj) -> bool:
    """Return whether an update removed the last finalizer that a deletion waited for."""
    meta, old_meta = new["metadata"], old["metadata"]
    if meta.get("finalizers") or not old_meta.get("deletionTimestamp"):
        return False
    if new.get("kind") == "Namespace":
        return not (new.get("spec") or {}).get("finalizers")
    return bool(old_meta.get("deletionGracePeriodSeconds") == 0)


def _wants_orphan(options: DeleteOptions, finalizers: list[str], default: str) -> bool:
    if options.orphan_dependents is not None:
        return options.orphan_dependents
    if options.policy is not None:
        return options.policy == "Orphan"
    for finalizer in finalizers:
        if finalizer in (ORPHAN, FOREGROUND):
            return finalizer == ORPHAN
    return default == "Orphan"


def _wants_foreground(options: DeleteOptions, finalizers: list[str]) -> bool:
    if options.orphan_dependents is not None:
        return False
    if options.policy is not None:
        return options.policy == "Foreground"
    for finalizer in finalizers:
        if finalizer in (ORPHAN, FOREGROUND):
            return finalizer == FOREGROUND
    return False


def gc_finalizers(finalizers: list[str], options: DeleteOptions, default: str) -> list[str]:
    """Return the finalizers, with those of the garbage collector set as the options say."""
    kept = [f for f in finalizers if f not in (ORPHAN, FOREGROUND)]
    if _wants_orphan(options, finalizers, default):
        kept.append(ORPHAN)
    if _wants_foreground(options, finalizers):
        kept.append(FOREGROUND)
    return kept


def _is_graceful(info: ResourceInfo) -> bool:
    return info.storage == ("", "pods")


def _mark(meta: Obj, wall_s: float, grace_s: int) -> None:
    meta["deletionTimestamp"] = format_time(wall_s + grace_s)
    meta["deletionGracePeriodSeconds"] = grace_s
    if meta.get("generation"):
        meta["generation"] += 1


@dataclass(slots=True)
class Plan:
    """What a DELETE does to one object: ``updated`` is stored first, then it may be removed."""

    updated: Obj | None
    is_removed: bool


def plan(info: ResourceInfo, entry: Entry, options: DeleteOptions, wall_s: float) -> Plan:
    """Decide about one object. Pure: nothing is stored."""
    obj = copy_of(entry)
    meta = obj["metadata"]
    is_pending = bool(meta.get("deletionTimestamp"))
    if info.storage == ("", "namespaces"):
        return _plan_namespace(obj, wall_s)
    if info.storage == DEFINITIONS:
        if not is_pending:
            mark_for_deletion(obj, format_time(wall_s))
        return Plan(None if is_pending else obj, False)
    is_graceful = False
    grace_s = options.grace_s
    if is_pending:
        has_grace = meta.get("deletionGracePeriodSeconds")
        if _is_graceful(info) and has_grace is not None:
            if grace_s is None or grace_s >= has_grace:
                return Plan(None, False)
            _shorten(meta, has_grace, grace_s)
            is_graceful = True
    elif _is_graceful(info):
        grace_s = info.strategy.delete_grace_s(obj, options.grace_s)
        _mark(meta, wall_s, grace_s)
        is_graceful = True
    before = list(meta.get("finalizers") or [])
    finalizers = gc_finalizers(before, options, info.strategy.default_propagation(obj))
    if finalizers != before:
        meta["finalizers"] = finalizers
    if finalizers:
        if not meta.get("deletionTimestamp"):
            _mark(meta, wall_s, 0)
        is_changed = is_graceful or not is_pending or finalizers != before
        return Plan(obj if is_changed else None, False)
    if is_graceful:
        return Plan(obj, grace_s == 0)
    return Plan(None, True)


def _shorten(meta: Obj, old_grace_s: int, grace_s: int) -> None:
    at_s = calendar.timegm(time.strptime(meta["deletionTimestamp"], "%Y-%m-%dT%H:%M:%SZ"))
    meta["deletionTimestamp"] = format_time(at_s - old_grace_s + grace_s)
    meta["deletionGracePeriodSeconds"] = grace_s


def _plan_namespace(obj: Obj, wall_s: float) -> Plan:
    """Plan the deletion of a namespace.

    It is removed only after its controller has emptied it and removed its spec finalizer.
    """
    meta = obj["metadata"]
    is_empty = not (obj.get("spec") or {}).get("finalizers") and not meta.get("finalizers")
    if meta.get("deletionTimestamp"):
        return Plan(None, is_empty)
    meta["deletionTimestamp"] = format_time(wall_s)
    obj["status"] = {**(obj.get("status") or {}), "phase": "Terminating"}
    return Plan(obj, is_empty)


def check_preconditions(info: ResourceInfo, entry: Entry, options: DeleteOptions) -> None:
    """Raise 409 if the object does not meet the preconditions."""
    meta = entry.obj["metadata"]
    if options.uid is not None and options.uid != meta.get("uid"):
        raise conflict(
            info.group,
            info.kind,
            entry.name,
            f"the UID in the precondition ({options.uid}) does not match the UID in record "
            f"({meta.get('uid')}). The object might have been deleted and then recreated",
        )
    if options.resource_version is not None and options.resource_version != str(entry.rv):
        raise conflict(
            info.group,
            info.kind,
            entry.name,
            f"the ResourceVersion in the precondition ({options.resource_version}) does not "
            f"match the ResourceVersion in record ({entry.rv}). The object might have been "
            "modified",
        )


# -- execution ------------------------------------------------------------------------------


async def delete_object(
    machinery: Machinery, target: Target, options: DeleteOptions, ctx: RequestContext
) -> tuple[Obj, bool]:
    """Delete one object. Return its last state, and whether it was removed."""
    for _ in range(ATTEMPTS_MAX):
        entry = machinery.store.entry(target.info.storage, target.namespace, target.name)
        if entry is None:
            raise not_found(target.info.group, target.info.plural, target.name)
        check_preconditions(target.info, entry, options)
        shown = machinery.shown(target.info, entry)
        await machinery.admission.admit(target.info, "DELETE", None, shown.obj, ctx)
        check_preconditions(target.info, entry, options)
        try:
            return _carry_out(machinery, target.info, entry, options, ctx)
        except StaleWrite:
            continue
    raise StatusError(409, "Conflict", f"{target.name} is changed too often to be deleted")


def _carry_out(
    machinery: Machinery,
    info: ResourceInfo,
    entry: Entry,
    options: DeleteOptions,
    ctx: RequestContext,
) -> tuple[Obj, bool]:
    store = machinery.store
    if store.entry(info.storage, entry.namespace, entry.name) is not entry:
        raise StaleWrite(None)
    made = plan(info, entry, options, machinery.wall_s())
    if ctx.is_dry_run:
        return (made.updated or entry.obj), made.is_removed
    if made.updated is not None:
        entry = store.replace(info.storage, entry, made.updated, entry.managed)
    if made.is_removed:
        entry = store.remove(info.storage, entry)
    return machinery.shown(info, entry).obj, made.is_removed


async def delete(machinery: Machinery, request: ApiRequest, target: Target) -> Answer:
    """Handle DELETE of one object."""
    info = target.info
    options = read_options(request)
    ctx = delete_context(machinery, request, target, options)
    obj, is_gone = await delete_object(machinery, target, options, ctx)
    ctx.warnings += _warnings(info, options)
    if is_gone and not (info.group == "" and info.plural in _RETURNS_OBJECT):
        answer = answer_status(request, _status(info, obj), 200)
    else:
        is_accepted = not is_gone and options.orphan_dependents is False
        answer = machinery.answer_object(request, info, obj, 202 if is_accepted else 200)
    answer.warnings = ctx.warnings
    return answer


def _warnings(info: ResourceInfo, options: DeleteOptions) -> list[str]:
    """Return a warning for Jobs that are deleted without instructions about their pods."""
    is_default = options.policy is None and options.orphan_dependents is None
    return [JOBS_WARNING] if is_default and (info.group, info.plural) == ("batch", "jobs") else []


def _status(info: ResourceInfo, obj: Obj) -> Obj:
    details: Obj = {"name": obj["metadata"]["name"]}
    if info.group:
        details["group"] = info.group
    details |= {"kind": info.plural, "uid": obj["metadata"].get("uid", "")}
    return success(details=details)


def delete_context(
    machinery: Machinery, request: ApiRequest, target: Target, options: DeleteOptions
) -> RequestContext:
    """Return the context of a deletion."""
    ctx = machinery.context(request, target, "DELETE")
    ctx.verb = "delete" if target.name else "deletecollection"
    ctx.is_dry_run = options.is_dry_run
    ctx.options = options.as_object()
    return ctx


async def delete_collection(machinery: Machinery, request: ApiRequest, target: Target) -> Answer:
    """Handle DELETE of all selected objects. The answer lists them as they were."""
    info = target.info
    if info.namespaced and not target.namespace:
        raise method_not_allowed()
    options = read_options(request)
    page = await select_page(machinery, request, target)
    deleted: list[Entry] = []
    for entry in page.entries:
        one = Target(info, entry.namespace, entry.name, "")
        ctx = delete_context(machinery, request, one, options)
        try:
            await delete_object(machinery, one, options, ctx)
        except StatusError as error:
            if error.code != 404:
                raise
            continue
        deleted.append(entry)
    page.entries = deleted
    answer = answer_page(machinery, request, info, page)
    answer.warnings += _warnings(info, options)
    return answer
