"""POST, PUT and PATCH of objects, in the order of the real server.

``routes`` calls it, and ``subresources`` and ``apply`` do through :func:`change`. The strategy of a
kind and admission decide what is allowed. This module decodes, checks versions and metadata, and
stores. ``kinds.registry`` describes the order.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import orjson

from localcluster.kinds.registry import ResourceInfo
from localcluster.kinds.request_context import RequestContext
from localcluster.obj import Obj
from localcluster.server import managed_fields
from localcluster.server.deletion import is_finished_by_update
from localcluster.server.http_refusals import (
    exists,
    invalid_options,
    method_not_allowed,
    modified,
    needs_version,
    uid_differs,
    unsupported_patch,
)
from localcluster.server.machinery import Machinery, copy_of
from localcluster.server.patching import (
    JSON_PATCH,
    MERGE_PATCH,
    STRATEGIC_PATCH,
    apply_json_patch,
    apply_merge_patch,
    apply_strategic_patch,
    go_map,
)
from localcluster.server.request import (
    Answer,
    ApiRequest,
    Body,
    Target,
    check_dry_run,
    check_field_validation,
    check_type,
    decode_object,
    field_manager,
    find_duplicates,
)
from localcluster.server.store import Entry, StaleWrite
from localcluster.types.go_json import go_json_error
from localcluster.types.refusals import (
    FORBIDDEN,
    FieldError,
    StatusError,
    bad_request,
    invalid,
    not_found,
    wrong,
)

APPLY_PATCH = "application/apply-patch+yaml"
ATTEMPTS_MAX = 5
"""Number of attempts for a change if the object changes meanwhile."""
DUPLICATE_OWNERS = (
    ".metadata.ownerReferences contains duplicate entries; API server dedups owner references in "
    "1.20+, and may reject such requests as early as 1.24; please fix your requests; duplicate "
    "UID(s) observed: "
)
NAME_ATTEMPTS_MAX = 8
"""Number of attempts for a generated name if it is taken."""


@dataclass(slots=True)
class Outcome:
    """The result of a write: the stored ``entry``, or ``obj`` if nothing was stored (dry run)."""

    entry: Entry | None
    obj: Obj


def write_context(
    machinery: Machinery, request: ApiRequest, target: Target, operation: str, options_kind: str
) -> RequestContext:
    """Return the context of a write with checked options. Raise 422 for wrong ones."""
    ctx = machinery.context(request, target, operation)
    ctx.verb = {"POST": "create", "PUT": "update"}.get(request.method, "patch")
    ctx.is_dry_run = check_dry_run(request.dry_run, options_kind)
    ctx.field_validation = check_field_validation(request.query, options_kind)
    ctx.field_manager = field_manager(request.query, request.headers, options_kind)
    ctx.options = _options_object(request, ctx, operation)
    return ctx


def _options_object(request: ApiRequest, ctx: RequestContext, operation: str) -> Obj:
    """Return ``options`` for webhooks: Create/UpdateOptions, also for a PATCH."""
    kind = "CreateOptions" if operation == "CREATE" else "UpdateOptions"
    options: Obj = {"kind": kind, "apiVersion": "meta.k8s.io/v1"}
    if ctx.is_dry_run:
        options["dryRun"] = ["All"]
    for key in ("fieldManager", "fieldValidation"):
        if value := request.query.get(key, ""):
            options[key] = value
    return options


# -- create ---------------------------------------------------------------------------------


async def create(machinery: Machinery, request: ApiRequest, target: Target) -> Answer:
    """Handle POST to a collection."""
    info = target.info
    if info.namespaced and not target.namespace:
        raise method_not_allowed()
    ctx = write_context(machinery, request, target, "CREATE", "CreateOptions")
    body = decode_object(request, info.kind)
    obj: Obj = body.value
    check_type(obj, info, machinery.registry)
    _note_duplicates(body, info, ctx)
    if info.create_only is not None:
        info.strategy.decode(obj, ctx)
        admitted = await machinery.admission.admit(info, "CREATE", obj, None, ctx)
        made = info.create_only(admitted if admitted is not None else obj, ctx)
        answer = machinery.answer_object(request, info, made, 201)
    else:
        outcome = await create_object(machinery, target, obj, ctx)
        answer = answer_outcome(machinery, request, info, outcome, 201)
    answer.warnings = ctx.warnings
    return answer


CreateOwner = Callable[[Obj], object]
"""Records the owners of an object that is about to be created."""


async def create_object(
    machinery: Machinery,
    target: Target,
    obj: Obj,
    ctx: RequestContext,
    *,
    own: CreateOwner | None = None,
) -> Outcome:
    """Decode, admit, complete, validate and store a new object (also for apply)."""
    info = target.info
    info.strategy.decode(obj, ctx)
    meta = obj.get("metadata")
    obj["metadata"] = meta = meta if isinstance(meta, dict) else {}
    place(meta, target)
    join_owners(meta, ctx)
    ctx.name = ctx.name or meta.get("name") or ""
    admitted = await machinery.admission.admit(info, "CREATE", obj, None, ctx)
    obj = admitted if admitted is not None else obj
    decoded = orjson.dumps(obj)
    is_generated = not obj["metadata"].get("name") and bool(obj["metadata"].get("generateName"))

    def creator(stored: Obj) -> object:
        return managed_fields.after_create(decoded, stored, ctx, info)

    for attempt in range(NAME_ATTEMPTS_MAX):
        draft: Obj = orjson.loads(decoded) if attempt else obj
        try:
            return _store_new(machinery, info, draft, ctx, own or creator)
        except StaleWrite as stale:
            if not is_generated or attempt == NAME_ATTEMPTS_MAX - 1:
                current = stale.current
                shown = current.obj if current is not None else obj
                raise exists(info, shown["metadata"]["name"], shown) from stale
    raise AssertionError("unreachable: the last attempt returns or raises")


def place(meta: Obj, target: Target) -> None:
    """Check that the namespace of a body is that of the path. A missing one is filled in."""
    given = meta.get("namespace") or ""
    if not target.info.namespaced:
        meta.pop("namespace", None)
    elif given and given != target.namespace:
        raise bad_request(
            "the namespace of the provided object does not match the namespace sent on the request"
        )
    else:
        meta["namespace"] = target.namespace


def join_owners(meta: Obj, ctx: RequestContext) -> None:
    """Merge equal owner references, with a warning.

    Source: ``dedupOwnerReferencesAndAddWarning`` of ``apiserver/pkg/endpoints/handlers/create.go``.
    """
    owners = meta.get("ownerReferences")
    if not isinstance(owners, list):
        return
    kept: dict[bytes, Obj] = {}
    twice: dict[str, None] = {}
    for owner in owners:
        # As a key, because a comparison with each one before takes a minute for 20,000 of them.
        key = orjson.dumps(owner, option=orjson.OPT_SORT_KEYS)
        if kept.setdefault(key, owner) is not owner:
            twice[owner.get("uid", "")] = None
    if twice:
        meta["ownerReferences"] = list(kept.values())
        ctx.warnings.append(DUPLICATE_OWNERS + ", ".join(twice))


def _store_new(
    machinery: Machinery, info: ResourceInfo, obj: Obj, ctx: RequestContext, own: CreateOwner
) -> Outcome:
    meta = obj["metadata"]
    given_version = meta.pop("resourceVersion", "")
    for key in ("deletionTimestamp", "deletionGracePeriodSeconds", "selfLink", "managedFields"):
        meta.pop(key, None)
    if not meta.get("name") and meta.get("generateName"):
        meta["name"] = machinery.generate_name(meta["generateName"])
    meta["uid"], meta["creationTimestamp"] = machinery.new_uid(), ctx.now
    info.strategy.prepare_create(obj, ctx)
    if errors := info.strategy.validate_create(obj, ctx):
        raise invalid(info.storage[0], info.kind, meta.get("name", ""), errors)
    if given_version:
        raise StatusError(500, "", "resourceVersion should not be set on objects to be created")
    stored = to_stored(info, obj)
    namespace, name = meta.get("namespace", ""), meta["name"]
    current = machinery.store.entry(info.storage, namespace, name)
    if current is not None:
        raise StaleWrite(current)
    managed = own(stored)
    if ctx.is_dry_run:
        return Outcome(None, stored)
    return Outcome(machinery.store.create(info.storage, stored, managed), stored)


def to_stored(info: ResourceInfo, obj: Obj) -> Obj:
    """Return the stored form. kind and apiVersion come first, so that lists can cut them off."""
    if info.to_storage is not None:
        obj = info.to_storage(obj)
    elif not info.is_custom:
        obj = {"kind": info.kind, "apiVersion": info.api_version, **_untyped(obj)}
    meta = obj["metadata"]
    for key in ("labels", "annotations", "finalizers", "ownerReferences"):
        if key in meta and not meta[key]:
            del meta[key]
    return obj


def _untyped(obj: Obj) -> Obj:
    return {key: value for key, value in obj.items() if key not in ("kind", "apiVersion")}


def answer_outcome(
    machinery: Machinery, request: ApiRequest, info: ResourceInfo, outcome: Outcome, code: int
) -> Answer:
    """Return the answer to a write."""
    if outcome.entry is not None:
        return machinery.answer_entry(request, info, outcome.entry, code)
    return machinery.answer_object(request, info, outcome.obj, code)


def _note_duplicates(body: Body, info: ResourceInfo, ctx: RequestContext) -> None:
    """Refuse (Strict) or warn of (Warn) repeated keys."""
    if not body.duplicates or ctx.field_validation == "Ignore":
        return
    texts = body.duplicates
    if ctx.field_validation == "Strict":
        raise bad_request(
            f'{info.kind} in version "{info.version}" cannot be handled as a {info.kind}: '
            f"strict decoding error: {', '.join(texts)}"
        )
    ctx.warnings.extend(texts)


# -- change ---------------------------------------------------------------------------------

Maker = Callable[[Entry], Obj]
"""Makes the wanted object from the present one (in the version of the request)."""
ChangeOwner = Callable[[Entry, Obj], object]
"""Records the owners of an object that is about to replace another."""


async def change(
    machinery: Machinery,
    target: Target,
    make: Maker,
    ctx: RequestContext,
    *,
    expects_uid: str = "",
    own: ChangeOwner | None = None,
) -> Outcome:
    """Change one object: make, admit, check, validate, store. Repeat if it changed meanwhile.

    ``expects_uid`` is the uid in a PUT. Raises 404, 409 and the errors of the kind.
    """
    for attempt in range(ATTEMPTS_MAX):
        entry = machinery.store.entry(target.info.storage, target.namespace, target.name)
        if entry is None:
            raise not_found(target.info.group, target.info.plural, target.name)
        uid = entry.obj["metadata"].get("uid", "")
        if expects_uid and expects_uid != uid:
            raise uid_differs(target.info, target.namespace, target.name, expects_uid, uid)
        if attempt:
            ctx.warnings.clear()
        try:
            return await _change_once(machinery, target, entry, make, ctx, own=own)
        except StaleWrite:
            continue
    raise modified(target.info, target.name)


async def _change_once(
    machinery: Machinery,
    target: Target,
    entry: Entry,
    make: Maker,
    ctx: RequestContext,
    *,
    own: ChangeOwner | None,
) -> Outcome:
    info, store = target.info, machinery.store
    shown = machinery.shown(info, entry)
    old = shown.obj
    new = make(shown)
    _check_identity(new, target)
    join_owners(new["metadata"], ctx)
    admitted = await machinery.admission.admit(info, "UPDATE", new, old, ctx)
    new = admitted if admitted is not None else new
    _check_version(new, entry, info)
    _keep_metadata(new["metadata"], old["metadata"])
    info.strategy.prepare_update(new, old, target.subresource, ctx)
    if errors := info.strategy.validate_update(new, old, target.subresource, ctx):
        raise invalid(info.storage[0], info.kind, target.name, errors)
    new["metadata"]["resourceVersion"] = str(entry.rv)
    if store.entry(info.storage, entry.namespace, entry.name) is not entry:
        raise StaleWrite(None)
    return _store_change(machinery, info, entry, new, ctx, own=own)


def _store_change(
    machinery: Machinery,
    info: ResourceInfo,
    entry: Entry,
    new: Obj,
    ctx: RequestContext,
    *,
    own: ChangeOwner | None,
) -> Outcome:
    stored = to_stored(info, new)
    if own is not None:
        managed = own(entry, stored)
    else:
        managed = managed_fields.after_change(entry, stored, ctx, info)
    if is_finished_by_update(entry.obj, stored):
        if not ctx.is_dry_run:
            machinery.store.remove(info.storage, entry)
        return Outcome(None, new)
    if stored == entry.obj:
        return Outcome(entry, new)
    if ctx.is_dry_run:
        return Outcome(None, new)
    return Outcome(machinery.store.replace(info.storage, entry, stored, managed), new)


def _check_identity(new: Obj, target: Target) -> None:
    meta = new.get("metadata")
    if not isinstance(meta, dict):
        meta = new["metadata"] = {}
    name = meta.get("name") or ""
    if not name:
        raise bad_request(
            f"the name of the object ({target.name} based on URL) was undeterminable: "
            "name must be provided"
        )
    if name != target.name:
        raise bad_request(
            f"the name of the object ({name}) does not match the name on the URL ({target.name})"
        )
    place(meta, target)


def _check_version(new: Obj, entry: Entry, info: ResourceInfo) -> None:
    given = str(new["metadata"].get("resourceVersion") or "")
    if given in ("", "0"):
        if not given and not info.strategy.allows_unconditional_update():
            raise needs_version(info, entry.name)
        return
    if not given.isdecimal():
        raise StatusError(500, "", f'strconv.ParseUint: parsing "{given}": invalid syntax')
    if int(given) != entry.rv:
        raise modified(info, entry.name)


_FIXED = ("creationTimestamp", "deletionTimestamp", "deletionGracePeriodSeconds", "generation")

_IMMUTABLE = ("deletionTimestamp", "deletionGracePeriodSeconds")
"""Of these, the fields that an update may not add."""


def _keep_metadata(new: Obj, old: Obj) -> None:
    """Restore what no update can change."""
    new.pop("selfLink", None)
    if not new.get("uid"):
        new["uid"] = old["uid"]
    for key in _FIXED:
        if key in old:
            new[key] = old[key]
        elif key not in _IMMUTABLE:
            new.pop(key, None)


async def update(machinery: Machinery, request: ApiRequest, target: Target) -> Answer:
    """Handle PUT of an object or of its status."""
    info = target.info
    ctx = write_context(machinery, request, target, "UPDATE", "UpdateOptions")
    body = decode_object(request, info.kind)
    check_type(body.value, info, machinery.registry)
    _note_duplicates(body, info, ctx)
    info.strategy.decode(body.value, ctx)
    meta = body.value.get("metadata") or {}
    raw = orjson.dumps(body.value)

    def make(_entry: Entry) -> Obj:
        fresh: Obj = orjson.loads(raw)
        return fresh

    uid = str(meta.get("uid") or "") if isinstance(meta, dict) else ""
    outcome = await change(machinery, target, make, ctx, expects_uid=uid)
    answer = answer_outcome(machinery, request, info, outcome, 200)
    answer.warnings = ctx.warnings
    return answer


# -- patch ----------------------------------------------------------------------------------


def patch_types(info: ResourceInfo) -> list[str]:
    """Return the media types that a PATCH of this resource may have."""
    if info.is_custom:
        return [JSON_PATCH, MERGE_PATCH, APPLY_PATCH]
    return [JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH, APPLY_PATCH]


async def patch(machinery: Machinery, request: ApiRequest, target: Target) -> Answer:
    """Handle PATCH by one of the three document types (apply is in ``apply``)."""
    info, kind = target.info, request.content_type
    accepted = patch_types(info)
    if kind not in accepted:
        is_known = kind in (JSON_PATCH, MERGE_PATCH, STRATEGIC_PATCH)
        raise unsupported_patch(is_known=is_known, accepted=accepted)
    if "force" in request.query:
        error = FieldError(FORBIDDEN, "force", "", "may not be specified for non-apply patch")
        raise invalid_options("PatchOptions", [error])
    ctx = write_context(machinery, request, target, "UPDATE", "PatchOptions")
    document = _patch_document(request.body)
    texts = _patch_duplicates(request.body, document, ctx)

    def make(entry: Entry) -> Obj:
        ctx.warnings.extend(texts)
        patched = apply_document(copy_of(entry), document, kind, info)
        shown = go_map(document) if kind == STRATEGIC_PATCH else ""
        return decode_patched(machinery, patched, entry, info, ctx, shown=shown)

    outcome = await change(machinery, target, make, ctx)
    answer = answer_outcome(machinery, request, info, outcome, 200)
    answer.warnings = ctx.warnings
    return answer


def _patch_document(raw: bytes) -> Any:
    try:
        return orjson.loads(raw)
    except orjson.JSONDecodeError:
        raise bad_request(f"error decoding patch: {go_json_error(raw)}") from None


def _patch_duplicates(raw: bytes, document: Any, ctx: RequestContext) -> list[str]:
    if ctx.field_validation == "Ignore" or len(orjson.dumps(document)) == len(raw):
        return []
    texts = [f'duplicate field "{path}"' for path in find_duplicates(raw)]
    if texts and ctx.field_validation == "Strict":
        raise bad_request(f"strict decoding error: {', '.join(texts)}")
    return texts


def apply_document(target: Obj, document: Any, kind: str, info: ResourceInfo) -> Obj:
    """Apply a patch document of the given media type to ``target`` (changed in place)."""
    if kind == JSON_PATCH:
        return apply_json_patch(target, document)
    if kind == MERGE_PATCH:
        return apply_merge_patch(target, document)
    return apply_strategic_patch(target, document, info.node)


def decode_patched(
    machinery: Machinery,
    patched: Obj,
    entry: Entry,
    info: ResourceInfo,
    ctx: RequestContext,
    *,
    shown: str = "",
) -> Obj:
    """Check the types of a patched object. The 400 of a POST is a 422 here.

    ``shown`` is what the message quotes. Empty means the patched object.
    """
    given = dict(patched)
    try:
        check_type(patched, info, machinery.registry)
        ctx.known = entry.obj
        info.strategy.decode(patched, ctx)
    except StatusError as error:
        if error.code != 400:
            raise
        why = error.message.partition(" cannot be handled as a ")[2].partition(": ")[2]
        shown = shown or orjson.dumps(given).decode()
        broken = wrong("patch", shown, why or error.message)
        raise invalid("", "", "", [broken]) from error
    if not isinstance(patched.get("metadata"), dict):
        patched["metadata"] = {"name": entry.name}
    return patched
