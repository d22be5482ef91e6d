"""Subresources other than the object itself: binding, eviction, token.

``scale`` has a module of its own. ``routes`` calls this. The handlers in the registry define what
binding, eviction and token mean. They get the object here, and their changes are stored.
"""

from __future__ import annotations

import orjson

from localcluster.kinds.registry import Subresource
from localcluster.kinds.request_context import RequestContext
from localcluster.obj import Obj
from localcluster.server.deletion import delete_context, delete_object, options_from_object
from localcluster.server.http_refusals import method_not_allowed, success
from localcluster.server.machinery import Machinery, answer_status, copy_of
from localcluster.server.request import (
    Answer,
    ApiRequest,
    Target,
    check_type,
    decode_object,
)
from localcluster.server.store import Entry
from localcluster.server.writes import write_context
from localcluster.types.refusals import (
    not_found,
    not_served,
)


def present(machinery: Machinery, target: Target) -> Entry:
    """Return the object of a request as it is shown. Raise 404 if it does not exist."""
    entry = machinery.store.entry(target.info.storage, target.namespace, target.name)
    if entry is None:
        raise not_found(target.info.group, target.info.plural, target.name)
    return machinery.shown(target.info, entry)


async def post(
    machinery: Machinery, request: ApiRequest, target: Target, sub: Subresource
) -> Answer:
    """Handle POST to binding, eviction or token."""
    ctx = write_context(machinery, request, target, "CREATE", "CreateOptions")
    body: Obj = decode_object(request, sub.kind).value
    check_type(body, target.info, machinery.registry, sub.name)
    if sub.how == "binding":
        return await bind(machinery, request, target, sub, body, ctx)
    if sub.how == "eviction":
        return await _evict(machinery, request, target, sub, body, ctx)
    if sub.how == "token" and sub.handler is not None:
        obj = sub.handler(body, copy_of(present(machinery, target)), ctx)
        return Answer(201, orjson.dumps(obj), warnings=ctx.warnings)
    raise method_not_allowed()


async def bind(
    machinery: Machinery,
    request: ApiRequest,
    target: Target,
    sub: Subresource,
    body: Obj,
    ctx: RequestContext,
) -> Answer:
    """Store the pod as the handler changed it. The answer is a plain Status."""
    if sub.handler is None:
        raise not_served(f"{target.info.plural}/{sub.name}")
    present(machinery, target)
    await machinery.admission.admit(target.info, "CREATE", body, None, ctx)
    _write_through(machinery, target, sub, body, ctx)
    answer = answer_status(request, success(201), 201)
    answer.warnings = ctx.warnings
    return answer


def _write_through(
    machinery: Machinery, target: Target, sub: Subresource, body: Obj, ctx: RequestContext
) -> None:
    """Store the object as the handler changed it.

    As in the real server, this bypasses the strategy.
    """
    info, store = target.info, machinery.store
    entry = store.entry(info.storage, target.namespace, target.name)
    if entry is None:
        raise not_found(info.group, info.plural, target.name)
    changed = copy_of(entry)
    assert sub.handler is not None
    sub.handler(body, changed, ctx)
    if changed != entry.obj and not ctx.is_dry_run:
        store.replace(info.storage, entry, changed, entry.managed)


async def _evict(
    machinery: Machinery,
    request: ApiRequest,
    target: Target,
    sub: Subresource,
    body: Obj,
    ctx: RequestContext,
) -> Answer:
    present(machinery, target)
    options = options_from_object(body.get("deleteOptions") or {})
    options.is_dry_run = ctx.is_dry_run = options.is_dry_run or ctx.is_dry_run
    await machinery.admission.admit(target.info, "CREATE", body, None, ctx)
    if sub.handler is not None:
        _write_through(machinery, target, sub, body, ctx)
    whole = Target(target.info, target.namespace, target.name, "")
    delete_ctx = delete_context(machinery, request, whole, options)
    await delete_object(machinery, whole, options, delete_ctx)
    return answer_status(request, success(201), 201)
